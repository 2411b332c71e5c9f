"""The table as a replay reads it: by times of ULIDs, a slice at a time, in bounded memory.

A replay gives again the records that the table held when it began: those of the segments up to its
**marks**. It reads later records from the segments. Compaction and maintenance go on meanwhile, and
replace files. So the files of a version are read as long as they exist; then the newest version is
opened, and records of segments above the marks are left out of it: they come from these segments.

A slice is a range of milliseconds within an hour. Its records are read by row groups, and a slice
that turns out to be too large is read again as two.

`Copies` recognises late events that are copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace.coordination.pipelines import Reading
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import Damaged, NotFound, StoreUnavailable
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.parquet import SparseFile, fetch_tail, footer_of
from tailrace.logstore.segments.file_format import KEY_COLUMNS, keys_of
from tailrace.logstore.table.snapshot import HOUR_MS, TableFile
from tailrace.logstore.table.table import Table
from tailrace.pipelines.events import EVENTS, Origin, as_events, runs_of
from tailrace.pipelines.sources.segments import SegmentContents, SegmentSource

# Late events that are copies: a client sent a batch to two nodes, and one of them was read before.
#
# Two copies that wait at the same time are one event (`tailrace.pipelines.events`). If one was
# given out already, the other arrives with a key that is not above the frontier, like a late event.
# The segments of the other nodes that were read tell the two apart: they have the record or not.
# Only segments whose ULIDs and runs may have it are read, so this costs something only where events
# are late and runs were written through several nodes.


_KNOWN: Final = 20_000


class Copies:
    """Looks for copies in the segments of a source."""

    def __init__(self, source: SegmentSource) -> None:
        self._source = source
        self._held: BoundedCache[Origin, SegmentContents | None] = BoundedCache(_KNOWN)

    async def among(
        self, events: pa.Table, origin: Origin, nodes: Mapping[str, Reading]
    ) -> pa.Array | None:
        """Which of the events are in segments of other nodes that were read; None: none.

        `nodes` says how far each was read. Raises `StoreUnavailable`.
        """
        others = [
            Origin(name, seq)
            for name, reading in nodes.items()
            if name != origin.node and name in self._source.nodes
            for seq in self._source.nodes[name].sizes
            if seq < reading.next
        ]
        return await self.of(events, others)

    async def of(self, events: pa.Table, others: Iterable[Origin]) -> pa.Array | None:
        """Which of the events are in these segments; None: none. Raises `StoreUnavailable`."""
        if events.num_rows == 0:
            return None
        runs = runs_of(events)
        low, high = pc.min(events["ulid"]).as_py(), pc.max(events["ulid"]).as_py()
        wanted = events.select(KEY_COLUMNS).combine_chunks()
        found = [
            await self._matching(other, wanted)
            for other in others
            if await self._may_hold(other, low, high, runs)
        ]
        if not any(table.num_rows for table in found):
            return None
        return pa.array(_is_in(wanted, pa.concat_tables(found)))

    async def _may_hold(self, other: Origin, low: str, high: str, runs: frozenset[RunKey]) -> bool:
        held = await self._of(other)
        return held is not None and held.low <= high and low <= held.high and bool(runs & held.runs)

    async def _of(self, origin: Origin) -> SegmentContents | None:
        """What the segment holds; None if it cannot be read, or is gone."""
        if origin in self._held:
            return self._held.peek(origin)
        try:
            found = await self._source.held(origin)
        except (NotFound, Damaged):
            found = None
        self._held.put(origin, found)
        return found

    async def _matching(self, other: Origin, wanted: pa.Table) -> pa.Table:
        """The keys of the segment that have one of the wanted ULIDs."""
        try:
            segment = await self._source.read(*other)
        except (NotFound, Damaged):
            return wanted.slice(0, 0)
        keys = segment.events.select(KEY_COLUMNS)
        return keys.filter(pc.is_in(keys["ulid"], wanted["ulid"].combine_chunks()))


def _is_in(events: pa.Table, keys: pa.Table) -> list[bool]:
    known = {*keys_of(keys)}
    return [one in known for one in keys_of(events)]


SLICE_BYTES: Final = 32 << 20
_TRIES: Final = 5


class TableSlice(NamedTuple):
    """The records of ULIDs up to the time `until_ms`, exclusive; columns of `EVENTS`."""

    events: pa.Table
    until_ms: int


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of the table: its files, and up to which segment of each node it goes."""

    files: tuple[TableFile, ...]
    marks: Mapping[str, int]


class _TooLarge(Exception):
    """A slice has more bytes than it may."""


