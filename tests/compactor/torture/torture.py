"""Compactors that are killed, one after another, and what the store is like after each.

A pass is killed at a step, by its name, or at a moment; or two passes run at once and one of
them is killed. After each death the table must be a state that the model allows, and in the end
the one that it demands.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from tailrace.logstore import ulid
from tailrace.logstore.errors import PreconditionFailed
from tailrace.logstore.table.table import TableChange, commit
from tests.compactor.lake import Lake
from tests.compactor.torture.checker import Checker, is_as_demanded
from tests.compactor.torture.processes import Place, Running, Victim, Way
from tests.compactor.torture.simulation import Simulation

_KILLED = (-9, 137)
_UNAVAILABLE = 3
_TRIES = 40  # where every tenth answer of a store fails, most passes do
_FORGOTTEN_AFTER_SECONDS = 62


@dataclass(frozen=True)
class Step:
    """A step's name, and what is done before its pass; the one before it leaves the rest to do."""

    name: str
    write: bool = False
    delete: bool = False
    group: bool = False


STEPS = (
    Step("written", write=True),
    Step("placed"),
    Step("rebased"),
    Step("committed"),
    Step("expired", write=True),
    Step("rewrite written"),
    Step("rewrite placed"),
    Step("hour committed"),
    Step("rewrite written", delete=True),
    Step("rewrite placed"),
    Step("hour purged"),
    Step("purged"),
    Step("group settled", group=True),
    Step("low raised"),
    Step("segment removed"),
    Step("deletion removed"),
)


@dataclass
class Torture:
    """Of one store. `unreliable`: it fails now and then, and so may a pass."""

    lake: Lake
    place: Place
    dice: Random
    lines: int
    unreliable: bool = False
    faults: list[str] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)
    simulation: Simulation = field(init=False)
    checker: Checker = field(init=False)
    _started: int = 0
    _all: list[Running] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _seconds: float = 15.0

    def __post_init__(self) -> None:
        self.simulation = Simulation(self.lake, self.dice, self.lines)
        self.checker = Checker(self.lake, self.simulation.model)

    # What is done to a pass.

    def kill_at(self, step: Step, way: Way) -> None:
        """It ends at the step, which it must come to."""
        self._prepare(step)
        if step.name == "deletion removed":
            self._wait_until_deletions_are_forgotten()
        for _ in range(_TRIES if self.unreliable else 1):
            running = self._start(way, "--kill-at", step.name)
            if step.name == "rebased":
                self._commit_meanwhile(running)
            status = running.end()
            if not (self.unreliable and status == _UNAVAILABLE):
                break
            self.told["passes that the store failed"] += 1
        if status not in _KILLED:
            self._fault(running, f"it never came to {step.name!r}, and ended with {status}")
        self._check(running, status, killed=True)
        self.told[f"killed at {step.name!r}"] += status in _KILLED

    def kill_after(self, victim: Victim, way: Way) -> None:
        """At a random moment. A pass that loses an executor comes to its end."""
        self.simulation.write(wide=self.dice.random() < 0.2)
        if self.dice.random() < 0.7 and self.simulation.deletable:
            self.simulation.delete()
        running = self._start(way)
        killed = running.kill_after(self._moment(), victim)
        self._check(running, running.end(), killed=killed and victim is not Victim.EXECUTOR)
        self._count(killed, victim)

    def two_at_once(self, ways: Sequence[Way]) -> None:
        """Both on all there is; one of them is killed at a random moment."""
        self.simulation.write()
        self.simulation.write()
        self.simulation.delete()
        both = [self._start(way) for way in ways]
        unlucky = self.dice.randrange(2)
        victim = self.dice.choice((Victim.DRIVER, Victim.JVM, Victim.ALL))
        killed = both[unlucky].kill_after(self._moment() * 1.5, victim)
        for number, running in enumerate(both):
            self._check(running, running.end(), killed=killed and number == unlucky)
        self.told["pairs"] += 1
        self._count(killed, victim)

    def undisturbed(self, way: Way = Way.JOB) -> None:
        """A pass that comes to its end."""
        running = self._start(way)
        began = time.monotonic()
        status = running.end()
        self._check(running, status, killed=False)
        if status == 0:
            self._seconds = time.monotonic() - began
        self.told["undisturbed"] += 1

    def settle(self, make_pass: Callable[[], object] | None = None) -> None:
        """Passes until nothing is left to do. Those of others wait for leases of the killed."""
        for _ in range(_TRIES):
            (make_pass or self.undisturbed)()
            if is_as_demanded(self.lake, self.simulation.model) is None:
                break
            if make_pass is not None and self.faults:
                return  # it is known by now, and may never be settled
        self._note(is_as_demanded(self.lake, self.simulation.model))

    def end(self) -> None:
        """Nothing of any pass is left."""
        for running in self._all:
            running.kill()

    # How it went.

    def _prepare(self, step: Step) -> None:
        if step.write:
            self.simulation.write()
        if step.delete:
            self.simulation.delete()
        if step.group:
            self.simulation.make_group()

    def _start(self, way: Way, *flags: str) -> Running:
        self._started += 1
        self._all.append(self.place.start(way, f"{self._started}", *flags))
        return self._all[-1]

    def _moment(self) -> float:
        """Seconds after a start; half of the time when the JVM is there."""
        least = self.dice.choice((0.0, 0.4))
        return self._seconds * self.dice.uniform(least, 1.05)

    def _check(self, running: Running, status: int, *, killed: bool) -> None:
        """`killed` may have been too late, or have left it time to say that it stopped."""
        excused = killed and status in (*_KILLED, 0, _UNAVAILABLE)
        if not killed and status == _UNAVAILABLE and self.unreliable:
            self.told["passes that the store failed"] += 1
        elif status != 0 and not excused and not (killed and running.way is Way.SUBMIT):
            self._fault(running, f"it ended with {status}")
        if alarms := running.summary().get("alarms"):
            self._fault(running, f"alarms: {alarms}")
        if "Traceback" in running.words():
            self._fault(running, "it tells of its insides")
        self._note(self.checker.wrong())

    def _commit_meanwhile(self, running: Running) -> None:
        """Versions that change nothing, so that who merges meanwhile is not the next."""
        table = self.lake.compactor.table
        while running.process.poll() is None:
            time.sleep(0.5)
            job = ulid.fresh_text(self.lake.clock, self.dice)
            with suppress(PreconditionFailed):
                commit(table, table.create(), TableChange(), job=job, clock=self.lake.clock)

    def _wait_until_deletions_are_forgotten(self) -> None:
        """What was stored a minute ago is done for good, and only then forgotten."""
        waited = time.monotonic() - self._began
        time.sleep(max(_FORGOTTEN_AFTER_SECONDS - waited, 0))

    def _count(self, killed: bool, victim: Victim) -> None:
        self.told[f"killed: {victim}" if killed else "over, or not begun, when killed"] += 1

    def _fault(self, running: Running, what: str) -> None:
        self.faults.append(f"{running.mark.name} ({running.way}): {what}\n{running.words()}")

    def _note(self, fault: str | None) -> None:
        if fault is not None:
            self.faults.append(f"after pass {self._started}: {fault}")
