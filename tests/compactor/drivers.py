"""Drivers that share the nodes of one store, in one process and its virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from compactor.assignment import NAME, Assignment, LeaseAssigner, Patience
from tailrace.coordination.admin import LeaseAdmin, LeaseEntry, LeaseFilter, of_partition
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.named_leases import StoredLeases
from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.coordination.settings import CoordinatorLimits
from tailrace.coordination.work_queue import Coordinator
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.objects.local import LocalStore, inline
from tailrace.logstore.objects.store import ObjectStore
from tests.simulation.faulty_store import FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

START_MS = 1_750_000_000_000
LIMITS = CoordinatorLimits(lease_seconds=600, max_attempts=0)
PATIENCE_SECONDS = 600.0
SOURCE = f"{NAME}|compact"


async def leases_of(store: ObjectStore) -> list[LeaseEntry]:
    """Leases of nodes in a store, as operators see them."""
    clock, entropy = SystemClock(), system_entropy()
    time = StoreTime(clock, None)
    partitions = ObjectPartitions(store, clock, entropy, time)
    admin = LeaseAdmin(partitions, StoredLeases(store, clock, entropy, time))
    return (await admin.page(LeaseFilter(source=SOURCE))).entries


@dataclass
class Drivers:
    """A store of leases and whoever comes to it."""

    clock: VirtualClock
    store: FaultyStore = field(init=False)
    made: list[Coordinator] = field(default_factory=list)

    def __post_init__(self) -> None:
        disk = LocalStore("/store", PowerCutFileSystem(), self.clock, Random(0), run=inline)
        self.store = FaultyStore(disk, Schedule.none())

    def leases(self, seed: object) -> ObjectPartitions:
        time = StoreTime(self.clock, None)
        return ObjectPartitions(self.store, self.clock, Random(f"{seed}"), time, shards=1)

    def driver(self, host: str, *, configured: bool = False) -> LeaseAssigner:
        """A process on `host`."""
        seed = f"{host} {len(self.made)}"
        partitions = self.leases(seed)

        def coordinator() -> Coordinator:
            made = Coordinator(
                partitions,
                self.clock,
                Random(f"{seed} {len(self.made)}"),
                name=NAME,
                identity=host,
                configured=configured,
                limits=LIMITS,
            )
            self.made.append(made)
            return made

        return LeaseAssigner(coordinator, Patience(self.clock, PATIENCE_SECONDS))

    async def killed(self, host: str, nodes: list[str], *, configured: bool = False) -> None:
        """A driver that took nodes and was killed: it says nothing more."""
        assignment = await self.forsaken(host, nodes, configured=configured)
        assert await assignment.claim(nodes, nodes) == nodes

    async def forsaken(
        self, host: str, nodes: list[str], *, configured: bool = False
    ) -> Assignment:
        """What a driver has that stands still: no heartbeat goes on."""
        joined = self.driver(host, configured=configured).joined()
        assignment = await joined.__aenter__()
        mine = await assignment.claim(nodes, nodes)
        assert mine == nodes
        for task in asyncio.all_tasks():
            if task.get_name() == "leases":
                task.cancel()
        await asyncio.sleep(0)
        self._standing.append(joined)
        return assignment

    _standing: list[Any] = field(default_factory=list)

    async def seen(self) -> dict[str, LeaseEntry]:
        """All leases of nodes as operators see them, by key."""
        partitions = self.leases("operator")
        page = await partitions.page(SOURCE)
        return {one.key: of_partition(one, partitions.time) for one in page.partitions}

    @asynccontextmanager
    async def joined(self, host: str) -> AsyncIterator[Assignment]:
        async with self.driver(host).joined() as assignment:
            yield assignment


Simulation = Callable[[Drivers], Coroutine[Any, Any, None]]


def play(scenario: Simulation) -> None:
    """The scenario, in virtual time."""

    async def go(clock: VirtualClock) -> None:
        await scenario(Drivers(clock))

    simulate(go, start_ms=START_MS)
