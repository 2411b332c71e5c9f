"""Callers who ask the same at the same time share a call that begins after each of them asked."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from service.runtime.concurrency import SharedCalls


class Store:
    """Something that changes, and takes a while to be read."""

    def __init__(self) -> None:
        self.value = 0
        self.open = asyncio.Event()

    async def read(self) -> int:
        value = self.value
        await self.open.wait()
        return value


async def asked() -> None:
    """Lets those who are about to ask get to it."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_thousand_who_ask_at_once_are_one_call() -> None:
    calls, store = SharedCalls(), Store()
    asking = [asyncio.create_task(calls.call("q", store.read)) for _ in range(1000)]
    await asked()
    store.open.set()
    assert await asyncio.gather(*asking) == [0] * 1000
    assert calls.begun == 1


async def test_nobody_is_told_what_was_true_before_the_question() -> None:
    calls, store = SharedCalls(), Store()
    first = asyncio.create_task(calls.call("q", store.read))
    await asked()
    store.value = 1
    later = [asyncio.create_task(calls.call("q", store.read)) for _ in range(10)]
    await asked()
    store.value = 2  # they asked before this, and their call has not begun
    store.open.set()
    assert await first == 0
    assert await asyncio.gather(*later) == [2] * 10
    assert calls.begun == 2


async def test_other_questions_do_not_wait() -> None:
    calls, store = SharedCalls(), Store()
    slow = asyncio.create_task(calls.call("slow", store.read))
    await asked()

    async def at_once() -> str:
        return "here"

    assert await calls.call("quick", at_once) == "here"
    assert not slow.done()
    store.open.set()
    assert await slow == 0


async def test_who_leaves_takes_nothing_away() -> None:
    calls, store = SharedCalls(), Store()
    leaves = asyncio.create_task(calls.call("q", store.read))
    stays = asyncio.create_task(calls.call("q", store.read))
    await asked()
    leaves.cancel()
    with suppress(asyncio.CancelledError):
        await leaves
    store.open.set()
    assert await stays == 0
    assert await calls.call("q", store.read) == 0


async def test_an_error_is_told_to_all_and_the_next_call_is_another() -> None:
    calls = SharedCalls()
    tries = 0

    async def fails_once() -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("away")
        return "back"

    found = await asyncio.gather(
        *[calls.call("q", fails_once) for _ in range(3)], return_exceptions=True
    )
    assert [type(one) for one in found] == [OSError] * 3
    with pytest.raises(OSError, match="away"):
        raise found[0]  # type: ignore[misc]
    assert await calls.call("q", fails_once) == "back"
