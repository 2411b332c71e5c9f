"""A process that dies between any two of its calls leaves nothing that others cannot go on with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tailrace.coordination.lease import MARGIN_MS
from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.coordination.partitions import Status, completed, saved
from tests.coordination.object_store.counted import (
    SOURCE,
    START_MS,
    Counted,
    many,
    on_disk,
    process,
    take,
)
from tests.seeds import some
from tests.simulation.faulty_store import Crash, Fault, Schedule
from tests.simulation.virtual_time import VirtualClock, simulate

T = TypeVar("T")
COUNT = 12


class Dying(Counted):
    """Once it crashed, nothing of the process happens any more."""

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self.schedule.fired:
            raise Crash(f"{name} {key}")
        return await super()._step(name, key, work)


async def _life(store: ObjectPartitions, clock: VirtualClock) -> None:
    """Makes all, takes some, works on them."""
    await store.create(SOURCE, many(COUNT))
    first, second, third, *_ = await take(store, clock, 5, "host/first")
    first = await store.change(first, saved(first, "half", first.until_ms))
    await store.change(first, completed(first, clock.now_ms()))
    await store.delete(second)
    await store.change(third, completed(third, clock.now_ms()))
    await store.purge(SOURCE, clock.now_ms() + 1)


@pytest.mark.parametrize("after", [False, True])
def test_at_every_call(after: bool) -> None:
    async def scenario(clock: VirtualClock) -> None:
        for step in some(range(1, 1_000), 3, f"{after}"):
            disk = on_disk(clock)
            fault = Fault.CRASH_AFTER if after else Fault.CRASH_BEFORE
            objects = Dying(disk, Schedule({step: fault}))
            await _dies(lambda: _life(process(objects, clock, shards=3), clock))  # noqa: B023
            fired = objects.schedule.fired > 0
            await clock.sleep(60 + MARGIN_MS / 1000)

            store = process(disk, clock, shards=5, seed=3)
            made = await store.create(SOURCE, many(COUNT))
            taken = await take(store, clock, COUNT, "other/second")
            assert {one.key for one in taken} >= set(made)
            counts = await store.counts(SOURCE)
            assert counts.get(Status.ASSIGNED, 0) == len(taken)
            assert counts.get(Status.COMPLETED, 0) == COUNT - len(taken)
            page = await store.page(SOURCE)
            assert [one.key for one in page.partitions] == [one.key for one in many(COUNT)]
            if not fired:
                break
        assert 12 < step < 990, "so many calls it takes"

    simulate(scenario, start_ms=START_MS)


async def _dies(life: Callable[[], Awaitable[None]]) -> None:
    try:
        await life()
    except (Crash, asyncio.CancelledError):  # whoever waits for a task that died is cancelled
        return
