"""Ingests flushed segments into the table, batch by batch: plan, verify, merge, commit.

A batch is planned from one snapshot. It is committed on that one, or on a later one that changes
nothing for it, or not at all:

    plan ─► verify ─► pack small ones ─► merge (Spark) ─► place ─► commit
      ▲                                                              │ another driver was first:
      └──────────────────────────────────────────────────────────────┘ plan again

`compactor/plan.py` chooses the next segments. If several drivers work at once, each plans for the
nodes that it leases (`compactor/assignment.py`). Nothing is remembered between passes, so a crash
at any point leaves at most files that no version names. A lost or damaged table file blocks the
segments that would have to be compared with it.

**Commit.** `commit_merged` may commit a batch on a newer version than that of its plan. The result
of a merge is: these are the batch's lines, each once, without lines that the table had and without
deleted ones. It still holds on a newer version if, since the plan,

- no node of the batch was ingested further: no other driver ingested these segments;
- no deletions were recorded as done, and no hours as expired: the driver that recorded them has not
  seen the files of this batch, so a new merge must apply deletions that are newer than its own;
- no file was added that shares a batch of lines with the new files. A file whose bounds exclude
  that (`compactor/plan.py`) shares none; of other files only the keys are read, a small part of a
  merge.

Removed files do not matter. A line that was left out because such a file had it is either in a new
file (a rewriting), or gone with the rest of the file (deleted, expired). Concurrent drivers usually
just add lines of other nodes, which costs no second merge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compactor.assignment import Assignment
from compactor.commit import make_while, place_all
from compactor.context import Compactor
from compactor.placement import staging_folder
from compactor.plan import BatchBudget, BatchRanges, Coverage, Plan, Planner, buckets_of, hour_of
from compactor.report import BatchReport, Lag, PassReport
from compactor.rewrite import LostFile, describe, lost_files
from compactor.spark.engine import MergeInput
from compactor.spark.session import in_thread
from compactor.verify import Corrupt, Stopped, Verdict, Verified, packed, verify
from tailrace.logstore.errors import PreconditionFailed, Unavailable
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.segments.file_format import quarantine
from tailrace.logstore.table.schema import NewFile
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import Advance, TableChange


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge: `files` with all lines of `advances`, all within `ranges`."""

    files: Sequence[NewFile]
    advances: Sequence[Advance]
    ranges: BatchRanges
    job: str


async def commit_merged(
    compactor: Compactor, snapshot: TableSnapshot, merged: Merged
) -> TableSnapshot:
    """Commits on `snapshot`, or a later one where the result still holds; returns the new one.

    Raises `PreconditionFailed` if the batch must be planned again, `OutcomeUnknown`,
    `StoreUnavailable`, `Unavailable`.
    """

    async def holds(newest: TableSnapshot) -> bool:
        return await _holds(compactor, snapshot, newest, merged)

    change = TableChange(merged.files, merged.advances)
    return await make_while(compactor, snapshot, change, holds, job=merged.job)


async def _holds(
    compactor: Compactor, planned: TableSnapshot, newest: TableSnapshot, merged: Merged
) -> bool:
    """Whether the merge's result on `planned` still holds on `newest`."""
    if not await asyncio.to_thread(_undisturbed, planned, newest, merged.advances):
        return False
    came = await asyncio.to_thread(_came, planned, newest, merged.ranges)
    if not came or not merged.files:
        return True
    mine = {f"{newest.uri}/{file.path}": file.size for file in merged.files}
    return not await in_thread(compactor.engine.share_batches, mine, came)


def _undisturbed(
    planned: TableSnapshot, newest: TableSnapshot, advances: Sequence[Advance]
) -> bool:
    return (
        all(newest.mark(one.node) == one.first - 1 for one in advances)
        and newest.purged_ms == planned.purged_ms
        and newest.expired_ms == planned.expired_ms
    )


def _came(planned: TableSnapshot, newest: TableSnapshot, ranges: BatchRanges) -> dict[str, int]:
    """Bytes by address of files that are not in `planned` and may hold lines of the batch."""
    known = {file.path for file in planned.files}
    return {
        file.uri: file.size
        for file in newest.files
        if file.path not in known and ranges.may_overlap(file)
    }


log = logging.getLogger("tailrace.compactor")


