"""A whole node on a real S3 server, through a proxy that misbehaves: the scenario to its end.

The disk of its journal is simulated, its store is not. Between the two lie lost answers, late
answers, refusals and halves, by seed; and the process is killed at any of the store's calls.
Whatever was under way then may happen or not, as with a real kill. Nothing that was
acknowledged is lost or doubled.
"""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

import pytest

from tests.faults.kinds import Kind
from tests.faults.schedule import Schedule as Faults
from tests.seeds import seeds
from tests.service.client_model import Clients, PatientClients
from tests.service.node_simulation import end_well, first_life
from tests.service.simulated_node import START_MS, Life
from tests.simulation.backing import copy_of, open_store
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import Halted, VirtualClock, simulate

KILLS = 4


class Kill(Schedule):
    """At call number `at` the process dies; what its tasks try after that does nothing."""

    def __init__(self, at: int) -> None:
        super().__init__({})
        self.at = at
        self.dead = False

    def next(self, call: str) -> Fault | None:
        self.steps += 1
        self.dead = self.dead or self.steps == self.at
        return Fault.CRASH_BEFORE if self.dead else None


@dataclass
class FirstLife:
    """The first life over a disk and a server, as far as it comes."""

    seed: int
    kill: Kill = field(default_factory=lambda: Kill(0))
    fs: PowerCutFileSystem = field(default_factory=PowerCutFileSystem)
    clients: Clients = field(default_factory=Clients)

    def run(self) -> None:
        """Until its end, or the kill."""

        async def go(clock: VirtualClock) -> None:
            inner = open_store(self.fs, clock, Random(self.seed))
            life = Life(self.fs, clock, seed=self.seed, store=FaultyStore(inner, self.kill))
            await first_life(life, self.clients)

        try:
            simulate(go, start_ms=START_MS, halted=self._halted)
        except Halted:
            self.fs, self.clients = self.left

    def _halted(self) -> bool:
        if self.kill.dead:
            self.left = copy_of(self.fs), deepcopy(self.clients)
            self.left[0].end_processes()
        return self.kill.dead


@pytest.mark.parametrize("seed", seeds(1))
def test_the_scenario_of_a_node(every_server: Faults, seed: int) -> None:
    first = FirstLife(seed, clients=Clients(seed))
    first.run()
    end_well(first.fs, first.clients, seed)
    # A put and its answer, a refusal, half of a body: the scenario met most of them.
    assert len(every_server.injected) >= 8


@pytest.mark.in_turn(4, "a node killed on S3")
@pytest.mark.usefixtures("every_server")
@pytest.mark.parametrize("seed", seeds(1))
def test_a_node_is_killed_at_any_call_of_its_store(seed: int) -> None:
    whole = FirstLife(seed)
    whole.run()
    total = whole.kill.steps
    failures = []
    for at in sorted(Random(seed).sample(range(1, total + 1), KILLS)):
        first = FirstLife(seed, Kill(at), clients=Clients(seed))
        try:
            first.run()
            assert first.kill.dead
            end_well(first.fs, first.clients, seed)
        except Exception as error:  # noqa: BLE001 -- all failing calls are wanted, to replay
            failures.append(f"seed {seed} call {at}: {error!r}")
    assert not failures, "\n".join(failures)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("kind", [Kind.SLOW_DOWN, Kind.DROPPED, Kind.RESET])
def test_a_server_that_is_away_for_a_while(every_server: Faults, kind: Kind) -> None:
    """Longer than any patience of a call: the node waits, and goes on by itself."""
    fs, clients = PowerCutFileSystem(), PatientClients(1)

    async def go(clock: VirtualClock) -> None:
        life = Life(fs, clock, seed=1)
        scenario = asyncio.create_task(first_life(life, clients))
        await clock.sleep(4.0)
        every_server.refuse(kind)
        await clock.sleep(2.0)
        every_server.relent()
        await scenario

    simulate(go, start_ms=START_MS)
    assert every_server.injected[kind] > 4
    end_well(fs, clients, 1, forks=True)
