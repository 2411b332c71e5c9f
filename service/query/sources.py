"""Pins the sources of one search (journal, segments, table) in the one order that misses nothing.

    1 pin the unflushed part    all records that were not in a confirmed segment before the request;
                                then ask the other nodes for theirs
    2 list the segments         segments that were confirmed since are in both: copies are dropped
                                later; segments that an earlier snapshot held are skipped
    3 open the snapshot         its marks say which of the listed segments it holds
    4 read                      segments above the marks, and the snapshot's files

Segments at or below a mark stay for a grace longer than any search, so a listed segment can still
be read later. If one cannot, the report names it. A quarantined segment is left out and counted. If
a segment's number is missing, the search skips all later segments of that node.

If the store does not answer within its deadline, a search finds the records that nodes hold, and
the report says that the store is missing. The same happens if the store stops answering later: the
search continues without it.

A journal batch has one time (its lines differ in the low 25 bits of the ULID only), so each batch
belongs to exactly one time range. Rows take 72 bytes a batch and are held for the length of the
search. Texts are read, encoded and released as DuckDB asks for them, however large the unflushed
part is.

Other nodes are asked after this node's journal is pinned and before segments are listed. So records
that move meanwhile are found twice and never missed. The report names a node that is silent or
holds more than one answer may have; the reply is then partial.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from service.query.request import QueryRequest, UlidRange, hour_of
from service.query.sql import PLAIN_SEGMENTS
from service.query.unflushed import Encode, JournalRecords, SearchPin
from service.runtime.store_deadline import StoreAnswers, always_answering
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.errors import Damaged, NotFound, StoreUnavailable, Unavailable
from tailrace.logstore.objects.store import ListedKey, ObjectInfo, ObjectStore, is_remote
from tailrace.logstore.search.conditions import bounds_of_ts, may_hold_in
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.file_format import (
    CARRIED,
    SCHEMAS,
    Footer,
    left_out_markers,
)
from tailrace.logstore.segments.reader import read_footer
from tailrace.logstore.segments.writer import EncodedSegment, record_batches
from tailrace.logstore.table.followed import FollowedTable
from tailrace.logstore.table.schema import RECORD_SCHEMA
from tailrace.logstore.table.snapshot import FileIndex, TableFile

# --- Segments above the table's marks, found by their footers -----------------------------------


_REMEMBERED: Final = 4_096
_MANY_IN_BUCKET: Final = 1_000  # one page: a second list from the mark costs a page, too


@dataclass(frozen=True, slots=True)
class SearchedSegment:
    """A stored segment; `low` and `high` bound its ULIDs, inclusive.

    It holds the positions from `first_pos` to before `end_pos`.
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
        """Returns the source of a statement that reads it."""
        if not self.marked:
            return "unmarked segments"
        return "segments" if self.coloured else PLAIN_SEGMENTS

    def meets(self, time_range: UlidRange) -> bool:
        """Returns false only if it has no record in the time range."""
        return self.low <= time_range.high and self.high >= time_range.low

    def may_hold(self, request: QueryRequest) -> bool:
        """Returns false only if it has no record of a run that the request asks for."""
        fqn, run, condition = request.fqn, request.run, request.condition
        return any(
            fqn in (None, key.fqn) and run in (None, key.run) and may_hold_in(condition, key)
            for key in self.runs
        )


class FooterCatalog:
    """Segments by key. A key is never used again, so a footer stays valid once it is read.

    For the event loop only: it is not thread-safe.
    """

    def __init__(self) -> None:
        self._known: BoundedCache[str, SearchedSegment] = BoundedCache(_REMEMBERED)

    def known(self, key: str) -> SearchedSegment | None:
        """Returns the segment without waiting, if its footer was read or noted before."""
        return self._known.get(key)

    async def segment(self, store: ObjectStore, listed: ObjectInfo | ListedKey) -> SearchedSegment:
        """Returns the segment at a listed key. Raises `Damaged`, `NotFound`, `StoreUnavailable`."""
        known = self.known(listed.key)
        if known is not None:
            return known
        size = (await store.head(listed.key)).size if listed.size is None else listed.size
        found = _opened_segment(
            store, listed.key, size, await read_footer(store, listed.key, size=size)
        )
        self._remember(found)
        return found

    def note(self, store: ObjectStore, key: str, segment: EncodedSegment) -> None:
        """Remembers a segment that this node has just stored, so that nobody needs to read it."""
        self._remember(_opened_segment(store, key, len(segment.body), segment.footer))

    def _remember(self, segment: SearchedSegment) -> None:
        self._known.put(segment.key, segment)


