"""Checks which segments are intact, finds the ranges of their lines, and packs small ones.

Every byte of a segment is checked against its seal before Spark sees it. A hash runs at gigabytes
per second, so this costs a few percent of a merge; decoding the rows again would halve its speed.
The check has three results:

- **Verified**: its rows may be merged;
- **Corrupt**: its complete bytes fail checksum or schema, so it is quarantined;
- **Stopped**: it could not be read, or is of a newer format. The node waits.

A quarantined segment is an alarm of every pass until a person decides (`find_left_out`).

**Ranges.** The check also finds where the lines are (`ranges_of`): in time, and of each run in each
hour. The footer says it for each row group. The rows of a group are read only if it crosses an
hour, so that no empty hour is planned, or if it spans more than a minute: if some lines are late,
most others are far from them in time, and of other runs. With the ranges the check ends a batch
that is full (`compactor.plan.BatchBudget`): before it only the compressed sizes are known, and a
byte may stand for a hundred bytes of text.

**Packing.** Spark reads a segment with four requests, however small it is, and as many segments at
a time as it has cores. On S3 it mostly waits. The driver has read each segment anyway to check it,
several at once. It therefore keeps the bytes of small ones, up to a bound, and writes their lines
as one object below `table/_staging/`, which is removed after the merge. An object that a killed
driver leaves is an orphan like Spark's staged files. Large segments are read by Spark itself:
decoding and encoding them costs more than requests do.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.context import Compactor
from compactor.placement import staging_folder
from compactor.plan import BatchBudget, ListedSegment, RunRange, RunRanges, TimeRange, hour_of
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cas import write_until_known
from tailrace.logstore.errors import Damaged, NotFound, StoreUnavailable, UnsupportedVersion
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.segments.file_format import (
    DICTIONARIES,
    KEY_COLUMNS,
    Footer,
    list_quarantined,
    read_reason,
)
from tailrace.logstore.segments.reader import SegmentFile, open_segment
from tailrace.logstore.table.schema import RECORD_SCHEMA

_SLICE_MS: Final = 60_000  # an hour has a whole number of them
_SHORTEST: Final = 64  # bytes that a line counts for at least: its ids are sorted with it
_BATCH_CHARACTERS: Final = 21  # of a ULID's 26: the last five are the line number
_FIRST_LINE: Final = "0" * 5
_LAST_LINE: Final = "Z" * 5

Batch: TypeAlias = tuple[str, RunKey, int]
"""The ULID's part that names it, whose it is, and its rows."""


@dataclass(frozen=True, slots=True)
class SegmentRanges:
    """Time ranges with all of a segment's text, and run ranges with all of its lines."""

    time_ranges: tuple[TimeRange, ...] = ()
    run_ranges: tuple[RunRange, ...] = ()


def ranges_of(opened: SegmentFile) -> SegmentRanges:
    """The ranges of a segment in memory. Raises `Damaged`."""
    time_ranges: list[TimeRange] = []
    run_ranges: list[RunRange] = []
    runs = _runs_by_group(opened.footer)
    for index in range(opened.parquet.num_row_groups):
        group = opened.parquet.metadata.row_group(index)
        chunks = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
        bounds, size = chunks["ulid"].statistics, text_of(group.num_rows, chunks["message"])
        low, high = ulid.decode(bounds.min), ulid.decode(bounds.max)
        if ulid.time_ms(high) - ulid.time_ms(low) < _SLICE_MS and hour_of(low) == hour_of(high):
            time_ranges.append(TimeRange(low, high, size))
            hour = hour_of(low)
            run_ranges += (RunRange(hour, run, bounds.min, bounds.max) for run in runs[index])
        else:
            batches = _batches(opened.group(index, list(KEY_COLUMNS)))
            time_ranges += _time_ranges(batches, size)
            run_ranges += _run_ranges(batches)
    return SegmentRanges(tuple(time_ranges), tuple(run_ranges))


def text_of(rows: int, message: Any) -> int:
    """The bytes that count for a row group, by its column chunk of messages."""
    return max(int(message.total_uncompressed_size), rows * _SHORTEST)


def _runs_by_group(footer: Footer) -> Mapping[int, Sequence[RunKey]]:
    found: dict[int, list[RunKey]] = defaultdict(list)
    for run in footer.runs:
        for index in run.groups:
            found[index].append(run.key)
    return found


