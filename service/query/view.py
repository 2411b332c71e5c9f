"""What a search reads, pinned in the one order that misses nothing.

    1 pin the hot part      all that was not in a confirmed segment before the request, and ask
                            the other nodes for theirs
    2 list the segments     what was confirmed since is in both: copies are dropped later; what an
                            earlier snapshot held already is stepped over
    3 open the snapshot     its marks say which of the listed segments it holds
    4 read                  segments above the marks, and the snapshot's files

Segments at or below a mark stay for a grace longer than any search, so what was listed
is there when it is read; if one is not, the report says so. A segment that was set
aside is left out and counted. Behind a missing number nothing is read of that node.

If the store does not answer within its deadline, a search finds what the nodes hold, and the report
says that the store is missing. The same if it falls silent later: the search goes on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from logstore import keys
from logstore.errors import Damaged, NotFound, StoreUnavailable, Unavailable
from logstore.objects.store import Listed, ObjectStore
from logstore.search.conditions import bounds_of_ts
from logstore.segments.carry import Carry
from logstore.segments.columns import record_batches
from logstore.segments.quarantine import left_out_markers
from logstore.table.file_index import FileIndex
from logstore.table.followed import FollowedTable
from logstore.table.snapshot import TableFile
from service.query.elsewhere import AskOthers, HotOfAll
from service.query.hot import Encode, HotRecords, Pin
from service.query.request import QueryRequest
from service.query.segments import Segment, SegmentCatalog, above_marks, list_above
from service.query.tiles import Tile, hour_of
from service.runtime.store_deadline import StoreAnswers, always_answering

Look: TypeAlias = "Callable[[Sources, QueryRequest], Awaitable[View]]"
"""Pins what a search reads; `open_view` is the usual one."""
Deletion: TypeAlias = "tuple[str, str | None, int]"
"""(fqn, run or None for the whole pipeline, highest deleted ULID)."""

STORE: Final = "the object store"
"""What is `missing` of a search if the store does not answer."""
_AT_ONCE: Final = 16  # footers
LOOKS: Final = ThreadPoolExecutor(8, thread_name_prefix="look")
"""Threads that ask the store. A store that says nothing would hold up all others of the loop."""


@dataclass
class Report:
    """What a search covers; what is `missing` or `unreadable` makes it partial.

    `segments` and `files` of the table may hold something that is wanted, the skipped ones cannot.
    """

    nodes: set[str] = field(default_factory=set)
    segments: int = 0
    segments_skipped: int = 0
    files: int = 0
    files_failed: int = 0
    files_skipped: int = 0
    quarantined: list[str] = field(default_factory=list)  # keys of markers
    left_out: list[str] = field(default_factory=list)  # of these, those that nobody gave up
    missing: list[str] = field(default_factory=list)
    """Keys of segments, nodes that did not answer, and the store if that did not."""
    unreadable: dict[str, str] = field(default_factory=dict)  # key: reason

    @property
    def complete(self) -> bool:
        """Whether all was read, and no damaged segment is left out that nobody gave up."""
        return self.read_all and not self.left_out

    @property
    def read_all(self) -> bool:
        """Whether all was read. A quarantined segment counts as empty."""
        return not (self.missing or self.unreadable)

    def counts(self) -> dict[str, int]:
        """How much was asked, could not be read, and needed not to be asked."""
        # Else nodes, or all; deletions, or files of the table.
        failed = [*self.missing, *self.unreadable]
        return {
            "nodes": len(self.nodes),
            "segments": self.segments,
            "segments_failed": sum(key.startswith(keys.SEGMENTS) for key in failed),
            "segments_skipped": self.segments_skipped,
            "files": self.files,
            "files_failed": self.files_failed,
            "files_skipped": self.files_skipped,
        }


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a node's searches look: its journal, the store, the table, deletions."""

    store: ObjectStore
    table: FollowedTable
    pin: Callable[[], Pin]
    encode: Encode
    deletions: Callable[[], Awaitable[Sequence[Deletion]]]
    catalog: SegmentCatalog
    others: AskOthers | None = None
    answers: StoreAnswers = field(default_factory=always_answering)
    known_deletions: Callable[[], Sequence[Deletion]] = tuple
    """The deletions that this node knows, without the store."""
    unreadable_deletions: Callable[[], Mapping[str, Deletion]] = dict
    """Of these, what stands for a record that cannot be read, by its key."""


class Outdated(Unavailable):
    """The pin is not held any more, or the table holds lines that came after it: pin again."""