class Above(NamedTuple):
    """The keys `found` below `segments/`; of a node with many segments up to its mark, only a few.

    `passed` has the marks up to which keys were skipped: if a table has lower marks, some of its
    segments are missing in `found`.
    """

    found: list[ListedKey]
    passed: dict[str, int]


def list_above(store: ObjectStore, mark: Callable[[str], int]) -> Above:
    """Lists the segments of a store. Blocks.

    Segments that the table has stay for an hour, thousands of them at full load. If it costs less
    than to list them, the list continues after the node's `mark`.
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
    listed: Iterable[ListedKey], marks: Mapping[str, int], missing: list[str]
) -> list[ListedKey]:
    """Returns the listed segments above each node's mark, without quarantined ones.

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


def _opened_segment(store: ObjectStore, key: str, size: int, footer: Footer) -> SearchedSegment:
    # A segment without rows meets no time range.
    low, high = (ulids.decode(footer.low), ulids.decode(footer.high)) if footer.rows else (1, 0)
    runs = tuple(run.key for run in footer.runs)
    first_pos = min([first for first, _ in footer.ranges], default=0)
    end_pos = max([end for _, end in footer.ranges], default=0)
    marked = CARRIED in SCHEMAS[footer.version].names
    return SearchedSegment(
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


# --- Unflushed records of other nodes -----------------------------------------------------------


_MS = 80
_LOWEST_BITS = (1 << _MS) - 1


@dataclass(frozen=True, slots=True)
class FoundElsewhere:
    """Records of other nodes with the columns of `RECORD_SCHEMA`.

    The nodes that answered and the silent.
    """

    records: pa.Table = field(default_factory=RECORD_SCHEMA.empty_table)
    nodes: Sequence[str] = ()
    silent: Sequence[str] = ()


AskOthers = Callable[[QueryRequest], Awaitable[FoundElsewhere]]
"""Asks the other nodes for their unflushed records. Raises `Unavailable`."""


class AllJournals:
    """The journals of this node and of others as one, with the interface of `JournalRecords`."""

    def __init__(self, own: JournalRecords | AllJournals, elsewhere: pa.Table) -> None:
        self._own = own
        self._elsewhere = elsewhere.combine_chunks()

    def weights(self, bounds: UlidRange) -> Mapping[int, int]:
        """Returns bytes by hour, within the bounds.

        Remote bytes are split evenly between their first and last hour.
        """
        weights = dict(self._own.weights(bounds))
        part = self._within(bounds)
        if part.num_rows:
            ends = pc.min_max(part.column("ulid")).as_py()
            for edge in (ends["min"], ends["max"]):
                hour = hour_of(ulids.decode(edge))
                weights[hour] = weights.get(hour, 0) + part.nbytes // 2
        return weights

    def size(self, time_range: UlidRange) -> int:
        """Returns the bytes in the time range; 0 if it has no records."""
        part = self._within(time_range)
        return self._own.size(time_range) + (int(part.nbytes) if part.num_rows else 0)

    def records(self, time_range: UlidRange) -> Iterator[pa.RecordBatch]:
        """Yields records of the range's milliseconds, a slice at a time."""
        yield from self._own.records(time_range)
        yield from self._within(time_range).to_batches()

    def _within(self, time_range: UlidRange) -> pa.Table:
        if self._elsewhere.num_rows == 0:
            return self._elsewhere
        low = ulids.encode(time_range.low >> _MS << _MS)
        high = ulids.encode(time_range.high | _LOWEST_BITS)
        column = self._elsewhere.column("ulid")
        return self._elsewhere.filter(
            pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
        )


OpenSnapshot: TypeAlias = "Callable[[SearchSources, QueryRequest], Awaitable[SearchSnapshot]]"
"""Pins the sources of a search; `open_snapshot` is the usual one."""
Deletion: TypeAlias = "tuple[str, str | None, int]"
"""(fqn, run or None for the whole pipeline, highest deleted ULID)."""

STORE: Final = "the object store"
"""The entry in `missing` if the store does not answer."""
_AT_ONCE: Final = 16  # footers
LISTINGS: Final = ThreadPoolExecutor(8, thread_name_prefix="list")
"""Threads that ask the store. A silent store would block all other threads of the loop."""


@dataclass
class SearchReport:
    """What a search covers. `missing` and `unreadable` sources make it partial.

    The counted `segments` and `files` of the table may hold matches; the skipped ones cannot.
    """

    nodes: set[str] = field(default_factory=set)
    segments: int = 0
    segments_skipped: int = 0
    files: int = 0
    files_failed: int = 0
    files_skipped: int = 0
    quarantined: list[str] = field(default_factory=list)  # keys of markers
    left_out: list[str] = field(default_factory=list)  # of these, segments that nobody gave up
    missing: list[str] = field(default_factory=list)
    """Keys of segments, nodes that did not answer, and the store if that did not."""
    unreadable: dict[str, str] = field(default_factory=dict)  # key: reason

    @property
    def complete(self) -> bool:
        """Returns true if all was read, except quarantined segments that an operator gave up."""
        return self.read_all and not self.left_out

    @property
    def read_all(self) -> bool:
        """Returns true if all was read. A quarantined segment counts as empty."""
        return not (self.missing or self.unreadable)

    def counts(self) -> dict[str, int]:
        """Counts the sources that were read, that could not be read, and that were skipped."""
        # The other keys are nodes or the store; deletions or files of the table.
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
class SearchSources:
    """The sources of a node's searches: its journal, the store, the table, deletions."""

    store: ObjectStore
    table: FollowedTable
    pin: Callable[[], SearchPin]
    encode: Encode
    deletions: Callable[[], Awaitable[Sequence[Deletion]]]
    catalog: FooterCatalog
    others: AskOthers | None = None
    answers: StoreAnswers = field(default_factory=always_answering)
    known_deletions: Callable[[], Sequence[Deletion]] = tuple
    """The deletions that this node knows, without the store."""
    unreadable_deletions: Callable[[], Mapping[str, Deletion]] = dict
    """Stand-ins among these deletions for records that cannot be read, by the record's key."""


class Outdated(Unavailable):
    """The pin is released, or the table holds lines that came after it: pin again."""


class SearchSnapshot:
    """The pinned sources of one search; call `release` at its end."""

    def __init__(
        self,
        pin: SearchPin,
        unflushed: JournalRecords | AllJournals,
        segments: Iterable[SearchedSegment],
        files: FileIndex,
        deletions: Sequence[Deletion],
        report: SearchReport,
        answers: StoreAnswers | None = None,
    ) -> None:
        self._answers = answers
        self.unflushed = unflushed
        self.deletions = deletions
        self.report = report
        self._pin = pin
        self._segments = {segment.uri: segment for segment in segments}
        self._files = files
        self._left_out: set[str] = set()

    def weights(self, bounds: UlidRange) -> Mapping[int, int]:
        """Returns stored bytes by hour, which decide where time is cut into ranges."""
        weights = dict(self._files.sizes())
        for hour, size in self.unflushed.weights(bounds).items():
            weights[hour] = weights.get(hour, 0) + size
        for segment in self._segments.values():
            for edge in (segment.low, segment.high):
                hour = hour_of(edge)
                weights[hour] = weights.get(hour, 0) + segment.size // 2
        return weights

    def table_files(self, time_range: UlidRange) -> list[TableFile]:
        """Returns the table's files that may hold records of the range."""
        self._check_store()
        files = self._files.within(time_range.low, time_range.high)
        return [file for file in files if file.uri not in self._left_out]

    def segment_files(self, time_range: UlidRange) -> dict[str, list[str]]:
        """Returns the segments that may hold records of the range, by source of statements."""
        self._check_store()
        found: dict[str, list[str]] = {}
        for segment in self._segments.values():
            if segment.meets(time_range):
                found.setdefault(segment.source, []).append(segment.uri)
        return found

    def size_beside_table(self, time_range: UlidRange) -> int:
        """Returns the bytes of segments and journal that the range may have to read."""
        segments = sum(s.size for s in self._segments.values() if s.meets(time_range))
        return segments + self.unflushed.size(time_range)

    def leave_out(self, uri: str, reason: str) -> None:
        """Continues without a segment or a file of the table; the report names it."""
        segment = self._segments.pop(uri, None)
        if segment is not None:
            self.report.unreadable[segment.key] = reason
        elif uri not in self._left_out:
            self._left_out.add(uri)
            self.report.files_failed += 1
            self.report.unreadable[uri[uri.rindex(f"/{keys.TABLE}/") + 1 :]] = reason

    def leave_out_store(self) -> bool:
        """Continues with the lines that nodes hold; false if the store was left out before."""
        if STORE in self.report.missing:
            return False
        self._segments, self._files = {}, FileIndex({})
        self.report.missing.append(STORE)
        return True

    def _check_store(self) -> None:
        """Leaves out the store's sources as soon as the store is known not to answer."""
        reads_store = bool(self._segments) or self._files.count > 0
        if reads_store and self._answers is not None and self._answers.silent:
            self.leave_out_store()

    def release(self) -> None:
        """Releases the journal's files."""
        self._pin.release()


async def open_snapshot(sources: SearchSources, request: QueryRequest) -> SearchSnapshot:
    """Pins, lists, opens, in this order; without the store if it does not answer."""
    pin = sources.pin()
    try:
        found = None if sources.others is None else await sources.others(request)
        try:
            snapshot = await _open(sources, request, pin, None)
        except StoreUnavailable:
            snapshot = held_snapshot(sources, request, pin)
    except BaseException:
        pin.release()
        raise
    if found is None:
        return snapshot
    snapshot.report.nodes.update(found.nodes)
    snapshot.report.missing += [f"records of the node {node}" for node in found.silent]
    if found.records.num_rows:
        snapshot.unflushed = AllJournals(snapshot.unflushed, found.records)
    return snapshot


def held_snapshot(sources: SearchSources, request: QueryRequest, pin: SearchPin) -> SearchSnapshot:
    """Returns a snapshot of all that the journal holds, also of records that are stored by now."""
    unflushed = JournalRecords(
        pin,
        lambda batches: record_batches(batches, Carry()),
        request.bounds,
        request.fqn,
        request.run,
        since=0,
        condition=request.condition,
    )
    report = SearchReport(nodes={pin.node}, missing=[STORE])
    _say_unreadable(sources, request, report)
    deletions = [d for d in sources.known_deletions() if _concerns(d, request)]
    return SearchSnapshot(pin, unflushed, (), FileIndex({}), deletions, report)


async def open_pinned(
    sources: SearchSources,
    request: QueryRequest,
    pin: SearchPin,
    through: Mapping[str, int] | None = None,
) -> SearchSnapshot:
    """Lists and opens after a pin, which the snapshot releases. Raises as `open_snapshot`.

    Of a node in `through` no segment above that number is read.
    """
    try:
        return await _open(sources, request, pin, through)
    except BaseException:
        pin.release()
        raise


async def _open(
    sources: SearchSources, request: QueryRequest, pin: SearchPin, through: Mapping[str, int] | None
) -> SearchSnapshot:
    report, bounds = SearchReport(nodes={pin.node}), through or {}
    listing = partial(_looked_up, sources, request, pin, bounds)
    while True:
        seen = await sources.answers.blocking(LISTINGS, listing)
        if seen.whole:
            break  # otherwise it is another table, and holds less
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
    return SearchSnapshot(pin, seen.unflushed, segments, files, deletions, report, sources.answers)


@dataclass(frozen=True, slots=True)
class _ListedSources:
    """The listed segments of these nodes, and the table, which was opened after the list.

    `fresh` are the segments above the table's marks. Files of the table are `skipped` if they
    cannot hold matches. `whole`: the table has all segments that the list skipped.
    """

    fresh: Sequence[ListedKey]
    quarantined: list[str]
    left_out: list[str]
    missing: list[str]
    nodes: set[str]
    marks: Mapping[str, int]
    whole: bool
    files: FileIndex
    skipped: int
    unflushed: JournalRecords


def _looked_up(
    sources: SearchSources, request: QueryRequest, pin: SearchPin, bounds: Mapping[str, int]
) -> _ListedSources:
    """Lists the segments, then opens the table."""
    above = list_above(sources.store, sources.table.known_mark)
    listed = (
        [one for one in above.found if not _is_above(one.key, bounds)] if bounds else above.found
    )
    nodes = {key[0] for one in listed if (key := keys.parse_segment(one.key))}
    unflushed = JournalRecords(
        pin,
        sources.encode,
        request.bounds,
        request.fqn,
        request.run,
        condition=request.condition,
    )
    version = sources.table.newest()
    # For nodes in `through`, the table may be ahead of that number.
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
    return _ListedSources(
        fresh, quarantined, left_out, missing, nodes, marks, whole, files, skipped, unflushed
    )


def _is_above(key: str, bounds: Mapping[str, int]) -> bool:
    found = keys.parse_segment(key)
    return found is not None and found[1] > bounds.get(found[0], found[1])


async def _segments(
    sources: SearchSources, fresh: Sequence[ListedKey], request: QueryRequest, report: SearchReport
) -> list[SearchedSegment]:
    """Returns the segments that may hold matches, by their footers, most of which are cached."""
    segments = [sources.catalog.known(one.key) for one in fresh]
    unread = [number for number, segment in enumerate(segments) if segment is None]
    for few in (unread[i : i + _AT_ONCE] for i in range(0, len(unread), _AT_ONCE)):
        read = await asyncio.gather(
            *(_listed_segment(sources, fresh[number], report) for number in few)
        )
        for number, segment in zip(few, read, strict=True):
            segments[number] = segment
    found = [segment for segment in segments if segment is not None]
    kept = [s for s in found if s.meets(request.bounds) and s.may_hold(request)]
    report.segments_skipped = len(found) - len(kept)
    return kept


async def _listed_segment(
    sources: SearchSources, listed: ListedKey, report: SearchReport
) -> SearchedSegment | None:
    try:
        return await sources.catalog.segment(sources.store, listed)
    except NotFound:
        report.missing.append(listed.key)
    except Damaged as error:
        report.unreadable[listed.key] = str(error)
    return None


def _say_unreadable(sources: SearchSources, request: QueryRequest, report: SearchReport) -> None:
    """Reports lines that are left out because it is unknown whether they are deleted."""
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


# --- Deletions in statements --------------------------------------------------------------------
#
# A deletion covers all lines of a run, or of a pipeline, up to some ULID. A few deletions become
# terms of the WHERE clause. Many need a join, which stands between the scan and its Top-N: DuckDB
# then reads all columns of all rows, where it would otherwise read the keys, and the other columns
# only of the rows in the result. So deletions that end before the range begins are left out, too;
# few deletions touch the newest lines.


MOST_TERMS: Final = 64  # 16 terms take a tenth of the time of a join, 200 half
_JOINED: Final = (
    " AND NOT EXISTS (SELECT 1 FROM deleted_runs d"
    " WHERE d.fqn = r.fqn AND d.run_id = r.run_id AND r.ulid <= d.t)"
    " AND NOT EXISTS (SELECT 1 FROM deleted_pipelines d WHERE d.fqn = r.fqn AND r.ulid <= d.t)"
)


class Live(NamedTuple):
    """A condition that follows the other terms, its parameters, and the tables it needs by name."""

    terms: str
    parameters: dict[str, Any]
    tables: Mapping[str, pa.Table]


def live(deletions: Sequence[Deletion], time_range: UlidRange) -> Live:
    """Returns the condition that records of the range are not deleted; `r` names the records."""
    near = [deletion for deletion in deletions if deletion[2] >= time_range.low]
    if len(near) > MOST_TERMS:
        return Live(_JOINED, {}, _tables(near))
    terms: list[str] = []
    parameters: dict[str, Any] = {}
    for number, (fqn, run, t) in enumerate(near):
        names = {"fqn": fqn} | ({} if run is None else {"run_id": run})
        equal = [f"r.{column} = $d{number}_{column}" for column in names]
        terms.append(f" AND NOT ({' AND '.join(equal)} AND r.ulid <= $d{number}_t)")
        parameters |= {f"d{number}_{column}": value for column, value in names.items()}
        parameters[f"d{number}_t"] = ulids.encode(t)
    return Live("".join(terms), parameters, {})


def _tables(deletions: Sequence[Deletion]) -> Mapping[str, pa.Table]:
    runs = [(fqn, run, ulids.encode(t)) for fqn, run, t in deletions if run is not None]
    pipelines = [(fqn, ulids.encode(t)) for fqn, run, t in deletions if run is None]
    return {
        "deleted_runs": _table(("fqn", "run_id", "t"), runs),
        "deleted_pipelines": _table(("fqn", "t"), pipelines),
    }


def _table(names: Sequence[str], rows: Sequence[tuple[str, ...]]) -> pa.Table:
    columns = [pa.array([row[at] for row in rows], pa.string()) for at in range(len(names))]
    return pa.table(columns, names=list(names))
