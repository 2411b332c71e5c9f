"""Real processes share the partitions of one source: each is done once, by one of them."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from tailrace.coordination.lease import StoreTime
from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.coordination.partitions import Claim, NewPartition, Partition, Status, completed
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import PreconditionFailed
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import ObjectStore, newest_date_of
from tests.servers.minio import Bucket

PROCESSES = 3
COUNT = 150
SOURCE = "race|pipeline|file"
OpenStore = Callable[[], AbstractAsyncContextManager[ObjectStore]]


@asynccontextmanager
async def in_folder(folder: str) -> AsyncIterator[ObjectStore]:
    yield LocalStore(folder, Disk(), SystemClock(), system_entropy())


@asynccontextmanager
async def partitions(open_store: OpenStore) -> AsyncIterator[ObjectPartitions]:
    clock = SystemClock()
    async with open_store() as objects:
        time = StoreTime(clock, newest_date_of(objects))
        store = ObjectPartitions(objects, clock, system_entropy(), time, shards=4)
        await store.start()
        yield store
        await store.close()


async def _acquired(
    store: ObjectPartitions, owner: str, *, lease_ms: int = 600_000
) -> list[Partition]:
    claim = Claim(owner, lease_ms, store.time.at_least_ms(), store.time.at_most_ms())
    return list((await store.acquire(SOURCE, claim, 4)).partitions)


def _make_and_work(open_store: OpenStore, name: str) -> tuple[list[str], list[tuple[str, int]]]:
    """What this process made, and what it did under which epoch."""

    async def run() -> tuple[list[str], list[tuple[str, int]]]:
        done: list[tuple[str, int]] = []

        async def complete(one: Partition) -> None:
            await store.change(one, completed(one, store.time.at_most_ms()))
            done.append((one.key, one.epoch))

        async with partitions(open_store) as store:
            made = await store.create(SOURCE, [NewPartition(f"{i:03d}") for i in range(COUNT)])
            while (await store.counts(SOURCE)).get(Status.COMPLETED, 0) < COUNT:
                held = await _acquired(store, f"{name}/1")
                await asyncio.gather(*[complete(one) for one in held])
        return made, done

    return asyncio.run(run())


def _renew(open_store: OpenStore, times: int) -> int:
    """How often this process was the one that changed the only partition."""

    async def run() -> int:
        won = 0
        async with partitions(open_store) as store:
            while won < times:
                old = await store.get(SOURCE, "one")
                assert old is not None
                try:
                    await store.change(old, replace(old, place=old.place + 1))
                except PreconditionFailed:
                    continue
                won += 1
        return won

    return asyncio.run(run())


def _take_and_hang(open_store: OpenStore, told: str) -> None:
    """Holds what it got until somebody kills it."""

    async def run() -> None:
        async with partitions(open_store) as store:
            while not (held := await _acquired(store, "lost/1", lease_ms=300)):
                await asyncio.sleep(0.05)  # it knows the store's time to the second only
            Path(told).write_text(" ".join([one.key for one in held]))
            await asyncio.sleep(3600)

    asyncio.run(run())


async def _wait_for(told: Path, process: SpawnProcess) -> list[str]:
    while not told.exists() or not told.read_text():
        assert process.is_alive()
        await asyncio.sleep(0.02)
    return told.read_text().split(" ")


class Races:
    @pytest.fixture
    def open_store(self) -> OpenStore:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def pool(cls) -> Iterator[ProcessPoolExecutor]:
        with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
            yield pool

    def test_each_is_made_once_and_done_once(
        self, open_store: OpenStore, pool: ProcessPoolExecutor
    ) -> None:
        racing = [pool.submit(_make_and_work, open_store, f"p{i}") for i in range(PROCESSES)]
        results = [future.result() for future in racing]
        keys = [f"{i:03d}" for i in range(COUNT)]
        assert sorted([key for made, _ in results for key in made]) == keys
        assert sorted([key for _, done in results for key, _ in done]) == keys

    def test_no_change_is_lost(self, open_store: OpenStore, pool: ProcessPoolExecutor) -> None:
        async def make() -> None:
            async with partitions(open_store) as store:
                await store.create(SOURCE, [NewPartition("one"), NewPartition("two")])

        async def place() -> int:
            async with partitions(open_store) as store:
                found = await store.get(SOURCE, "one")
                assert found is not None
                return found.place

        asyncio.run(make())
        racing = [pool.submit(_renew, open_store, 12) for _ in range(PROCESSES)]
        assert sum([future.result() for future in racing]) == 12 * PROCESSES
        assert asyncio.run(place()) == 12 * PROCESSES

    def test_what_a_killed_process_held_is_taken_over(
        self, open_store: OpenStore, tmp_path: Path
    ) -> None:
        told = tmp_path / "told"

        async def scenario() -> None:
            async with partitions(open_store) as store:
                await store.create(SOURCE, [NewPartition(f"{i}") for i in range(4)])
                context = multiprocessing.get_context("spawn")
                process = context.Process(target=_take_and_hang, args=(open_store, str(told)))
                process.start()
                lost = await _wait_for(told, process)
                process.kill()
                process.join()
                assert process.exitcode == -signal.SIGKILL
                assert sorted(lost) == ["0", "1", "2", "3"]
                taken: list[Partition] = []
                while len(taken) < 4:
                    taken += await _acquired(store, "heir/1")
                    await store.start()  # any answer, so that the store's time goes on
                    await asyncio.sleep(0.05)
                assert {one.attempts for one in taken} == {2}

        asyncio.run(scenario())


class TestInAFolder(Races):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return partial(in_folder, str(tmp_path / "store"))


@pytest.mark.minio
class TestOnS3(Races):
    @pytest.fixture
    def open_store(self, bucket: Bucket) -> OpenStore:
        return bucket.open
