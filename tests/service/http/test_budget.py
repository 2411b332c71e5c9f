"""The budget of bytes in flight: it grows with what arrives, waits in order, and never for ever."""

from __future__ import annotations

import asyncio

import pytest

from service.http.body import Budget, Message, Share, StoodStill, read_rest
from tests.service.simulated_node import START_MS
from tests.simulation.turns import turns
from tests.simulation.virtual_time import VirtualClock, simulate


async def grown(share: Share, size: int, order: list[int]) -> None:
    await share.grow(size)
    order.append(size)


async def test_who_does_not_fit_waits_and_the_first_goes_first() -> None:
    budget, order = Budget(100), list[int]()
    oldest = budget.share()
    await oldest.grow(60)
    others = [budget.share() for _ in range(3)]
    tasks = [
        asyncio.create_task(grown(share, size, order))
        for share, size in zip(others, (50, 30, 20), strict=True)
    ]
    await turns()
    assert order == []  # though the last two would fit: they are behind the first
    oldest.end()
    await asyncio.gather(*tasks)
    assert order == [50, 30, 20]
    assert budget.used == 100


async def test_who_began_first_always_goes_on_and_then_the_next() -> None:
    budget, order = Budget(100), list[int]()
    first, second = budget.share(), budget.share()
    await second.grow(90)
    await first.grow(1000)
    task = asyncio.create_task(grown(second, 500, order))
    await turns()
    assert order == []
    first.end()
    await task
    assert budget.used == 590
    second.end()
    assert budget.used == 0


async def test_who_gives_up_waiting_lets_the_next_in() -> None:
    budget = Budget(100)
    first, large, small = (budget.share() for _ in range(3))
    await first.grow(60)
    waits = asyncio.create_task(large.grow(90))
    behind = asyncio.create_task(small.grow(40))
    await turns()
    waits.cancel()
    await asyncio.wait({waits})
    large.end()
    await behind
    assert budget.used == 100


async def test_who_gives_up_just_when_let_in_gives_it_back() -> None:
    budget = Budget(100)
    first, second = budget.share(), budget.share()
    await first.grow(100)
    waits = asyncio.create_task(second.grow(70))
    await turns()
    first.end()
    waits.cancel()
    await asyncio.wait({waits})
    second.end()
    assert budget.used == 0


def test_of_those_that_stand_still_the_largest_is_let_go_and_only_if_others_wait() -> None:
    async def scenario(clock: VirtualClock) -> None:
        budget = Budget(100_000)
        sent: list[asyncio.Queue[Message]] = [asyncio.Queue() for _ in range(3)]

        async def reads(first: int, then: asyncio.Queue[Message]) -> int:
            share = budget.share()
            try:
                body = await read_rest(_piece(first), then.get, 1 << 20, share)
                return len(body or b"")
            finally:
                share.end()

        sizes = (10_000, 50_000, 39_000)
        tasks = [asyncio.create_task(reads(*each)) for each in zip(sizes, sent, strict=True)]
        await clock.sleep(3600)
        assert not any(task.done() for task in tasks)
        late = budget.share()
        waits = asyncio.create_task(late.grow(20_000))
        await clock.sleep(0.5)
        sent[2].put_nowait(_piece(600))
        await clock.sleep(0.4)
        assert not waits.done()
        await clock.sleep(0.2)
        await waits
        with pytest.raises(StoodStill):
            await tasks[1]
        sent[2].put_nowait(_piece(1, more=False))
        assert await tasks[2] == 39_601
        await clock.sleep(3600)
        assert not tasks[0].done()
        sent[0].put_nowait(_piece(1, more=False))
        assert await tasks[0] == 10_001
        late.end()
        assert budget.used == 0

    simulate(scenario, start_ms=START_MS)


def _piece(size: int, *, more: bool = True) -> Message:
    return {"type": "http.request", "body": b"x" * size, "more_body": more}
