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
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.query.request import HOUR_MS, QueryRequest, UlidRange, hour_of
from service.query.sql import PLAIN_SEGMENTS
from service.runtime.store_deadline import StoreAnswers, always_answering
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import Batches, Indexes, RecordMeta, Rows, RunKey
from tailrace.logstore.errors import Damaged, NotFound, StoreUnavailable, Unavailable
from tailrace.logstore.objects.store import ListedKey, ObjectInfo, ObjectStore, is_remote
from tailrace.logstore.search.conditions import bounds_of_ts
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.file_format import (
    CARRIED,
    SCHEMAS,
    Footer,
    left_out_markers,
    times_ms,
)
from tailrace.logstore.segments.reader import read_footer
from tailrace.logstore.segments.writer import EncodedSegment, record_batches
from tailrace.logstore.table.followed import FollowedTable
from tailrace.logstore.table.schema import COLUMNS, PARTITIONS
from tailrace.logstore.table.snapshot import FileIndex, TableFile

# The segments that a search must read: those above the table's marks, found by their footers.


_REMEMBERED: Final = 4_096
_MANY_IN_BUCKET: Final = 1_000  # a page, which going on behind others costs


@dataclass(frozen=True, slots=True)
class SearchedSegment:
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

    def meets(self, tile: UlidRange) -> bool:
        """False only if it has no record in the tile."""
        return self.low <= tile.high and self.high >= tile.low

    def may_hold(self, fqn: str | None, run: str | None) -> bool:
        """False only if it has no record of such a run."""
        return any(fqn in (None, f) and run in (None, r) for f, r in self.runs)


