"""The segments that a search must read: those above the table's marks, found by their footers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from logstore import keys, ulid
from logstore.batch import RunKey
from logstore.objects.store import Listed, ObjectInfo, ObjectStore, is_remote
from logstore.segments.footer import Footer
from logstore.segments.reader import read_footer
from logstore.segments.schema import CARRIED, SCHEMAS
from logstore.segments.writer import EncodedSegment
from service.query.sql import PLAIN_SEGMENTS
from service.query.tiles import Tile

_REMEMBERED: Final = 4_096
_MANY_IN_BUCKET: Final = 1_000  # a page, which going on behind others costs


@dataclass(frozen=True, slots=True)
class Segment:
    """A stored segment; `low` and `high` bound its ULIDs, inclusive.

    It was cut of the positions from `first_pos` to before `end_pos`.
    """

    key: str
    uri: str
    size: int
    low: int
    high: int
    runs: tuple[RunKey, ...]
    first_pos: int
    end_pos: int
    marked: bool
    """Whether it has the column `carried`."""
    coloured: bool
    """Whether a message may have control sequences of terminals."""

    @property
    def source(self) -> str:
        """The source of a statement that reads it."""
        if not self.marked:
            return "unmarked segments"
        return "segments" if self.coloured else PLAIN_SEGMENTS

    def meets(self, tile: Tile) -> bool:
        """False only if it has no record in the tile."""
        return self.low <= tile.high and self.high >= tile.low

    def may_hold(self, fqn: str | None, run: str | None) -> bool:
        """False only if it has no record of such a run."""
        return any(fqn in (None, f) and run in (None, r) for f, r in self.runs)


class SegmentCatalog:
    """Footers by key. A key is never used again, so a footer that was read stays valid.

    For the event loop: it is not safe to ask it in threads.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, Segment] = OrderedDict()

    def known(self, key: str) -> Segment | None:
        """The segment, if it was read or noted before: nothing is to be waited for."""
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
        return known

    async def segment(self, store: ObjectStore, listed: ObjectInfo | Listed) -> Segment:
        """The segment at a listed key. Raises `Damaged`, `NotFound`, `StoreUnavailable`."""
        known = self.known(listed.key)
        if known is not None:
            return known
        size = (await store.head(listed.key)).size if listed.size is None else listed.size
        found = _segment(store, listed.key, size, await read_footer(store, listed.key, size=size))
        self._remember(found)
        return found

    def note(self, store: ObjectStore, key: str, segment: EncodedSegment) -> None:
        """Remembers a segment that this node has just put there: nobody needs to read it."""
        self._remember(_segment(store, key, len(segment.body), segment.footer))

    def _remember(self, segment: Segment) -> None:
        self._known[segment.key] = segment
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


class Above(NamedTuple):
    """What was `found` below `segments/`, of a node with many up to its mark only the first few.

    `passed` has the marks up to which was stepped over others: for a table whose marks are lower,
    those are missing.
    """

    found: list[Listed]
    passed: dict[str, int]


def list_above(store: ObjectStore, mark: Callable[[str], int]) -> Above:
    """Lists the segments of a store, and blocks.

    Segments that the table has stay for an hour, thousands of them at full load. Where it costs
    less than to list them, the list goes on behind the node's `mark`.
    """
    many = _MANY_IN_BUCKET if is_remote(store.uri(keys.TABLE)) else 1
    above, behind = Above([], {}), None
    listing = store.listed(keys.SEGMENTS)
    with suppress(StopIteration):
        while True:
            above.found.append(listing.send(behind))
            behind = None
            key = keys.parse_segment(above.found[-1].key)
            if key is not None and (known := mark(key[0])) - key[1] >= many:
                above.passed[key[0]] = known
                behind = keys.segment(key[0], known)
    return above


def above_marks(
    listed: Iterable[Listed], marks: Mapping[str, int], missing: list[str]
) -> list[Listed]:
    """The listed segments above each node's mark, without quarantined ones.

    A node's numbers have no gaps. Segments after a gap are not read: the number goes to `missing`.
    """
    found = {key: one for one in listed for key in [keys.parse_segment(one.key)] if key}
    markers = {one.key for one in listed if one.key.startswith(keys.QUARANTINE)}
    fresh = []
    expected = {node: mark + 1 for node, mark in marks.items()}
    for node, seq in sorted(found):
        if seq < expected[node]:
            continue
        if seq > expected[node]:
            gap = keys.segment(node, expected[node])
            if gap not in missing:
                missing.append(gap)
            continue
        expected[node] = seq + 1
        if keys.quarantine_marker(node, seq) not in markers:
            fresh.append(found[node, seq])
    return fresh


def _segment(store: ObjectStore, key: str, size: int, footer: Footer) -> Segment:
    # A segment without rows meets no tile.
    low, high = (ulid.decode(footer.low), ulid.decode(footer.high)) if footer.rows else (1, 0)
    runs = tuple(run.key for run in footer.runs)
    first_pos = min([first for first, _ in footer.ranges], default=0)
    end_pos = max([end for _, end in footer.ranges], default=0)
    marked = CARRIED in SCHEMAS[footer.version].names
    return Segment(
        key=key,
        uri=store.uri(key),
        size=size,
        low=low,
        high=high,
        runs=runs,
        first_pos=first_pos,
        end_pos=end_pos,
        marked=marked,
        coloured=footer.coloured,
    )
