"""Passes that meet others where it matters: what random moments come to once in an hour.

In this process, so that the meeting takes place at the step that is meant; the engine is a
Spark that stays warm, or the plain one. What meets a pass is

- segments that come while it works, at each of its steps;
- somebody's commits within a short grace: the table is busy;
- another driver's whole pass, which ingests the same segments, after it has merged them, or
  rewrites the same hour. Both believe that they may, as one that was suspended does;
- commits whose answers are lost;
- deletions that end exactly at a line.

After each the table must be a state that the model allows, and what a pass says that it did must
be what it did.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deltalake.exceptions import CommitFailedError

from compactor.report import PassReport
from compactor.runner import once
from compactor.settings import Compaction
from tailrace.logstore import keys
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import Table, TableChange, commit
from tests.compactor.plain_engine import is_deleted
from tests.compactor.torture.simulation import KEPT_DAYS
from tests.compactor.torture.torture import Torture

LIMITS = Compaction(
    batch_bytes=20_000,
    file_bytes=10_000,
    grace_seconds=0,
    purge_seconds=0,
    retention_days=KEPT_DAYS,
    settle_seconds=0,
)
_GRACE_SECONDS = 2.0
_DONE_MS = 120_000
"""A deletion is done for good when it has been stored for a minute."""
_LATE = ("expired", "rewrite placed", "hour committed", "hour purged", "purged", "low raised")
"""Steps after the last look for segments."""


MEETINGS: Final = (
    "segments_come_late",
    "another_takes_in_the_same",
    "another_rewrites_the_same_hour",
    "answers_are_lost",
    "deleted_to_the_line",
    "the_table_is_busy",
)


@dataclass
class Meetings:
    """Of one torture, whose lake has an engine."""

    torture: Torture
    _reports: list[PassReport] = field(default_factory=list)

    def have(self, names: Sequence[str]) -> None:
        """Each of these, of `MEETINGS`, one after another."""
        self.torture.lake.limits = LIMITS
        for name in names:
            getattr(self, name)()
            self._check(name)

    def segments_come_late(self) -> None:
        """At every step after the last look a chapter is written, whose texts are made at once."""
        self.torture.simulation.write()
        come: set[str] = set()
        waiting = self._put() - self._taken_in()

        def reached(step: str) -> None:
            if step in _LATE and step not in come:
                come.add(step)
                self._apart(self.torture.simulation.write)

        report = self._pass(reached)
        if "expired" not in come:
            self._fault("no segment came while a pass worked")
        if report.segments > waiting:
            self._fault(f"{waiting} segments waited, and a pass took {report.segments}")

    def the_table_is_busy(self) -> None:
        """Somebody commits within the grace: what the table had before that goes all the same."""
        lake = self.torture.lake
        lake.limits = LIMITS.model_copy(update={"grace_seconds": _GRACE_SECONDS})
        self.torture.simulation.write()
        self._pass(lambda _step: None)
        time.sleep(2 * _GRACE_SECONDS)
        table, job = lake.compactor.table, lake.compactor.fresh_id()
        commit(table, table.create(), TableChange(), job=job, clock=lake.clock)
        self._pass(lambda _step: None)
        if left := lake.keys(keys.SEGMENTS):  # a slow machine's first pass removes them itself
            self._fault(f"{len(left)} segments stay while the table is busy, as {left[0]}")
        lake.limits = LIMITS

    def another_takes_in_the_same(self) -> None:
        """Between a merge and its commit."""
        self.torture.simulation.write()
        self._met_at("written")

    def another_rewrites_the_same_hour(self) -> None:
        """Between a rewriting and its commit: an hour has two chapters' files then."""
        for _ in range(2):
            self.torture.simulation.write()
        self._met_at("rewrite placed")

    def answers_are_lost(self) -> None:
        """Of every second commit: a pass finds its own, and says what it did."""
        self.torture.simulation.write()
        before = self._taken_in()
        report = self._pass(lambda _step: None, table=_Unheard(self.torture.lake.compactor.table))
        taken = self._taken_in() - before
        if report.segments != taken:
            self._fault(f"{taken} segments were ingested, and the pass says {report.segments}")

    def deleted_to_the_line(self) -> None:
        """A deletion that ends at a run's last line takes that as well, from files and segments.

        Segments with its lines come once more when it is done: nobody looks for them in files.
        """
        simulation = self.torture.simulation
        simulation.write()
        self._pass(lambda _step: None)
        for but in (1, 0):  # the last is all that is left to be found in the files
            simulation.delete_to_the_line(but=but)
            self._pass(lambda _step: None)
            self._look_for_deleted("files are rewritten")
        clock = self.torture.lake.clock
        clock.shift_ms += _DONE_MS
        self._pass(lambda _step: None)
        simulation.send_again()
        self._pass(lambda _step: None)
        self._look_for_deleted("their segments come again")
        clock.shift_ms -= _DONE_MS

    def _look_for_deleted(self, when: str) -> None:
        """Nothing interfered: what is deleted is in no file, whether it is noted as done or not."""
        lake, deletions = self.torture.lake, self.torture.simulation.model.deletions.values()
        gone = [deletion for deletion, _ in deletions]
        files = lake.snapshot().files
        left = [r for file in files for r in lake.content(file) if is_deleted(r[:3], gone)]
        if left:
            self._fault(f"{len(left)} deleted lines are there when {when}, as {left[:3]}")

    def _met_at(self, step: str) -> None:
        met: list[PassReport] = []

        def reached(name: str) -> None:
            if name == step and not met:
                met.append(PassReport())
                self._apart(lambda: self._pass(lambda _step: None))

        self._pass(reached)
        if not met:
            self._fault(f"a pass never came to {step!r}")

    def _pass(self, reached: Callable[[str], None], table: Table | None = None) -> PassReport:
        lake = self.torture.lake
        lake.reached, before = reached, lake.reached
        try:
            made = lake.compactor
        finally:
            lake.reached = before
        if table is not None:
            object.__setattr__(made, "table", table)
        report = lake.run(once(made))
        if report.alarms:
            self._fault(f"alarms: {report.alarms}")
        return report

    def _apart(self, work: Callable[[], object]) -> None:
        """In a thread of its own, for the loop of this one is busy."""
        failures: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as failure:  # noqa: BLE001 - raised below
                failures.append(failure)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]

    def _put(self) -> int:
        return sum(map(len, self.torture.simulation.model.segments.values()))

    def _taken_in(self) -> int:
        snapshot = self.torture.lake.snapshot()
        return sum(snapshot.mark(node) for node in self.torture.simulation.model.segments)

    def _check(self, name: str) -> None:
        self.torture.told[name.replace("_", " ")] += 1
        if wrong := self.torture.checker.wrong():
            self._fault(f"{name}: {wrong}")

    def _fault(self, what: str) -> None:
        self.torture.faults.append(f"a meeting: {what}")


class _Unheard(Table):
    """A table of whose commits the answer is lost, every second time."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.uri, table.options, table.log_folder)
        object.__setattr__(self, "commits", [0])

    def snapshot(self) -> TableSnapshot:
        found = super().snapshot()
        if found.delta is None:
            return found
        unheard: Any = _UnheardDelta(found.delta, self.commits)  # type: ignore[attr-defined]
        return TableSnapshot(self.uri, found.version, unheard, self.log)


class _UnheardDelta:
    def __init__(self, delta: Any, commits: list[int]) -> None:
        self._delta, self._commits = delta, commits

    def create_write_transaction(self, *args: Any, **kwargs: Any) -> None:
        self._delta.create_write_transaction(*args, **kwargs)
        self._commits[0] += 1
        if self._commits[0] % 2:
            raise CommitFailedError("no answer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delta, name)