async def ingest_all(compactor: Compactor, report: PassReport, *, gather: bool = False) -> bool:
    """Ingests all segments that are ready now, of nodes that no other driver works on.

    With `gather` it may leave a few small ones to a later pass. Returns whether it did. Raises
    `StoreUnavailable`, `OutcomeUnknown`, `Unavailable`.
    """
    async with compactor.assigner.joined() as assignment:
        report.works += assignment.works
        planner = Planner(compactor, assignment, report, gather)
        await _IngestPass(compactor, assignment, report, planner).run()
    report.leases = dict(assignment.counted)
    return planner.left


@dataclass(slots=True)
class _IngestPass:
    """Plans, merges and commits batches until nothing is left."""

    compactor: Compactor
    assignment: Assignment
    report: PassReport
    planner: Planner

    async def run(self) -> None:
        while True:
            with self.report.timed("plan", self.compactor.clock):
                plan = await self.planner.next()
            if not plan.segments:
                if self.report.held_elsewhere and await self.assignment.wait():
                    continue
                return
            try:
                await self._ingest_batch(plan)
            except PreconditionFailed as error:
                log.info("planning again: %s", error)

    async def _ingest_batch(self, plan: Plan) -> None:
        compactor = self.compactor
        snapshot = plan.snapshot
        snapshot.check_writable()  # before it merges lines that it could not commit
        if snapshot.delta is None or snapshot.is_outdated:
            snapshot = await asyncio.to_thread(compactor.table.create)
        with self.report.timed("verify", compactor.clock):
            budget = BatchBudget(compactor.limits.bucket_bytes)
            found = await verify(compactor.store, plan.segments, budget)
        whole = await self._sift(found.verdicts)
        if not whole:
            return
        job = compactor.fresh_id()
        ranges = BatchRanges(
            (time_range for verified in whole for time_range in verified.time_ranges),
            found.run_ranges,
        )
        try:
            small = found.small.bodies
            deleted, files = await self._merge(snapshot, whole, small, ranges, job)
        except Unavailable:
            if not await self._wait_for_files(snapshot, whole, ranges):
                raise
            return
        self.assignment.check({verified.segment.node for verified in whole})
        merged = Merged(files, _advances(whole), ranges, job)
        try:
            with self.report.timed("commit", compactor.clock):
                self.planner.newest = await commit_merged(compactor, snapshot, merged)
        except Unavailable:  # a file added meanwhile was compared with, and may be gone again
            newest = await asyncio.to_thread(compactor.table.snapshot)
            if not await self._wait_for_files(newest, whole, ranges):
                raise
            return
        compactor.reached("committed")
        _count(self.report, whole, files, deleted)
        log.info(
            "ingested %d segments of %d bytes: %d rows became %d in %d files",
            len(whole),
            sum(verified.segment.size for verified in whole),
            sum(verified.rows for verified in whole),
            sum(file.rows for file in files),
            len(files),
            extra={"fields": {"event": "batch committed", "job": job}},
        )

    async def _wait_for_files(
        self, snapshot: TableSnapshot, whole: Sequence[Verified], ranges: BatchRanges
    ) -> bool:
        """Stops nodes at segments that a lost file blocks. Returns False if none is blocked."""
        store, files = self.compactor.store, filter(ranges.may_overlap, snapshot.files)
        waiting = await blocked_by(store, whole, await lost_files(store, files))
        for verified, lost in waiting:
            node, seq = verified.segment.node, verified.segment.seq
            self.planner.stop(node, seq, describe(lost))
        return bool(waiting)

    async def _sift(self, verdicts: Sequence[Verdict]) -> list[Verified]:
        """Returns the segments to ingest. Quarantines corrupt ones, which then count as empty."""
        whole: list[Verified] = []
        for verdict in verdicts:
            if self.planner.is_stopped(verdict.segment):
                continue
            if isinstance(verdict, Stopped):
                segment = verdict.segment
                self.planner.stop(segment.node, segment.seq, verdict.reason)
            elif isinstance(verdict, Corrupt):
                await self._quarantine(verdict)
                whole.append(Verified(verdict.segment, 0, ()))
            else:
                whole.append(verdict)
        return whole

    async def _quarantine(self, corrupt: Corrupt) -> None:
        compactor = self.compactor
        node, seq = corrupt.segment.node, corrupt.segment.seq
        version = compactor.fresh_id()
        log.warning("segment %d of %s is quarantined: %s", seq, node, corrupt.reason)
        await quarantine(compactor.store, node, seq, reason=corrupt.reason, version=version)
        self.report.set_aside += 1

    async def _merge(
        self,
        snapshot: TableSnapshot,
        whole: Sequence[Verified],
        small: Mapping[str, bytes],
        ranges: BatchRanges,
        job: str,
    ) -> tuple[int, list[NewFile]]:
        compactor, clock = self.compactor, self.compactor.clock
        if not any(verified.time_ranges for verified in whole):
            return 0, []
        with self.report.timed("start", clock):
            cores = await in_thread(compactor.engine.cores)
        segments = {v.segment.key: v.segment.size for v in whole if v.time_ranges}
        folder = staging_folder(compactor.table.uri, job)
        with self.report.timed("merge", clock):
            async with packed(compactor, segments, small) as files_of_lines:
                work = await self._work(snapshot, whole, files_of_lines, ranges, cores)
                self.report.planned(_batch(whole, work))
                written = await in_thread(compactor.engine.merge, work, folder)
        compactor.reached("written")
        with self.report.timed("place", clock):
            files = await place_all(compactor, job, written.rows)
        compactor.reached("placed")
        return written.deleted, files

    async def _work(
        self,
        snapshot: TableSnapshot,
        whole: Sequence[Verified],
        segments: Mapping[str, int],
        ranges: BatchRanges,
        cores: int,
    ) -> MergeInput:
        store, limits = self.compactor.store, self.compactor.limits
        time_ranges = [time_range for verified in whole for time_range in verified.time_ranges]
        low, high = min(s.low for s in time_ranges), max(s.high for s in time_ranges)
        buckets = buckets_of(time_ranges, bucket_bytes=limits.bucket_bytes, cores=cores)
        held = {file.uri: file.size for file in snapshot.files if ranges.may_overlap(file)}
        return MergeInput(
            segments=segments,
            held=held,
            bounds=buckets.bounds,
            tasks=buckets.tasks,
            deletions=ranges.relevant_deletions(await self.compactor.deletions.above(store, low)),
            low=low,
            high=high,
        )


