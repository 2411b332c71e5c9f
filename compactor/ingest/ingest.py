"""Ingests the present segments into the table, batch by batch.

A batch is planned from one snapshot and committed on it, or on a later one that changes nothing
for it (`commit.py`), or not at all:

    plan ─► verify ─► pack small ones ─► merge (Spark) ─► place ─► commit
      ▲                                                              │ another driver was first:
      └──────────────────────────────────────────────────────────────┘ plan again

`planner.py` says which segments are next. If several drivers work at once, each plans for the
nodes that it leases (`compactor/assignment.py`). Nothing is remembered between passes, so a
crash at any point leaves at most files that no version names.

A table file that is gone or damaged blocks the segments that would have to be compared with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compactor.assignment import Assignment
from compactor.commit.change import place_all
from compactor.commit.lost_files import LostFile, describe, lost_files
from compactor.commit.placement import staging_folder
from compactor.context import Compactor
from compactor.ingest.buckets import BatchBudget, buckets_of
from compactor.ingest.commit import Merged, commit_merged
from compactor.ingest.pack import packed
from compactor.ingest.plan import Plan
from compactor.ingest.planner import Planner
from compactor.ingest.prune import BatchRanges, Coverage, hour_of
from compactor.ingest.verify import Corrupt, Stopped, Verdict, Verified, verify
from compactor.report import Batch, Lag, Report
from compactor.spark.engine import MergeInput
from compactor.spark.threads import in_thread
from logstore.errors import PreconditionFailed, Unavailable
from logstore.objects.store import ObjectStore
from logstore.segments.quarantine import quarantine
from logstore.table.commit import Advance
from logstore.table.snapshot import Snapshot
from logstore.table.stats import NewFile

log = logging.getLogger("tailrace.compactor")


async def ingest_all(compactor: Compactor, report: Report, *, gather: bool = False) -> bool:
    """Ingests all segments that are ready now, of nodes that no other driver works on.

    With `gather` it may leave a few small ones to a later pass; returns whether it did. Raises
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
    report: Report
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
        snapshot.check_writable()  # before anything is merged that could not be committed
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
        except Unavailable:  # what came meanwhile is compared with, and may be gone again
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
        self, snapshot: Snapshot, whole: Sequence[Verified], ranges: BatchRanges
    ) -> bool:
        """Stops nodes at segments that are blocked by a lost file; False if none is."""
        store, files = self.compactor.store, filter(ranges.may_overlap, snapshot.files)
        waiting = await blocked_by(store, whole, await lost_files(store, files))
        for verified, lost in waiting:
            node, seq = verified.segment.node, verified.segment.seq
            self.planner.stop(node, seq, describe(lost))
        return bool(waiting)

    async def _sift(self, verdicts: Sequence[Verdict]) -> list[Verified]:
        """Segments to ingest; corrupt ones are quarantined and count as empty."""
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
        snapshot: Snapshot,
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
        snapshot: Snapshot,
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
    """The first segment of each node that may hold copies of a lost file's lines, and the file.

    `whole` has each node's segments in sequence. They are read once more, one by one, because the
    runs are known only for the batch as a whole. If no segment may hold copies by its runs (the
    batch had too many to distinguish), those of the file's time count. Raises `StoreUnavailable`.
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


def _batch(whole: Sequence[Verified], work: MergeInput) -> Batch:
    return Batch(
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
    report: Report, whole: Sequence[Verified], files: Sequence[NewFile], deleted: int
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