def _batches(rows: Any) -> list[Batch]:
    """The batches in the rows of one group, by their ULIDs."""
    names = {name: rows.column(name).cast(pa.string()) for name in ("fqn", "run_id")}
    prefixes = pc.utf8_slice_codeunits(rows.column("ulid"), 0, _BATCH_CHARACTERS)
    counted = pa.table({"batch": prefixes, **names}).group_by(["batch", *names])
    found = counted.aggregate([([], "count_all")]).to_pylist()
    return sorted(
        (one["batch"], RunKey(one["fqn"], one["run_id"]), one["count_all"]) for one in found
    )


def _time_ranges(batches: Sequence[Batch], size: int) -> Iterator[TimeRange]:
    """Distributes the group's `size` over the minutes of its batches."""
    slices: dict[int, list[tuple[int, int]]] = {}
    for prefix, _, count in batches:
        batch = ulid.decode(prefix + _FIRST_LINE)
        slices.setdefault(ulid.time_ms(batch) // _SLICE_MS, []).append((batch, count))
    rows = sum(count for _, _, count in batches)
    for some in slices.values():
        share = sum(count for _, count in some)
        yield TimeRange(some[0][0], some[-1][0] | ulid.LINE_MASK, size * share // rows)


def _run_ranges(batches: Iterable[Batch]) -> list[RunRange]:
    found: dict[tuple[int, RunKey], RunRange] = {}
    for prefix, run, _ in batches:
        hour = hour_of(ulid.decode(prefix + _FIRST_LINE))
        first = found.get((hour, run))
        low = prefix + _FIRST_LINE if first is None else first.low
        found[hour, run] = RunRange(hour, run, low, prefix + _LAST_LINE)
    return list(found.values())


SMALL_BYTES: Final = 128 << 10
_MOST_BYTES: Final = 64 << 20
_FEWEST: Final = 8  # fewer are not worth writing and reading another object
_GROUP_BYTES: Final = 16 << 20  # of memory, not of the file


@dataclass(slots=True)
class SmallSegments:
    """Bytes of checked small segments by key, as many as memory allows."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, key: str, body: bytes) -> None:
        """Keeps the bytes if memory allows."""
        if len(body) <= SMALL_BYTES and self._bytes + len(body) <= _MOST_BYTES:
            self.bodies[key] = body
            self._bytes += len(body)


@asynccontextmanager
async def packed(
    compactor: Compactor, segments: Mapping[str, int], small: Mapping[str, bytes]
) -> AsyncIterator[dict[str, int]]:
    """Yields addresses and their bytes for Spark, with the lines of `segments` (bytes by key).

    They are valid within the block. Raises `StoreUnavailable`, `OutcomeUnknown`.
    """
    store = compactor.store
    chosen = {key: body for key, body in small.items() if key in segments}
    if len(chosen) < _FEWEST:
        yield {store.uri(key): size for key, size in segments.items()}
        return
    body = await asyncio.to_thread(pack, chosen.values())
    key = f"{staging_folder(keys.TABLE, compactor.fresh_id())}/segments.parquet"
    # Only this merge uses the key: a second put or delete does no harm.
    await write_until_known(lambda: store.put(key, body))
    try:
        others = {store.uri(k): size for k, size in segments.items() if k not in chosen}
        yield others | {store.uri(key): len(body)}
    finally:
        await write_until_known(lambda: store.delete([key]))


def pack(bodies: Iterable[bytes]) -> bytes:
    """A Parquet file with the lines of the segments. Raises `Damaged`."""
    made = pa.BufferOutputStream()
    with pq.ParquetWriter(
        made,
        RECORD_SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=DICTIONARIES,
        write_statistics=False,
    ) as writer:
        for rows in _gathered(_groups(bodies)):
            writer.write_table(rows)
    body: bytes = made.getvalue().to_pybytes()
    return body


def _groups(bodies: Iterable[bytes]) -> Iterator[pa.Table]:
    for body in bodies:
        for rows in open_segment(body).groups():
            yield rows.cast(RECORD_SCHEMA)


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields the same rows in row groups of a useful size."""
    some: list[pa.Table] = []
    size = 0
    for rows in tables:
        some.append(rows)
        size += rows.nbytes
        if size >= _GROUP_BYTES:
            yield pa.concat_tables(some)
            some, size = [], 0
    if some:
        yield pa.concat_tables(some)


_AT_ONCE: Final = 8
_BYTES_AT_ONCE: Final = 128 << 20
_NAMED: Final = 20  # segments, in alarms of their own


@dataclass(frozen=True, slots=True)
class Verified:
    """An intact segment with its number of rows and where its lines are."""

    segment: ListedSegment
    rows: int
    time_ranges: tuple[TimeRange, ...]


@dataclass(frozen=True, slots=True)
class Corrupt:
    """A segment to be quarantined."""

    segment: ListedSegment
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The number of damaged segments that the table leaves out, and their alarms."""

    segments: int
    alarms: Sequence[str]


@dataclass(frozen=True, slots=True)
class Stopped:
    """A segment at which its node must wait."""

    segment: ListedSegment
    reason: str


Verdict: TypeAlias = "Verified | Corrupt | Stopped"
Looked: TypeAlias = tuple[Verdict, Sequence[RunRange], bytes]
"""A segment's verdict, what it has of which run, and its bytes if it is whole and small."""


@dataclass(slots=True)
class Verification:
    """Verdicts on the first segments of a batch, in their order.

    `run_ranges` has the lines of intact segments, `small` the bytes of small ones.
    """

    run_ranges: RunRanges = field(default_factory=RunRanges)
    small: SmallSegments = field(default_factory=SmallSegments)
    verdicts: list[Verdict] = field(default_factory=list)


async def verify(
    store: ObjectStore, segments: Sequence[ListedSegment], budget: BatchBudget
) -> Verification:
    """Checks segments in order as far as the budget allows, at least one."""
    found = Verification()
    async with aclosing(_looked_at(store, segments)) as looked:
        async for verdict, of_segment, body in looked:
            time_ranges = verdict.time_ranges if isinstance(verdict, Verified) else ()
            if not budget.takes(time_ranges):
                break
            found.verdicts.append(verdict)
            found.run_ranges.add(of_segment)
            if body:
                found.small.add(verdict.segment.key, body)
    return found


async def _looked_at(
    store: ObjectStore, segments: Sequence[ListedSegment]
) -> AsyncGenerator[Looked, None]:
    """Results in order. Reads several at a time, fewer of large ones, so memory is bounded."""
    behind = deque(segments)
    ahead: deque[tuple[int, asyncio.Task[Looked]]] = deque()
    try:
        while behind or ahead:
            reading = sum(size for size, _ in ahead)
            while behind and _may_read(behind[0].size, len(ahead), reading):
                segment = behind.popleft()
                ahead.append((segment.size, asyncio.create_task(_look(store, segment))))
                reading += segment.size
            looked = await ahead[0][1]
            ahead.popleft()
            yield looked
    finally:
        for _, task in ahead:
            task.cancel()
        await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)


def _may_read(size: int, count: int, reading: int) -> bool:
    return count == 0 or (count < _AT_ONCE and reading + size <= _BYTES_AT_ONCE)


async def _look(store: ObjectStore, segment: ListedSegment) -> Looked:
    if segment.quarantined:
        return Verified(segment, 0, ()), (), b""
    try:
        return await _verified(store, segment)
    except (UnsupportedVersion, StoreUnavailable, NotFound) as error:
        return Stopped(segment, str(error)), (), b""
    except Damaged as error:
        return Corrupt(segment, str(error)), (), b""


async def _verified(store: ObjectStore, segment: ListedSegment) -> Looked:
    info, body = await store.get(segment.key)
    if len(body) != info.size:
        raise StoreUnavailable(f"{segment.key}: {len(body)} of {info.size} bytes were read")
    return await asyncio.to_thread(_examine, segment, body)


def _examine(segment: ListedSegment, body: bytes) -> Looked:
    opened = open_segment(body)
    footer = opened.footer
    if (footer.node, footer.seq) != (segment.node, segment.seq):
        raise Damaged(f"{segment.key} says that it is segment {footer.seq} of {footer.node}")
    ranges = ranges_of(opened)
    small = body if len(body) <= SMALL_BYTES else b""
    return Verified(segment, footer.rows, ranges.time_ranges), ranges.run_ranges, small


async def find_left_out(store: ObjectStore) -> LeftOut:
    """Returns the quarantined segments that await a decision. Raises `StoreUnavailable`."""
    waiting = [one for one in await list_quarantined(store) if not one.given_up]
    alarms = []
    for one in waiting[:_NAMED]:
        key = keys.segment(one.node, one.seq)
        alarms.append(
            f"segment {one.seq} of {one.node} is left out, because it is damaged:"
            f" {await read_reason(store, one.node, one.seq)}. Put an intact copy at {key} and run"
            f" `tailrace verify --repair`, or give its lines up:"
            f" `tailrace verify --give-up {key}`"
        )
    if len(waiting) > _NAMED:
        alarms.append(f"{len(waiting) - _NAMED} more damaged segments are left out")
    return LeftOut(len(waiting), alarms)
