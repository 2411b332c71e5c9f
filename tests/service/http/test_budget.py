"""The budget of bytes in flight: waits, in order, and never for ever."""

from __future__ import annotations

import asyncio

import pytest

from service.http.body import Budget

pytestmark = pytest.mark.anyio


async def admitted(budget: Budget, size: int, order: list[int]) -> None:
    await budget.admit(size)
    order.append(size)


async def test_who_does_not_fit_waits_and_the_first_goes_first() -> None:
    budget = Budget(100)
    order: list[int] = []
    tasks = [asyncio.create_task(admitted(budget, size, order)) for size in (60, 50, 30, 20)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == [60]
    budget.release(60)
    await asyncio.gather(*tasks)
    assert order == [60, 50, 30, 20]
    assert budget.used == 100


async def test_what_is_larger_than_the_budget_goes_alone() -> None:
    budget = Budget(10)
    await budget.admit(1000)
    second = asyncio.create_task(budget.admit(1))
    await asyncio.sleep(0)
    assert not second.done()
    budget.release(1000)
    await second
    assert budget.used == 1


async def test_who_gives_up_waiting_lets_the_next_in() -> None:
    budget = Budget(100)
    await budget.admit(60)
    large = asyncio.create_task(budget.admit(90))
    small = asyncio.create_task(budget.admit(40))
    await asyncio.sleep(0)
    large.cancel()
    await asyncio.wait({large, small})
    assert large.cancelled()
    assert budget.used == 100


async def test_who_gives_up_just_when_let_in_gives_it_back() -> None:
    budget = Budget(100)
    await budget.admit(100)
    waiting = asyncio.create_task(budget.admit(70))
    await asyncio.sleep(0)
    budget.release(100)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert budget.used == 0
