"""Coordinators of several pretended processes over one store in memory, in leaping time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeVar

from tailrace.coordination.memory_store import InMemoryPartitions
from tailrace.coordination.partitions import NewPartition, Partition
from tailrace.coordination.settings import CoordinatorLimits
from tailrace.coordination.work_queue import Coordinator, WorkQueue
from tests.simulation.faulty_partitions import FaultyPartitions
from tests.simulation.virtual_time import VirtualClock, simulate

T = TypeVar("T")
START_MS = 1_795_255_200_000
LIMITS = CoordinatorLimits(lease_seconds=60.0, supplier_pause_seconds=1.0)


class World:
    """One store, a clock that leaps, and what was made of them."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.store = InMemoryPartitions(clock, Random(1))
        self.faulty = FaultyPartitions(self.store, clock)

    def coordinator(
        self,
        identity: str = "host",
        *,
        limits: CoordinatorLimits = LIMITS,
        store: FaultyPartitions | None = None,
        configured: bool = False,
        name: str = "pipeline",
        prefix: str | None = None,
    ) -> Coordinator:
        return Coordinator(
            store or self.faulty,
            self.clock,
            Random(identity),
            name=name,
            identity=identity,
            configured=configured,
            limits=limits,
            prefix=prefix,
        )

    @asynccontextmanager
    async def running(self, *coordinators: Coordinator) -> AsyncIterator[None]:
        """Their heartbeats beat inside; killed, not stopped, at the end."""
        beats = [asyncio.create_task(one.run()) for one in coordinators]
        try:
            yield
        finally:
            for beat in beats:
                beat.cancel()
            await asyncio.wait(beats)

    async def stored(self, key: str = "a", source: str = "pipeline|file") -> Partition:
        found = await self.store.get(source, key)
        assert found is not None
        return found


def told(scenario: Callable[[World], Coroutine[Any, Any, T]]) -> T:
    """The scenario of a world, in leaping time."""

    async def whole(clock: VirtualClock) -> T:
        return await scenario(World(clock))

    return simulate(whole, start_ms=START_MS)


async def put(work: WorkQueue, *keys: str) -> None:
    assert await work.create([NewPartition(key) for key in keys]) == list(keys)
