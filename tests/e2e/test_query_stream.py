"""A live search of the real service, over connections that end, kill -9, flush and compaction."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.cli.remote import EventParser
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.keys import SEGMENTS
from tests.e2e.clients import run_path
from tests.e2e.service_process import ServiceProcess
from tests.seeds import seeds
from tests.servers.minio import Bucket

SETTINGS = {"TAILRACE_FLUSH__SEGMENT_SECONDS": "0.4", "TAILRACE_QUERY__STREAM_WINDOW_SECONDS": "1"}
RUNS = [RunKey(f"shop.p{p}", f"run{r}") for p in range(2) for r in range(2)]
_PATIENCE_SECONDS = 120.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    made = ServiceProcess(tmp_path / "node", store=None, **SETTINGS)
    made.start()
    yield made
    if made.running:
        made.kill()
    assert "Traceback" not in made.output()


@dataclass
class Follower:
    """Follows a search; what it was given, over all its connections."""

    url: str
    parameters: dict[str, str]
    given: list[dict[str, Any]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    cursor: str | None = None

    async def read(self, count: int, seconds: float = _PATIENCE_SECONDS) -> None:
        """Until `count` more were given, or the connection ends, or the time is over."""
        until = len(self.given) + count
        with suppress(TimeoutError, httpx.TransportError):
            async with asyncio.timeout(seconds):
                async for event in self._events():
                    if event.name != "message":
                        self.others.append(f"{event.name}: {event.data}")
                        continue
                    self.given.append(json.loads(event.data))
                    self.cursor = event.id
                    if len(self.given) >= until:
                        return

    async def read_until(self, total: int) -> None:
        """Connects again and again, until so many were given in all."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while len(self.given) < total and time.monotonic() < end:
            await self.read(total - len(self.given), 10)

    async def _events(self) -> AsyncIterator[Any]:
        headers = {} if self.cursor is None else {"Last-Event-ID": self.cursor}
        parser, rest = EventParser(), b""
        async with (
            httpx.AsyncClient(base_url=self.url, timeout=60) as client,
            client.stream("GET", "/query/stream", params=self.parameters, headers=headers) as reply,
        ):
            assert reply.status_code == 200, await reply.aread()
            async for piece in reply.aiter_bytes():
                *lines, rest = (rest + piece).split(b"\n")
                for event in parser.feed(line.decode() for line in lines):
                    yield event


class Writer:
    """Posts batches under ids of its own, some of them late; `lines` are the acknowledged ones."""

    def __init__(self, service: ServiceProcess, dice: random.Random) -> None:
        self._service = service
        self._dice = dice
        self.lines: list[str] = []
        self._number = 0

    async def post(self, count: int) -> None:
        """So many batches, each sent again until it is acknowledged."""
        async with httpx.AsyncClient(base_url=self._service.url, timeout=60) as client:
            for _ in range(count):
                await self._post(client)

    async def _post(self, client: httpx.AsyncClient) -> None:
        dice = self._dice
        late_ms = dice.choice([0, 0, 0, 300, 5_000, 90_000])
        now_ms = time.time_ns() // 1_000_000
        batch = ulids.lowest_at(now_ms - late_ms) | secrets.randbits(55) << 25
        lines = [f"{dice.choice(['INFO', 'WARN'])} line {self._number + n}" for n in range(3)]
        self._number += 3
        path = run_path(dice.choice(RUNS))
        headers = {"Content-Type": "text/plain", "Tailrace-Batch": ulids.encode(batch)}
        body = "".join(f"{line}\n" for line in lines).encode()
        while True:
            with suppress(httpx.TransportError):
                reply = await client.post(path, content=body, headers=headers)
                if reply.status_code == 200:
                    self.lines += lines
                    return
            await asyncio.sleep(0.05)


