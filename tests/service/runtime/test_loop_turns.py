"""Many ready tasks take turns, so that what comes from connections is not behind all of them."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from service.runtime.concurrency import LoopTurns


async def test_so_many_go_on_between_two_looks_in_the_order_in_which_they_asked() -> None:
    turns, begun = LoopTurns(3), list[int]()

    async def work(number: int) -> None:
        await turns.take()
        begun.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(10)]
    sizes = [0]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        sizes.append(len(begun))
    assert begun == list(range(10))
    assert max(after - before for before, after in pairwise(sizes)) <= 3


async def test_one_alone_waits_for_nothing() -> None:
    turns = LoopTurns(1)
    for _ in range(3):
        taking = turns.take()
        try:
            taking.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("it waits")
        await asyncio.sleep(0)


async def test_those_that_leave_cost_the_others_no_turn() -> None:
    turns = LoopTurns(1)
    await turns.take()
    leaving = [asyncio.create_task(turns.take()) for _ in range(5)]
    last = asyncio.create_task(turns.take())
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    async with asyncio.timeout(30):
        await last
