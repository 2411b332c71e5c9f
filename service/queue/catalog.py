"""Segments as consumers see them, and the catalog: one listing for all groups of a node.

A segment's id is `{node}-{seq}`, the sequence in decimal; a node's name holds no `/`.

The numbers of a node only grow and objects never change, so a listing continues after the last
known number. A deleted segment is noticed when it is found missing, and from time to time
everything is listed again. A missing number stops its node's sequence: later segments wait, and
none is ever skipped. Quarantined segments count as empty and are passed over.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from service.runtime.store_deadline import StoreAnswers, always_answering, note_end
from tailrace.coordination.groups import ConsumerGroup, GroupCursor, GroupStart
from tailrace.logstore import keys
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import Damaged, NotFound, UnsupportedVersion
from tailrace.logstore.keys import decode
from tailrace.logstore.objects.store import ObjectInfo, ObjectStore
from tailrace.logstore.runs.report import read_watermark
from tailrace.logstore.segments.file_format import quarantined_segments
from tailrace.logstore.segments.reader import read_footer

_ID = re.compile(r"(.+)-([1-9][0-9]{0,18})")


class SegmentName(NamedTuple):
    """The name of a segment: the node that cut it, and its number there."""

    node: str
    seq: int

    @property
    def id(self) -> str:
        """The name as text."""
        return f"{self.node}-{self.seq}"

    @property
    def key(self) -> str:
        """The key of the segment's object."""
        return keys.segment(self.node, self.seq)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment; `low` and `high` are ULID texts, empty without rows.

    `damage` says why the segment cannot be read.
    """

    name: SegmentName
    size: int
    etag: str
    modified_ms: int
    rows: int = 0
    low: str = ""
    high: str = ""
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class Leased:
    """A lease as it was acquired or renewed."""

    name: SegmentName
    epoch: int
    until_ms: int
    attempts: int


def parse_id(text: str) -> SegmentName:
    """The name of an id. Raises `NotFound` for a text that is no id."""
    found = _ID.fullmatch(text)
    if found is None:
        raise NotFound(f"no segment {text[:100]!r}", hint="Ids come from POST /segments/next.")
    return SegmentName(found[1], int(found[2]))


# The interval of listings from the beginning, which notice deleted segments.
RELIST_SECONDS: Final = 600.0
_FOOTERS: Final = 4096
_DAMAGED_AT_ONCE: Final = 32


class ListedObject(NamedTuple):
    """An object of the listing."""

    size: int
    etag: str
    modified_ms: int


class Upcoming(NamedTuple):
    """The next segments for a group, oldest first; `lost` names those that it can never get."""

    segments: list[Segment]
    lost: str | None


class ListedSegments:
    """The catalog of one node, for one store."""

    def __init__(
        self, store: ObjectStore, clock: Clock, answers: StoreAnswers | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self._answers = answers or always_answering()
        self._nodes: dict[str, dict[int, ListedObject]] = {}
        self._quarantined: dict[str, set[int]] = {}
        self._footers: BoundedCache[SegmentName, Segment] = BoundedCache(_FOOTERS)
        self._listing: asyncio.Task[None] | None = None
        self._began: float | None = None
        self._whole: float | None = None
        self._changed_at = float("-inf")
        self.listings = 0
        self.waiting: dict[str, str] = {}
        """Nodes whose turn has ended, and why."""

    async def within(self, seconds: float) -> None:
        """Returns when the catalog knows all that existed `seconds` ago; callers share a listing.

        Raises `StoreUnavailable`.
        """
        asked = max(self._clock.monotonic() - seconds, self._changed_at)
        while self._began is None or self._began < asked:
            if self._listing is None:
                self._listing = asyncio.ensure_future(self._list())
                self._listing.add_done_callback(note_end)  # its callers may have left
            # Background work may have begun it, without a deadline.
            await self._answers.in_turn("the segments", partial(asyncio.shield, self._listing))

    def expire(self) -> None:
        """Marks the catalog as outdated: the next caller makes a listing."""
        self._changed_at = self._clock.monotonic()

    def after(self, node: str, seq: int) -> list[tuple[int, ListedObject]]:
        """The node's known segments above `seq`, without quarantined ones."""
        quarantined, segments = self._quarantined.get(node, ()), self._nodes.get(node, {})
        found = []
        for number in reversed(segments):  # they are in order, and few are above a cursor
            if number <= seq:
                break
            if number not in quarantined:
                found.append((number, segments[number]))
        return found[::-1]

    def listed(self, name: SegmentName) -> ListedObject | None:
        """The listed segment of that name; None if it does not exist."""
        return self._nodes.get(name.node, {}).get(name.seq)

    def is_quarantined(self, name: SegmentName) -> bool:
        """Whether the segment is quarantined and counts as empty."""
        return name.seq in self._quarantined.get(name.node, ())

    @property
    def nodes(self) -> list[str]:
        """The nodes that have segments."""
        return sorted(self._nodes)

    def page(
        self, after: SegmentName | None, limit: int
    ) -> tuple[list[tuple[SegmentName, ListedObject]], bool]:
        """At most `limit` segments after one, by node and number; and whether there are more."""
        found: list[tuple[SegmentName, ListedObject]] = []
        for node in self.nodes:
            if after is not None and node < after.node:
                continue
            behind = after.seq if after is not None and node == after.node else 0
            for seq, listed in self._nodes[node].items():
                if seq <= behind:
                    continue
                if len(found) == limit:
                    return found, True
                found.append((SegmentName(node, seq), listed))
        return found, False

    async def upcoming(self, group: ConsumerGroup, count: int) -> Upcoming:
        """At most `count` segments that the group never got, oldest first, each node's in sequence.

        Includes a few damaged ones between them. Raises `StoreUnavailable`.
        """
        heads: list[tuple[str, SegmentName, Segment]] = []
        self.waiting = {}
        for node in self.nodes:
            cursor = group.cursor(node)
            head = await self._next(node, cursor.seq)
            if head is not None:
                heads.append((head.low, head.name, head))
            elif (lost := await self._lost(node, cursor)) is not None:
                return Upcoming([], lost)
        heapify(heads)
        found: list[Segment] = []
        whole = 0
        while heads and whole < count and len(found) < count + _DAMAGED_AT_ONCE:
            segment = heappop(heads)[2]
            found.append(segment)
            whole += segment.damage is None
            head = await self._next(*segment.name)
            if head is not None:
                heappush(heads, (head.low, head.name, head))
        return Upcoming(found, None)

    async def first(self, start: GroupStart) -> Mapping[str, int]:
        """For each node the number up to which segments are before a group that begins now.

        Raises `StoreUnavailable`.
        """
        await self.within(0.0)
        found: dict[str, int] = {}
        async for info in self._store.list(keys.WATERMARKS):
            node = decode(info.key.removeprefix(keys.WATERMARKS))
            if node is not None:
                found[node] = max((await read_watermark(self._store, node)).low - 1, 0)
        if start is GroupStart.NOW:
            for node, segments in self._nodes.items():
                found[node] = max(found.get(node, 0), *segments)
        return found

    async def segment(self, name: SegmentName) -> Segment | None:
        """A listed segment with its footer; None if it was removed or its node must wait.

        Raises `StoreUnavailable`.
        """
        known = self._footers.get(name)
        if known is None:
            listed = self.listed(name)
            known = None if listed is None else await self._read(name, listed)
            if known is not None:
                self._footers.put(name, known)
        return known

    # --- reading -------------------------------------------------------------------

    async def _next(self, node: str, seq: int) -> Segment | None:
        """The segment after `seq`, None if it does not exist."""
        return await self.segment(SegmentName(node, self._number(node, seq)))

    def _number(self, node: str, seq: int) -> int:
        """The number after `seq`; quarantined segments are passed over."""
        number = seq + 1
        while self.is_quarantined(SegmentName(node, number)):
            number += 1
        return number

    async def _lost(self, node: str, cursor: GroupCursor) -> str | None:
        """The reason why a missing segment will not come, None if it may."""
        number = self._number(node, cursor.seq)
        if self.listed(SegmentName(node, number)) is not None or not self.after(node, number):
            return None
        low = (await read_watermark(self._store, node)).low
        if low > number:
            return f"segments of {node} from {number} to {low - 1} were deleted"
        self.waiting.setdefault(node, f"segment {number} of {node} is missing")
        return None

    async def _read(self, name: SegmentName, listed: ListedObject) -> Segment | None:
        plain = Segment(name, listed.size, listed.etag, listed.modified_ms)
        try:
            footer = await read_footer(self._store, name.key)
        except NotFound:
            self._nodes.get(name.node, {}).pop(name.seq, None)
            self._whole = None  # deleted since: everything is listed again
            return None
        except UnsupportedVersion as error:
            self.waiting[name.node] = f"{name.id}: {error}"
            return None
        except Damaged as error:
            return Segment(*_parts(plain), damage=str(error))
        return Segment(*_parts(plain), rows=footer.rows, low=footer.low, high=footer.high)

    async def _list(self) -> None:
        began = self._clock.monotonic()
        try:
            whole = self._whole is None or began - self._whole > RELIST_SECONDS
            if whole:
                self._whole = began
            # Replaced at once: no reader may see half a listing.
            nodes = await self._list_nodes({} if whole else self._nodes)
            self._quarantined, self._nodes = await quarantined_segments(self._store), nodes
            self._began = began
            self.listings += 1
        finally:
            self._listing = None

    async def _list_nodes(
        self, known: Mapping[str, dict[int, ListedObject]]
    ) -> dict[str, dict[int, ListedObject]]:
        nodes: dict[str, dict[int, ListedObject]] = {}
        async for component in self._store.folders(keys.SEGMENTS):
            node = decode(component)
            if component.startswith(".") or node is None:
                continue
            old = known.get(node, {})
            after = keys.segment(node, next(reversed(old))) if old else ""
            found = [info async for info in self._store.list(keys.segments_of(node), after=after)]
            newer = {name.seq: _listed(info) for info in found if (name := _name(info)) is not None}
            nodes[node] = {**old, **newer} if newer else old
        return nodes


def _parts(segment: Segment) -> tuple[SegmentName, int, str, int]:
    return segment.name, segment.size, segment.etag, segment.modified_ms


def _name(info: ObjectInfo) -> SegmentName | None:
    parsed = keys.parse_segment(info.key)
    return None if parsed is None else SegmentName(*parsed)


def _listed(info: ObjectInfo) -> ListedObject:
    return ListedObject(info.size, info.etag, info.modified_ms)
