"""A store holds back what readers wait for: they may leave, or the node may stop, all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.faults.kinds import Kind
from tests.faults.requests import Request
from tests.faults.schedule import Schedule
from tests.faults.thread import fault_proxy
from tests.servers.minio import Bucket
from tests.service.test_main import PLAIN, RUN, STOPS_AT_ONCE, STREAM, service, settings_for

FOR_EVER = 100_000
PROGRESS = "/api/v1/services/ingestionPipelines/progress/p/stream/r"


async def readers(client: httpx.AsyncClient) -> int:
    """How many live readers the node counts."""
    for line in (await client.get("/metrics")).text.splitlines():
        name, _, value = line.partition(" ")
        if name == "tailrace_stream_readers":
            return int(float(value))
    raise AssertionError("the node does not say how many readers it has")


async def counted(client: httpx.AsyncClient, wanted: int) -> None:
    """Waits until the node has so many readers."""
    while await readers(client) != wanted:
        await asyncio.sleep(0.02)


async def held(schedule: Schedule) -> None:
    """Waits until the proxy keeps an answer back."""
    while not schedule.injected[Kind.STALL]:
        await asyncio.sleep(0.02)


@asynccontextmanager
async def hanging(
    bucket: Bucket, folder: Path, path: str, read: str, *before: str
) -> AsyncIterator[tuple[httpx.AsyncClient, asyncio.Event, httpx.Response]]:
    """A reader of `path` at a service, when the store keeps back what it reads.

    The store still gives all to who asks for the paths of `before`.
    """
    schedule = Schedule(stall_seconds=FOR_EVER)
    with fault_proxy(bucket.endpoint_url, schedule) as url:
        place = bucket.through(url, attempts=1, read_timeout_seconds=FOR_EVER)
        settings = settings_for(
            folder, store=place.settings.store, s3=place.settings.s3, **STOPS_AT_ONCE
        )
        # What it holds when it stops, it may not bring to a store that does not answer: 3.
        async with service(settings, statuses=(0, 3)) as (client, stop):
            sent = await client.post(RUN, content=b"a\n", headers=PLAIN)
            assert sent.status_code == 200
            for asked in before:
                assert (await client.get(asked)).status_code == 200

            def meant(request: Request) -> bool:
                return request.method in ("GET", "HEAD") and read in request.head.request_line()[1]

            schedule.plan(Kind.STALL, times=FOR_EVER, applies=meant)
            async with client.stream("GET", path) as reply:
                await counted(client, 1)
                await held(schedule)
                yield client, stop, reply


OF_A_RUN = [
    pytest.param(STREAM, "runs/", id="text"),
    pytest.param(f"{STREAM}?format=ndjson&after=0", "runs/", id="records"),
    pytest.param(PROGRESS, "progress/", id="progress"),
]


@pytest.mark.parametrize(("path", "read"), OF_A_RUN)
async def test_a_reader_that_leaves_while_a_read_hangs_is_gone(
    bucket: Bucket, tmp_path: Path, path: str, read: str
) -> None:
    async with hanging(bucket, tmp_path, path, read) as (client, _, reply):
        await reply.aclose()
        await counted(client, 0)


async def test_a_live_search_that_leaves_while_it_reads_a_segment_is_gone(
    bucket: Bucket, tmp_path: Path
) -> None:
    place = bucket.settings
    async with service(settings_for(tmp_path, store=place.store, s3=place.s3)) as (client, _):
        assert (await client.post(RUN, content=b"a\n", headers=PLAIN)).status_code == 200
    # The segment's footer is known then, and a live search opens without a further read of it.
    footers = "/query?from=2000-01-01&to=2000-01-02"
    path, read = "/query/stream?from=2020-01-01&window=0", "/segments/"
    async with hanging(bucket, tmp_path, path, read, footers) as (client, _, reply):
        await reply.aclose()
        await counted(client, 0)


@pytest.mark.parametrize(("path", "read"), OF_A_RUN)
async def test_a_stop_ends_a_stream_of_which_a_read_hangs(
    bucket: Bucket, tmp_path: Path, path: str, read: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with hanging(bucket, tmp_path, path, read) as (_, stop, reply):
        stop.set()
        assert "complete" not in "".join([text async for text in reply.aiter_text()])
    assert "was cut off by the stop" not in caplog.text
