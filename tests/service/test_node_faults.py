"""A whole node whose disk is full, whose disk fails, or whose store is away or unclear.

The same scenario as under power cuts, run to the end with clients that try again. A node that
gives up is started again, as a supervisor would. No line that was acknowledged is lost or
doubled, and once the trouble is over the node goes on by itself.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from tailrace.logstore.errors import TailraceError
from tests.seeds import choose, first_of, seeds, some
from tests.service.client_model import PatientClients
from tests.service.node_simulation import end_well, first_life
from tests.service.simulated_node import START_MS, Life
from tests.simulation.backing import STORE, open_store
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

ALL = "TAILRACE_SIM_SEED" in os.environ
STRIDE = 1 if ALL else 131
TROUBLE_SECONDS = 20.0
DATA = "/data"


@dataclass
class Trouble:
    """A scenario during which a disk or a store fails for a while."""

    seed: int
    disk: Callable[[PowerCutFileSystem], None] = lambda _: None
    faults: Mapping[int, Fault] = field(default_factory=dict)
    fs: PowerCutFileSystem = field(default_factory=PowerCutFileSystem)
    lives: int = 0
    gave_up: int = 0
    schedule: Schedule = field(init=False)

    def run(self) -> None:
        """The scenario, and its end. Raises what does not hold."""
        self.schedule = Schedule(self.faults)
        self.disk(self.fs)
        clients, now = PatientClients(self.seed), START_MS
        ended = False
        while not ended:
            assert self.lives < 100, "it never starts"
            ended, now = simulate(lambda clock: self._live(clock, clients), start_ms=now)
            now += 1000
            if now >= START_MS + TROUBLE_SECONDS * 1000:
                self.fs.heal()
            self.fs.end_processes()
        self.fs.heal()
        end_well(self.fs, clients, self.seed, forks=True)

    async def _live(self, clock: VirtualClock, clients: PatientClients) -> tuple[bool, int]:
        """Whether the scenario was run to its end before the node gave up, and when that was."""
        self.lives += 1
        asyncio.create_task(self._heal(clock))  # noqa: RUF006 -- ends with the loop
        ended = True
        try:
            await self._first_life(clock, clients)
        except* TailraceError:
            ended = False
        return ended, clock.now_ms()

    async def _first_life(self, clock: VirtualClock, clients: PatientClients) -> None:
        life = self._life(clock)
        scenario = asyncio.create_task(first_life(life, clients))
        ended: list[asyncio.Future[Any]] = [scenario, life.node.failed]
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        if life.node.failed.done():
            self.gave_up += 1
            raise life.node.failed.result()
        await scenario

    def _life(self, clock: VirtualClock) -> Life:
        dice = Random(f"{self.seed} {self.lives}")
        store = FaultyStore(open_store(self.fs, clock, dice), self.schedule)
        return Life(self.fs, clock, seed=self.seed + 100 * self.lives, store=store)

    async def _heal(self, clock: VirtualClock) -> None:
        await clock.sleep(max(0.0, TROUBLE_SECONDS - (clock.now_ms() - START_MS) / 1000))
        self.fs.heal()


def try_all(seed: int, total: int, stride: int, trouble: Callable[[int], Trouble]) -> list[str]:
    """What went wrong, as (seed, call) to replay, behind the choice of this run."""
    failures = []
    for call in range(1 + first_of(stride, seed), total + 1, stride):
        try:
            trouble(call).run()
        except Exception as error:  # noqa: BLE001 -- all failing calls are wanted
            failures.append(f"seed {seed} call {call}: {error!r}")
    return [choose(), *failures] if failures else []


@pytest.mark.parametrize("seed", some(seeds(2), 2, "full disks"))
def test_a_disk_that_is_full_for_a_while(seed: int) -> None:
    def trouble(call: int) -> Trouble:
        return Trouble(seed, lambda fs: fs.fail_with(errno.ENOSPC, at=call))

    failures = try_all(seed, 1200, STRIDE, trouble)
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("seed", some(seeds(2), 2, "failing stores"))
@pytest.mark.parametrize("once", [True, False])
def test_a_store_whose_disk_fails(seed: int, once: bool) -> None:
    def trouble(call: int) -> Trouble:
        return Trouble(seed, lambda fs: fs.fail_with(errno.EIO, at=call, under=STORE, once=once))

    failures = try_all(seed, 1200, STRIDE * 2, trouble)
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("under", ["/", DATA])
def test_a_process_without_descriptors_for_a_while(seed: int, under: str) -> None:
    """Nothing can be opened. A node that runs goes on; at most its start is tried again."""
    made: list[Trouble] = []

    def trouble(call: int) -> Trouble:
        made.append(Trouble(seed, lambda fs: fs.fail_with(errno.EMFILE, at=call, under=under)))
        return made[-1]

    failures = try_all(seed, 1200, STRIDE, trouble)
    assert not failures, "\n".join(failures)
    assert {trouble.gave_up for trouble in made} == {0}
    assert sum(trouble.lives > 1 for trouble in made) <= 2


@pytest.mark.parametrize("seed", some(seeds(2), 2, "failing journals"))
def test_a_journal_whose_disk_fails_once(seed: int) -> None:
    def trouble(call: int) -> Trouble:
        return Trouble(seed, lambda fs: fs.fail_with(errno.EIO, at=call, under=DATA, once=True))

    failures = try_all(seed, 1200, STRIDE * 2, trouble)
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE])
def test_answers_of_the_store_that_are_lost(seed: int, fault: Fault) -> None:
    def trouble(call: int) -> Trouble:
        return Trouble(seed, faults={call: fault, call + 3: fault})

    failures = try_all(seed, 400, STRIDE, trouble)
    assert not failures, "\n".join(failures)
