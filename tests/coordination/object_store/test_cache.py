"""What is kept of shards, and how many may be under way."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from tailrace.coordination.object_store.writer import EXPANSION, RowCache
from tests.coordination.object_store.counted import START_MS
from tests.simulation.virtual_time import VirtualClock, simulate


class Holder:
    """Tells whether it has rows."""

    def __init__(self) -> None:
        self.has_rows = True

    def forget_rows(self) -> None:
        self.has_rows = False


def test_those_used_last_are_kept() -> None:
    cache = RowCache(30 * EXPANSION)
    holders = [Holder() for _ in range(5)]
    for one in holders:
        cache.used(one, 10)
    assert [one.has_rows for one in holders] == [False, False, True, True, True]
    cache.dropped(holders[2])
    cache.used(holders[0], 10)
    assert [one.has_rows for one in holders[3:]] == [True, True]
    cache.used(holders[1], 1000)
    assert [one.has_rows for one in holders[3:]] == [False, False]


def test_what_is_under_way_takes_the_room_of_what_is_kept() -> None:
    async def scenario(_: VirtualClock) -> None:
        cache = RowCache(40 * EXPANSION)
        holders = [Holder() for _ in range(4)]
        for one in holders:
            cache.used(one, 10)
        async with cache.reserved(holders[0], 20):
            assert [one.has_rows for one in holders] == [True, False, False, True]
        cache.used(Holder(), 10)
        assert holders[0].has_rows

    simulate(scenario, start_ms=START_MS)


def test_as_many_at_a_time_as_half_of_the_memory_holds_in_the_order_in_which_they_came() -> None:
    async def scenario(clock: VirtualClock) -> None:
        cache = RowCache(40 * EXPANSION)
        inside: list[int] = []
        came: list[int] = []
        most = 0

        async def work(size: int) -> None:
            nonlocal most
            async with cache.reserved(Holder(), size):
                came.append(size)
                inside.append(size)
                most = max(most, sum(inside))
                await clock.sleep(1.0)
                inside.remove(size)

        sizes = [8, 9, 15, 2, 3, 16, 1, 0]
        await asyncio.gather(*[work(size) for size in sizes])
        assert came == sizes
        assert most == 20

    simulate(scenario, start_ms=START_MS)


def test_what_is_larger_than_all_memory_goes_alone() -> None:
    async def scenario(clock: VirtualClock) -> None:
        cache = RowCache(10)
        inside = 0

        async def work() -> None:
            nonlocal inside
            async with cache.reserved(Holder(), 1000):
                inside += 1
                await clock.sleep(1.0)
                assert inside == 1
                inside -= 1

        await asyncio.gather(*[work() for _ in range(5)])

    simulate(scenario, start_ms=START_MS)


def test_who_gives_up_waiting_leaves_the_room_to_others() -> None:
    async def scenario(clock: VirtualClock) -> None:
        cache = RowCache(10)

        async def stay() -> None:
            async with cache.reserved(Holder(), 1000):
                await clock.sleep(1000.0)

        async with AsyncExitStack() as stack:
            await stack.enter_async_context(cache.reserved(Holder(), 1000))
            waiting = [asyncio.create_task(stay()) for _ in range(3)]
            await clock.sleep(1.0)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
        inside = asyncio.create_task(stay())
        await clock.sleep(1.0)
        inside.cancel()
        await asyncio.wait([inside])
        async with cache.reserved(Holder(), 1000):
            pass

    simulate(scenario, start_ms=START_MS)
