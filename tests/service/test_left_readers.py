"""Readers that leave while the store holds back what they wait for: nothing of them stays."""

from __future__ import annotations

import asyncio
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


@pytest.mark.parametrize(
    ("path", "read"),
    [
        (STREAM, "runs/"),
        (f"{STREAM}?format=ndjson&after=0", "runs/"),
        (PROGRESS, "progress/"),
        ("/query/stream?from=0", "table/"),
    ],
    ids=["text", "records", "progress", "search"],
)
async def test_a_reader_that_leaves_while_a_read_hangs_is_gone(
    bucket: Bucket, tmp_path: Path, path: str, read: str
) -> None:
    schedule = Schedule(stall_seconds=FOR_EVER)
    with fault_proxy(bucket.endpoint_url, schedule) as url:
        place = bucket.through(url, attempts=1, read_timeout_seconds=FOR_EVER)
        settings = settings_for(
            tmp_path, store=place.settings.store, s3=place.settings.s3, **STOPS_AT_ONCE
        )
        # What it holds when it stops, it may not bring to a store that does not answer: 3.
        async with service(settings, statuses=(0, 3)) as (client, _):
            sent = await client.post(RUN, content=b"a\n", headers=PLAIN)
            assert sent.status_code == 200

            def meant(request: Request) -> bool:
                return request.method in ("GET", "HEAD") and read in request.head.request_line()[1]

            schedule.plan(Kind.STALL, times=FOR_EVER, applies=meant)
            async with client.stream("GET", path):
                await counted(client, 1)
                await held(schedule)
            await counted(client, 0)