class View:
    """The pinned sources of one search; `release` it."""

    def __init__(
        self,
        pin: Pin,
        hot: HotRecords | HotOfAll,
        segments: Iterable[Segment],
        files: FileIndex,
        deletions: Sequence[Deletion],
        report: Report,
        answers: StoreAnswers | None = None,
    ) -> None:
        self._answers = answers
        self.hot = hot
        self.deletions = deletions
        self.report = report
        self._pin = pin
        self._segments = {segment.uri: segment for segment in segments}
        self._files = files
        self._left_out: set[str] = set()

    def weights(self, bounds: Tile) -> Mapping[int, int]:
        """Stored bytes by hour: where tiles are cut."""
        weights = dict(self._files.sizes())
        for hour, size in self.hot.weights(bounds).items():
            weights[hour] = weights.get(hour, 0) + size
        for segment in self._segments.values():
            for edge in (segment.low, segment.high):
                hour = hour_of(edge)
                weights[hour] = weights.get(hour, 0) + segment.size // 2
        return weights

    def table_files(self, tile: Tile) -> list[TableFile]:
        """Files of the table that may hold records of the tile."""
        self._check_store()
        files = self._files.within(tile.low, tile.high)
        return [file for file in files if file.uri not in self._left_out]

    def segment_files(self, tile: Tile) -> dict[str, list[str]]:
        """Segments that may hold records of the tile, by the source of statements that they are."""
        self._check_store()
        found: dict[str, list[str]] = {}
        for segment in self._segments.values():
            if segment.meets(tile):
                found.setdefault(segment.source, []).append(segment.uri)
        return found

    def size_beside_table(self, tile: Tile) -> int:
        """Bytes that the tile may have to read of segments and journal."""
        segments = sum(s.size for s in self._segments.values() if s.meets(tile))
        return segments + self.hot.size(tile)

    def leave_out(self, uri: str, reason: str) -> None:
        """Goes on without a segment or a file of the table, and says so in the report."""
        segment = self._segments.pop(uri, None)
        if segment is not None:
            self.report.unreadable[segment.key] = reason
        elif uri not in self._left_out:
            self._left_out.add(uri)
            self.report.files_failed += 1
            self.report.unreadable[uri[uri.rindex(f"/{keys.TABLE}/") + 1 :]] = reason

    def leave_out_store(self) -> bool:
        """Goes on with the lines that nodes hold; whether there was anything else to read."""
        if STORE in self.report.missing:
            return False
        self._segments, self._files = {}, FileIndex({})
        self.report.missing.append(STORE)
        return True

    def _check_store(self) -> None:
        """Leaves out what is in the store as soon as that is known not to answer."""
        reads_store = bool(self._segments) or self._files.count > 0
        if reads_store and self._answers is not None and self._answers.silent:
            self.leave_out_store()

    def release(self) -> None:
        """Lets the journal's files go."""
        self._pin.release()


async def open_view(sources: Sources, request: QueryRequest) -> View:
    """Pins, lists, opens, in this order; without the store if that does not answer."""
    pin = sources.pin()
    try:
        found = None if sources.others is None else await sources.others(request)
        try:
            view = await _open(sources, request, pin, None)
        except StoreUnavailable:
            view = held_view(sources, request, pin)
    except BaseException:
        pin.release()
        raise
    if found is None:
        return view
    view.report.nodes.update(found.nodes)
    view.report.missing += [f"records of the node {node}" for node in found.silent]
    if found.records.num_rows:
        view.hot = HotOfAll(view.hot, found.records)
    return view


def held_view(sources: Sources, request: QueryRequest, pin: Pin) -> View:
    """All that the journal holds, also what is in the store by now."""
    hot = HotRecords(
        pin,
        lambda batches: record_batches(batches, Carry()),
        request.bounds,
        request.fqn,
        request.run,
        since=0,
    )
    report = Report(nodes={pin.node}, missing=[STORE])
    _say_unreadable(sources, request, report)
    deletions = [d for d in sources.known_deletions() if _concerns(d, request)]
    return View(pin, hot, (), FileIndex({}), deletions, report)


async def open_pinned(
    sources: Sources, request: QueryRequest, pin: Pin, through: Mapping[str, int] | None = None
) -> View:
    """Lists and opens behind a pin, which the view releases. Raises as `open_view`.

    Of a node in `through` no segment above that number is read.
    """
    try:
        return await _open(sources, request, pin, through)
    except BaseException:
        pin.release()
        raise


