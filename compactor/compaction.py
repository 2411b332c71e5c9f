"""One pass: take in segments, batch by batch, until none is left; then clean up.

A batch is planned from one snapshot and committed on it, or not at all:

    plan ─► verify ─► merge (Spark) ─► place ─► commit
      ▲                                           │ somebody else was first: plan anew
      └───────────────────────────────────────────┘

Where several drivers work at once, each plans for the nodes that it leases (`compactor.shares`).
Nothing is remembered between passes, so a crash at any point leaves at most files that
no version names. `reached` is told each step's name as it ends; tests kill there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from compactor.aside import set_aside
from compactor.buckets import bucket_bounds
from compactor.deletions import deletions_above
from compactor.merge_input import MergeInput
from compactor.place import Placement, staging_folder
from compactor.plan import Plan, StoredSegment, choose, nodes_of, segments_of
from compactor.report import Report
from compactor.session import Session
from compactor.settings import Compaction
from compactor.shares import Alone, Share, Sharing
from compactor.verify import Corrupt, Span, Stopped, Verdict, Verified, verify
from logstore import ulid
from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.errors import PreconditionFailed
from logstore.objects.store import ObjectStore
from logstore.table.commit import Advance, commit_segments
from logstore.table.snapshot import Snapshot
from logstore.table.stats import NewFile
from logstore.table.table import Table

log = logging.getLogger("tailrace.compactor")


@dataclass(frozen=True, slots=True)
class Compactor:
    """A compactor of one store."""

    store: ObjectStore
    table: Table
    placement: Placement
    clock: Clock
    entropy: Entropy
    limits: Compaction
    session: Session
    reached: Callable[[str], None]
    evict_after_hours: float = 24.0
    sharing: Sharing = field(default_factory=Alone)

    async def take_in_all(self, report: Report) -> None:
        """Takes in all segments that are ready, of nodes that no other driver works on.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `Unavailable`.
        """
        async with self.sharing.joined() as share:
            await self._take_in_share(share, report)
        report.leases = dict(share.counted)

    async def _take_in_share(self, share: Share, report: Report) -> None:
        stopped: set[str] = set()
        while True:
            with report.timed("plan", self.clock):
                plan = await self._plan(stopped, share, report)
            if not plan.segments:
                return
            try:
                await self._take_in(plan, stopped, share, report)
            except PreconditionFailed as error:
                log.info("planning anew: %s", error)

    async def _plan(self, stopped: set[str], share: Share, report: Report) -> Plan:
        listed = {node: await segments_of(self.store, node) for node in await nodes_of(self.store)}
        plan = await self._planned({n: found for n, found in listed.items() if n not in stopped})
        for alarm in plan.alarms:
            report.alarm(alarm)
        waiting = plan.waiting
        mine = await share.among(list(listed), waiting) if waiting else []
        report.held_elsewhere = len(waiting) - len(mine)
        for alarm in share.barred:
            report.alarm(alarm)
        if len(mine) == len(waiting) and share.settled:
            return plan
        # Planned again: another driver may have taken some of it in before these were ours.
        return await self._planned({node: listed[node] for node in mine})

    async def _planned(self, listed: Mapping[str, Sequence[StoredSegment]]) -> Plan:
        # The snapshot last: a segment that was removed meanwhile is below its marks.
        snapshot = await asyncio.to_thread(self.table.snapshot)
        before = self.clock.now_ms() - int(self.limits.gap_alarm_seconds * 1000)
        return choose(snapshot, listed, batch_bytes=self.limits.batch_bytes, gap_before_ms=before)

    async def _take_in(self, plan: Plan, stopped: set[str], share: Share, report: Report) -> None:
        snapshot = plan.snapshot
        if snapshot.delta is None:
            snapshot = await asyncio.to_thread(self.table.create)
        with report.timed("verify", self.clock):
            verdicts = await verify(self.store, plan.segments)
        whole = await self._sift(verdicts, stopped, report)
        if not whole:
            return
        job = ulid.encode(ulid.fresh(self.clock, self.entropy))
        deleted, files = await self._merge(snapshot, whole, job, report)
        share.check({verified.segment.node for verified in whole})
        with report.timed("commit", self.clock):
            await self._commit(snapshot, files, whole, job)
        self.reached("committed")
        _count(report, whole, files, deleted)

    async def _sift(
        self, verdicts: Sequence[Verdict], stopped: set[str], report: Report
    ) -> list[Verified]:
        """Segments to take in; corrupt ones are set aside and count as empty."""
        whole: list[Verified] = []
        for verdict in verdicts:
            node = verdict.segment.node
            if node in stopped:
                continue
            if isinstance(verdict, Stopped):
                stopped.add(node)
                report.alarm(f"{node} waits at segment {verdict.segment.seq}: {verdict.reason}")
            elif isinstance(verdict, Corrupt):
                await self._set_aside(verdict, report)
                whole.append(Verified(verdict.segment, 0, ()))
            else:
                whole.append(verdict)
        return whole

    async def _set_aside(self, corrupt: Corrupt, report: Report) -> None:
        node, seq = corrupt.segment.node, corrupt.segment.seq
        version = ulid.encode(ulid.fresh(self.clock, self.entropy))
        log.warning("segment %d of %s is set aside: %s", seq, node, corrupt.reason)
        await set_aside(self.store, node, seq, reason=corrupt.reason, version=version)
        report.set_aside += 1

    async def _merge(
        self, snapshot: Snapshot, whole: Sequence[Verified], job: str, report: Report
    ) -> tuple[int, list[NewFile]]:
        spans = [span for verified in whole for span in verified.spans]
        if not spans:
            return 0, []
        with report.timed("start", self.clock):
            spark = await asyncio.to_thread(self.session.get)
        from compactor.merge import merge  # imports pyspark, which is there by now

        work = await self._work(snapshot, whole, spans, spark.sparkContext.defaultParallelism)
        folder = staging_folder(self.table.uri, job)
        with report.timed("merge", self.clock):
            deleted = await asyncio.to_thread(merge, spark, work, folder)
        self.reached("written")
        with report.timed("place", self.clock):
            files = await self.placement.place(job)
        self.reached("placed")
        return deleted, files

    async def _work(
        self, snapshot: Snapshot, whole: Sequence[Verified], spans: Sequence[Span], cores: int
    ) -> MergeInput:
        low, high = min(s.low for s in spans), max(s.high for s in spans)
        return MergeInput(
            segments=[self.store.uri(v.segment.key) for v in whole if v.spans],
            held=[file.uri for file in snapshot.files if _meets(file.ulids, spans)],
            bounds=bucket_bounds(spans, bucket_bytes=self.limits.bucket_bytes, cores=cores),
            deletions=await deletions_above(self.store, low),
            low=low,
            high=high,
        )

    async def _commit(
        self, snapshot: Snapshot, files: list[NewFile], whole: Sequence[Verified], job: str
    ) -> None:
        after = await asyncio.to_thread(
            commit_segments,
            self.table,
            snapshot,
            files,
            _advances(whole),
            job=job,
            clock=self.clock,
        )
        await self.placement.settle(range(snapshot.version + 1, after.version + 1))


def _advances(whole: Sequence[Verified]) -> list[Advance]:
    seqs: dict[str, list[int]] = {}
    for verified in whole:
        seqs.setdefault(verified.segment.node, []).append(verified.segment.seq)
    return [Advance(node, min(of_node), max(of_node)) for node, of_node in seqs.items()]


def _meets(bounds: tuple[str, str] | None, spans: Sequence[Span]) -> bool:
    if bounds is None:
        return True
    low, high = ulid.decode(bounds[0]), ulid.decode(bounds[1])
    return any(span.low <= high and low <= span.high for span in spans)


def _count(
    report: Report, whole: Sequence[Verified], files: Sequence[NewFile], deleted: int
) -> None:
    rows_in, rows_out = sum(v.rows for v in whole), sum(f.rows for f in files)
    report.commits += 1
    report.segments += len(whole)
    report.segment_bytes += sum(v.segment.size for v in whole)
    report.rows_in += rows_in
    report.rows_out += rows_out
    report.deleted += deleted
    report.duplicates += rows_in - rows_out - deleted
    report.files += len(files)
    report.table_bytes += sum(f.size for f in files)
    report.hours += len({(f.date, f.hour) for f in files})
