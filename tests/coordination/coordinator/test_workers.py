"""Fair shares: nobody acquires beyond them, and what is too much comes back."""

from __future__ import annotations

import asyncio
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.coordination.partitions import NewPartition
from tailrace.coordination.settings import CoordinatorLimits
from tailrace.coordination.work_queue import Coordinator, WorkQueue, fair_share
from tests.coordination.processes import World, put, told

LIMITS = CoordinatorLimits(lease_seconds=600.0, worker_seconds=60.0, rotate_seconds=300.0)
BEATS = 61.0
"""Seconds in which every worker has seen what every other said."""


def worked(world: World, name: str, *, rotate: bool = False) -> tuple[Coordinator, WorkQueue]:
    coordinator = world.coordinator(name, limits=LIMITS)
    return coordinator, coordinator.work("shard", rotate=rotate)


async def greedy(world: World, work: WorkQueue, most: int = 1000) -> None:
    """Takes what it gets, up to `most`, and holds it for good; gives back what is asked back."""
    while True:
        for held in work.held():
            if held.asked_back.is_set() and held.valid():
                await held.give_up(progress="as far as it was")
        if len(work.held()) < most:
            await work.acquire(most - len(work.held()))
        await world.clock.sleep(1.0)


@settings(deadline=None)
@given(st.integers(0, 500), st.lists(st.integers(0, 100) | st.just(math.inf), min_size=1))
def test_a_share_is_the_lowest_that_leaves_nothing_over(total: int, demands: list[float]) -> None:
    share = fair_share(total, demands)

    def poured(level: int) -> float:
        return sum([min(demand, level) for demand in demands])

    if sum(demands) < total:
        assert share == total
    else:
        assert poured(share) >= total
        assert share == 0 or poured(share - 1) < total


def test_shares() -> None:
    assert fair_share(10, [math.inf]) == 10
    assert fair_share(10, [math.inf, math.inf]) == 5
    assert fair_share(10, [math.inf, math.inf, math.inf]) == 4
    assert fair_share(10, [1, math.inf]) == 9
    assert fair_share(150, [150, math.inf]) == 75
    assert fair_share(0, [math.inf, 3]) == 0


def test_one_alone_may_have_everything() -> None:
    async def scenario(world: World) -> None:
        _, work = worked(world, "A")
        await put(work, *[str(i) for i in range(50)])
        assert len(await work.acquire(100)) == 50

    told(scenario)


def test_nobody_acquires_beyond_its_share_and_one() -> None:
    async def scenario(world: World) -> None:
        _, a = worked(world, "A")
        _, b = worked(world, "B")
        await put(a, *[str(i) for i in range(20)])
        assert len(await a.acquire(3)) == 3
        first = await b.acquire(20)
        assert len(first) == 10, "A, which holds less, wants more"
        assert len(await a.acquire(20)) == 7
        assert await b.acquire(20) == []
        assert b.counters.held_back == 1
        assert b.counters.none_acquired == 1

    told(scenario)


def test_of_two_each_of_two_has_one() -> None:
    async def scenario(world: World) -> None:
        a, works = worked(world, "A")
        b, late = worked(world, "B")
        await put(works, "1", "2")
        async with world.running(a, b):
            tasks = [asyncio.create_task(greedy(world, works))]
            await world.clock.sleep(10.0)
            assert len(works.held()) == 2
            tasks.append(asyncio.create_task(greedy(world, late)))
            await world.clock.sleep(2 * BEATS)
            assert (len(works.held()), len(late.held())) == (1, 1)
            asked = works.counters.asked_back
            await world.clock.sleep(10 * BEATS)
            assert works.counters.asked_back == asked, "then calm"
            for task in tasks:
                task.cancel()

    told(scenario)


def test_one_that_comes_late_gets_its_share() -> None:
    async def scenario(world: World) -> None:
        a, works = worked(world, "A")
        await put(works, *[str(i) for i in range(20)])
        b, late = worked(world, "B")
        async with world.running(a, b):
            tasks = [asyncio.create_task(greedy(world, works))]
            await world.clock.sleep(100.0)
            assert len(works.held()) == 20
            tasks.append(asyncio.create_task(greedy(world, late)))
            await world.clock.sleep(2 * BEATS)
            held = [len(works.held()), len(late.held())]
            assert sum(held) == 20
            assert max(held) <= 10
            asked = works.counters.asked_back
            await world.clock.sleep(10 * BEATS)
            assert sum([works.counters.asked_back, late.counters.asked_back]) == asked, "then calm"
            progress = {held.progress for held in late.held()}
            assert progress == {"as far as it was"}
            for task in tasks:
                task.cancel()

    told(scenario)