class FooterCatalog:
    """Footers by key. A key is never used again, so a footer that was read stays valid.

    For the event loop: it is not safe to ask it in threads.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, SearchedSegment] = OrderedDict()

    def known(self, key: str) -> SearchedSegment | None:
        """The segment, if it was read or noted before: nothing is to be waited for."""
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
        return known

    async def segment(self, store: ObjectStore, listed: ObjectInfo | ListedKey) -> SearchedSegment:
        """The segment at a listed key. Raises `Damaged`, `NotFound`, `StoreUnavailable`."""
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
        """Remembers a segment that this node has just put there: nobody needs to read it."""
        self._remember(_opened_segment(store, key, len(segment.body), segment.footer))

    def _remember(self, segment: SearchedSegment) -> None:
        self._known[segment.key] = segment
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


class Above(NamedTuple):
    """What was `found` below `segments/`, of a node with many up to its mark only the first few.

    `passed` has the marks up to which was stepped over others: for a table whose marks are lower,
    those are missing.
    """

    found: list[ListedKey]
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
    listed: Iterable[ListedKey], marks: Mapping[str, int], missing: list[str]
) -> list[ListedKey]:
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


def _opened_segment(store: ObjectStore, key: str, size: int, footer: Footer) -> SearchedSegment:
    # A segment without rows meets no tile.
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


# The journal's part of a search: pinned batches, by time, as a stream of Arrow.
#
# A batch has one time (its lines differ in the low 25 bits of the ULID only), so each belongs to
# exactly one tile. Rows are 72 bytes a batch and are held for the length of the search; texts are
# read, encoded and let go as DuckDB asks for them, whatever the hot part's size.


SCHEMA: Final = pa.schema([field for field in COLUMNS if field.name not in PARTITIONS])


class SearchPin(Protocol):
    """The hot part of a node at one moment; its files stay until `release`."""

    @property
    def node(self) -> str:
        """The node."""
        ...

    @property
    def confirmed_pos(self) -> int:
        """All below it is in confirmed segments."""
        ...

    def batches(
        self,
        *,
        run: RunKey | None = None,
        start: int = 0,
        end: int | None = None,
        times: tuple[int, int] | None = None,
    ) -> Batches:
        """Batches that begin in [`start`, `end`), of one run or of all, and of these times.

        These are the milliseconds of their ULIDs, the first and the last.
        """
        ...

    def release(self) -> None:
        """Lets the files go."""
        ...


Encode = Callable[[Batches], Iterator[pa.RecordBatch]]
"""Records of batches with at least the columns of `SCHEMA`."""


@dataclass(frozen=True, slots=True)
class Selected:
    """Some rows of batches, as batches."""

    base: Batches
    indexes: Indexes
    rows: Rows

    @property
    def node(self) -> str:
        return self.base.node

    @property
    def runs(self) -> list[RunKey]:
        return list(self.base.runs)

    @property
    def connectors(self) -> list[str | None]:
        return list(self.base.connectors)

    def text(self, indexes: Indexes) -> bytes:
        return self.base.text(self.indexes[indexes])

    def slice(self, index: int, low: int, high: int) -> bytes:
        return self.base.slice(int(self.indexes[index]), low, high)

    def meta(self, index: int) -> RecordMeta | None:
        return self.base.meta(int(self.indexes[index]))

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:
        return self.base.constant_attributes(int(self.indexes[index]))


class HotRecords:
    """What the journal held beyond its confirmed segments when it was pinned, within `bounds`.

    Or from the position `since` on, if that is given.

    With `start`, of the runs that have records at or above this position; what these runs had
    before comes as well, since a line that names no level has that of the line before.
    """

    def __init__(
        self,
        pin: SearchPin,
        encode: Encode,
        bounds: UlidRange,
        fqn: str | None,
        run: str | None,
        start: int = 0,
        since: int | None = None,
    ) -> None:
        since = pin.confirmed_pos if since is None else since
        exact = RunKey(fqn, run) if fqn is not None and run is not None else None
        times = (ulids.time_ms(bounds.low), ulids.time_ms(bounds.high))
        self._batches = pin.batches(run=exact, start=since, times=times)
        self._encode = encode
        rows = self._batches.rows
        wanted = np.array(
            [fqn in (None, k.fqn) and run in (None, k.run) for k in self._batches.runs], np.bool_
        )
        self._kept = np.arange(len(rows)) if wanted.all() else np.flatnonzero(wanted[rows["run"]])
        self._times = times_ms(rows)[self._kept]
        self._has_new = (rows["pos"] + rows["records"])[self._kept] > start

    def weights(self, bounds: UlidRange) -> Mapping[int, int]:
        """Bytes of text by hour, within the bounds."""
        chosen = self._within(bounds)
        hours = self._times[chosen] // HOUR_MS
        sizes = self._batches.rows["size"][self._kept[chosen]]
        found, places = np.unique(hours, return_inverse=True)
        totals = np.bincount(places, weights=sizes, minlength=len(found))
        return {int(h): int(t) for h, t in zip(found, totals, strict=True)}

    def size(self, tile: UlidRange) -> int:
        """Bytes of text in the tile; 0 if there is nothing."""
        return int(self._batches.rows["size"][self._kept[self._within(tile)]].sum())

    def records(self, tile: UlidRange) -> Iterator[pa.RecordBatch]:
        """Records of the tile's milliseconds, a slice at a time."""
        indexes = self._kept[self._within(tile)]
        part = Selected(self._batches, indexes, self._batches.rows[indexes])
        for batch in self._encode(part):
            yield batch.select(SCHEMA.names).cast(SCHEMA)

    def _within(self, tile: UlidRange) -> Indexes:
        low, high = ulids.time_ms(tile.low), ulids.time_ms(tile.high)
        within = (self._times >= low) & (self._times <= high)
        if not self._has_new.all():
            runs = self._batches.rows["run"][self._kept]
            within &= np.isin(runs, runs[within & self._has_new])
        return np.flatnonzero(within)


# What other nodes hold of a search: records of their journals that are in no confirmed segment.
#
# They are asked after this node's journal is pinned and before segments are listed, so records
# that move meanwhile are found twice and never missed. A node that is silent, or holds more than
# one answer may have, is named in the report, and the reply is partial.


_MS = 80
_LOWEST_BITS = (1 << _MS) - 1