def compact(service: ServiceProcess) -> None:
    """What `tailrace compact` does beside the service, with Spark."""
    environment = {**service.settings, "TAILRACE_COMPACTION__SETTLE_SECONDS": "0"}
    command = [sys.executable, "-m", "tailrace", "compact", "--data", str(service.data), "--quiet"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def compared(follower: Follower, lines: list[str]) -> None:
    """Each line came once; what was not late came in the order of ULIDs."""
    given = [record["message"] for record in follower.given]
    assert sorted(given) == sorted(lines)
    assert follower.others == []
    keys = [(r["ulid"], r["fqn"], r["run_id"]) for r in follower.given if not r.get("late")]
    assert keys == sorted(keys)
    assert len(keys) > 10


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("seed", seeds(1))
async def test_each_line_comes_once_whatever_happens_meanwhile(
    service: ServiceProcess, seed: int
) -> None:
    await followed(service, seed, ("connections", "kill", "kill and compact", "connections"))


@pytest.mark.in_turn(4)
async def test_each_line_comes_once_over_a_bucket(tmp_path: Path, bucket: Bucket) -> None:
    settings = SETTINGS | bucket.environment
    service = ServiceProcess(tmp_path / "node", store=None, **settings)
    service.start()
    try:
        await followed(service, 1, ("connections", "kill"))
    finally:
        service.kill()
    assert "Traceback" not in service.output()
    async with bucket.open() as store:
        assert [info async for info in store.list(SEGMENTS)], "some came from the bucket"


async def followed(service: ServiceProcess, seed: int, stories: Sequence[str]) -> None:
    """Two follow while batches are posted, and what the stories say happens meanwhile."""
    dice = random.Random(seed)
    writer = Writer(service, dice)
    everything = Follower(service.url, {"from": "now-5m", "window": "0.5"})
    warnings = Follower(service.url, {"q": "level:WARN", "from": "now-5m"})
    await writer.post(1)
    for story in stories:
        writing = asyncio.ensure_future(writer.post(25))
        reading = asyncio.gather(
            everything.read(dice.randrange(5, 60), 4), warnings.read(dice.randrange(1, 20), 4)
        )
        if "kill" in story:
            await asyncio.sleep(0.5)
            service.kill()
            await asyncio.to_thread(service.start)
        await reading
        await writing
        if "compact" in story:
            await asyncio.sleep(1)  # a segment or two
            await asyncio.to_thread(compact, service)
        await everything.read(dice.randrange(1, 30), 3)
    await everything.read_until(len(writer.lines))
    compared(everything, writer.lines)
    some = [line for line in writer.lines if line.startswith("WARN")]
    await warnings.read_until(len(some))
    compared(warnings, some)
    assert any(record.get("late") for record in everything.given)


async def test_many_readers_and_one_that_reads_nothing(service: ServiceProcess) -> None:
    writer = Writer(service, random.Random(1))
    path = "/query/stream?from=now-5m&window=0"
    slow_in, slow_out = await asyncio.open_connection("127.0.0.1", service.port)
    slow_out.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    await slow_out.drain()
    followers = [
        Follower(service.url, {"window": "0", "from": "now-5m", "fqn": fqn})
        for fqn in [RUNS[0].fqn, RUNS[0].fqn, RUNS[2].fqn]
    ]
    await writer.post(60)
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
        found = (await client.get("/query", params={"from": "0"})).text.splitlines()[:-1]
    records = [json.loads(line) for line in found]
    for follower in followers:
        wanted = [r for r in records if r["fqn"] == follower.parameters["fqn"]]
        await follower.read_until(len(wanted))
        assert sorted(r["message"] for r in follower.given) == sorted(r["message"] for r in wanted)
    slow_out.close()
    assert not slow_in.at_eof()
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
        end = time.monotonic() + _PATIENCE_SECONDS
        while _readers((await client.get("/metrics")).text):
            assert time.monotonic() < end, "who left is noticed"
            await asyncio.sleep(0.1)


def _readers(metrics: str) -> int:
    lines = [line for line in metrics.splitlines() if line.startswith("tailrace_stream_readers ")]
    assert len(lines) == 1, "there is one such metric"
    return int(float(lines[0].split()[1]))


async def test_what_is_wrong_is_said_before_the_first_event(service: ServiceProcess) -> None:
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
        for parameters, field_name in [
            ({"q": "level:"}, "q"),
            ({"q": "(?=x)", "regex": "true"}, "q"),
            ({"after": "q1.e30"}, "after"),
            ({"window": "61"}, "window"),
            ({"tail": "0"}, "tail"),
            ({"format": "text"}, "format"),
            ({"limit": "5"}, "limit"),
        ]:
            reply = await client.get("/query/stream", params=parameters)
            assert reply.status_code == 400, parameters
            assert reply.json()["field"] == field_name
        assert (await client.head("/query/stream")).status_code == 200
