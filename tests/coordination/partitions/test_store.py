"""COMPLETED partitions go after their time, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from tailrace.coordination.memory_store import InMemoryPartitions
from tailrace.coordination.open import open_partitions
from tailrace.coordination.partitions import (
    PartitionStore,
    Status,
    completed,
    expire,
    expire_for_ever,
)
from tailrace.coordination.settings import StoreChoice
from tailrace.logstore.objects.local import LocalStore, inline
from tests.contracts.partition_acquire import SOURCE, put, taken
from tests.simulation.faulty_partitions import FaultyPartitions
from tests.simulation.faulty_store import Fault
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

START_MS = 1_795_255_200_000
DAY_SECONDS = 86_400.0


async def complete(store: PartitionStore, key: str) -> None:
    held = await taken(store, key)
    await store.change(held, completed(held, store.time.at_most_ms()))


async def keys_of(store: PartitionStore) -> list[str]:
    return [one.key for one in (await store.page(SOURCE)).partitions]


def failing(call: str) -> Callable[[str], Fault | None]:
    return lambda name: Fault.UNAVAILABLE if name == call else None


def test_what_is_completed_goes_after_its_time_and_nothing_else() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = InMemoryPartitions(clock, Random(1))
        await put(store, "early", "late", "held", "free")
        await taken(store, "held")
        await complete(store, "early")
        running = asyncio.create_task(expire_for_ever(store, clock, 7 * 86_400_000))
        await clock.sleep(3 * DAY_SECONDS)
        await complete(store, "late")
        await clock.sleep(4 * DAY_SECONDS - 10)
        assert (await store.counts(SOURCE))[Status.COMPLETED] == 2
        await clock.sleep(3700)
        assert [one.key for one in (await store.page(SOURCE)).partitions] == [
            "free",
            "held",
            "late",
        ]
        await clock.sleep(3 * DAY_SECONDS)
        assert await keys_of(store) == ["free", "held"]
        running.cancel()

    simulate(scenario, start_ms=START_MS)


def test_a_store_that_is_away_is_looked_at_again() -> None:
    async def scenario(clock: VirtualClock) -> None:
        inner = InMemoryPartitions(clock, Random(1))
        await put(inner, "a")
        await complete(inner, "a")
        await clock.sleep(10)
        for call in ("sources", "purge"):
            away = FaultyPartitions(inner, clock, fault=failing(call))
            assert await expire(away, 1000) == 0
            assert (await inner.counts(SOURCE))[Status.COMPLETED] == 1
        assert await expire(inner, 1000) == 1

    simulate(scenario, start_ms=START_MS)


def test_the_object_stores_ttl_is_seen_to_while_it_is_open() -> None:
    async def scenario(clock: VirtualClock) -> None:
        objects = LocalStore("/store", PowerCutFileSystem(), clock, Random(1), run=inline)
        choice = StoreChoice.model_validate({"object_store": {"ttl": "12h"}})
        opening = open_partitions(choice, objects, clock, Random(2), newest_date=None)
        async with opening as store:
            await store.start()
            await put(store, "a", "b")
            await complete(store, "a")
            await clock.sleep(13.5 * 3600)
            assert await store.counts(SOURCE) == {Status.UNASSIGNED: 1}
        assert len(asyncio.all_tasks()) == 1, "nothing runs on"

    simulate(scenario, start_ms=START_MS)