@dataclass(frozen=True, slots=True)
class FoundElsewhere:
    """Records of other nodes with the columns of `SCHEMA`; who has answered, and who is silent."""

    records: pa.Table = field(default_factory=SCHEMA.empty_table)
    nodes: Sequence[str] = ()
    silent: Sequence[str] = ()


AskOthers = Callable[[QueryRequest], Awaitable[FoundElsewhere]]
"""Asks the other nodes for what they hold. Raises `Unavailable`."""


class HotOfAll:
    """The journals of this node and of others as one, like `HotRecords`."""

    def __init__(self, own: HotRecords | HotOfAll, elsewhere: pa.Table) -> None:
        self._own = own
        self._elsewhere = elsewhere.combine_chunks()

    def weights(self, bounds: UlidRange) -> Mapping[int, int]:
        """Bytes by hour, within the bounds; of other nodes half each at both ends of their time."""
        weights = dict(self._own.weights(bounds))
        part = self._within(bounds)
        if part.num_rows:
            ends = pc.min_max(part.column("ulid")).as_py()
            for edge in (ends["min"], ends["max"]):
                hour = hour_of(ulids.decode(edge))
                weights[hour] = weights.get(hour, 0) + part.nbytes // 2
        return weights

    def size(self, tile: UlidRange) -> int:
        """Bytes in the tile; 0 if there is nothing."""
        part = self._within(tile)
        return self._own.size(tile) + (int(part.nbytes) if part.num_rows else 0)

    def records(self, tile: UlidRange) -> Iterator[pa.RecordBatch]:
        """Records of the tile's milliseconds, a slice at a time."""
        yield from self._own.records(tile)
        yield from self._within(tile).to_batches()

    def _within(self, tile: UlidRange) -> pa.Table:
        if self._elsewhere.num_rows == 0:
            return self._elsewhere
        low = ulids.encode(tile.low >> _MS << _MS)
        high = ulids.encode(tile.high | _LOWEST_BITS)
        column = self._elsewhere.column("ulid")
        return self._elsewhere.filter(
            pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
        )


Look: TypeAlias = "Callable[[SearchSources, QueryRequest], Awaitable[View]]"
"""Pins what a search reads; `open_view` is the usual one."""
Deletion: TypeAlias = "tuple[str, str | None, int]"
"""(fqn, run or None for the whole pipeline, highest deleted ULID)."""

STORE: Final = "the object store"
"""What is `missing` of a search if the store does not answer."""
_AT_ONCE: Final = 16  # footers
LOOKS: Final = ThreadPoolExecutor(8, thread_name_prefix="look")
"""Threads that ask the store. A store that says nothing would hold up all others of the loop."""


@dataclass
class SearchReport:
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
class SearchSources:
    """Where a node's searches look: its journal, the store, the table, deletions."""

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
    """Of these, what stands for a record that cannot be read, by its key."""


class Outdated(Unavailable):
    """The pin is not held any more, or the table holds lines that came after it: pin again."""


