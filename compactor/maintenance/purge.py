"""Purge: removes deleted lines from the files of the table.

Tailrace's own readers leave out deleted lines at once. The purge removes them from the Parquet
files, where other engines would see them: files that hold such lines (`deleted_rows.py`) are
rewritten without them, an hour at a time, or just removed if they hold nothing else.

**Each deletion is applied once**: the table's transaction `deletions` is a time. All deletions
that the store had by then are done in all files. It is committed on exactly the snapshot whose
files were all examined, and is at least 60 s before the deletions were listed, by the store's
clock, which may tell whole seconds. A later file holds no such line: its commit was planned on a
later snapshot, and lists the deletions after that.

A record that cannot be read holds up no other one, and is an alarm. The time does not pass it, so
that it is applied once it reads again.

The cost is bounded: files are rewritten when a deletion has waited `compaction.purge_seconds`, or
at once if the files have at most `compaction.purge_bytes` in all. Files of hours that expire
within two hours are left to the retention, which costs nothing: there are the expiring runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from compactor.assignment import HOURS, Assignment
from compactor.commit.change import make
from compactor.commit.lost_files import LostFile, describe, lost_files, misread_files
from compactor.context import MOST_DELETIONS, Compactor, now_ms
from compactor.maintenance.deleted_rows import NOTHING, Horizons, Taken, taken
from compactor.maintenance.retention import oldest_ms
from compactor.report import Report
from compactor.rewrite.files import replace, rewrite
from compactor.rewrite.plan import hour_of
from logstore.errors import Damaged, NotFound, PreconditionFailed, Unavailable
from logstore.runs.deletions import StoredDeletion
from logstore.state_kinds import advice
from logstore.table.commit import Change
from logstore.table.snapshot import Snapshot, TableFile
from logstore.table.stats import NewFile

log = logging.getLogger("tailrace.compactor")
MARGIN_MS: Final = 60_000
_SOON_MS: Final = 2 * 3_600_000
_AT_ONCE: Final = 8  # files
_TRIES: Final = 5
"""Where others commit all the time, the rest is left to the next pass."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Deletions that are not done in all files, and the time to commit once they are."""

    deletions: Sequence[StoredDeletion]
    until_ms: int


async def purge(compactor: Compactor, report: Report) -> None:
    """Applies deletions to the table's files.

    Raises `StoreUnavailable`, `OutcomeUnknown`, `Unavailable`, `Damaged`.
    """
    with report.timed("purge", compactor.clock):
        snapshot = await compactor.newest()
        if snapshot.delta is None:
            return
        listing = now_ms(compactor) - MARGIN_MS
        stored = await compactor.deletions.all(compactor.store)
        for key, error in compactor.deletions.unreadable.items():
            report.alarm(f"what it deletes stays in the table: {error}. {advice(key)}")
        listing = min([listing, *[at - 1 for at in compactor.deletions.unreadable_ms.values()]])
        found = pending(snapshot, stored, listing)
        if found.deletions:
            await _Purge(compactor, report, found).run()


def pending(
    snapshot: Snapshot,
    deletions: Sequence[StoredDeletion],
    before_ms: int,
    most: int = MOST_DELETIONS,
) -> Pending:
    """The oldest `most` deletions to be done, listed a minute after `before_ms`."""
    done = snapshot.purged_ms
    left = sorted((d for d in deletions if d.modified_ms > done), key=lambda d: d.modified_ms)
    if not left:
        return Pending((), done)
    until = min(before_ms, left[-1].modified_ms)
    if len(left) > most:  # of one moment all or none
        last = left[most].modified_ms
        some = [one for one in left if one.modified_ms < last]
        if some:
            return Pending(some, min(until, last - 1))
    return Pending(left, until)


