"""Events in the order of their time: the buffer of waiting events, the frontier, and deletions.

An event is a record with a **key**: (time, ULID, fqn, run). The time is the record's own in
microseconds, but at most `ahead_ms` after that of its ULID, so that a clock that is wrong by a year
holds up nothing. Two records with one key are copies of a record, and one of them is dropped.

The buffer gives out events in the order of their keys. The **frontier** is the highest key given
out. Of the segments that were added, exactly the events up to the frontier were given out, and
exactly those above it wait. So (progress in the segments, frontier) is the whole state: a process
that starts again reads the segments again from the oldest event that waits, leaves out events up to
the frontier, and is where the last one was.

An event that arrives with a key below the frontier is late. It is given out first of the next
events, out of order, and counted. No checkpoint is made between its arrival and its output, since
no checkpoint could say that it waits. If more events wait than fit, the oldest half is given out
before its time is over, and is counted as forced. The column `ORDER` marks late and forced events
of a table.

Late and forced events take some megabytes at a time, since a copy is made of them. The size of the
buffer is the bytes that cannot be freed: a segment of which some events wait is held whole, until
half of them are gone and the rest is copied. A segment that was in order already, and whose events
all pass the filter, is the table of the source itself: appenders share it, and each counts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.coordination.pipelines import EventKey
from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.segments.file_format import CARRIED, KEY_COLUMNS, distinct, parse, undeleted

EVENTS: Final = pa.schema(
    [
        pa.field("ulid", pa.string(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("fqn", pa.string(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("level", pa.string()),
        pa.field("connector_id", pa.string()),
        pa.field("message", pa.string(), nullable=False),
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
        pa.field(CARRIED, pa.bool_()),
    ]
)
"""The columns that filters, layouts and appenders see."""
ORDER: Final = "order"
"""A column beside these, only where it is needed: `late`, `forced`, `redelivered`, or null."""
REDELIVERED: Final = "redelivered"
"""The order of dead letters that are sent again."""
REASON: Final = "reason"
"""A column of dead letters alone: why they were refused."""
AHEAD_MS: Final = 60_000
TAKEN_BYTES: Final = 8 << 20
_ULID: Final = 26
_FORCED_PART: Final = 2

Indexes = NDArray[np.int64]


def is_redelivered(events: pa.Table) -> bool:
    """Whether these are dead letters that are sent again. They never come with other events."""
    if ORDER not in events.column_names or not events.num_rows:
        return False
    return bool(events.column(ORDER)[0].as_py() == REDELIVERED)


def as_events(table: pa.Table) -> pa.Table:
    """The columns of `EVENTS`; files of earlier versions have no marks."""
    if CARRIED not in table.column_names:
        table = table.append_column(CARRIED, pa.nulls(table.num_rows, pa.bool_()))
    return table.select(EVENTS.names).cast(EVENTS)


def records_of(events: pa.Table) -> pa.Table:
    """The events without lines that continue others."""
    marks = events.column(CARRIED)
    return events if marks.null_count == len(marks) else events.filter(marks.is_null())


class Origin(NamedTuple):
    """The segment that an event is from."""

    node: str
    seq: int


@dataclass(slots=True)
class EventCounts:
    """Counters of events; `clamped` had times too far ahead of their arrival. They only grow."""

    late: int = 0
    forced: int = 0
    copies: int = 0
    clamped: int = 0


@dataclass(slots=True)
class _EventPart:
    """Events of one segment, in order of their keys; those before `start` were given out."""

    origin: Origin
    table: pa.Table
    moments: Indexes
    late: int
    start: int = 0
    held: int = 0
    """Bytes that are not freed as long as it has this table."""

    def __post_init__(self) -> None:
        self._count()

    @property
    def left(self) -> int:
        return len(self.moments) - self.start

    def let_go(self) -> None:
        """Gives memory back once half of the events were given out: a slice holds all of them."""
        if 0 < self.left <= self.start:
            rest = np.arange(self.start, len(self.moments))
            self.table, self.moments = self.table.take(pa.array(rest)), self.moments[rest]
            self.start, self.late = 0, 0
            self._count()

    def bytes_of(self, rows: int) -> int:
        """Bytes of so many of its events, about."""
        return int(self.table.nbytes) * rows // max(len(self.moments), 1)

    def _count(self) -> None:
        self.held = self.table.get_total_buffer_size() + self.moments.nbytes


class EventBuffer:
    """The events of one appender that wait for their time."""

    def __init__(self, frontier: EventKey | None, *, ahead_ms: int = AHEAD_MS) -> None:
        self.frontier = frontier
        self.counts = EventCounts()
        self.more = False
        """Whether `take` left something that may go as well."""
        self._ahead_us = ahead_ms * 1000
        self._parts: list[_EventPart] = []

    @property
    def size(self) -> int:
        """Bytes that are held for what waits."""
        return sum(part.held for part in self._parts)

    def __len__(self) -> int:
        return sum(part.left for part in self._parts)

    @property
    def late_wait(self) -> bool:
        """Whether late events wait: they are below the frontier, so no checkpoint names them."""
        return any(part.late > part.start for part in self._parts)

    def late_of(self, table: pa.Table) -> pa.Table:
        """The events that are not above the frontier, or just above it; with their `row`s."""
        if self.frontier is None or table.num_rows == 0:
            return table.slice(0, 0).append_column("row", pa.array([], pa.int64()))
        rows = np.flatnonzero(_moments(table, self._ahead_us) <= self.frontier.moment)
        return table.take(pa.array(rows)).append_column("row", pa.array(rows))

    def oldest(self, node: str) -> int | None:
        """The lowest segment of the node of which something waits; None: nothing waits."""
        waiting = [part.origin.seq for part in self._parts if part.origin.node == node]
        return min(waiting, default=None)

    def add(self, origin: Origin, table: pa.Table, *, known: bool = False) -> None:
        """Adds events of a segment (columns of `EVENTS`), in any order.

        `known`: the segment was added before this process started. What is not above the
        frontier was given out then, and is left out; else it is late.
        """
        if table.num_rows == 0:
            return
        table, moments = _in_order(table, _moments(table, self._ahead_us))
        late, start = 0, 0
        if self.frontier is not None:
            late = _not_above(table, moments, self.frontier)
            if known:
                late, start = 0, late
        if start < len(moments):
            part = _EventPart(origin, table, moments, late, start)
            part.let_go()
            self._parts.append(part)

    def take(self, until: int, most_bytes: int = TAKEN_BYTES, *, forced: bool = False) -> pa.Table:
        """Gives out events up to `until`, in microseconds, and late ones; in order.

        That is about `most_bytes`, but all late events; `more` says whether some were left.
        """
        ends = self._ends(until)
        rows = sum(end - part.start for end, part in zip(ends, self._parts, strict=True))
        size = sum(
            part.bytes_of(end - part.start) for end, part in zip(ends, self._parts, strict=True)
        )
        self.more = False
        if size > most_bytes:
            last = max(rows * most_bytes // size, 1) - 1
            moments = np.concatenate(
                [
                    part.moments[part.start : end]
                    for end, part in zip(ends, self._parts, strict=True)
                ]
            )
            fewer = self._ends(int(np.partition(moments, last)[last]))
            self.more, ends = fewer != ends, fewer
        return self._take(ends, forced=forced)

    def force(self, most_bytes: int) -> pa.Table:
        """Gives out of the oldest half of what waits, if more than `most_bytes` are held."""
        if self.size <= most_bytes or not self._parts:
            return EVENTS.empty_table()
        waiting = np.concatenate([part.moments[part.start :] for part in self._parts])
        half = (len(waiting) - 1) // _FORCED_PART
        taken = self.take(int(np.partition(waiting, half)[half]), forced=True)
        self.more = False  # of what may go
        self.counts.forced += taken.num_rows
        return taken

    def _ends(self, until: int) -> list[int]:
        """How many events of each part may go up to that time."""
        return [
            max(int(np.searchsorted(part.moments, until, side="right")), part.start, part.late)
            for part in self._parts
        ]

    def _take(self, ends: Sequence[int], *, forced: bool) -> pa.Table:
        taken = [
            (part.table.slice(part.start, end - part.start), part, end)
            for part, end in zip(self._parts, ends, strict=True)
            if end > part.start
        ]
        if not taken:
            return EVENTS.empty_table()
        late = sum(max(part.late - part.start, 0) for _, part, _ in taken)
        if late or forced:
            taken = [
                (_flagged(rows, max(part.late - part.start, 0), forced=forced), part, end)
                for rows, part, end in taken
            ]
        table, moments = _merged(
            [(rows, part.moments[part.start : end]) for rows, part, end in taken]
        )
        for _, part, end in taken:
            part.start = end
            part.let_go()
        self._parts = [part for part in self._parts if part.left]
        last = _key(table, moments, len(moments) - 1)
        self.frontier = last if self.frontier is None else max(self.frontier, last)
        found = distinct(table)
        self.counts.copies += table.num_rows - found.num_rows
        if np.any(moments < _stamps(table)):
            self.counts.clamped += int(np.sum(_moments(found, self._ahead_us) < _stamps(found)))
        self.counts.late += late
        return found


def _flagged(events: pa.Table, late: int, *, forced: bool) -> pa.Table:
    """The events, of which the first so many are late; the others are forced, or in order."""
    rest = pa.scalar("forced" if forced else None, pa.string())
    flags = [pa.repeat(pa.scalar("late"), late), pa.repeat(rest, events.num_rows - late)]
    return events.append_column(ORDER, pa.concat_arrays(flags))


def moments_of(events: pa.Table) -> Indexes:
    """The times in microseconds by which events are ordered."""
    return _moments(events, AHEAD_MS * 1000)


def ordered(events: pa.Table) -> pa.Table:
    """The events of a segment in the order of their keys; itself if they are."""
    return _in_order(events, moments_of(events))[0] if events.num_rows else events


def runs_of(events: pa.Table) -> frozenset[RunKey]:
    """The runs that have events there."""
    names = ["fqn", "run_id"]
    pairs = events.select(names).group_by(names).aggregate([]).to_pylist()
    return frozenset(RunKey(one["fqn"], one["run_id"]) for one in pairs)


def _moments(table: pa.Table, ahead_us: int) -> Indexes:
    """The time of each event: its own, but at most so much after that of its ULID."""
    stamps = _stamps(table)
    first = ulid.time_ms(ulid.decode(pc.min(table.column("ulid")).as_py()))
    ahead = np.flatnonzero(stamps > first * 1000 + ahead_us)
    if len(ahead) == 0:
        return stamps
    high, _ = _ulids(table.select(["ulid"]).take(pa.array(ahead)))
    most = (high >> np.uint64(16)).astype(np.int64) * 1000 + ahead_us
    moments = stamps.copy()
    moments[ahead] = np.minimum(stamps[ahead], most)
    return moments


def _stamps(table: pa.Table) -> Indexes:
    stamps: Indexes = table.column("ts").combine_chunks().cast(pa.int64()).to_numpy()
    return stamps


def _ulids(table: pa.Table) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """ULIDs as two numbers each, which sort as they do."""
    high, low, number = parse(_characters(table.column("ulid")))
    return high, low | number.astype(np.uint64)


def _characters(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    array = column.combine_chunks()
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
    text = np.frombuffer(data, dtype=np.uint8)[int(bounds[0]) : int(bounds[-1])]
    return text.reshape(len(array), _ULID)


def _in_order(table: pa.Table, moments: Indexes) -> tuple[pa.Table, Indexes]:
    """In the order of keys; the table itself, if it is in order."""
    if len(moments) < 2 or _is_in_order(table, moments):
        return table, moments
    high, low = _ulids(table)
    order = np.lexsort((low, high, moments))
    return _ties_in_order(table.take(pa.array(order)), moments[order])


def _is_in_order(table: pa.Table, moments: Indexes) -> bool:
    """Whether no key is below the one before it, nor has its time and ULID."""
    if np.any(moments[1:] < moments[:-1]):
        return False
    ulids = table.column("ulid").combine_chunks()
    above = pc.greater(ulids[1:], ulids[:-1]).to_numpy(zero_copy_only=False)
    return bool(np.all(above | (moments[1:] > moments[:-1])))


def _ties_in_order(table: pa.Table, moments: Indexes) -> tuple[pa.Table, Indexes]:
    """Runs may share ULIDs: events that differ in nothing else are in order of fqn and run."""
    ulids = table.column("ulid")
    if len(moments) < 2 or not pc.any(pc.equal(ulids[1:], ulids[:-1])).as_py():
        return table, moments
    keyed = table.append_column("moment", pa.array(moments))
    names = [(name, "ascending") for name in ("moment", *KEY_COLUMNS)]
    order = pc.sort_indices(keyed, names)
    return table.take(order), moments[order.to_numpy()]


def _merged(parts: Sequence[tuple[pa.Table, Indexes]]) -> tuple[pa.Table, Indexes]:
    """Events of several segments, each in order, in one order."""
    if len(parts) == 1:
        return parts[0]
    parts = sorted(parts, key=lambda part: int(part[1][0]))
    table = pa.concat_tables([rows for rows, _ in parts])
    moments = np.concatenate([some for _, some in parts])
    if all(one[1][-1] < other[1][0] for one, other in pairwise(parts)):
        return table, moments
    return _in_order(table, moments)


def _key(table: pa.Table, moments: Indexes, row: int) -> EventKey:
    ulid, fqn, run = (table.column(name)[row].as_py() for name in KEY_COLUMNS)
    return EventKey(int(moments[row]), ulid, fqn, run)


def _not_above(table: pa.Table, moments: Indexes, frontier: EventKey) -> int:
    """Returns how many of the events, which are in order, have keys up to the frontier."""
    first = int(np.searchsorted(moments, frontier.moment, side="left"))
    end = int(np.searchsorted(moments, frontier.moment, side="right"))
    while first < end:
        middle = (first + end) // 2
        if _key(table, moments, middle) <= frontier:
            first = middle + 1
        else:
            end = middle
    return first


# Deletions: the events that they cover, and the generation of a run.


Deleted: TypeAlias = Mapping[tuple[str, str | None], int]
"""Up to which ULID the lines of (fqn, run) are deleted; run None: of all the pipeline's runs."""


def kept(events: pa.Table, deleted: Deleted) -> pa.Table:
    """The events that no deletion covers."""
    if not deleted or not events.num_rows:
        return events
    runs = runs_of(events)
    names: set[tuple[str, str | None]] = {*runs, *((run.fqn, None) for run in runs)}
    touching = [(*name, deleted[name]) for name in names if name in deleted]
    return undeleted(events, touching)


def parted(events: pa.Table, owner: tuple[str, str | None]) -> tuple[pa.Table, pa.Table]:
    """The events of everybody else, and those of a run, or of a pipeline's runs."""
    names = [one == owner[0] and owner[1] in (None, run) for one, run in runs_of(events)]
    if not any(names):
        return events, events.slice(0, 0)
    theirs = pc.equal(events.column("fqn"), owner[0])
    if owner[1] is not None:
        theirs = pc.and_(theirs, pc.equal(events.column("run_id"), owner[1]))
    return events.filter(pc.invert(theirs)), events.filter(theirs)


def generation(deleted: Deleted, fqn: str, run: str | None) -> int:
    """The ULID up to which lines of this run, or of the pipeline, were deleted; 0: never."""
    whole = deleted.get((fqn, None), 0)
    return whole if run is None else max(whole, deleted.get((fqn, run), 0))
