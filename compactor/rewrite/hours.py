"""Rewrites hours that are over: many small files become few, each line once.

    plan (statistics) ─► leases (`hour/…`) ─► plan one hour ─► rewrite (Spark) ─► replace
                                                   ▲                                │
                                                   └─ a file that it read is gone ──┘

An hour is over `compaction.settle_seconds` after its end, but not before the segments that wait
above the table's marks were uploaded, because they may have many lines of it. Segments older than
a day do not delay it: their node stands still, or a backlog is being ingested, and their lines
come late.

The files that are read belong to one snapshot; the new ones replace them in one version, or are
orphans.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from compactor.assignment import HOURS, Assignment
from compactor.commit.lost_files import LostFile, describe, lost_files, misread_files
from compactor.context import MOST_DELETIONS, Compactor, Hurry, never
from compactor.ingest.plan import nodes_of, waiting_above
from compactor.report import Report
from compactor.rewrite.files import replace, rewrite
from compactor.rewrite.plan import Rewriting, hour_of, rewriting, rewritings
from logstore.errors import PreconditionFailed, Unavailable
from logstore.runs.deletions import Deletion, StoredDeletion
from logstore.table.commit import Change
from logstore.table.snapshot import Snapshot, TableFile

log = logging.getLogger("tailrace.compactor")
_WAITED_FOR_MS: Final = 24 * 3_600_000
_TRIES: Final = 5
"""Where others rewrite the same hour all the time, it is left to the next pass."""


async def rewrite_hours(compactor: Compactor, report: Report, hurry: Hurry = never) -> None:
    """Rewrites the hours that need it and that no other driver works on.

    After each hour it calls `hurry`; if that returns True, the rest is left to the next pass.
    Raises `StoreUnavailable`, `OutcomeUnknown`, `Unavailable`, `Damaged`.
    """
    with report.timed("plan", compactor.clock):
        planned = await plan_hours(compactor)
    if not planned:
        return
    async with compactor.assigner.joined(HOURS) as assignment:
        report.works += assignment.works
        await _Hours(compactor, assignment, report, [one.hour for one in planned], hurry).run()
    report.hour_leases = dict(assignment.counted)


async def plan_hours(compactor: Compactor) -> list[Rewriting]:
    """The hours to be rewritten now, the oldest first. Raises `StoreUnavailable`."""
    snapshot = await compactor.newest()
    over_ms = await _over(compactor, snapshot)
    return await asyncio.to_thread(
        lambda: rewritings(
            snapshot.files,
            over_ms=over_ms,
            after_ms=snapshot.expired_ms,
            file_bytes=compactor.limits.file_bytes,
        )
    )


async def _over(compactor: Compactor, snapshot: Snapshot) -> int:
    """The time by which hours must have ended to be over."""
    now = compactor.clock.now_ms()
    marks = await asyncio.to_thread(snapshot.marks, await nodes_of(compactor.store))
    waiting = await waiting_above(compactor.store, marks, batch_bytes=0)
    uploads = [one.segments[0].modified_ms for one in waiting.values() if one.segments]
    young = [uploaded for uploaded in uploads if uploaded > now - _WAITED_FOR_MS]
    return min([now, *young]) - int(compactor.limits.settle_seconds * 1000)


@dataclass(slots=True)
class _Hours:
    """One pass over the hours that are `left`, oldest first."""

    compactor: Compactor
    assignment: Assignment
    report: Report
    left: list[str]
    hurry: Hurry
    deletions: Sequence[StoredDeletion] | None = None
    newest: Snapshot | None = None

    async def run(self) -> None:
        while self.left:
            mine = await self.assignment.claim(self.left, self.left)
            if not self.assignment.settled:
                self.newest = None  # another driver may have had them until now
            for alarm in self.assignment.barred:
                self.report.alarm(alarm)
            self.report.hours_held_elsewhere = len(self.left) - len(mine)
            if not mine:
                return
            await self._settle(mine[0])
            self.left.remove(mine[0])
            if self.left and await self.hurry():
                log.info("%d hours are left to the next pass: segments wait", len(self.left))
                return

    async def _settle(self, hour: str) -> None:
        """Rewrites the hour in its present state: another driver may have done so before.

        Opening a version of a table with very many hours takes a while. Each hour is therefore
        planned on the snapshot that the one before it produced.
        """
        for _ in range(_TRIES):
            snapshot = await self._newest()
            planned = await asyncio.to_thread(self._planned, snapshot, hour)
            if planned is None:
                self.newest = snapshot
                return
            try:
                self.newest = await self._rewrite(snapshot, planned)
            except PreconditionFailed as error:
                log.info("planning hour %s again: %s", hour, error)
            else:
                return

    async def _newest(self) -> Snapshot:
        known, self.newest = self.newest, None
        if known is not None:
            return known
        return await self.compactor.newest()

    def _planned(self, snapshot: Snapshot, hour: str) -> Rewriting | None:
        files = [file for file in snapshot.files if hour_of(file) == hour]
        return rewriting(files, file_bytes=self.compactor.limits.file_bytes)

    async def _rewrite(self, snapshot: Snapshot, planned: Rewriting) -> Snapshot:
        compactor, files = self.compactor, planned.files
        deletions = await self._deletions(snapshot, files)
        if self._is_left(planned.hour, await misread_files(compactor.store, files)):
            return snapshot
        try:
            made = await rewrite(
                compactor, snapshot, files, deletions, self.report, level=planned.level
            )
        except Unavailable:
            if not self._is_left(planned.hour, await lost_files(compactor.store, files)):
                raise
            return snapshot
        self.assignment.check({planned.hour})
        same = sum(file.rows for file in made) == sum(file.rows for file in files)
        with self.report.timed("commit", compactor.clock):
            after = await replace(compactor, snapshot, Change(made, removed=files, same_lines=same))
        compactor.reached("hour committed")
        self.report.hours_rewritten += 1
        return after

    def _is_left(self, hour: str, lost: Sequence[LostFile]) -> bool:
        """Whether the hour stays as it is, which is an alarm for each of these files."""
        for one in lost:
            self.report.alarm(f"hour {hour} is not rewritten: {describe(one)}")
        return bool(lost)

    async def _deletions(self, snapshot: Snapshot, files: Collection[TableFile]) -> list[Deletion]:
        """At most `MOST_DELETIONS` that delete lines of the files: applying them is optional."""
        if self.deletions is None:
            self.deletions = await self.compactor.deletions.all(self.compactor.store)
        found = (one.deletion for one in self.deletions if one.modified_ms > snapshot.purged_ms)
        met = (one for one in found if _may_hold(files, one))
        return list(islice(met, MOST_DELETIONS))


def _may_hold(files: Collection[TableFile], gone: Deletion) -> bool:
    return any(file.may_hold(highest=gone.t, fqn=gone.fqn, run=gone.run) for file in files)