@dataclass(slots=True)
class _Purge:
    """The purge of one pass. Its findings in a file are cached, because files never change."""

    compactor: Compactor
    report: Report
    pending: Pending
    _found: dict[str, Taken] = field(default_factory=dict)
    _until_ms: int = field(init=False)
    _horizons: Horizons = field(init=False)

    def __post_init__(self) -> None:
        self._until_ms = self.pending.until_ms
        self._horizons = Horizons.of(one.deletion for one in self.pending.deletions)

    async def run(self) -> None:
        self.report.deletions_waiting = len(self.pending.deletions)
        for _ in range(_TRIES):
            snapshot = await self.compactor.newest()
            holding = await self._holding(snapshot)
            if holding and not (self._is_time(holding) and await self._take_out(holding)):
                return
            if not holding and await self._note(snapshot):
                return

    async def _holding(self, snapshot: Snapshot) -> list[TableFile]:
        """Files that hold deleted lines, except those that expire soon."""
        met = await asyncio.to_thread(
            lambda: [file for file in snapshot.files if self._horizons.may_take_of(file)]
        )
        turns = asyncio.Semaphore(_AT_ONCE)

        async def look(file: TableFile) -> None:
            async with turns:
                await self._look(file)

        await asyncio.gather(*(look(file) for file in met if file.path not in self._found))
        holding = [file for file in met if self._found[file.path].rows]
        soon = oldest_ms(self.compactor) + _SOON_MS
        for file in holding:
            if file.end_ms <= soon:
                self._wait_for(self._found[file.path].runs)
        return [file for file in holding if file.end_ms > soon]

    async def _look(self, file: TableFile) -> None:
        try:
            found = await taken(self.compactor.store, file, self._horizons)
        except (NotFound, Damaged) as error:
            self.report.alarm(f"{file.path} of the table does not read: {error}")
            self._until_ms = 0
            found = NOTHING
        self._found[file.path] = found

    def _wait_for(self, runs: Collection[tuple[str, str]]) -> None:
        """Postpones deletions of these runs until the file is gone."""
        fqns = {fqn for fqn, _ in runs}
        for one in self.pending.deletions:
            deletion = one.deletion
            whole = deletion.run is None and deletion.fqn in fqns
            if whole or (deletion.fqn, deletion.run) in runs:
                self._until_ms = min(self._until_ms, one.modified_ms - 1)

    def _is_time(self, holding: Sequence[TableFile]) -> bool:
        limits = self.compactor.limits
        waited = now_ms(self.compactor) - self.pending.deletions[0].modified_ms
        size = sum(file.size for file in holding)
        return size <= limits.purge_bytes or waited >= limits.purge_seconds * 1000

    async def _take_out(self, holding: Sequence[TableFile]) -> bool:
        """Rewrites files; whether this driver could do all of them."""
        hours: dict[str, list[TableFile]] = defaultdict(list)
        for file in holding:
            hours[hour_of(file)].append(file)
        async with self.compactor.assigner.joined(HOURS) as assignment:
            self.report.works += assignment.works
            mine = await assignment.claim(sorted(hours), set(hours))
            snapshot = await self.compactor.newest()
            for hour in mine:
                snapshot = await self._take_out_of(snapshot, assignment, hour, hours[hour])
        return len(mine) == len(hours)

    async def _take_out_of(
        self, snapshot: Snapshot, assignment: Assignment, hour: str, files: Sequence[TableFile]
    ) -> Snapshot:
        """A version in which that is done, or a newer one if it must be repeated."""
        compactor = self.compactor
        there = {file.path for file in snapshot.files}
        files = [file for file in files if file.path in there]
        rest = [file for file in files if self._found[file.path].rows < file.rows]
        made: Sequence[NewFile] = ()
        if rest:
            deletions = [one.deletion for one in self.pending.deletions]
            if self._leave_out(hour, await misread_files(compactor.store, rest)):
                return snapshot
            try:
                made = await rewrite(compactor, snapshot, rest, deletions, self.report)
            except Unavailable:
                if not self._leave_out(hour, await lost_files(compactor.store, rest)):
                    raise
                return snapshot
        try:
            assignment.check({hour})
            after = await replace(compactor, snapshot, Change(files=made, removed=files))
        except PreconditionFailed as error:
            log.info("hour %s is to be purged again: %s", hour, error)
            return await compactor.newest()
        compactor.reached("hour purged")
        self.report.files_purged += len(files)
        self.report.rows_purged += sum(self._found[file.path].rows for file in files)
        return after

    def _leave_out(self, hour: str, lost: Sequence[LostFile]) -> bool:
        """Continues without files that cannot be read any more, if there are any."""
        for one in lost:
            self.report.alarm(f"hour {hour} is not purged: {describe(one)}")
            self._found[one.file.path] = NOTHING
            self._until_ms = 0
        return bool(lost)

    async def _note(self, snapshot: Snapshot) -> bool:
        """Commits that it is done, unless the table has changed: then there are more files."""
        if self._until_ms > snapshot.purged_ms:
            try:
                await make(self.compactor, snapshot, Change(purged_ms=self._until_ms))
            except PreconditionFailed as error:
                log.info("looking again for deleted lines: %s", error)
                return False
            self.compactor.reached("purged")
        after = [d for d in self.pending.deletions if d.modified_ms > self._until_ms]
        self.report.deletions_waiting = len(after)
        return True