class View:
    """The pinned sources of one search; `release` it."""

    def __init__(
        self,
        pin: SearchPin,
        hot: HotRecords | HotOfAll,
        segments: Iterable[SearchedSegment],
        files: FileIndex,
        deletions: Sequence[Deletion],
        report: SearchReport,
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

    def weights(self, bounds: UlidRange) -> Mapping[int, int]:
        """Stored bytes by hour: where tiles are cut."""
        weights = dict(self._files.sizes())
        for hour, size in self.hot.weights(bounds).items():
            weights[hour] = weights.get(hour, 0) + size
        for segment in self._segments.values():
            for edge in (segment.low, segment.high):
                hour = hour_of(edge)
                weights[hour] = weights.get(hour, 0) + segment.size // 2
        return weights

    def table_files(self, tile: UlidRange) -> list[TableFile]:
        """Files of the table that may hold records of the tile."""
        self._check_store()
        files = self._files.within(tile.low, tile.high)
        return [file for file in files if file.uri not in self._left_out]

    def segment_files(self, tile: UlidRange) -> dict[str, list[str]]:
        """Segments that may hold records of the tile, by the source of statements that they are."""
        self._check_store()
        found: dict[str, list[str]] = {}
        for segment in self._segments.values():
            if segment.meets(tile):
                found.setdefault(segment.source, []).append(segment.uri)
        return found

    def size_beside_table(self, tile: UlidRange) -> int:
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


async def open_view(sources: SearchSources, request: QueryRequest) -> View:
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


def held_view(sources: SearchSources, request: QueryRequest, pin: SearchPin) -> View:
    """All that the journal holds, also what is in the store by now."""
    hot = HotRecords(
        pin,
        lambda batches: record_batches(batches, Carry()),
        request.bounds,
        request.fqn,
        request.run,
        since=0,
    )
    report = SearchReport(nodes={pin.node}, missing=[STORE])
    _say_unreadable(sources, request, report)
    deletions = [d for d in sources.known_deletions() if _concerns(d, request)]
    return View(pin, hot, (), FileIndex({}), deletions, report)


async def open_pinned(
    sources: SearchSources,
    request: QueryRequest,
    pin: SearchPin,
    through: Mapping[str, int] | None = None,
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
    sources: SearchSources, request: QueryRequest, pin: SearchPin, through: Mapping[str, int] | None
) -> View:
    report, bounds = SearchReport(nodes={pin.node}), through or {}
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
class _ListedSources:
    """The segments listed, by these nodes, and what the table, opened after that, has.

    `fresh` are those above its marks. Of its files some were `skipped`, since they cannot hold
    what is asked for. `whole`: it has all segments that were stepped over.
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
    hot: HotRecords


def _looked_up(
    sources: SearchSources, request: QueryRequest, pin: SearchPin, bounds: Mapping[str, int]
) -> _ListedSources:
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
    return _ListedSources(
        fresh, quarantined, left_out, missing, nodes, marks, whole, files, skipped, hot
    )


def _is_above(key: str, bounds: Mapping[str, int]) -> bool:
    found = keys.parse_segment(key)
    return found is not None and found[1] > bounds.get(found[0], found[1])


async def _segments(
    sources: SearchSources, fresh: Sequence[ListedKey], request: QueryRequest, report: SearchReport
) -> list[SearchedSegment]:
    """The segments that may hold something, by their footers, of which most are known."""
    segments = [sources.catalog.known(one.key) for one in fresh]
    unread = [number for number, segment in enumerate(segments) if segment is None]
    for few in (unread[i : i + _AT_ONCE] for i in range(0, len(unread), _AT_ONCE)):
        read = await asyncio.gather(
            *(_listed_segment(sources, fresh[number], report) for number in few)
        )
        for number, segment in zip(few, read, strict=True):
            segments[number] = segment
    found = [segment for segment in segments if segment is not None]
    kept = [s for s in found if s.meets(request.bounds) and s.may_hold(request.fqn, request.run)]
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


# Leaving out what is deleted, in a statement.
#
# A deletion is of all lines of a run, or of a pipeline, up to some ULID. Few of them are terms of
# the WHERE clause. A join, which many need, stands between the scan and its Top-N: then DuckDB
# reads all columns of all rows, where it would read the keys, and the other columns of the rows
# that are given. So deletions that end before the tile begins are left away, too: the newest
# lines are seldom touched by any.


MOST_TERMS: Final = 64  # 16 terms take a tenth of the time of a join, 200 half
_JOINED: Final = (
    " AND NOT EXISTS (SELECT 1 FROM deleted_runs d"
    " WHERE d.fqn = r.fqn AND d.run_id = r.run_id AND r.ulid <= d.t)"
    " AND NOT EXISTS (SELECT 1 FROM deleted_pipelines d WHERE d.fqn = r.fqn AND r.ulid <= d.t)"
)


class Live(NamedTuple):
    """What follows the other terms, what it binds, and tables that it needs by their names."""

    terms: str
    parameters: dict[str, Any]
    tables: Mapping[str, pa.Table]


def live(deletions: Sequence[Deletion], tile: UlidRange) -> Live:
    """Holds for records of the tile that are not deleted; the records are known as `r`."""
    near = [deletion for deletion in deletions if deletion[2] >= tile.low]
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
