"""A live stream over the whole service, while lines move from journal to segment to chunk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy
from tests.servers.minio import Bucket
from tests.service.test_main import PLAIN, RUN, STREAM, service, settings_for
from tests.simulation.backing import PAUSE_MS, TRIES
from tests.stores import ON_SERVER, RATE

RESTARTS = 1


class Reader:
    """Follows the run, leaves at random events, and comes back with its last id."""

    def __init__(self, seed: str, form: str) -> None:
        self.lines: list[str] = []
        self.complete = False
        self._dice = random.Random(seed)
        self._form = form
        self._cursor = "0"

    async def follow(self, client: httpx.AsyncClient, until: asyncio.Event) -> None:
        """Until `complete`, or until the service is about to stop."""
        while not (self.complete or until.is_set()):
            try:
                await self._once(client, self._dice.randint(1, 60))
            except httpx.TransportError:
                await asyncio.sleep(0.01)

    async def _once(self, client: httpx.AsyncClient, patience: int) -> None:
        headers = {"last-event-id": self._cursor}
        query = {"format": self._form}
        async with client.stream("GET", STREAM, headers=headers, params=query) as response:
            event: dict[str, str] = {}
            async for line in response.aiter_lines():
                name, _, value = line.partition(": ")
                event[name] = value
                if line == "":
                    self._take(event)
                    event = {}
                    patience -= 1
                    if self.complete or not patience:
                        return

    def _take(self, event: dict[str, str]) -> None:
        if event.get("event") == "complete":
            self.complete = True
        elif self._form == "text":
            self.lines.append(event["data"])
        elif "data" in event:
            self.lines += orjson.loads(event["data"])["logs"].split("\n")[:-1]
        self._cursor = event.get("id", self._cursor)


@pytest.fixture(params=["local", ON_SERVER])
def place(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Settings of where the objects are."""
    if request.param == "local":
        yield {}
        return
    bucket: Bucket = request.getfixturevalue("bucket")
    schedule = Schedule(1, evenly(RATE), delay_seconds=0.005)
    with fault_proxy(bucket.endpoint_url, schedule) as url:
        yield _settings_of(bucket.through(url, attempts=TRIES.count, backoff_milliseconds=PAUSE_MS))
    assert schedule.injected


def _settings_of(bucket: Bucket) -> dict[str, Any]:
    settings = bucket.settings
    return {"store": settings.store, "s3": settings.s3}


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("seed", range(2))
async def test_readers_see_every_line_once_over_flushes_and_restarts(
    tmp_path: Path, seed: int, place: dict[str, Any]
) -> None:
    dice = random.Random(seed)
    settings = settings_for(
        tmp_path,
        **place,
        flush={"segment_seconds": 0.05},
        runs={"partial_flush_interval_minutes": 0.002},
        sse={"ring_bytes": 2048, "coalesce_milliseconds": 1},
    )
    readers = [Reader(f"{seed}-{i}", form) for i, form in enumerate(["json", "json", "text"])]
    sent: list[str] = []
    for life in range(RESTARTS + 1):
        async with service(settings) as (client, _):
            over = asyncio.Event()
            following = [asyncio.create_task(reader.follow(client, over)) for reader in readers]
            for _ in range(60):
                lines = [f"{len(sent) + i}" for i in range(dice.randint(1, 12))]
                sent += lines
                text = "".join(f"{line}\n" for line in lines)
                reply = await client.post(RUN, content=text.encode(), headers=PLAIN)
                assert reply.status_code == 200
                await asyncio.sleep(dice.choice([0, 0.001, 0.01]))
            if life == RESTARTS:
                assert (await client.post(RUN + "/close")).json()["state"] == "closed"
                await asyncio.gather(*following)
                assert (await client.get(RUN + "?limit=100000")).json()["logs"].split("\n") == sent
            over.set()
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
    for reader in readers:
        assert reader.lines == sent