def test_five_that_come_at_once_share_and_those_left_share_when_some_die() -> None:
    async def scenario(world: World) -> None:
        both = [worked(world, name, rotate=True) for name in "ABCDE"]
        works = [work for _, work in both]
        await put(works[0], *[str(i) for i in range(52)])
        beats = [asyncio.create_task(one.run()) for one, _ in both]
        tasks = [asyncio.create_task(greedy(world, work)) for work in works]
        await world.clock.sleep(3 * BEATS)
        held = sorted([len(work.held()) for work in works])
        assert sum(held) == 52
        assert held[-1] <= 11
        for task in (*beats[:2], *tasks[:2]):
            task.cancel()
        await world.clock.sleep(LIMITS.lease_seconds + 3 * BEATS)
        held = sorted([len(work.held()) for work in works[2:]])
        assert sum(held) == 52
        assert held[-1] <= 18
        for task in (*beats[2:], *tasks[2:]):
            task.cancel()

    told(scenario)


def test_who_wants_no_more_leaves_the_rest_to_others() -> None:
    async def scenario(world: World) -> None:
        a, modest = worked(world, "A")
        b, other = worked(world, "B")
        await put(modest, *[str(i) for i in range(20)])
        async with world.running(a, b):
            assert len(await modest.acquire(2)) == 2
            task = asyncio.create_task(greedy(world, other))
            await world.clock.sleep(3 * BEATS)
            assert (len(modest.held()), len(other.held())) == (2, 18)
            assert modest.counters.asked_back == 0
            task.cancel()

    told(scenario)


def test_more_partitions_than_hands_take_turns() -> None:
    async def scenario(world: World) -> None:
        both = [worked(world, name, rotate=True) for name in "AB"]
        works = [work for _, work in both]
        keys = [str(i) for i in range(10)]
        await put(works[0], *keys)
        served: dict[str, float] = dict.fromkeys(keys, 0.0)
        longest = 0.0
        async with world.running(*[coordinator for coordinator, _ in both]):
            tasks = [asyncio.create_task(greedy(world, work, most=3)) for work in works]
            start = world.clock.monotonic()
            for _ in range(4000):
                await world.clock.sleep(1.0)
                now = world.clock.monotonic() - start
                for held in [held for work in works for held in work.held()]:
                    served[held.key] = now
                longest = max(longest, now - min(served.values()))
            for task in tasks:
                task.cancel()
        turns = LIMITS.rotate_seconds + 2 * BEATS
        assert 0.0 < longest <= 2 * turns, "the rest waits for two turns of the six at most"

    told(scenario)


def test_what_is_held_long_stays_while_nobody_waits() -> None:
    async def scenario(world: World) -> None:
        a, work = worked(world, "A", rotate=True)
        await put(work, "a", "b")
        held = await work.acquire(2)
        async with world.running(a):
            await world.clock.sleep(10 * LIMITS.rotate_seconds)
            assert all(one.valid() for one in held)
            await world.store.create(work.source, [NewPartition("c")])
            await asyncio.wait_for(held[0].lost.wait(), BEATS)
            assert held[1].valid()
        stored = await world.stored("a", work.source)
        assert (stored.owner, stored.attempts) == (None, 0)

    told(scenario)


def test_the_register_forgets_who_is_gone() -> None:
    async def scenario(world: World) -> None:
        both = [worked(world, name) for name in "ABC"]
        await put(both[0][1], *[str(i) for i in range(9)])
        for _, work in both:
            await work.acquire()
        await world.store.create("pipeline|WORKERS", [NewPartition("shard/died early")])
        async with world.running(both[0][0]):
            await world.clock.sleep(3 * BEATS)
            found = (await world.store.page("pipeline|WORKERS")).partitions
            assert [one.owner for one in found] == [both[0][0].owner]
            assert len(await both[0][1].acquire(9)) == 6

    told(scenario)
