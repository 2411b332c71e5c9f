"""A folder that hangs: its threads are stuck in the kernel, and who asks is answered all the same.

An object is a FIFO without a writer: whoever opens it is held by the kernel, as on a file system
that hangs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.runtime.store_deadline import DeadlineStore, for_request
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import NotFound, StoreUnavailable
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore

HUNG, GOOD = "runs/hung.json", "runs/good.json"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DeadlineStore]:
    inner = LocalStore(str(tmp_path), Disk(), SystemClock(), system_entropy())
    (tmp_path / "runs").mkdir()
    fifo = tmp_path / HUNG
    os.mkfifo(fifo)
    yield DeadlineStore(inner, 0.2)
    os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))  # lets the threads go


async def test_reads_of_requests_end_and_leave_other_threads_alone(store: DeadlineStore) -> None:
    async def read() -> None:
        with for_request(), pytest.raises(StoreUnavailable, match="does not answer within"):
            await store.get(HUNG)

    await asyncio.gather(*[read() for _ in range(100)])
    assert await asyncio.to_thread(lambda: "answered") == "answered"
    store.answers.close()


async def test_one_answer_ends_the_silence(store: DeadlineStore) -> None:
    await store.put(GOOD, b"{}")
    with for_request():
        with pytest.raises(StoreUnavailable):
            await store.get(HUNG)
        async with asyncio.timeout(60):
            while store.answers.silent:  # the probe finds that the folder answers
                await asyncio.sleep(0.01)
        assert (await store.get(GOOD))[1] == b"{}"
        assert [info.key async for info in store.list("runs/good")] == [GOOD]
        with pytest.raises(NotFound):
            await store.head("runs/absent.json")
    assert store.answers.problems() == []
    store.answers.close()


async def test_a_silent_store_is_asked_nothing_by_requests(store: DeadlineStore) -> None:
    await store.put(GOOD, b"{}")
    store.answers.silent = True
    with for_request():
        with pytest.raises(StoreUnavailable):
            await store.get(GOOD)
        with pytest.raises(StoreUnavailable):
            assert [info async for info in store.list("runs/")]
    assert "does not answer" in store.answers.problems()[0]
    assert (await store.get(GOOD))[1] == b"{}", "the background asks, and an answer ends it"
    assert not store.answers.silent