class TableSource:
    """Reads the table for the replay of one appender; a slice has about `slice_bytes`."""

    def __init__(
        self,
        store: ObjectStore,
        table: Table,
        segments: SegmentSource,
        clock: Clock,
        *,
        slice_bytes: int = 0,
    ) -> None:
        self._store = store
        self._table = table
        self._segments = segments
        self._clock = clock
        self._copies = Copies(segments)
        self._slice_bytes = slice_bytes or SLICE_BYTES
        self._version: _Version | None = None
        self._width_ms = HOUR_MS

    async def begin(self) -> tuple[Mapping[str, int], int]:
        """The marks of the newest version, and the time in ms at which its last hour ends.

        Raises `StoreUnavailable`, `UnsupportedVersion`.
        """
        self._version = await self._newest()
        ends = [file.end_ms for file in self._version.files]
        return self._version.marks, max(ends, default=0)

    async def read(
        self, low: str, start_ms: int, end_ms: int, marks: Mapping[str, int]
    ) -> TableSlice | None:
        """The next records from `start_ms` on and with ULIDs from `low` on; None before `end_ms`.

        Slices without records are passed over. Raises `StoreUnavailable`, `Damaged`.
        """
        for _ in range(_TRIES):
            if self._version is None:
                self._version = await self._newest()
            try:
                return await self._next(self._version, low, start_ms, end_ms, marks)
            except NotFound:
                self._version = None  # compacted, purged or expired meanwhile
        raise StoreUnavailable("files of the table are replaced faster than they can be read")

    async def _newest(self) -> _Version:
        snapshot = await asyncio.to_thread(lambda: self._table.snapshot().loaded())
        # Each node of whose segments some came into the table since it was read first has them
        # still: the pipeline's group holds them. So this finds all whose marks count.
        await self._segments.refresh(self._clock.monotonic())
        nodes = list(self._segments.nodes)
        return await asyncio.to_thread(lambda: _Version(snapshot.files, snapshot.marks(nodes)))

    async def _next(
        self, version: _Version, low: str, start_ms: int, end_ms: int, marks: Mapping[str, int]
    ) -> TableSlice | None:
        while True:
            start_ms = max(start_ms, ulid.time_ms(ulid.decode(low)))
            ahead = [
                file for file in version.files if start_ms < file.end_ms and file.start_ms < end_ms
            ]
            if not ahead or start_ms >= end_ms:
                return None
            first = min(file.start_ms for file in ahead)
            start_ms = max(start_ms, first)
            hour = [file for file in ahead if file.start_ms == first]
            until = min(start_ms + self._width_ms, first + HOUR_MS, end_ms)
            try:
                events = await self._between(hour, low, start_ms, until, last=until == start_ms + 1)
            except _TooLarge:
                self._width_ms = max((until - start_ms) // 2, 1)
                continue
            if events.nbytes * 4 < self._slice_bytes:
                self._width_ms = min(self._width_ms * 2, HOUR_MS)
            if events.num_rows:
                return TableSlice(await self._as_of(version, marks, events), until)
            start_ms = until

    async def _between(
        self, files: list[TableFile], low: str, start_ms: int, until_ms: int, *, last: bool
    ) -> pa.Table:
        lowest = max(low, ulid.encode(ulid.lowest_at(start_ms)))
        highest = ulid.encode(ulid.lowest_at(until_ms) - 1)
        found: list[pa.Table] = []
        size = 0
        for file in files:
            if not file.may_hold(ulid.decode(lowest), ulid.decode(highest)):
                continue
            async for table in self._of_file(file, lowest, highest):
                found.append(table)
                size += table.nbytes
                if size > self._slice_bytes and not last:
                    raise _TooLarge
        if not found:
            return EVENTS.empty_table()
        return pa.concat_tables(found).sort_by("ulid")

    async def _of_file(
        self, file: TableFile, lowest: str, highest: str
    ) -> AsyncGenerator[pa.Table]:
        """The file's records with ULIDs between the two, inclusive; a row group is held at once."""
        key = f"{keys.TABLE}/{file.path}"
        tail = await fetch_tail(self._store, key, file.size)
        footer = footer_of(tail.first()[1])
        for number in range(footer.num_row_groups):
            start, end, ulids = _group(footer.row_group(number))
            if ulids is not None and not (ulids[0] <= highest and lowest <= ulids[1]):
                continue
            sparse = SparseFile(file.size, *tail.first())
            sparse.add(start, (await self._store.get(key, offset=start, size=end - start))[1])
            table = await asyncio.to_thread(_rows, sparse, footer, number, lowest, highest)
            if table.num_rows:
                yield table

    async def _as_of(
        self, version: _Version, marks: Mapping[str, int], events: pa.Table
    ) -> pa.Table:
        """The events without those of segments that came into the table after the marks."""
        newer = [
            Origin(node, seq)
            for node, mark in version.marks.items()
            for seq in range(marks.get(node, 0) + 1, mark + 1)
        ]
        found = await self._copies.of(events, newer) if newer else None
        return events if found is None else events.filter(pc.invert(found))


def _group(group: Any) -> tuple[int, int, tuple[str, str] | None]:
    """Where a row group begins and ends in its file, and its lowest and highest ULID."""
    starts, ends, ulids = [], [], None
    for number in range(group.num_columns):
        column = group.column(number)
        pages = [column.dictionary_page_offset, column.data_page_offset]
        starts.append(min(page for page in pages if page))
        ends.append(starts[-1] + column.total_compressed_size)
        known = column.path_in_schema == "ulid" and column.statistics is not None
        if known and column.statistics.has_min_max:
            ulids = str(column.statistics.min), str(column.statistics.max)
    return min(starts), max(ends), ulids


def _rows(file: SparseFile, footer: Any, group: int, lowest: str, highest: str) -> pa.Table:
    try:
        parquet = pq.ParquetFile(file, metadata=footer, page_checksum_verification=True)
        table = parquet.read_row_group(group, columns=EVENTS.names, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"row group {group} of a file of the table does not read: {error}") from error
    table = as_events(table)
    ulids = table.column("ulid")
    return table.filter(pc.and_(pc.greater_equal(ulids, lowest), pc.less_equal(ulids, highest)))
