"""Plans a pass: when to begin, the next segments, the files to compare, and the buckets of a merge.

**Batches.** A batch has segments above the table's marks, each node's in sequence. If a number is
missing, later segments of that node wait. After a long time this is an alarm, but the number is
never skipped. Segments are chosen in order of their upload over all nodes, so that copies of a
batch are mostly in one merge, and at most as many as the limit allows. A node is listed from its
mark on, and no further than one batch can reach. A large backlog therefore needs no more memory
than a small one, and each of its batches no more requests. A segment that cannot be read is
quarantined (`tailrace/logstore/segments/file_format.py`): every reader treats it as empty.

**Early passes.** `SegmentBacklog` decides whether enough segments wait for the next pass to begin
early. A check costs one list per node of the segments since the last pass began, and no Spark. Only
these segments are counted. The last pass had a reason to leave others (another driver has the node,
a segment of a newer version, a gap), and they would start pass after pass for nothing. Segments
that a pass left to gather more are counted again, and are due when their time is over. The table is
read only if the count says that a pass is due, because some of the segments may be ingested by now.

**Passes.** `Planner` plans one pass, batch by batch, of the segments that existed when it began.

- **A pass ends**: its first look lists all waiting segments, and later ones belong to the next
  pass. Otherwise a client that writes steadily would make the pass ingest its segments one by one,
  each with a commit, and the maintenance would never have its turn.
- **Small segments wait for one another** (`gather`, if passes are repeated): ready segments are
  left to a later pass as long as all of them together are below the limits of `is_much`, and none
  has waited for `compaction.gather_seconds`.
- **Commits of other drivers do no harm.** A plan belongs to the snapshot that was opened after the
  segments were listed, so it is right whatever was committed in between. A node is listed again
  only if it belongs to this driver, all of its listed segments were ingested meanwhile, and more
  exist.

**Ranges.** `BatchRanges` excludes files of the table, and deletions, that cannot concern any line
of a batch. It reads no line for that, only ranges from the footers of the batch's segments. A time
range says where text lies in time, within one hour (UTC), like a table file. A run range has the
lowest and highest ULID of a run's lines in an hour.

A copy of a line has the same ULID, fqn and run. A file can therefore overlap only if its ULID
bounds overlap the time of some text (`Coverage`), and if a run with lines in the file's hour is
within its bounds of all three. The first condition excludes fresh files, which have all runs of a
short time; the second excludes files of a rewritten hour, which have the whole hour and few runs
each. If a batch has one late line, one or two files are read, however many exist. A deletion
removes lines of its run, or of its pipeline, up to a ULID. Thousands of deletions may exist,
because runs expire all the time, but few of them are of runs with lines in the batch. Bounds may be
wider than the content of the file, as shortened ones are, but never narrower.

**Buckets.** A bucket is a range of ULIDs inside one hour (UTC) and becomes one file of the table.
Records with the same identity are therefore always in the same bucket. The bounds come from the
segments' footers; a sampling pass would read the data twice. A task has one bucket, unless the
batch has many hours with few rows: then a task has as many buckets as are worth a task, and writes
one file after another. The buckets of an hour that is cut into several have tasks of their own.

**Budget.** The limit on the bytes of segments bounds how much a batch reads. `BatchBudget` bounds
how much is sorted, and how much of that the driver keeps: the text (`most_tasks` buckets of it),
the time ranges that say where the text lies, and the hours, each of which is a file and an action
of the commit. A first segment always fits. A segment that adds no hour is never refused for its
hours: if all segments had lines of all hours, ingesting one at a time would write each hour again
and again.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from compactor.assignment import Assignment
from compactor.context import Compactor
from compactor.report import Lag, PassReport
from compactor.settings import Compaction
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import UnsupportedVersion
from tailrace.logstore.keys import decode
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.deletions import Deletion
from tailrace.logstore.table.snapshot import TableFile, TableSnapshot

MOST_SEGMENTS: Final = 20_000  # in a batch; the driver holds path and time ranges of each
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """A segment in the listing; `size` in bytes."""

    node: str
    seq: int
    key: str
    size: int
    modified_ms: int
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """A node's first segments above its mark; `more` if others follow."""

    segments: tuple[ListedSegment, ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The next batch, planned from `snapshot`; each node's segments begin at its mark."""

    snapshot: TableSnapshot
    segments: tuple[ListedSegment, ...]
    alarms: tuple[str, ...]
    waiting: frozenset[str] = frozenset()
    """Nodes with something to ingest, in this batch or in a later one."""
    more: bool = False
    """Whether something is left for a later one."""


@dataclass(frozen=True, slots=True)
class WaitingTally:
    """The sum of all waiting segments, and each node's last one."""

    lag: Lag
    ends: Mapping[str, int]


async def nodes_of(store: ObjectStore) -> list[str]:
    """Nodes that have segments in the store. Raises `StoreUnavailable`, `UnsupportedVersion`."""
    found = [name async for name in store.folders(keys.SEGMENTS) if not name.startswith(".")]
    return [_node(name) for name in found]


async def segments_of(
    store: ObjectStore, node: str, *, above: int = 0, up_to: int | None = None
) -> list[ListedSegment]:
    """The node's segments above `above` up to `up_to`, lowest first. Raises `StoreUnavailable`."""
    return [segment async for segment in _listed(store, node, above, up_to=up_to)]


async def waiting_above(
    store: ObjectStore, marks: Mapping[str, int], *, batch_bytes: int
) -> dict[str, Waiting]:
    """The nodes' segments above their marks, as far as a batch may reach.

    Raises `StoreUnavailable`, `UnsupportedVersion`.
    """
    turns = asyncio.Semaphore(_AT_ONCE)
    marked = {_node(name) async for name in store.folders(keys.QUARANTINE)}

    async def one(node: str, mark: int) -> Waiting:
        async with turns:
            return await _first(store, node, mark, batch_bytes, marked)

    found = await asyncio.gather(*(one(node, mark) for node, mark in marks.items()))
    return dict(zip(marks, found, strict=True))


async def tally(store: ObjectStore, listed: Mapping[str, Waiting], now_ms: int) -> WaitingTally:
    """Counts all waiting segments, listing from the end of `listed`. Raises `StoreUnavailable`."""
    count, size, oldest_ms = 0, 0, now_ms
    ends: dict[str, int] = {}
    for node, known in listed.items():
        async for segment in _all_of(store, node, known):
            count, size = count + 1, size + segment.size
            oldest_ms = min(oldest_ms, segment.modified_ms)
            ends[node] = segment.seq
    return WaitingTally(Lag(count, size, (now_ms - oldest_ms) / 1000), ends)


def lag_of(segments: Sequence[ListedSegment], now_ms: int) -> Lag:
    """The lag of these segments."""
    oldest_ms = min([now_ms, *(one.modified_ms for one in segments)])
    return Lag(len(segments), sum(one.size for one in segments), (now_ms - oldest_ms) / 1000)


def choose(
    snapshot: TableSnapshot,
    listed: Mapping[str, Sequence[ListedSegment]],
    *,
    batch_bytes: int,
    gap_before_ms: int,
) -> Plan:
    """Chooses the next segments of all nodes: at least one, and then at most `batch_bytes`.

    `listed` has each node's first segments above its mark (lower ones do not matter), as many as
    `waiting_above` returns. A gap is an alarm if the segment after it was uploaded before
    `gap_before_ms`.
    """
    ready: list[ListedSegment] = []
    alarms: list[str] = []
    for node, segments in listed.items():
        mark = snapshot.mark(node)
        waiting = [segment for segment in segments if segment.seq > mark]
        run = [one for index, one in enumerate(waiting) if one.seq == mark + index + 1]  # no gap
        ready += run
        if len(run) < len(waiting) and waiting[len(run)].modified_ms < gap_before_ms:
            alarms.append(_gap(node, mark + len(run), waiting[len(run)]))
    nodes = frozenset(segment.node for segment in ready)
    batch = tuple(_within(ready, batch_bytes))
    return Plan(snapshot, batch, tuple(alarms), nodes, more=len(batch) < len(ready))


async def _all_of(store: ObjectStore, node: str, known: Waiting) -> AsyncIterator[ListedSegment]:
    for segment in known.segments:
        yield segment
    if known.more:
        async for segment in _listed(store, node, known.segments[-1].seq, markers=False):
            yield segment


async def _first(
    store: ObjectStore, node: str, mark: int, batch_bytes: int, marked: Collection[str]
) -> Waiting:
    """Lists all segments of the node, or more of them than one batch can ingest."""
    found: list[ListedSegment] = []
    size = 0
    async for segment in _listed(store, node, mark, markers=node in marked):
        if size > batch_bytes or len(found) > MOST_SEGMENTS:
            return Waiting(tuple(found), more=True)
        found.append(segment)
        size += segment.size
    return Waiting(tuple(found))


async def _listed(
    store: ObjectStore, node: str, above: int, *, up_to: int | None = None, markers: bool = True
) -> AsyncIterator[ListedSegment]:
    marked = await quarantined(store, node, above=above) if markers else set[int]()
    async for info in store.list(keys.segments_of(node), after=keys.segment(node, above)):
        parsed = keys.parse_segment(info.key)
        if parsed is None:
            continue
        seq = parsed[1]
        if up_to is not None and seq > up_to:
            return
        yield ListedSegment(node, seq, info.key, info.size, info.modified_ms, seq in marked)


def _within(ready: list[ListedSegment], batch_bytes: int) -> list[ListedSegment]:
    ready.sort(key=_upload_order(ready))
    total, taken = 0, 0
    for segment in ready:
        total += segment.size
        if taken and (total > batch_bytes or taken == MOST_SEGMENTS):
            break
        taken += 1
    return ready[:taken]


def _upload_order(ready: Sequence[ListedSegment]) -> Order:
    """Order by time of upload, but each node's segments in sequence."""
    latest: dict[str, int] = {}
    place: dict[tuple[str, int], int] = {}
    for segment in ready:
        at = max(latest.get(segment.node, 0), segment.modified_ms)
        latest[segment.node] = place[segment.node, segment.seq] = at
    return Order(place)


@dataclass(frozen=True, slots=True)
class Order:
    """A sort key that keeps each node's sequence."""

    place: Mapping[tuple[str, int], int]

    def __call__(self, segment: ListedSegment) -> tuple[int, str, int]:
        return self.place[segment.node, segment.seq], segment.node, segment.seq


def _gap(node: str, last: int, behind: ListedSegment) -> str:
    return (
        f"segment {last + 1} of {node} is missing, so segment {behind.seq} and later ones cannot be"
        f" ingested; if the node's disk still has it, start the node"
    )


def _node(component: str) -> str:
    node = decode(component)
    if node is None:
        raise UnsupportedVersion(f"segments/{component} does not name a node")
    return node


async def quarantined(store: ObjectStore, node: str, *, above: int = 0) -> set[int]:
    """Sequences above `above` of the node's segments that are quarantined.

    Raises `StoreUnavailable`.
    """
    prefix = keys.quarantine_marker(node, 0).rsplit("/", 1)[0] + "/"
    listed = store.list(prefix, after=keys.quarantine_marker(node, above))
    names = [info.key.rsplit("/", 1)[1] async for info in listed]
    return {int(name) for name in names if name.isdecimal()}


def is_much(lag: Lag, limits: Compaction) -> bool:
    """Whether enough segments wait, or wait long enough, to begin a pass early."""
    return (
        lag.bytes >= limits.lag_bytes
        or lag.segments >= limits.lag_segments
        or (limits.lag_seconds is not None and lag.seconds >= limits.lag_seconds)
    )


class SegmentBacklog:
    """Segments that wait since the last pass began."""

    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor
        self._seen: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._left_at: float | None = None

    async def seen(self) -> None:
        """Records that a pass begins and sees the present segments. Raises `StoreUnavailable`."""
        listed = await self._listed()
        self._before = dict(self._seen)
        for segment in listed:
            self._pass_over(segment.node, segment.seq)

    @property
    def gathers(self) -> bool:
        """Whether a pass may still leave segments to a later one. Needs no wall clock."""
        return not self._gathered

    def note(self, *, left: bool) -> None:
        """Records whether the last pass left ready segments to a later one, or ingested them."""
        if not left:
            self._left_at = None
            return
        self._seen = self._before
        if self._left_at is None:
            self._left_at = self._compactor.clock.monotonic()

    @property
    def _gathered(self) -> bool:
        clock, limits = self._compactor.clock, self._compactor.limits
        since = self._left_at
        return since is not None and clock.monotonic() - since >= limits.gather_seconds

    async def due(self) -> bool:
        """Whether a pass should begin. Raises `StoreUnavailable`."""
        listed = await self._listed()
        if not self._is_due(listed):
            return False
        snapshot = await self._compactor.newest()
        for node in {segment.node for segment in listed}:
            self._pass_over(node, snapshot.mark(node))
        return self._is_due(listed)

    async def _listed(self) -> list[ListedSegment]:
        store, seen = self._compactor.store, self._seen
        return [
            segment
            for node in await nodes_of(store)
            for segment in await segments_of(store, node, above=seen.get(node, 0))
        ]

    def _pass_over(self, node: str, seq: int) -> None:
        self._seen[node] = max(self._seen.get(node, 0), seq)

    def _is_due(self, listed: Iterable[ListedSegment]) -> bool:
        limits = self._compactor.limits
        new = [one for one in listed if one.seq > self._seen.get(one.node, 0)]
        lag = lag_of(new, self._compactor.clock.now_ms())
        old = self._left_at is not None and lag.seconds >= limits.gather_seconds
        return bool(new) and (old or self._gathered or is_much(lag, limits))


@dataclass(frozen=True, slots=True)
class _Look:
    """A plan, its input, and nodes that have more segments but no listed ones."""

    plan: Plan
    listed: Mapping[str, Waiting]
    outrun: frozenset[str]

    @property
    def waiting(self) -> frozenset[str]:
        return self.plan.waiting | self.outrun


@dataclass(slots=True)
class Planner:
    """The planner of one pass. Listing begins at `newest`, the last snapshot seen.

    At the end, `left` says whether ready segments were left to a later pass.
    """

    compactor: Compactor
    assignment: Assignment
    report: PassReport
    gather: bool = False
    newest: TableSnapshot | None = None
    left: bool = False
    _stopped: dict[str, int] = field(default_factory=dict)
    _ends: Mapping[str, int] | None = None

    def stop(self, node: str, seq: int, why: str) -> None:
        """Makes the node wait at the segment, and raises an alarm."""
        self._stopped[node] = seq
        self.report.alarm(f"{node} waits at segment {seq}: {why}")

    def is_stopped(self, segment: ListedSegment) -> bool:
        """Whether the segment's node waits at it or before it."""
        stop = self._stopped.get(segment.node)
        return stop is not None and segment.seq >= stop

    async def next(self) -> Plan:
        """The next batch; without segments if there is none for this driver."""
        nodes = await nodes_of(self.compactor.store)
        look = await self._look(nodes)
        for alarm in look.plan.alarms:
            self.report.alarm(alarm)
        first = self._ends is None
        if first and self.gather and self._is_little(look.plan):
            self.left = True
            plan = Plan(look.plan.snapshot, (), ())
        else:
            plan = await self._of_mine(nodes, look)
        await self._measure(plan, look.listed)
        return plan

    async def _of_mine(self, nodes: Sequence[str], look: _Look) -> Plan:
        """Plans the nodes that this driver has leased."""
        assignment, waiting = self.assignment, look.waiting
        mine = await assignment.claim(nodes, waiting) if waiting else []
        self.report.held_elsewhere = len(waiting) - len(mine)
        for alarm in assignment.barred:
            self.report.alarm(alarm)
        if len(mine) < len(waiting) or not assignment.settled:
            # Planned again: another driver may have ingested some before the lease was ours.
            look = await self._look(mine)
        while not look.outrun.isdisjoint(mine):
            look = await self._look(mine)
        return look.plan

    def _is_little(self, plan: Plan) -> bool:
        """Whether the ready segments, if any, should wait for more."""
        limits = self.compactor.limits
        lag = lag_of(plan.segments, self.compactor.clock.now_ms())
        much = plan.more or is_much(lag, limits) or lag.seconds >= limits.gather_seconds
        return bool(plan.segments) and not much

    async def _measure(self, plan: Plan, listed: Mapping[str, Waiting]) -> None:
        """Records the waiting segments of all drivers; lists all at the first and last look."""
        partly = any(of_node.more for of_node in listed.values())
        if self._ends is None or not plan.segments or not partly:
            now = self.compactor.clock.now_ms()
            found = await tally(self.compactor.store, listed, now)
            self.report.lag = found.lag
            self._ends = found.ends if self._ends is None else self._ends

    async def _look(self, nodes: Sequence[str]) -> _Look:
        compactor, limits = self.compactor, self.compactor.limits
        known = self.newest or await compactor.newest()
        marks = await asyncio.to_thread(known.marks, nodes)
        listed = await waiting_above(compactor.store, marks, batch_bytes=limits.batch_bytes)
        # The snapshot is last: a segment that was removed meanwhile is below its marks.
        snapshot = self.newest = await compactor.newest()
        marks = await asyncio.to_thread(snapshot.marks, nodes)
        going = {node: self._going(node, of_node.segments) for node, of_node in listed.items()}
        before = compactor.clock.now_ms() - int(limits.gap_alarm_seconds * 1000)
        plan = choose(snapshot, going, batch_bytes=limits.batch_bytes, gap_before_ms=before)
        return _Look(plan, listed, frozenset(self._outrun(listed, marks)))

    def _outrun(self, listed: Mapping[str, Waiting], marks: Mapping[str, int]) -> Collection[str]:
        return [
            node
            for node, of_node in listed.items()
            if of_node.more
            and of_node.segments[-1].seq <= marks[node]
            and self._goes(node, marks[node] + 1)
        ]

    def _going(self, node: str, segments: Sequence[ListedSegment]) -> Sequence[ListedSegment]:
        return [one for one in segments if self._goes(node, one.seq)]

    def _goes(self, node: str, seq: int) -> bool:
        """Whether this pass would ingest the segment."""
        stop = self._stopped.get(node)
        began = self._ends is None or seq <= self._ends.get(node, 0)
        return began and (stop is None or seq < stop)


HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Text between two ULIDs, inclusive, of one hour; `size` in bytes."""

    low: int
    high: int
    size: int


def hour_of(value: int) -> int:
    """The hour of a ULID, counted from the epoch."""
    return ulid.time_ms(value) // HOUR_MS


class Coverage:
    """The union of thousands of time ranges as disjoint ranges of ULIDs, compared with files."""

    def __init__(self, time_ranges: Iterable[TimeRange]) -> None:
        self._lows: list[str] = []
        self._highs: list[str] = []
        for low, high in sorted((ulid.encode(s.low), ulid.encode(s.high)) for s in time_ranges):
            if self._highs and low <= self._highs[-1]:
                self._highs[-1] = max(self._highs[-1], high)
            else:
                self._lows.append(low)
                self._highs.append(high)

    def may_overlap(self, bounds: tuple[str, str] | None) -> bool:
        """Whether it may have lines between two ULIDs, inclusive; None: bounds are unknown."""
        if bounds is None:
            return True
        below = bisect_right(self._lows, bounds[1]) - 1  # the last that begins at or below the end
        return below >= 0 and self._highs[below] >= bounds[0]


MOST_RUN_RANGES: Final = 250_000
"""Run ranges that are kept apart: each takes some 300 bytes of the driver's memory."""
_ABOVE_ALL: Final = "~"  # as no ULID begins


class RunRange(NamedTuple):
    """Lines of a run in an hour (counted from the epoch), between two ULIDs, inclusive."""

    hour: int
    run: RunKey
    low: str
    high: str


Owner: TypeAlias = tuple[str, str | None]  # fqn, and run; None is the whole pipeline
Row: TypeAlias = tuple[str, str, str, str]  # fqn, run, lowest and highest ULID


@dataclass(slots=True)
class RunRanges:
    """Each run's lines in each hour, from the lowest ULID to the highest.

    If all runs together exceed `most`, an hour no longer distinguishes its runs: it then counts as
    having every run, and more files are read.
    """

    most: int = MOST_RUN_RANGES
    _hours: dict[int, dict[RunKey, tuple[str, str]] | None] = field(default_factory=dict)
    _count: int = 0

    def add(self, run_ranges: Iterable[RunRange]) -> None:
        """Adds the ranges of further lines."""
        for run_range in run_ranges:
            runs = self._hours.setdefault(run_range.hour, {})
            if runs is None:
                continue
            known = runs.get(run_range.run)
            if known is not None:
                runs[run_range.run] = min(known[0], run_range.low), max(known[1], run_range.high)
            elif self._count < self.most:
                runs[run_range.run] = run_range.low, run_range.high
                self._count += 1
            else:
                self._hours[run_range.hour] = None
                self._count -= len(runs)

    def of(self, hour: int) -> Sequence[Row] | None:
        """The ranges of the hour, sorted; None if it may have any run."""
        runs = self._hours.get(hour, {})
        return None if runs is None else sorted((*run, *bounds) for run, bounds in runs.items())

    def lowest(self) -> Mapping[Owner, str]:
        """The lowest ULID of each known run and of each pipeline."""
        found: dict[Owner, str] = {}
        for runs in self._hours.values():
            for run, (low, _) in (runs or {}).items():
                for owner in (run, (run.fqn, None)):
                    found[owner] = min(found.get(owner, low), low)
        return found

    def lowest_of_any(self) -> int | None:
        """A lower bound of ULIDs in hours that may have any run; None without such hours."""
        hours = [hour for hour, runs in self._hours.items() if runs is None]
        return ulid.lowest_at(min(hours) * HOUR_MS) if hours else None


class BatchRanges:
    """The ranges of a batch: `time_ranges` of its text, `run_ranges` of each run."""

    def __init__(self, time_ranges: Iterable[TimeRange], run_ranges: RunRanges) -> None:
        self._covered = Coverage(time_ranges)
        self._run_ranges = run_ranges
        self._sorted: dict[int, Sequence[Row] | None] = {}

    def may_overlap(self, file: TableFile) -> bool:
        """Whether the file may have a line of the batch; False only if it has none."""
        return self._covered.may_overlap(file.ulids) and self._has_run_of(file)

    def relevant_deletions(self, deletions: Sequence[Deletion]) -> list[Deletion]:
        """The deletions that may remove a line of the batch."""
        if not deletions:
            return []
        lowest, of_any = self._run_ranges.lowest(), self._run_ranges.lowest_of_any()
        return [
            one
            for one in deletions
            if (of_any is not None and of_any <= one.t)
            or lowest.get((one.fqn, one.run), _ABOVE_ALL) <= ulid.encode(one.t)
        ]

    def _has_run_of(self, file: TableFile) -> bool:
        hour = file.start_ms // HOUR_MS
        if hour not in self._sorted:
            self._sorted[hour] = self._run_ranges.of(hour)
        rows = self._sorted[hour]
        if rows is None:
            return True
        start, end = 0, len(rows)
        if file.fqns is not None:
            start = bisect_left(rows, file.fqns[0], key=_fqn)
            end = bisect_right(rows, file.fqns[1], key=_fqn)
        return any(_may_be_in(rows[index], file) for index in range(start, end))


def _fqn(row: Row) -> str:
    return row[0]


def _may_be_in(row: Row, file: TableFile) -> bool:
    _, run, low, high = row
    within = file.runs is None or file.runs[0] <= run <= file.runs[1]
    return within and (file.ulids is None or (file.ulids[0] <= high and low <= file.ulids[1]))


MOST_TASKS: Final = 512
MOST_HOURS: Final = 10_000
MOST_TIME_RANGES: Final = 250_000
_STEPS: Final = 16  # the most points that represent the text of a time range
_FINENESS: Final = 64  # of a bucket: no point needs a smaller share
_SMALLEST: Final = 32 << 20  # bytes of text: smaller files are not worth another task
_FEW: Final = 32  # buckets that have a task each, however small
_HOURS_A_TASK: Final = 256  # files that one task writes, at most


@dataclass(frozen=True, slots=True)
class Buckets:
    """`bounds` has the lowest ULID of each bucket, rising: bucket i ends where i + 1 begins.

    `tasks` has the task of each, from 0 on, rising too.
    """

    bounds: tuple[int, ...]
    tasks: tuple[int, ...]


def buckets_of(time_ranges: Sequence[TimeRange], *, bucket_bytes: int, cores: int) -> Buckets:
    """Buckets for the text of the time ranges.

    Each has about `bucket_bytes` of text, less where that keeps `cores` busy, and lies in
    one hour.
    """
    target = _target(sum(time_range.size for time_range in time_ranges), bucket_bytes, cores)
    hours: dict[int, list[TimeRange]] = defaultdict(list)
    for time_range in time_ranges:
        hours[hour_of(time_range.low)].append(time_range)
    cut = [_cut(hour, hours[hour], target) for hour in sorted(hours)]
    bounds = tuple(bound for of_hour in cut for bound in of_hour)
    if len(bounds) <= _FEW:
        return Buckets(bounds, tuple(range(len(bounds))))
    weights = [sum(time_range.size for time_range in hours[hour]) for hour in sorted(hours)]
    counts = [len(of_hour) for of_hour in cut]
    return Buckets(bounds, tuple(_tasks(weights, counts, target)))


def _target(total: int, bucket_bytes: int, cores: int) -> int:
    return min(bucket_bytes, max(math.ceil(total / max(cores, 1)), _SMALLEST))


def _tasks(weights: Sequence[int], counts: Sequence[int], target: int) -> Iterator[int]:
    """The task of each bucket; a bucket of a cut hour has its own, other buckets share one."""
    task, weight, held = -1, 0, _HOURS_A_TASK
    for of_hour, count in zip(weights, counts, strict=True):
        weight, held = weight + of_hour, held + 1
        if count > 1 or weight > target or held > _HOURS_A_TASK:
            task, weight, held = task + 1, of_hour, 1
        yield task
        for _ in range(count - 1):
            task, held = task + 1, _HOURS_A_TASK
            yield task


def _cut(hour: int, time_ranges: Sequence[TimeRange], target: int) -> list[int]:
    """The hour's start, and the cuts of its text into equal parts of about `target`."""
    start = ulid.lowest_at(hour * HOUR_MS)
    total = sum(time_range.size for time_range in time_ranges)
    parts = round(total / target)
    return [start] if parts < 2 else _cuts(start, time_ranges, parts, target)


def _cuts(start: int, time_ranges: Iterable[TimeRange], parts: int, target: int) -> list[int]:
    points = sorted(point for time_range in time_ranges for point in _points(time_range, target))
    total = sum(size for _, size in points)
    cuts, seen = [start], 0.0
    for at, size in points:
        if len(cuts) < parts and seen >= total * len(cuts) / parts and at > cuts[-1]:
            cuts.append(at)
        seen += size
    return cuts


def _points(time_range: TimeRange, target: int) -> list[tuple[int, float]]:
    """Points that represent the text of the hour, just fine enough for the target."""
    steps = min(max(time_range.size * _FINENESS // target, 1), _STEPS)
    width = time_range.high - time_range.low
    return [
        (time_range.low + width * step // steps, time_range.size / steps) for step in range(steps)
    ]


@dataclass(slots=True)
class BatchBudget:
    """The rest of a batch's budget; a task sorts `bucket_bytes` of text."""

    bucket_bytes: int
    most_tasks: int = MOST_TASKS
    most_hours: int = MOST_HOURS
    most_time_ranges: int = MOST_TIME_RANGES
    _segments: int = 0
    _text: int = 0
    _time_ranges: int = 0
    _hours: set[int] = field(default_factory=set)

    def takes(self, time_ranges: Sequence[TimeRange]) -> bool:
        """Whether one more segment, with these time ranges, fits; if so, it is counted."""
        text = self._text + sum(time_range.size for time_range in time_ranges)
        hours = self._hours.union(hour_of(time_range.low) for time_range in time_ranges)
        count = self._time_ranges + len(time_ranges)
        if self._segments and not self._fits(text, count, len(hours)):
            return False
        self._segments += 1
        self._text, self._time_ranges, self._hours = text, count, hours
        return True

    def _fits(self, text: int, time_ranges: int, hours: int) -> bool:
        return (
            text <= self.most_tasks * self.bucket_bytes
            and time_ranges <= self.most_time_ranges
            and hours <= max(self.most_hours, len(self._hours))
        )
