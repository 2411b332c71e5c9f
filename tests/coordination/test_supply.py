"""The supplier: who runs it, when, what it makes, and the state that suppliers share."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Sequence

import orjson
import pytest

from coordination.limits import CoordinatorLimits
from coordination.partition import NewPartition, Partition, Status
from coordination.store import PartitionStore
from coordination.supply import SharedState, Supplier
from coordination.transitions import expired
from logstore.errors import StoreUnavailable, TooLarge
from tests.coordination.processes import LIMITS, World, put, told
from tests.faulty_partitions import FaultyPartitions
from tests.faulty_store import Fault
from tests.virtual_time import VirtualClock

GLOBAL = "pipeline|GLOBAL"


def of(*keys: str) -> Supplier:
    """Always supplies the same."""

    async def supplier(state: SharedState) -> AsyncGenerator[NewPartition, None]:
        for key in keys:
            yield NewPartition(key)

    return supplier


def counting(after: Callable[[int], bool] = lambda _: False, size: int = 10) -> Supplier:
    """Supplies numbers from where the last one left off, finished when `after` says so."""

    async def supplier(state: SharedState) -> AsyncGenerator[NewPartition, None]:
        first = state.map.get("next", 0)
        for i in range(first, first + size):
            state.map["next"] = i + 1
            yield NewPartition(f"{i:06d}")
        state.finished = after(first + size)

    return supplier


async def global_of(world: World) -> Partition:
    return await world.stored("file", GLOBAL)


def test_nothing_is_acquired_where_there_is_nothing() -> None:
    async def story(world: World) -> None:
        work = world.coordinator().work("file")
        assert await work.acquire(5) == []
        assert (work.counters.none_acquired, work.counters.supplied) == (1, 0)

    told(story)


def test_with_nothing_to_do_the_supplier_is_asked_and_its_partitions_acquired() -> None:
    async def story(world: World) -> None:
        work = world.coordinator().work("file", supplier=of("b", "a", "c"), spread=False)
        assert [held.key for held in await work.acquire(2)] == ["b", "a"]
        assert [held.key for held in await work.acquire(2)] == ["c"]
        counters = work.counters
        assert (counters.supplied, counters.created, counters.acquired) == (1, 3, 3)
        assert counters.none_acquired == 0

    told(story)


def test_only_those_that_do_not_exist_are_made() -> None:
    async def story(world: World) -> None:
        work = world.coordinator().work("file", supplier=of("new 1", "old", "new 2", "done"))
        await put(work, "old", "done")
        held = await work.acquire_key("done")
        assert held is not None
        await held.complete()
        assert {held.key for held in await work.acquire(9)} == {"old", "new 1", "new 2"}
        assert work.counters.created == 4
        assert await work.acquire() == []
        await world.clock.sleep(10.0)
        assert await work.acquire() == [], "a supplier that has nothing new makes nothing"
        assert (work.counters.created, work.counters.supplied) == (4, 2)

    told(story)


def test_the_next_one_goes_on_with_the_map_of_the_last() -> None:
    async def story(world: World) -> None:
        for identity in ("A", "B", "A"):
            work = world.coordinator(identity).work("file", supplier=counting())
            assert len(await work.acquire(10)) == 10
            await world.clock.sleep(1.5)
        found = await global_of(world)
        assert orjson.loads(found.progress or "")["map"] == {"next": 30}
        assert (found.status, found.owner) == (Status.UNASSIGNED, None)

    told(story)


def test_while_another_supplies_nobody_else_does() -> None:
    async def story(world: World) -> None:
        gate = asyncio.Event()

        async def slow(state: SharedState) -> AsyncGenerator[NewPartition, None]:
            await gate.wait()
            yield NewPartition("a")

        a, b = world.coordinator("A"), world.coordinator("B")
        one, two = a.work("file", supplier=slow), b.work("file", supplier=of("b"))
        async with world.running(a, b):
            first = asyncio.create_task(one.acquire())
            await world.clock.sleep(1.0)
            assert await one.acquire() == [], "nor does another worker of the same process"
            for _ in range(20):
                await world.clock.sleep(LIMITS.lease_seconds / 10)
                assert await two.acquire() == []
            assert two.counters.supplied == 0
            gate.set()
            assert [held.key for held in await first] == ["a"]
            assert (await global_of(world)).owner is None

    told(story)


def test_the_state_of_one_that_died_is_free_after_its_time() -> None:
    async def story(world: World) -> None:
        dead = world.coordinator("A").work("file", supplier=counting())
        await dead.supply._take()
        work = world.coordinator("B").work("file", supplier=counting())
        assert await work.acquire() == []
        await world.clock.sleep(LIMITS.lease_seconds + 3.0)
        assert len(await work.acquire()) == 1
        assert work.counters.supplied == 1

    told(story)


def test_a_restarted_process_has_its_state_back_at_once() -> None:
    async def story(world: World) -> None:
        dead = world.coordinator("A", configured=True).work("file", supplier=counting())
        await dead.supply._take()
        await world.clock.sleep(0.1)
        again = world.coordinator("A", configured=True).work("file", supplier=counting())
        assert len(await again.acquire()) == 1

    told(story)


def test_what_a_supplier_raises_is_raised_and_the_state_is_free_at_once() -> None:
    async def story(world: World) -> None:
        async def bad(state: SharedState) -> AsyncGenerator[NewPartition, None]:
            state.map["seen"] = True
            yield NewPartition("a")
            raise ValueError("the bucket is gone")

        work = world.coordinator("A").work("file", supplier=bad)
        with pytest.raises(ValueError, match="gone"):
            await work.acquire()
        found = await global_of(world)
        assert (found.status, found.progress) == (Status.UNASSIGNED, None)
        other = world.coordinator("B").work("file", supplier=counting())
        assert len(await other.acquire()) == 1

    told(story)


def test_a_store_that_is_away_is_no_reason_to_supply() -> None:
    async def story(world: World) -> None:
        work = world.coordinator().work("file", supplier=of("a"), balance=False)
        world.faulty.fault = lambda call: Fault.UNAVAILABLE if call == "acquire" else None
        with pytest.raises(StoreUnavailable):
            await work.acquire()
        world.faulty.fault = lambda call: Fault.UNAVAILABLE if call == "get" else None
        with pytest.raises(StoreUnavailable):
            await work.acquire()
        assert (work.counters.supplied, work.counters.none_acquired) == (0, 0)

    told(story)


def test_there_is_work_and_yet_the_supplier_is_asked_now_and_then() -> None:
    async def story(world: World) -> None:
        limits = CoordinatorLimits(lease_seconds=1e6, supplier_seconds=300.0)
        work = world.coordinator(limits=limits).work("file", supplier=counting(size=1000))
        asked: list[int] = []
        for second in range(1000):
            assert len(await work.acquire()) == 1
            if work.counters.supplied > len(asked):
                asked.append(second)
            await world.clock.sleep(1.0)
        assert asked == [0, 300, 600, 900]

    told(story)


def test_the_idle_do_not_ask_all_the_time_however_many_they_are() -> None:
    async def story(world: World) -> None:
        works = [world.coordinator(name).work("file", supplier=of()) for name in "ABCDE"]
        for _ in range(50):
            for work in works:
                assert await work.acquire() == []
            await world.clock.sleep(0.2)
        assert 5 <= sum([work.counters.supplied for work in works]) <= 11

    told(story)


def test_partitions_are_made_in_batches_and_each_is_followed_by_the_map() -> None:
    async def story(world: World) -> None:
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

    told(story)


def test_one_that_died_in_the_middle_is_gone_on_with() -> None:
    async def story(world: World) -> None:
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

    told(story)


def test_one_that_outlived_its_lease_makes_nothing_more_and_overwrites_nothing() -> None:
    async def story(world: World) -> None:
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

    told(story)


def test_the_heartbeat_keeps_the_state_of_a_long_listing() -> None:
    async def story(world: World) -> None:
        async def slow(state: SharedState) -> AsyncGenerator[NewPartition, None]:
            for i in range(10):
                await world.clock.sleep(LIMITS.lease_seconds)
                yield NewPartition(str(i))

        coordinator = world.coordinator()
        work = coordinator.work("file", supplier=slow)
        async with world.running(coordinator):
            assert len(await work.acquire(10)) == 10
        assert not expired(await global_of(world), world.clock.now_ms() + 10**9)

    told(story)


def test_partitions_of_a_slow_listing_are_there_before_its_end() -> None:
    async def story(world: World) -> None:
        async def slow(state: SharedState) -> AsyncGenerator[NewPartition, None]:
            for i in range(60):
                await world.clock.sleep(1.0)
                yield NewPartition(f"{i:02d}")

        a, b = world.coordinator("A"), world.coordinator("B")
        listing = asyncio.create_task(a.work("file", supplier=slow).acquire())
        await world.clock.sleep(10.0)
        assert len(await b.work("file").acquire()) == 1
        await listing

    told(story)


def test_a_map_that_is_too_large_is_refused_and_the_state_is_free() -> None:
    async def story(world: World) -> None:
        async def large(state: SharedState) -> AsyncGenerator[NewPartition, None]:
            state.map["all"] = "x" * 400_000
            yield NewPartition("a")

        with pytest.raises(TooLarge):
            await world.coordinator().work("file", supplier=large).acquire()
        assert (await global_of(world)).owner is None

    told(story)


def test_all_is_complete_once_the_supplier_said_so_and_nothing_is_left() -> None:
    async def story(world: World) -> None:
        a, b = world.coordinator("A"), world.coordinator("B")
        supplying = a.work("file", supplier=counting(lambda total: total >= 20))
        watching = b.work("file")
        over = asyncio.create_task(watching.wait_finished())
        for turn in range(20):
            (held,) = await supplying.acquire()
            assert not await watching.finished()
            await (held.complete() if turn else held.close(1.0, max_closed_count=1))
            await world.clock.sleep(2.0)
        assert await watching.finished()
        assert supplying.counters.supplied == 2
        await world.clock.sleep(10.0)
        assert over.done()
        assert await supplying.acquire() == []
        assert supplying.counters.supplied == 2, "it is not asked again"
        await supplying.fail("000007", "looked wrong afterwards")
        assert await watching.finished(), "completed, with failures"
        await supplying.reopen("000007")
        assert not await watching.finished()

    told(story)


def test_where_partitions_are_made_by_hand_the_end_is_said_by_hand() -> None:
    async def story(world: World) -> None:
        work = world.coordinator().work("file")
        await put(work, "a")
        (held,) = await work.acquire()
        await held.complete()
        assert not await work.finished()
        await work.supply.finish()
        assert await work.finished()

    told(story)


def test_two_types_have_a_state_each() -> None:
    async def story(world: World) -> None:
        coordinator = world.coordinator()
        files = coordinator.work("file", supplier=counting())
        tables = coordinator.work("table", supplier=counting(lambda _: True))
        assert len(await files.acquire()) == len(await tables.acquire()) == 1
        assert not await files.supply.finished()
        assert await tables.supply.finished()
        assert await world.store.get(GLOBAL, "table") is not None

    told(story)


def test_the_state_is_purged_by_nothing() -> None:
    async def story(world: World) -> None:
        work = world.coordinator().work("file", supplier=counting())
        (held,) = await work.acquire()
        await held.complete()
        await world.clock.sleep(10**6)
        assert await world.store.purge(GLOBAL, 1 << 60) == 0
        assert await work.purge(3600.0) == 1
        assert len(await work.acquire()) == 1

    told(story)


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


def test_a_hundred_thousand_are_made_in_constant_memory() -> None:
    async def story(world: World) -> None:
        store = Forgetful(world.store, world.clock)
        work = world.coordinator(store=store).work("file", supplier=counting(size=100_000))
        tracemalloc.start()
        await work.supply.run(idle=True)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (sum(store.sizes), max(store.sizes)) == (100_000, 1000)
        assert peak < 3 << 20

    told(story)
