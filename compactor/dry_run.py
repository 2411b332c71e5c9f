"""Previews a pass: the plan that `--dry-run` prints, for people or as a line of JSON.

It plans like a pass, on a snapshot that it advances in memory alone. It writes nothing, requests no
lease, and starts no Spark. It reads only the footers of segments, while a pass reads all of their
bytes first: for a row group that crosses hours the footer names only the first and the last, so a
pass may find hours between them, and end a batch sooner for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import orjson

from compactor.cleanup import expiring
from compactor.context import Compactor, now_ms
from compactor.plan import (
    HOUR_MS,
    BatchBudget,
    ListedSegment,
    TimeRange,
    buckets_of,
    choose,
    hour_of,
    nodes_of,
    segments_of,
)
from compactor.report import BatchReport, Lag, duration_text
from compactor.rewrite import plan_hours
from compactor.verify import find_left_out, text_of
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import rfc3339
from tailrace.logstore.errors import Damaged, NotFound, StoreUnavailable, UnsupportedVersion
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.progress import size
from tailrace.logstore.runs.manifest import manifest_at
from tailrace.logstore.segments.reader import SegmentFile, fetch_statistics
from tailrace.logstore.table.snapshot import TableSnapshot

_AT_ONCE: Final = 16
_RUNS_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class FooterRows:
    """The rows of a segment by its footer, 0 if the segment is, or would be, quarantined.

    `damage` is the reason.
    """

    rows: int
    time_ranges: tuple[TimeRange, ...]
    damage: str = ""


Found: TypeAlias = FooterRows | str
"""Or why the node would wait at the segment."""


async def look(store: ObjectStore, segments: Sequence[ListedSegment]) -> list[Found]:
    """Reads the footers of these segments, in order."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(segment: ListedSegment) -> Found:
        async with turns:
            return await _look(store, segment)

    return await asyncio.gather(*(one(segment) for segment in segments))


async def _look(store: ObjectStore, segment: ListedSegment) -> Found:
    if segment.quarantined:
        return FooterRows(0, ())
    try:
        opened = await fetch_statistics(store, segment.key)
    except (UnsupportedVersion, StoreUnavailable, NotFound) as error:
        return str(error)
    except Damaged as error:
        return FooterRows(0, (), damage=str(error))
    groups = range(opened.parquet.num_row_groups)
    return FooterRows(opened.footer.rows, tuple(s for g in groups for s in _time_ranges(opened, g)))


