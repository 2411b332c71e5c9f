"""From POST to SSE event: `python -m benchmarks.live [--readers 200] [--rate 1000]`.

One run, so many readers, so many lines a second in batches of ten. Every line carries
the moment of its POST; the readers, in a process of their own, note when it came.
Printed: latencies over all readers, how many lines were lost or repeated, and what the
service used of CPU and memory meanwhile. The limit beside it: the same posts without a reader, up
to their ack.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import numpy as np
import orjson

from benchmarks.process import Watched
from logstore.batch import RunKey
from tests.e2e.clients import run_path, stream_path
from tests.e2e.service_process import ServiceProcess

_KEY = RunKey("bench.live", "run")
_UNWATCHED = RunKey("bench.live", "unwatched")
_BATCH = 10


class Reader:
    """One SSE connection on a bare socket, so that the readers cost little."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.expected = 0
        self.events = 0
        self.faults = 0
        self.complete = False

    async def run(self, port: int) -> None:
        """Reads until the stream completes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        writer.write(f"GET {stream_path(_KEY)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while not self.complete:
            line = await reader.readline()
            if not line:
                break
            if line.startswith(b"data: {"):
                self._take(orjson.loads(line[6:]))
        writer.close()

    def _take(self, event: dict[str, str]) -> None:
        if event["eventType"] == "complete":
            self.complete = True
            return
        self.events += 1
        now = time.monotonic()
        for line in event.get("logs", "").splitlines():
            number, sent = line.split()[:2]
            self.faults += int(number) != self.expected
            self.expected = int(number) + 1
            self.delays.append(now - float(sent))


def _read(port: int, count: int, results: Connection) -> None:
    async def all_readers() -> list[Reader]:
        readers = [Reader() for _ in range(count)]
        running = [asyncio.create_task(reader.run(port)) for reader in readers]
        await asyncio.sleep(1)
        results.send("ready")
        await asyncio.gather(*running)
        return readers

    readers = asyncio.run(all_readers())
    delays = np.concatenate([np.array(reader.delays) for reader in readers])
    ends, faults = [r.expected for r in readers], sum(r.faults for r in readers)
    results.send((delays, ends, faults, sum(r.events for r in readers)))


async def _post(url: str, key: RunKey, rate: int, seconds: float) -> tuple[int, list[float]]:
    """Posts at an even pace, then closes: lines, and seconds from POST to ack."""
    acks: list[float] = []
    number = 0
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            now = time.monotonic()
            lines = [f"{number + i} {now:.6f} {'x' * 80}" for i in range(_BATCH)]
            number += _BATCH
            await client.post(
                run_path(key),
                content="\n".join(lines) + "\n",
                headers={"Content-Type": "text/plain"},
            )
            acks.append(time.monotonic() - now)
            await asyncio.sleep(begin + number / rate - time.monotonic())
        await client.post(run_path(key, verb="close"))
    return number, acks


def _percentiles(values: Sequence[float]) -> str:
    p50, p99, top = np.percentile(values, [50, 99, 100]) * 1000
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {top:.1f} ms"


def main() -> int:
    """0 if nothing was lost or repeated."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=".") as temporary:
        service = ServiceProcess(Path(temporary).resolve() / "data")
        service.start()
        _, alone = asyncio.run(
            _post(service.url, _UNWATCHED, arguments.rate, arguments.seconds / 2)
        )
        mine, theirs = multiprocessing.Pipe()
        readers = multiprocessing.Process(
            target=_read, args=(service.port, arguments.readers, theirs)
        )
        readers.start()
        mine.recv()
        used = Watched(service.pid)
        lines, acks = asyncio.run(_post(service.url, _KEY, arguments.rate, arguments.seconds))
        delays, ends, faults, events = mine.recv()
        readers.join()
        cpu = used.end()
        service.stop()
    lost = sum(end != lines for end in ends)
    print(
        f"{arguments.readers} readers, {arguments.rate} lines/s: POST to event "
        f"{_percentiles(delays)}; POST to ack {_percentiles(acks)}, without a reader "
        f"{_percentiles(alone)}; "
        f"{faults} lines lost or repeated, {lost} readers without the last line; the service used "
        f"{cpu:.2f} s of CPU, {cpu / events * 1e6:.0f} µs for each of {events} events, and "
        f"{used.peak_mb:.0f} MB"
    )
    return 1 if faults or lost else 0


if __name__ == "__main__":
    sys.exit(main())
