"""Real processes: killed, stopped, started again, robbed of their disk."""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import (
    BatchIds,
    Follower,
    batches_of,
    close_run,
    download,
    post_all,
    query_text,
    read_pages,
    run_path,
    whole_lines,
)
from tests.e2e.logs import made_log
from tests.e2e.service_process import ServiceProcess

KEY = RunKey("service.pipeline", "run [1] \U0001f600/../x")
FAST = {
    "TAILRACE_FLUSH__SEGMENT_SECONDS": "0.3",
    "TAILRACE_RUNS__PARTIAL_FLUSH_INTERVAL_MINUTES": "0.01",
    "TAILRACE_JOURNAL__FILE_BYTES": "1048576",
}
Serve = Callable[..., ServiceProcess]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts services on `tmp_path/node [1]`, and ends what the test left running."""
    started: list[ServiceProcess] = []

    def start(**settings: str) -> ServiceProcess:
        service = ServiceProcess(tmp_path / "node [1]", store=tmp_path / "store", **settings)
        started.append(service)
        service.start()
        return service

    yield start
    for service in started:
        if service.running:
            service.kill()
        assert "Traceback" not in service.output()


@asynccontextmanager
async def to(service: ServiceProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.url, timeout=120) as client:
        yield client


async def _holds(client: httpx.AsyncClient, key: RunKey, text: bytes) -> None:
    assert await read_pages(client, key, limit=700) == text
    assert await download(client, key) == text
    assert await query_text(client, key) == text


@pytest.mark.in_turn(3)
async def test_everything_is_there_once_after_kills_in_the_middle_of_ingest(serve: Serve) -> None:
    service = serve(**FAST)
    text = whole_lines(made_log(1, 4000))
    batches = batches_of(text, random.Random(1), largest=60)
    async with to(service) as client:
        follower = Follower(client, KEY)
        following = asyncio.create_task(follower.run())
        posting = asyncio.create_task(post_all(client, KEY, batches, pause=0.02))
        for _ in range(3):
            await asyncio.sleep(0.5)
            service.kill()
            await asyncio.to_thread(service.start)
        assert await posting > 0
        await close_run(client, KEY)
        await following
        assert follower.text == text
        await _holds(client, KEY, text)


@pytest.mark.in_turn(3)
async def test_a_known_batch_is_known_after_a_kill_a_close_and_a_start(serve: Serve) -> None:
    service = serve()
    headers = {"Tailrace-Batch": BatchIds().next(), "Content-Type": "text/plain"}

    async def post(content: bytes) -> httpx.Response:
        async with to(service) as client:
            return await client.post(run_path(KEY), content=content, headers=headers)

    assert (await post(b"a\n")).json()["duplicate"] is False
    service.kill()
    service.start()
    assert (await post(b"a\n")).json()["duplicate"] is True
    assert (await post(b"b\n")).json()["type"] == "batch-conflict"
    async with to(service) as client:
        await close_run(client, KEY)
        assert service.stop() == 0
        service.start()
        assert (await post(b"a\n")).json()["duplicate"] is True
        assert (await post(b"b\n")).status_code == 409
        await _holds(client, KEY, b"a\n")


@pytest.mark.in_turn(3)
async def test_a_reader_goes_on_where_it_was_over_a_stop_a_kill_and_a_close(serve: Serve) -> None:
    service = serve(**FAST)
    text = b""
    async with to(service) as client:
        follower = Follower(client, KEY)
        following = asyncio.create_task(follower.run())
        for number in range(3):
            text += b"round %d\n\n" % number
            await post_all(client, KEY, [b"round %d\n\n" % number])
            while len(follower.text) < len(text):
                await asyncio.sleep(0.01)
            service.kill() if number else service.stop()
            service.start()
        await close_run(client, KEY)
        await following
        assert follower.text == text
        assert follower.connections >= 4


@pytest.mark.in_turn(3)
async def test_what_was_sent_as_bulk_survives_the_loss_of_the_node(serve: Serve) -> None:
    service = serve(TAILRACE_FLUSH__SEGMENT_SECONDS="600")
    headers = {"Tailrace-Durability": "bulk", "Content-Type": "text/plain"}
    async with to(service) as client:
        reply = await client.post(run_path(KEY), content=b"safe\n", headers=headers)
        assert reply.json()["durability"] == "bulk"
        service.kill()
        shutil.rmtree(service.data)
        service.start()
        assert await query_text(client, KEY) == b"safe\n"


@pytest.mark.in_turn(3)
async def test_a_stop_brings_all_into_the_store_while_clients_go_on(serve: Serve) -> None:
    service = serve(TAILRACE_FLUSH__SEGMENT_SECONDS="600", TAILRACE_SERVER__STOP_SECONDS="60")
    keys = [RunKey("p", f"r{number}") for number in range(4)]
    texts = [whole_lines(made_log(number, 3000)) for number in range(4)]
    async with to(service) as client:
        following = asyncio.create_task(Follower(client, keys[0]).run())
        stalled = socket.create_connection(("127.0.0.1", service.port))
        stalled.sendall(
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\na"
            % run_path(KEY).encode()
        )
        posting = [
            asyncio.create_task(
                post_all(client, key, batches_of(text, random.Random(2)), pause=0.1)
            )
            for key, text in zip(keys, texts, strict=True)
        ]
        await asyncio.sleep(0.8)
        assert await asyncio.to_thread(service.stop) == 0
        stalled.close()
        shutil.rmtree(service.data / "journal")
        service.start()
        assert sum(await asyncio.gather(*posting)) > 0
        for key, text in zip(keys, texts, strict=True):
            await close_run(client, key)
            await _holds(client, key, text)
        following.cancel()
