"""The supplier: who runs it, when, what comes of its errors, and when all is complete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from tailrace.coordination.partitions import NewPartition, Status
from tailrace.coordination.settings import CoordinatorLimits
from tailrace.coordination.work_queue import SharedState
from tailrace.logstore.errors import StoreUnavailable
from tests.coordination.coordinator.suppliers import counting, global_of, of
from tests.coordination.processes import LIMITS, World, put, told
from tests.simulation.faulty_partitions import FaultyPartitions
from tests.simulation.faulty_store import Fault


def test_nothing_is_acquired_where_there_is_nothing() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        assert await work.acquire(5) == []
        assert (work.counters.none_acquired, work.counters.supplied) == (1, 0)

    told(scenario)


def test_with_nothing_to_do_the_supplier_is_asked_and_its_partitions_acquired() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file", supplier=of("b", "a", "c"), random=False)
        assert [held.key for held in await work.acquire(2)] == ["b", "a"]
        assert [held.key for held in await work.acquire(2)] == ["c"]
        counters = work.counters
        assert (counters.supplied, counters.created, counters.acquired) == (1, 3, 3)
        assert counters.none_acquired == 0

    told(scenario)


def test_only_those_that_do_not_exist_are_made() -> None:
    async def scenario(world: World) -> None:
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

    told(scenario)


def test_while_another_supplies_nobody_else_does() -> None:
    async def scenario(world: World) -> None:
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

    told(scenario)


def test_the_state_of_one_that_died_is_free_after_its_time() -> None:
    async def scenario(world: World) -> None:
        dead = world.coordinator("A").work("file", supplier=counting())
        await dead.supply._take()
        work = world.coordinator("B").work("file", supplier=counting())
        assert await work.acquire() == []
        await world.clock.sleep(LIMITS.lease_seconds + 3.0)
        assert len(await work.acquire()) == 1
        assert work.counters.supplied == 1

    told(scenario)


def test_a_restarted_process_has_its_state_back_at_once() -> None:
    async def scenario(world: World) -> None:
        dead = world.coordinator("A", configured=True).work("file", supplier=counting())
        await dead.supply._take()
        await world.clock.sleep(0.1)
        again = world.coordinator("A", configured=True).work("file", supplier=counting())
        assert len(await again.acquire()) == 1

    told(scenario)


def test_what_a_supplier_raises_is_raised_and_the_state_is_free_at_once() -> None:
    async def scenario(world: World) -> None:
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

    told(scenario)


def test_a_state_that_cannot_be_given_back_runs_out_though_the_heart_beats() -> None:
    async def scenario(world: World) -> None:
        async def bad(state: SharedState) -> AsyncGenerator[NewPartition, None]:
            world.faulty.fault = lambda _: Fault.UNAVAILABLE
            yield NewPartition("a")

        a, store = world.coordinator("A"), FaultyPartitions(world.store, world.clock)
        other = world.coordinator("B", store=store).work("file", supplier=counting())
        async with world.running(a):
            with pytest.raises(StoreUnavailable):
                await a.work("file", supplier=bad).acquire()
            world.faulty.fault = lambda _: None
            await world.clock.sleep(LIMITS.lease_seconds + 3.0)
            assert len(await other.acquire()) == 1

    told(scenario)


def test_a_store_that_is_away_is_no_reason_to_supply() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file", supplier=of("a"), balance=False)
        world.faulty.fault = lambda call: Fault.UNAVAILABLE if call == "acquire" else None
        with pytest.raises(StoreUnavailable):
            await work.acquire()
        world.faulty.fault = lambda call: Fault.UNAVAILABLE if call == "get" else None
        with pytest.raises(StoreUnavailable):
            await work.acquire()
        assert (work.counters.supplied, work.counters.none_acquired) == (0, 0)

    told(scenario)


def test_there_is_work_and_yet_the_supplier_is_asked_now_and_then() -> None:
    async def scenario(world: World) -> None:
        limits = CoordinatorLimits(lease_seconds=1e6, supplier_seconds=300.0)
        work = world.coordinator(limits=limits).work("file", supplier=counting(size=1000))
        asked: list[int] = []
        for second in range(1000):
            assert len(await work.acquire()) == 1
            if work.counters.supplied > len(asked):
                asked.append(second)
            await world.clock.sleep(1.0)
        assert asked == [0, 300, 600, 900]
        assert world.faulty.calls.count("get") < 20, "and nobody looks each time whether it is due"

    told(scenario)


def test_the_idle_do_not_ask_all_the_time_however_many_they_are() -> None:
    async def scenario(world: World) -> None:
        works = [world.coordinator(name).work("file", supplier=of()) for name in "ABCDE"]
        for _ in range(50):
            for work in works:
                assert await work.acquire() == []
            await world.clock.sleep(0.2)
        assert 5 <= sum([work.counters.supplied for work in works]) <= 11

    told(scenario)


def test_all_is_complete_once_the_supplier_said_so_and_nothing_is_left() -> None:
    async def scenario(world: World) -> None:
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

    told(scenario)


def test_where_partitions_are_made_by_hand_the_end_is_said_by_hand() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        await put(work, "a")
        (held,) = await work.acquire()
        await held.complete()
        assert not await work.finished()
        await work.supply.finish()
        assert await work.finished()

    told(scenario)
