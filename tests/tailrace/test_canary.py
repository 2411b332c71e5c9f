"""`tailrace canary` before a real service: what a proxy loses, doubles and delays is seen."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import httpx
import pytest

from tailrace.cli.canary import METRICS, Canary, ReadBack
from tailrace.logstore.clock import SystemClock
from tests.e2e.processes import wait_for
from tests.e2e.service_process import ServiceProcess
from tests.faults.http1 import body_of, read_head
from tests.servers.ports import free_port
from tests.service.test_main import service, settings_for

_LINE = re.compile(rb"canary \S+ (\d+)\n")
_STORED = b'{"batch":"","lines":1,"duplicate":false,"durability":"durable","last":""}'


class LossyProxy:
    """Passes requests on, but acknowledges the lines `lost` itself, and stores `doubled` twice."""

    def __init__(self, upstream: str, lost: set[int], doubled: set[int]) -> None:
        self._host, _, self._port = upstream.removeprefix("http://").partition(":")
        self._lost = lost
        self._doubled = doubled

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        up, down = await asyncio.open_connection(self._host, int(self._port))
        answers = asyncio.create_task(_copy(up, writer))
        try:
            while (head := await read_head(reader)) is not None:
                body = b"".join([piece async for piece in body_of(reader, head)])
                found = _LINE.fullmatch(body)
                number = int(found[1]) if found else 0
                if number in self._lost:
                    size = f"content-length: {len(_STORED)}\r\n".encode()
                    writer.write(b"HTTP/1.1 200 OK\r\n" + size + b"\r\n" + _STORED)
                    continue
                if number in self._doubled:
                    await self._store(head.request_line()[1], body)
                down.write(head.raw + body)
        finally:
            answers.cancel()
            for each in (writer, down):
                each.close()

    async def _store(self, path: str, body: bytes) -> None:
        """Sends the line as a batch of its own."""
        async with httpx.AsyncClient(base_url=f"http://{self._host}:{self._port}") as client:
            headers = {"content-type": "text/plain"}
            (await client.post(path, content=body, headers=headers)).raise_for_status()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(1 << 16):
        writer.write(piece)
        await writer.drain()
    writer.close()


class HastyClock(SystemClock):
    """The machine's clock, which can be put on."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


@asynccontextmanager
async def proxied(folder: Path, lost: set[int], doubled: set[int]) -> AsyncIterator[str]:
    """The address of a lossy proxy before a service."""
    async with service(settings_for(folder)) as (client, _):
        while not (await client.get("/health/ready")).is_success:
            await asyncio.sleep(0.02)
        proxy = LossyProxy(str(client.base_url).rstrip("/"), lost, doubled)
        async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.02)


def waits_for(canary: Canary, reader: ReadBack, left: set[int]) -> bool:
    return canary.written == 20 and set(reader.waiting) == left


async def run_canary(url: str, clock: HastyClock, left: set[int]) -> Canary:
    """Writes twenty lines; the clock is put on when only the lines `left` are not read."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        canary = Canary(
            client, "tailrace.canary", every=0.001, late=1000, patience=2000, clock=clock
        )
        running = asyncio.create_task(canary.run(asyncio.Event(), 20))
        for reader in canary.readers.values():
            await until(partial(waits_for, canary, reader, left))
        clock.ahead += 3000
        await running
        return canary


async def test_lines_that_a_proxy_loses_and_doubles_are_seen_by_both_readers(
    tmp_path: Path,
) -> None:
    async with proxied(tmp_path, {3, 11}, {7}) as url:
        canary = await run_canary(url, HastyClock(), {3, 11})
    for reader in canary.readers.values():
        assert (reader.read, reader.lost, reader.repeated, reader.late) == (18, 2, 1, 0)
    assert (canary.written, canary.unacknowledged) == (20, 0)
    assert not canary.sound
    assert "tail read 18, lost 2, repeated 1, late 0" in canary.summary()
    samples = {
        (sample.name, sample.labels.get("reader")): sample.value
        for family in canary.metrics()
        for sample in family.samples
    }
    assert samples["tailrace_canary_lost_lines_total", "query"] == 2
    assert samples["tailrace_canary_repeated_lines_total", "tail"] == 1


async def test_a_sound_service_has_nothing_to_report(tmp_path: Path) -> None:
    async with proxied(tmp_path, set(), set()) as url:
        canary = await run_canary(url, HastyClock(), set())
    assert canary.sound
    assert [one.read for one in canary.readers.values()] == [20, 20]


async def test_a_line_that_nobody_acknowledges_is_not_lost() -> None:
    clock = HastyClock()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{free_port()}") as client:
        canary = Canary(client, "p", every=0.001, late=1, patience=1000, clock=clock)
        running = asyncio.create_task(canary.run(asyncio.Event(), 1))
        await until(lambda: canary.failures["write"] > 0)
        assert not canary.health().ready
        clock.ahead += 3000
        await running
    assert (canary.written, canary.unacknowledged, canary.sound) == (0, 1, True)


def test_what_comes_late_after_it_was_lost_and_again() -> None:
    reader = ReadBack(late_seconds=5, patience_seconds=60)
    for number in (1, 2, 3):
        reader.expect(number, 0.0)
    reader.take(1, 4.0)
    reader.take(2, 6.0)
    assert (reader.read, reader.late, reader.delay_seconds) == (2, 1, 6.0)
    reader.expire(60.0)
    assert reader.lost == 0
    reader.expire(60.1)
    assert (reader.lost, reader.waiting) == (1, {})
    assert reader.has_read(2)
    assert not reader.has_read(3)
    reader.take(3, 70.0)
    assert (reader.read, reader.late, reader.lost) == (3, 2, 1)
    assert reader.has_read(3)


@pytest.mark.in_turn(2)
def test_the_verb_writes_until_sigterm_and_says_what_it_saw(tmp_path: Path) -> None:
    process = ServiceProcess(tmp_path / "data")
    process.start()
    listen = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "tailrace", "canary", "--url", process.url]
    canary = subprocess.Popen(
        [*command, "--every", "0.01", "--listen", listen], stdout=subprocess.PIPE, text=True
    )

    def read_back() -> bool:
        try:
            with urlopen(f"http://{listen}/metrics", timeout=30) as answer:
                text = answer.read().decode()
        except OSError:
            return False
        assert all(metric.name in text for metric in METRICS)
        counts = re.findall(r"^tailrace_canary_read_lines_total\{.*\} (\d+)", text, re.MULTILINE)
        return len(counts) == 2 and min(map(int, counts)) >= 5

    try:
        wait_for(read_back)
        canary.send_signal(signal.SIGTERM)
        said, _ = canary.communicate(timeout=120)
    finally:
        canary.kill()
        process.stop()
    assert canary.returncode == 0, said
    assert re.fullmatch(
        r"wrote \d+ lines; tail read \d+, lost 0, repeated 0, late \d+;"
        r" query read \d+, lost 0, repeated 0, late \d+\n",
        said,
    )
