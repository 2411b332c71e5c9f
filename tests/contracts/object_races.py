"""Races between processes over one store. Subclass it and give `open_store`."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager

import pytest

from tailrace.logstore.errors import PreconditionFailed
from tailrace.logstore.objects.store import ObjectStore

OpenStore = Callable[[], AbstractAsyncContextManager[ObjectStore]]
PROCESSES = 3


def _create(open_store: OpenStore, name: str, keys: int) -> list[str]:
    async def run() -> list[str]:
        won = []
        async with open_store() as store:
            for i in range(keys):
                try:
                    await store.put(f"race/{i:03d}", f"{name} {i}".encode(), if_absent=True)
                except PreconditionFailed:
                    continue
                won.append(f"race/{i:03d}")
        return won

    return asyncio.run(run())


def _count(open_store: OpenStore, times: int) -> None:
    async def run() -> None:
        left = times
        async with open_store() as store:
            while left:
                info, body = await store.get("counter")
                try:
                    await store.put("counter", b"%d" % (int(body) + 1), if_match=info.etag)
                except PreconditionFailed:
                    continue
                left -= 1

    asyncio.run(run())


def _churn(open_store: OpenStore, name: str, times: int) -> None:
    async def run() -> None:
        async with open_store() as store:
            for _ in range(times):
                await store.put(f"churn/deep/{name}", name.encode())
                assert (await store.get(f"churn/deep/{name}"))[1] == name.encode()
                await store.delete([f"churn/deep/{name}"])
            await store.put(f"churn/deep/{name}", b"last")

    asyncio.run(run())


async def _get(open_store: OpenStore, key: str) -> bytes:
    async with open_store() as store:
        return (await store.get(key))[1]


async def _put(open_store: OpenStore, key: str, body: bytes) -> None:
    async with open_store() as store:
        await store.put(key, body)


async def _keys(open_store: OpenStore, prefix: str) -> list[str]:
    async with open_store() as store:
        return [info.key async for info in store.list(prefix)]


class ObjectRacesContract:
    """`open_store` is pickled, and opens the same store in every process."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def pool(cls) -> Iterator[ProcessPoolExecutor]:
        with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
            yield pool

    def test_one_process_creates(self, open_store: OpenStore, pool: ProcessPoolExecutor) -> None:
        racing = [pool.submit(_create, open_store, str(i), 60) for i in range(PROCESSES)]
        won = [future.result() for future in racing]
        assert sorted([key for keys in won for key in keys]) == [f"race/{i:03d}" for i in range(60)]
        for name, keys in enumerate(won):
            for key in keys:
                body = asyncio.run(_get(open_store, key))
                assert body == f"{name} {int(key[-3:])}".encode()

    def test_a_counter_loses_nothing(
        self, open_store: OpenStore, pool: ProcessPoolExecutor
    ) -> None:
        asyncio.run(_put(open_store, "counter", b"0"))
        for future in [pool.submit(_count, open_store, 40) for _ in range(PROCESSES)]:
            future.result()
        assert asyncio.run(_get(open_store, "counter")) == b"%d" % (40 * PROCESSES)

    def test_folders_that_come_and_go(
        self, open_store: OpenStore, pool: ProcessPoolExecutor
    ) -> None:
        racing = [pool.submit(_churn, open_store, str(i), 60) for i in range(PROCESSES)]
        for future in racing:
            future.result()
        found = asyncio.run(_keys(open_store, "churn/"))
        assert found == [f"churn/deep/{i}" for i in range(PROCESSES)]
