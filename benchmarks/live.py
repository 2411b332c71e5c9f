"""From POST to SSE event: `python -m benchmarks.live [--readers 1000] [--runs 1] [--rate 1000]`.

So many readers, spread evenly over the runs; so many lines a second, in batches of ten over one
run, or of one line each to many runs in turn. The readers, in a process of their own,
note when each event came; what an event holds is looked at once for all readers that got the same
bytes, so they cost less than the service that they measure. Printed: the time from POST, and from
its ack, to the event, over all lines and readers; how many lines were lost or repeated, and what
the service used of CPU and memory meanwhile. The limit beside it: the same posts without a reader,
up to their ack.
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
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import orjson
import uvloop

from benchmarks.process import Watched
from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path, stream_path
from tests.e2e.service_process import ServiceProcess

_FQN: Final = "bench.live"
_CONNECTIONS: Final = 8
_AT_ONCE: Final = 50
_DATA: Final = b'data: {"eventType":"logs"'
_END: Final = b'data: {"eventType":"complete"'
Array = npt.NDArray[np.float64]


class Event(NamedTuple):
    """The lines of one event, and when each reader got it."""

    first: int
    end: int
    whole: bool
    came: list[float]


class Reader(asyncio.Protocol):
    """One SSE connection; `seen` has the events of all readers of its run by their bytes."""

    def __init__(self, key: RunKey, seen: dict[bytes, Event]) -> None:
        self._key, self._seen = key, seen
        self._rest = b""
        self.expected = self.events = self.faults = 0
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = loop.create_future()
        self.complete: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        head = f"GET {stream_path(self._key)} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        cast("asyncio.Transport", transport).write(head.encode())

    def data_received(self, data: bytes) -> None:
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            at = frame.find(_DATA)
            if at >= 0:
                self._take(frame[at:])
            elif _END in frame and not self.complete.done():
                self.complete.set_result(None)

    def connection_lost(self, _: Exception | None) -> None:
        if not self.complete.done():
            self.complete.set_result(None)

    def _take(self, data: bytes) -> None:
        event = self._seen.get(data)
        if event is None:
            event = self._seen[data] = _event_of(data)
        event.came.append(time.monotonic())
        self.faults += event.first != self.expected or not event.whole
        self.expected = event.end
        self.events += 1
        if not self.begun.done():
            self.begun.set_result(None)


def _event_of(data: bytes) -> Event:
    numbers = [int(line.split()[0]) for line in orjson.loads(data[6:])["logs"].splitlines()]
    whole = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return Event(numbers[0], numbers[-1] + 1, whole, [])


def _run(number: int) -> RunKey:
    return RunKey(_FQN, f"run-{number}")


def _read(port: int, count: int, runs: int, results: Connection) -> None:
    async def all_readers() -> tuple[list[dict[bytes, Event]], list[Reader]]:
        loop = asyncio.get_running_loop()
        seen: list[dict[bytes, Event]] = [{} for _ in range(runs)]
        readers = [Reader(_run(n % runs), seen[n % runs]) for n in range(count)]
        for at in range(0, count, _AT_ONCE):
            some = readers[at : at + _AT_ONCE]
            next_one = iter(some).__next__
            await asyncio.gather(
                *[loop.create_connection(next_one, "127.0.0.1", port) for _ in some]
            )
        results.send("connected")
        await asyncio.gather(*[reader.begun for reader in readers])
        results.send("ready")
        await asyncio.gather(*[reader.complete for reader in readers])
        return seen, readers

    seen, readers = uvloop.run(all_readers())
    found = [
        [(event.first, event.end, np.array(event.came)) for event in events.values()]
        for events in seen
    ]
    results.send((found, [(r.expected, r.events, r.faults) for r in readers]))


class Posts:
    """Lines at an even pace over a few connections; knows when each was sent and acknowledged.

    Batches of one run go one after another. They grow while acks are late, so the pace is kept.
    """

    def __init__(self, port: int, runs: Sequence[RunKey], batch: int) -> None:
        self._port, self._runs, self._batch = port, runs, batch
        self.sent: list[list[float]] = [[] for _ in runs]
        self.acked: list[list[float]] = [[] for _ in runs]

    async def first(self) -> None:
        """One batch to each run, which shows whether all readers follow it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        for run in range(len(self._runs)):
            await self._post(run, reader, writer)
        writer.close()

    async def run(self, rate: int, seconds: float) -> None:
        """Sends so many lines a second. A run's batches go one after another."""
        self._begin = time.monotonic()
        workers = min(_CONNECTIONS, len(self._runs))
        await asyncio.gather(*[self._work(at, workers, rate, seconds) for at in range(workers)])

    async def _work(self, at: int, workers: int, rate: int, seconds: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        number, end = at, int(rate * seconds) // self._batch
        while number < end:
            wait = self._begin + number * self._batch / rate - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            # What has become due while the ack before was waited for goes in one batch.
            late = int(-wait * rate / self._batch) // workers if len(self._runs) == 1 else 0
            due = min(max(late, 1), end - number)
            await self._post(number % len(self._runs), reader, writer, due)
            number += due * workers
        writer.close()

    async def _post(
        self, run: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, batches: int = 1
    ) -> None:
        first, count = len(self.sent[run]), self._batch * batches
        now = time.monotonic()
        lines = [f"{first + i} {'x' * 90}\n" for i in range(count)]
        await _exchange(reader, writer, run_path(self._runs[run]), "".join(lines).encode())
        self.sent[run] += [now] * count
        self.acked[run] += [time.monotonic()] * count

    async def close(self) -> None:
        """Closes all runs."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        for run in self._runs:
            await _exchange(reader, writer, run_path(run, verb="close"), b"")
        writer.close()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes
) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    reply = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in reply[:16]:
        raise RuntimeError(reply.decode())
    length = reply.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
    await reader.readexactly(int(length or b"0"))


def _delays(posts: Sequence[Sequence[float]], found: Sequence[Sequence[Any]], skip: int) -> Array:
    """Seconds from each post to each event that has its line, but for the first lines."""
    all_delays = [np.zeros(0)]
    for times, events in zip(posts, found, strict=True):
        at = np.array(times)
        all_delays += [
            (came[:, None] - at[None, first:end]).ravel()
            for first, end, came in events
            if first >= skip
        ]
    return np.concatenate(all_delays)


def _percentiles(values: Array) -> str:
    p50, p99, top = np.percentile(values, [50, 99, 100]) * 1000
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {top:.1f} ms"


def _acks(posts: Posts) -> str:
    return _percentiles(np.concatenate(posts.acked) - np.concatenate(posts.sent))


def main() -> int:
    """0 if nothing was lost or repeated."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--rate", type=int, default=1000, help="lines a second")
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    batch = 10 if arguments.runs == 1 else 1
    runs = [_run(number) for number in range(arguments.runs)]
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=".") as temporary:
        service = ServiceProcess(Path(temporary).resolve() / "data")
        service.start()
        alone = Posts(service.port, [RunKey(_FQN, f"{run.run}-unwatched") for run in runs], batch)
        uvloop.run(alone.run(arguments.rate, arguments.seconds / 2))
        mine, theirs = multiprocessing.Pipe()
        readers = multiprocessing.Process(
            target=_read, args=(service.port, arguments.readers, arguments.runs, theirs)
        )
        readers.start()
        opening = Watched(service.pid)
        posts = Posts(service.port, runs, batch)
        mine.recv()
        uvloop.run(posts.first())
        mine.recv()
        opened = opening.end()
        print(f"the service is process {service.pid}", file=sys.stderr, flush=True)
        used = Watched(service.pid)
        uvloop.run(posts.run(arguments.rate, arguments.seconds))
        cpu = used.end()
        uvloop.run(posts.close())
        found, ends = mine.recv()
        readers.join()
        service.stop()
    lines = [len(sent) for sent in posts.sent]
    lost = sum(end[0] != lines[at % len(runs)] for at, end in enumerate(ends))
    events, faults = sum(end[1] for end in ends), sum(end[2] for end in ends)
    begun, each = opened / arguments.readers * 1e3, cpu / max(events, 1) * 1e6
    print(
        f"{arguments.readers} readers of {len(runs)} run(s), {arguments.rate} lines/s: POST to "
        f"event {_percentiles(_delays(posts.sent, found, batch))}; ack to event "
        f"{_percentiles(_delays(posts.acked, found, batch))}; POST to ack {_acks(posts)}, without "
        f"a reader {_acks(alone)}; {faults} lines lost or repeated, {lost} readers without the "
        f"last line; the service used {cpu:.2f} s of CPU in {arguments.seconds:g} s, {each:.0f} µs "
        f"for each of {events} events, {begun:.1f} ms for a reader's beginning, and "
        f"{used.peak_mb:.0f} MB"
    )
    return 1 if faults or lost else 0


if __name__ == "__main__":
    sys.exit(main())
