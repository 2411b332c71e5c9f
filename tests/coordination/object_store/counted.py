"""A store over a simulated disk whose calls are counted, and partitions on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from tailrace.coordination.lease import StoreTime
from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.coordination.partitions import Claim, NewPartition, Partition
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import PreconditionFailed
from tailrace.logstore.objects.local import LocalStore, inline
from tailrace.logstore.objects.store import ObjectStore
from tests.simulation.faulty_store import FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem

T = TypeVar("T")
SOURCE = "p|pipeline|file"
START_MS = 1_795_255_200_000


class Counted(FaultyStore):
    """Calls that were made, by operation; a whole listing is one."""

    def __init__(self, inner: ObjectStore, schedule: Schedule | None = None) -> None:
        super().__init__(inner, schedule or Schedule.none())

    def made(self) -> Counter[str]:
        """Since the last time that it was asked."""
        found = Counter([call.split(" ", 1)[0] for call in self.calls if " item of " not in call])
        self.calls.clear()
        return found


def on_disk(clock: Clock) -> LocalStore:
    return LocalStore("/store", PowerCutFileSystem(), clock, Random(1), run=inline)


def process(
    objects: ObjectStore,
    clock: Clock,
    *,
    seed: int = 2,
    shards: int = 8,
    cache_bytes: int = 1 << 30,
) -> ObjectPartitions:
    """What another process over the same store would have."""
    return ObjectPartitions(
        objects,
        clock,
        Random(seed),
        StoreTime(clock, None),
        shards=shards,
        cache_bytes=cache_bytes,
    )


def claim_at(clock: Clock, owner: str = "host/A", lease_ms: int = 60_000) -> Claim:
    return Claim(owner, lease_ms, clock.now_ms(), clock.now_ms())


def many(count: int) -> list[NewPartition]:
    return [NewPartition(f"{number:06d}") for number in range(count)]


async def take(
    store: ObjectPartitions, clock: Clock, count: int, owner: str = "host/A"
) -> list[Partition]:
    brought = await store.acquire(SOURCE, claim_at(clock, owner), count)
    return list(brought.partitions)


class Slow(Counted):
    """Each call takes some time of the virtual clock; refused puts are counted."""

    def __init__(self, inner: ObjectStore, clock: Clock, seed: int) -> None:
        super().__init__(inner)
        self._clock = clock
        self._dice = Random(seed)
        self.refused = 0

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if name.endswith("item of"):  # a whole listing is one request
            return await super()._step(name, key, work)
        await self._clock.sleep(self._dice.uniform(0.001, 0.02))
        try:
            return await super()._step(name, key, work)
        except PreconditionFailed:
            self.refused += 1
            raise
        finally:
            await self._clock.sleep(self._dice.uniform(0.001, 0.02))
