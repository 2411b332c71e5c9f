"""What a supplier streams, and the state that suppliers share: fenced, never lost, never purged."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import orjson
import pytest

from tailrace.coordination.partitions import NewPartition, PartitionStore, Status, expired
from tailrace.coordination.settings import CoordinatorLimits
from tailrace.coordination.work_queue import BATCH_CHARACTERS, SharedState
from tailrace.logstore.errors import Damaged, TooLarge
from tests.coordination.coordinator.suppliers import GLOBAL, counting, global_of
from tests.coordination.processes import LIMITS, World, told
from tests.simulation.faulty_partitions import FaultyPartitions
from tests.simulation.virtual_time import VirtualClock


def test_the_next_one_goes_on_with_the_map_of_the_last() -> None:
    async def scenario(world: World) -> None:
        for identity in ("A", "B", "A"):
            work = world.coordinator(identity).work("file", supplier=counting())
            assert len(await work.acquire(10)) == 10
            await world.clock.sleep(1.5)
        found = await global_of(world)
        assert orjson.loads(found.progress or "")["map"] == {"next": 30}
        assert (found.status, found.owner) == (Status.UNASSIGNED, None)

    told(scenario)


def test_partitions_are_made_in_batches_and_each_is_followed_by_the_map() -> None:
    async def scenario(world: World) -> None:
        seen = []

        async def listing(state: SharedState) -> AsyncGenerator[NewPartition, None]:
            for i in range(state.map.get("next", 0), 35):
                state.map["next"] = i + 1
                stored = orjson.loads((await global_of(world)).progress or '{"map":{}}')["map"]
                made = sum((await world.store.counts("pipeline|file")).values())
                seen.append((made, stored.get("next", 0)))
                yield NewPartition(f"{i:02d}")

        limits = CoordinatorLimits(supplier_batch=10)
        work = world.coordinator(limits=limits).work("file", supplier=listing)
        await work.acquire()
        assert sorted(set(seen)) == [(0, 0), (10, 10), (20, 20), (30, 30)]
        assert work.counters.created == 35

    told(scenario)


def test_one_that_died_in_the_middle_is_gone_on_with() -> None:
    async def scenario(world: World) -> None:
        limits = CoordinatorLimits(supplier_batch=10, lease_seconds=60.0)
        first = world.coordinator("A", limits=limits).work("file", supplier=counting(size=35))
        calls = asyncio.create_task(first.acquire())
        while sum((await world.store.counts("pipeline|file")).values()) < 20:
            await asyncio.sleep(0)
        calls.cancel()
        await asyncio.wait([calls])
        made = sum((await world.store.counts("pipeline|file")).values())
        work = world.coordinator("B", limits=limits).work("file", supplier=counting(size=35))
        await world.clock.sleep(100.0)
        await work.acquire()
        page = await world.store.page("pipeline|file")
        keys = [one.key for one in page.partitions]
        assert 20 <= made < 35 <= len(keys)
        assert keys == [f"{i:06d}" for i in range(len(keys))], "without a gap"

    told(scenario)


def test_one_that_outlived_its_lease_makes_nothing_more_and_overwrites_nothing() -> None:
    async def scenario(world: World) -> None:
        limits = CoordinatorLimits(lease_seconds=60.0, supplier_batch=1)
        closed = []

        async def slow(state: SharedState) -> AsyncGenerator[NewPartition, None]:
            try:
                yield NewPartition("early")
                state.map["by"] = "the late one"
                await world.clock.sleep(100.0)  # no heartbeat runs
                yield NewPartition("late")
            finally:
                closed.append(True)

        late = world.coordinator("A", limits=limits).work("file", supplier=slow)
        running = asyncio.create_task(late.acquire())
        await world.clock.sleep(70.0)
        second = world.coordinator("B", limits=limits).work("file", supplier=counting())
        held = await second.supply._take()
        assert held is not None
        await running
        assert late.counters.supplies_lost == 1
        assert closed == [True]
        assert await late.get("late") is None
        found = await global_of(world)
        assert found == held.partition
        assert b"late one" not in (found.progress or "").encode()

    told(scenario)


def test_the_heartbeat_keeps_the_state_of_a_long_listing() -> None:
    async def scenario(world: World) -> None:
        async def slow(state: SharedState) -> AsyncGenerator[NewPartition, None]:
            for i in range(10):
                await world.clock.sleep(LIMITS.lease_seconds)
                yield NewPartition(str(i))

        coordinator = world.coordinator()
        work = coordinator.work("file", supplier=slow)
        async with world.running(coordinator):
            assert len(await work.acquire(10)) == 10
        assert not expired(await global_of(world), world.clock.now_ms() + 10**9)

    told(scenario)


def test_partitions_of_a_slow_listing_are_there_before_its_end() -> None:
    async def scenario(world: World) -> None:
        async def slow(state: SharedState) -> AsyncGenerator[NewPartition, None]:
            for i in range(60):
                await world.clock.sleep(1.0)
                yield NewPartition(f"{i:02d}")

        a, b = world.coordinator("A"), world.coordinator("B")
        listing = asyncio.create_task(a.work("file", supplier=slow).acquire())
        await world.clock.sleep(10.0)
        assert len(await b.work("file").acquire()) == 1
        await listing

    told(scenario)


def test_a_map_that_is_too_large_is_refused_and_the_state_is_free() -> None:
    async def scenario(world: World) -> None:
        async def large(state: SharedState) -> AsyncGenerator[NewPartition, None]:
            state.map["all"] = "x" * 400_000
            yield NewPartition("a")

        with pytest.raises(TooLarge):
            await world.coordinator().work("file", supplier=large).acquire()
        assert (await global_of(world)).owner is None

    told(scenario)


def test_two_types_have_a_state_each() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        files = coordinator.work("file", supplier=counting())
        tables = coordinator.work("table", supplier=counting(lambda _: True))
        assert len(await files.acquire()) == len(await tables.acquire()) == 1
        assert not await files.supply.finished()
        assert await tables.supply.finished()
        assert await world.store.get(GLOBAL, "table") is not None

    told(scenario)


def test_the_state_is_purged_by_nothing() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file", supplier=counting())
        (held,) = await work.acquire()
        await held.complete()
        await world.clock.sleep(10**6)
        assert await world.store.purge(GLOBAL, 1 << 60) == 0
        assert await work.purge(3600.0) == 1
        assert len(await work.acquire()) == 1

    told(scenario)


@pytest.mark.parametrize("found", ["", "not JSON", "[]", '{"map":{}}'])
def test_a_state_that_is_none_is_an_error(found: str) -> None:
    """To begin from nothing might make again what was done and purged."""

    async def scenario(world: World) -> None:
        work = world.coordinator().work("file", supplier=counting())
        await work.acquire()
        state = await global_of(world)
        await world.store.change(state, replace(state, progress=found))
        await world.clock.sleep(1000.0)
        with pytest.raises(Damaged, match=r"pipeline\|GLOBAL"):
            await work.acquire()
        with pytest.raises(Damaged, match=r"pipeline\|GLOBAL"):
            await world.coordinator("B").work("file").finished()
        after = await global_of(world)
        assert (after.owner, after.progress) == (None, found), "it stays to be looked at"
        assert (work.counters.supplied, work.counters.created) == (1, 10)

    told(scenario)


def test_a_state_that_somebody_deleted_is_made_again() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file", supplier=counting())
        assert len(await work.acquire(10)) == 10
        await world.store.delete(await global_of(world))
        await world.clock.sleep(1.5)
        assert await work.acquire() == [], "the first ten, which are there"
        await world.clock.sleep(1.5)
        assert len(await work.acquire(10)) == 10
        assert (work.counters.supplied, work.counters.created) == (3, 20)

    told(scenario)


class Forgetful(FaultyPartitions):
    """Keeps the numbers of new partitions, and not them."""

    def __init__(self, inner: PartitionStore, clock: VirtualClock) -> None:
        super().__init__(inner, clock)
        self.sizes: list[int] = []

    async def create(self, source: str, new: Sequence[NewPartition]) -> list[str]:
        if source == GLOBAL:
            return await super().create(source, new)
        self.sizes.append(len(new))
        return [one.key for one in new]


def test_thirty_thousand_are_made_in_constant_memory() -> None:
    async def scenario(world: World) -> None:
        store = Forgetful(world.store, world.clock)
        coordinator = world.coordinator(store=store, limits=CoordinatorLimits(supplier_batch=1000))
        work = coordinator.work("file", supplier=counting(size=30_000))
        tracemalloc.start()
        await work.supply.run(idle=True)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (sum(store.sizes), max(store.sizes)) == (30_000, 1000)
        assert peak < 3 << 20

    told(scenario)


def test_partitions_with_much_progress_are_made_a_few_at_a_time() -> None:
    async def scenario(world: World) -> None:
        async def heavy(state: SharedState) -> AsyncGenerator[NewPartition, None]:
            for i in range(300):
                yield NewPartition(f"{i}", progress="x" * (BATCH_CHARACTERS // 100))

        store = Forgetful(world.store, world.clock)
        await world.coordinator(store=store).work("file", supplier=heavy).supply.run(idle=True)
        assert sum(store.sizes) == 300
        assert 99 <= max(store.sizes) <= 101

    told(scenario)