async def blocked_by(
    store: ObjectStore, whole: Sequence[Verified], lost: Sequence[LostFile]
) -> list[tuple[Verified, LostFile]]:
    """Finds each node's first segment that may hold copies of lines of a lost file, and that file.

    `whole` has each node's segments in sequence. They are read once more, one by one, because the
    runs are known only for the batch as a whole. If no segment may hold copies by its runs (the
    batch had too many to distinguish), segments of the file's time count. Raises
    `StoreUnavailable`.
    """
    near: dict[str, tuple[Verified, LostFile]] = {}
    found: dict[str, tuple[Verified, LostFile]] = {}
    for verified in whole:
        node = verified.segment.node
        if node in found or not verified.time_ranges:
            continue
        covered = Coverage(verified.time_ranges)
        met = [one for one in lost if covered.may_overlap(one.file.ulids)]
        if met:
            near.setdefault(node, (verified, met[0]))
            again = await verify(store, [verified.segment], BatchBudget(1))
            ranges = BatchRanges(verified.time_ranges, again.run_ranges)
            for one in met:
                if ranges.may_overlap(one.file):
                    found.setdefault(node, (verified, one))
    return list((found or near).values())


def _batch(whole: Sequence[Verified], work: MergeInput) -> BatchReport:
    return BatchReport(
        segments=len(whole),
        bytes=sum(verified.segment.size for verified in whole),
        rows=sum(verified.rows for verified in whole),
        hours=len({hour_of(bound) for bound in work.bounds}),
        tasks=work.tasks[-1] + 1,
    )


def _advances(whole: Sequence[Verified]) -> list[Advance]:
    seqs: dict[str, list[int]] = {}
    for verified in whole:
        seqs.setdefault(verified.segment.node, []).append(verified.segment.seq)
    return [Advance(node, min(of_node), max(of_node)) for node, of_node in seqs.items()]


def _count(
    report: PassReport, whole: Sequence[Verified], files: Sequence[NewFile], deleted: int
) -> None:
    rows_in, rows_out = sum(v.rows for v in whole), sum(f.rows for f in files)
    report.commits += 1
    report.segments += len(whole)
    size = sum(v.segment.size for v in whole)
    report.segment_bytes += size
    if report.lag is not None:
        lag = report.lag
        report.lag = Lag(max(lag.segments - len(whole), 0), max(lag.bytes - size, 0), lag.seconds)
    report.rows_in += rows_in
    report.rows_out += rows_out
    report.deleted += deleted
    report.duplicates += rows_in - rows_out - deleted
    report.files += len(files)
    report.table_bytes += sum(f.size for f in files)
    report.hours += len({(f.date, f.hour) for f in files})