async def _open(
    sources: Sources, request: QueryRequest, pin: Pin, through: Mapping[str, int] | None
) -> View:
    report, bounds = Report(nodes={pin.node}), through or {}
    look = partial(_looked_up, sources, request, pin, bounds)
    while True:
        seen = await sources.answers.blocking(LOOKS, look)
        if seen.whole:
            break  # else it is another table, and holds less
    files = seen.files
    report.nodes |= seen.nodes
    for node, seq in bounds.items():
        if seen.marks.get(node, 0) > seq:
            raise Outdated(f"the table is beyond segment {seq} of {node}")
    report.quarantined, report.left_out = seen.quarantined, seen.left_out
    report.missing = seen.missing
    segments = await _segments(sources, seen.fresh, request, report)
    deletions = [d for d in await sources.deletions() if _concerns(d, request)]
    _say_unreadable(sources, request, report)
    report.segments, report.files, report.files_skipped = len(segments), files.count, seen.skipped
    return View(pin, seen.hot, segments, files, deletions, report, sources.answers)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The segments listed, by these nodes, and what the table, opened after that, has.

    `fresh` are those above its marks. Of its files some were `skipped`, since they cannot hold
    what is asked for. `whole`: it has all segments that were stepped over.
    """

    fresh: Sequence[Listed]
    quarantined: list[str]
    left_out: list[str]
    missing: list[str]
    nodes: set[str]
    marks: Mapping[str, int]
    whole: bool
    files: FileIndex
    skipped: int
    hot: HotRecords


def _looked_up(
    sources: Sources, request: QueryRequest, pin: Pin, bounds: Mapping[str, int]
) -> _Seen:
    """Lists, and opens the table behind that."""
    above = list_above(sources.store, sources.table.known_mark)
    listed = (
        [one for one in above.found if not _is_above(one.key, bounds)] if bounds else above.found
    )
    nodes = {key[0] for one in listed if (key := keys.parse_segment(one.key))}
    hot = HotRecords(pin, sources.encode, request.bounds, request.fqn, request.run)
    version = sources.table.newest()
    # Of nodes in a `through` the table may be ahead.
    marks = version.marks(sorted({pin.node, *nodes, *bounds, *above.passed}))
    whole = all(marks[node] >= mark for node, mark in above.passed.items())
    aside = [one.key for one in listed if one.key.startswith(keys.QUARANTINE)]
    quarantined = [key for key in aside if not key.endswith(keys.GIVEN_UP_SUFFIX)]
    missing: list[str] = []
    fresh = above_marks(listed, marks, missing)
    times = bounds_of_ts(request.condition)
    files = version.files.select(request.low, request.high, request.fqn, request.run, times)
    skipped = version.files.count - files.count
    left_out = left_out_markers(aside)
    return _Seen(fresh, quarantined, left_out, missing, nodes, marks, whole, files, skipped, hot)


def _is_above(key: str, bounds: Mapping[str, int]) -> bool:
    found = keys.parse_segment(key)
    return found is not None and found[1] > bounds.get(found[0], found[1])


async def _segments(
    sources: Sources, fresh: Sequence[Listed], request: QueryRequest, report: Report
) -> list[Segment]:
    """The segments that may hold something, by their footers, of which most are known."""
    segments = [sources.catalog.known(one.key) for one in fresh]
    unread = [number for number, segment in enumerate(segments) if segment is None]
    for few in (unread[i : i + _AT_ONCE] for i in range(0, len(unread), _AT_ONCE)):
        read = await asyncio.gather(*(_segment(sources, fresh[number], report) for number in few))
        for number, segment in zip(few, read, strict=True):
            segments[number] = segment
    found = [segment for segment in segments if segment is not None]
    kept = [s for s in found if s.meets(request.bounds) and s.may_hold(request.fqn, request.run)]
    report.segments_skipped = len(found) - len(kept)
    return kept


async def _segment(sources: Sources, listed: Listed, report: Report) -> Segment | None:
    try:
        return await sources.catalog.segment(sources.store, listed)
    except NotFound:
        report.missing.append(listed.key)
    except Damaged as error:
        report.unreadable[listed.key] = str(error)
    return None


def _say_unreadable(sources: Sources, request: QueryRequest, report: Report) -> None:
    """Says which lines are left out because nobody knows whether they are deleted."""
    for key, deletion in sources.unreadable_deletions().items():
        if _concerns(deletion, request):
            owner = " / ".join(one for one in deletion[:2] if one is not None)
            report.unreadable[key] = f"the lines of {owner} are left out: {key} cannot be read"


def _concerns(deletion: Deletion, request: QueryRequest) -> bool:
    fqn, run, t = deletion
    return (
        t >= request.low
        and request.fqn in (None, fqn)
        and (run is None or request.run in (None, run))
    )
