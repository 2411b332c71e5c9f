"""A store outside of leaping time: it is a store like any other, and time waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import ObjectStore
from tests.contracts.object_store import ObjectStoreContract
from tests.simulation.outside import Outside, OutsideStore
from tests.simulation.virtual_time import VirtualClock, simulate

START_MS = 1_600_000_000_000


@pytest.fixture
def outside() -> Iterator[Outside]:
    with Outside() as made:
        yield made


def local(folder: Path) -> LocalStore:
    return LocalStore(str(folder), Disk(), SystemClock(), Random(1))


class TestContract(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path, outside: Outside) -> ObjectStore:
        return OutsideStore(local(tmp_path), outside, SystemClock())


def test_time_stands_still_while_somebody_waits_outside(outside: Outside) -> None:
    answer = threading.Event()

    async def slow() -> str:
        await asyncio.to_thread(answer.wait)
        return "answer"

    async def scenario(clock: VirtualClock) -> None:
        waiting = asyncio.create_task(outside.call(slow()))
        sleeping = asyncio.create_task(clock.sleep(3600))
        threading.Timer(0.1, answer.set).start()
        assert await waiting == "answer"
        assert clock.now_ms() == START_MS
        await sleeping
        assert clock.now_ms() == START_MS + 3_600_000

    simulate(scenario, start_ms=START_MS)


def test_whoever_gives_up_takes_the_call_back(outside: Outside) -> None:
    ended = threading.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def scenario(clock: VirtualClock) -> None:
        waiting = asyncio.create_task(outside.call(endless()))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await clock.sleep(60)

    simulate(scenario, start_ms=START_MS)
    assert ended.wait(120)


def test_objects_are_as_old_as_the_asking_world_says(outside: Outside, tmp_path: Path) -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = OutsideStore(local(tmp_path), outside, clock)
        await store.put("old", b"1")
        await clock.sleep(86_400)
        await store.put("new", b"1")
        ages = {info.key: clock.now_ms() - info.modified_ms async for info in store.list("")}
        assert ages == {"new": 0, "old": 86_400_000}
        assert (await store.head("old")).modified_ms == START_MS

    simulate(scenario, start_ms=START_MS)