def _time_ranges(opened: SegmentFile, index: int) -> Iterator[TimeRange]:
    """The time ranges of the group's text. If it crosses hours, half counts for each end."""
    group = opened.parquet.metadata.row_group(index)
    chunks = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
    bounds, size = chunks["ulid"].statistics, text_of(group.num_rows, chunks["message"])
    low, high = ulid.decode(bounds.min), ulid.decode(bounds.max)
    first, last = hour_of(low), hour_of(high)
    if first == last:
        yield TimeRange(low, high, size)
    else:
        yield TimeRange(low, ulid.lowest_at((first + 1) * HOUR_MS) - 1, size // 2)
        yield TimeRange(ulid.lowest_at(last * HOUR_MS), high, size // 2)


@dataclass(frozen=True, slots=True)
class DryRunNode:
    """The waiting segments of a node; the table has segments up to `mark`. Bytes as stored."""

    node: str
    mark: int
    segments: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DryRunHour:
    """Files of an hour that would be rewritten; bytes are those to be read."""

    hour: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DryRunExpiry:
    """The files that the retention would remove: those of all hours that ended by `until`."""

    until: str
    hours: int
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DryRunRuns:
    """The runs that the service would remove at its next sweep, unless lines wait in a journal.

    `oldest` has the first of them, those with the oldest last line, as (pipeline, run, its time).
    """

    count: int
    oldest: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class DryRun:
    """The preview. `version` is that of the table, -1 if there is none yet.

    Hours and tasks of `batches` follow from the segments' footers. Duplicates and deleted lines are
    not known before the lines are read. `rewrites` are planned without the files of `batches`.
    """

    version: int
    lag: Lag
    nodes: tuple[DryRunNode, ...]
    batches: tuple[BatchReport, ...]
    rewrites: tuple[DryRunHour, ...]
    expiry: DryRunExpiry
    runs: DryRunRuns
    deletions: int
    alarms: tuple[str, ...]

    def line(self) -> str:
        """The preview as one line of JSON."""
        return orjson.dumps(self).decode()

    def text(self) -> str:
        """The preview as sentences."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        waiting = self.lag
        yield f"The table is at version {self.version}." if self.version >= 0 else "No table yet."
        yield (
            f"{waiting.segments} segments wait, {size(waiting.bytes)},"
            f" the oldest for {duration_text(waiting.seconds)}."
        )
        for of_node in self.nodes:
            yield (
                f"  {of_node.node}: {of_node.segments} after segment {of_node.mark},"
                f" {size(of_node.bytes)}"
            )
        yield f"{len(self.batches)} commits would ingest them."
        for number, batch in enumerate(self.batches, 1):
            yield (
                f"  {number}: {batch.segments} segments, {size(batch.bytes)}, {batch.rows} rows"
                f" into {batch.hours} hours by {batch.tasks} tasks"
            )
        yield f"{len(self.rewrites)} hours would be rewritten."
        for hour in self.rewrites:
            yield f"  {hour.hour}: {hour.files} files, {size(hour.bytes)}"
        yield f"{self.deletions} deletions would be applied to files of the table."
        gone = self.expiry
        yield (
            f"{gone.hours} hours would expire: {gone.files} files, {gone.rows} rows,"
            f" {size(gone.bytes)}{f', up to {gone.until}' if gone.hours else ''}."
        )
        yield f"{self.runs.count} runs would expire{':' if self.runs.count else '.'}"
        for fqn, run, last in self.runs.oldest:
            yield f"  {fqn}/{run}: last line at {last}"
        if self.runs.count > len(self.runs.oldest):
            yield f"  and {self.runs.count - len(self.runs.oldest)} more"
        for alarm in self.alarms:
            yield f"ALARM {alarm}"


Waiting: TypeAlias = Mapping[str, Sequence[ListedSegment]]


@dataclass(frozen=True)
class PlannedSnapshot(TableSnapshot):
    """A snapshot with the marks that it would have after some commits."""

    taken: Mapping[str, int] = field(default_factory=dict)

    def mark(self, node: str) -> int:
        return self.taken[node]


async def dry_run(compactor: Compactor) -> DryRun:
    """Previews a pass that would begin now. Raises `StoreUnavailable`, `Damaged`."""
    snapshot = await compactor.newest()
    nodes = await nodes_of(compactor.store)
    marks = await asyncio.to_thread(snapshot.marks, nodes)
    waiting = {
        node: await segments_of(compactor.store, node, above=mark) for node, mark in marks.items()
    }
    alarms: list[str] = []
    batches = [one async for one in _batches(compactor, snapshot, marks, waiting, alarms)]
    alarms += (await find_left_out(compactor.store)).alarms
    hours = await plan_hours(compactor)
    return DryRun(
        version=snapshot.version,
        lag=_lag(compactor, waiting),
        nodes=tuple(_nodes(marks, waiting)),
        batches=tuple(batches),
        rewrites=tuple(DryRunHour(one.hour, len(one.files), one.size) for one in hours),
        expiry=await asyncio.to_thread(_expiry, compactor, snapshot),
        runs=await _runs(compactor),
        deletions=await _fresh_deletions(compactor, snapshot),
        alarms=tuple(alarms),
    )


async def _batches(
    compactor: Compactor,
    snapshot: TableSnapshot,
    marks: Mapping[str, int],
    waiting: Waiting,
    alarms: list[str],
) -> AsyncIterator[BatchReport]:
    """The batches of the commits, one after the other, as if each were made."""
    limits, taken, going = compactor.limits, dict(marks), dict(waiting)
    before = compactor.clock.now_ms() - int(limits.gap_alarm_seconds * 1000)
    while True:
        ahead = PlannedSnapshot(snapshot.uri, snapshot.version, taken=taken)
        plan = choose(ahead, going, batch_bytes=limits.batch_bytes, gap_before_ms=before)
        alarms += [alarm for alarm in plan.alarms if alarm not in alarms]
        if not plan.segments:
            return
        whole, budget = [], BatchBudget(limits.bucket_bytes)
        found = await look(compactor.store, plan.segments)
        for segment, looked in zip(plan.segments, found, strict=True):
            if not budget.takes(() if isinstance(looked, str) else looked.time_ranges):
                break
            if segment.node not in going:
                continue
            if isinstance(looked, str):
                del going[segment.node]
                alarms.append(f"{segment.node} would wait at segment {segment.seq}: {looked}")
            else:
                if looked.damage:
                    alarms.append(
                        f"segment {segment.seq} of {segment.node} would be left out,"
                        f" because it is damaged: {looked.damage}"
                    )
                taken[segment.node] = segment.seq
                whole.append((segment, looked))
        if whole:
            yield _batch(compactor, whole)


def _batch(compactor: Compactor, whole: Sequence[tuple[ListedSegment, FooterRows]]) -> BatchReport:
    time_ranges = [time_range for _, looked in whole for time_range in looked.time_ranges]
    # Only Spark knows the number of cores; with more cores a batch may have more tasks.
    buckets = buckets_of(time_ranges, bucket_bytes=compactor.limits.bucket_bytes, cores=1)
    return BatchReport(
        segments=len(whole),
        bytes=sum(segment.size for segment, _ in whole),
        rows=sum(looked.rows for _, looked in whole),
        hours=len(set(map(hour_of, buckets.bounds))),
        tasks=max(buckets.tasks, default=-1) + 1,
    )


def _nodes(marks: Mapping[str, int], waiting: Waiting) -> list[DryRunNode]:
    return [
        DryRunNode(node, marks[node], len(some), sum(one.size for one in some))
        for node, some in sorted(waiting.items())
        if some
    ]


def _lag(compactor: Compactor, waiting: Waiting) -> Lag:
    listed = [segment for some in waiting.values() for segment in some]
    now = compactor.clock.now_ms()
    oldest = min([segment.modified_ms for segment in listed], default=now)
    return Lag(len(listed), sum(one.size for one in listed), max(now - oldest, 0) / 1000)


async def _fresh_deletions(compactor: Compactor, snapshot: TableSnapshot) -> int:
    """The number of deletions that are not known to be done in all files."""
    done = await asyncio.to_thread(lambda: snapshot.purged_ms)
    stored = await compactor.deletions.all(compactor.store)
    return sum(one.modified_ms > done for one in stored)


def _expiry(compactor: Compactor, snapshot: TableSnapshot) -> DryRunExpiry:
    gone = expiring(compactor, snapshot)
    return DryRunExpiry(
        until=rfc3339(gone.until_ms),
        hours=gone.hours,
        files=len(gone.files),
        rows=sum(file.rows for file in gone.files),
        bytes=sum(file.size for file in gone.files),
    )


async def _runs(compactor: Compactor) -> DryRunRuns:
    """Uses the rule of the service's sweep. Unreadable runs are left to `tailrace verify`."""
    retention, now, found = compactor.runs, now_ms(compactor), list[tuple[int, RunKey]]()
    if retention.shortest_days:
        async for info in compactor.store.list(keys.RUNS):
            try:
                manifest = manifest_at(info.key, (await compactor.store.get(info.key))[1])
            except (NotFound, Damaged):
                continue
            if manifest.state == "deleted":
                continue
            if retention.expires(manifest.key.fqn, manifest.last_ms, now):
                found.append((manifest.last_ms, manifest.key))
    named = [(*key, rfc3339(last)) for last, key in sorted(found)[:_RUNS_NAMED]]
    return DryRunRuns(len(found), tuple(named))
