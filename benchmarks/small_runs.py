"""Many runs of three lines: `python -m benchmarks.small_runs [--runs 10000] [--store folder]`.

Clients send runs in three ways: each is closed right after its only batch; all are flushed and
then closed; all are sent, and the service is told to stop (SIGTERM). Printed for each way: runs
a second, and what a run leaves in the store: files, folders, bytes on the disk, and requests,
which a proxy counts between the service and MinIO. Then `tailrace verify --remember` looks at all
of them twice: the second time nothing has changed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httpx
import orjson

from benchmarks.corpus import lines_of, source
from benchmarks.process import Watched
from benchmarks.wire import Wire, counted
from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path
from tests.e2e.service_process import ServiceProcess
from tests.servers.minio import running_minio, why_no_minio

_LINES: Final = 3
_WAYS: Final = 3
_CLIENTS: Final = 64
_LOOK_SECONDS: Final = 0.1
_LAG: Final = b"\ntailrace_run_log_lag_lines "


class _Kept(NamedTuple):
    """What a store holds."""

    files: int = 0
    folders: int = 0
    bytes: int = 0

    @staticmethod
    def below(folder: Path) -> _Kept:
        """Counts; the bytes are those that the disk gives to them."""
        files = folders = size = 0
        for where, names, found in os.walk(folder):
            files, folders = files + len(found), folders + len(names)
            paths = [Path(where), *[Path(where) / name for name in found]]
            for path in paths:
                with suppress(FileNotFoundError):  # an object that was being written
                    size += path.stat().st_blocks * 512
        return _Kept(files, folders, size)


class _Client:
    """A connection that sends one request after another."""

    def __init__(self, url: str) -> None:
        self._where = urlsplit(url)

    async def open(self) -> _Client:
        """Connects."""
        self._reader, self._writer = await asyncio.open_connection(
            self._where.hostname, self._where.port
        )
        return self

    async def post(self, path: str, body: bytes = b"") -> bytes:
        """The body of the reply. Raises `RuntimeError` for any status but 200."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        reply = await self._reader.readuntil(b"\r\n\r\n")
        size = int(reply.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        text = await self._reader.readexactly(size)
        if b" 200 " not in reply.partition(b"\r\n")[0]:
            raise RuntimeError(f"{path}: {reply!r}{text!r}")
        return text


class _Runs:
    """The runs of one way, and what clients do with them."""

    def __init__(self, service: ServiceProcess, way: str, count: int) -> None:
        self._service = service
        lines = lines_of(_LINES * 100)
        self._batches = [b"".join(lines[at : at + _LINES]) for at in range(0, len(lines), _LINES)]
        self._paths = [run_path(RunKey(f"bench.{way}-{n % 10}", f"run-{n}")) for n in range(count)]

    def send(self, *, close: bool = False) -> None:
        """Sends the batch of each run, and closes it if asked to."""

        async def one(client: _Client, number: int) -> None:
            await client.post(self._paths[number], self._batches[number % len(self._batches)])
            if close:
                await self._close(client, number)

        asyncio.run(self._share(one))

    def close(self) -> None:
        """Closes all of them."""
        asyncio.run(self._share(self._close))

    def flush(self) -> None:
        """Waits until all lines are in the logs of their runs."""
        with httpx.Client(base_url=self._service.url, timeout=60) as client:
            while True:
                rest = client.get("/metrics").content.partition(_LAG)[2]
                if float(rest.partition(b"\n")[0]) == 0:
                    return
                time.sleep(_LOOK_SECONDS)

    async def _close(self, client: _Client, number: int) -> None:
        while orjson.loads(await client.post(f"{self._paths[number]}/close"))["state"] != "closed":
            await asyncio.sleep(_LOOK_SECONDS)

    async def _share(self, work: Callable[[_Client, int], Awaitable[None]]) -> None:
        numbers = iter(range(len(self._paths)))

        async def some() -> None:
            client = await _Client(self._service.url).open()
            for number in numbers:
                await work(client, number)

        await asyncio.gather(*[some() for _ in range(_CLIENTS)])


class _Place(NamedTuple):
    """A store under measurement: what tells a service of it, what it holds, who counts."""

    name: str
    environment: dict[str, str]
    folder: Path | None
    wire: Wire | None


class _Report:
    """Prints a row for each way, with what has come to the store since the row before."""

    def __init__(self, place: _Place, count: int) -> None:
        self._place = place
        self._count = count
        self._kept = _Kept()
        self._wire = place.wire.traffic() if place.wire else None
        self._cpu = 0.0
        self.note()

    def note(self) -> None:
        """What is there now belongs to no row."""
        if self._place.folder is not None:
            self._kept = _Kept.below(self._place.folder)
        if self._place.wire is not None:
            self._wire = self._place.wire.traffic()

    def row(self, what: str, seconds: float, watched: Watched) -> None:
        """Prints what happened in so many seconds."""
        count, parts = (
            self._count,
            [f"{self._place.name}: {what}: {self._count / seconds:.0f} runs/s"],
        )
        if self._place.folder is not None:
            now, before = _Kept.below(self._place.folder), self._kept
            parts.append(
                f"each {(now.files - before.files) / count:.2f} files,"
                f" {(now.folders - before.folders) / count:.2f} folders,"
                f" {(now.bytes - before.bytes) / count / 1024:.1f} KiB"
            )
        if self._place.wire is not None and self._wire is not None:
            traffic = self._place.wire.traffic() - self._wire
            kinds = sorted({kind.what for kind in traffic.requests})
            each = ", ".join(f"{kind} {traffic.count(what=kind) / count:.2f}" for kind in kinds)
            parts.append(f"each {traffic.count() / count:.2f} requests ({each})")
        with suppress(FileNotFoundError):  # the service has ended
            cpu, before_cpu = watched.cpu_seconds, self._cpu
            parts.append(f"each {(cpu - before_cpu) * 1000 / count:.1f} ms of CPU")
            self._cpu = cpu
        parts.append(f"{watched.rss_samples[-1] / 1e6:.0f}, at most {watched.peak_mb:.0f} MB")
        print("; ".join(parts), flush=True)
        self.note()


def _measure(data: Path, place: _Place, count: int) -> None:
    service = ServiceProcess(
        data,
        store=place.folder,
        TAILRACE_RUNS__PARTIAL_FLUSH_INTERVAL_MINUTES="0.05",
        **place.environment,
    )
    service.start()
    try:
        report, watched = _Report(place, count), Watched(service.pid)
        for what, steps in (
            ("closed at once", ["send and close"]),
            ("flushed, closed later", ["send", "flush", "close"]),
        ):
            runs = _Runs(service, what.partition(" ")[0].strip(","), count)
            for step in steps:
                began = time.monotonic()
                if step.startswith("send"):
                    runs.send(close=step.endswith("close"))
                elif step == "flush":
                    runs.flush()
                else:
                    runs.close()
                report.row(f"{what}: {step}", time.monotonic() - began, watched)
        _Runs(service, "stop", count).send()
        report.note()
        watched.end()
        began = time.monotonic()
        service.stop()
        seconds = time.monotonic() - began
        report.row(f"SIGTERM: {seconds:.1f} s", seconds, watched)
    finally:
        if service.running:
            service.kill()
    for what in ("verify --remember", "again, unchanged"):
        with _cpu() as cpu:
            _verify(service, data.with_name(f"{data.name}.verified"))
        each = cpu[0] * 1000 / count / _WAYS
        print(f"{place.name}: {what}: {cpu[0]:.1f} s of CPU, {each:.2f} ms a run", flush=True)


def _verify(service: ServiceProcess, memory: Path) -> None:
    command = [sys.executable, "-m", "tailrace", "verify", "--data", str(service.data)]
    command += ["--remember", str(memory)]
    subprocess.run(command, env=service.settings, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def _cpu() -> Iterator[list[float]]:
    """CPU seconds of the children that end within."""
    before, taken = resource.getrusage(resource.RUSAGE_CHILDREN), [0.0]
    yield taken
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken[0] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if each store was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=10_000, help="of each way")
    parser.add_argument("--store", action="append", choices=("folder", "minio"))
    asked = parser.parse_args(arguments)
    stores = asked.store or ["folder", "minio"]
    print(f"{asked.runs} runs of {_LINES} lines of each way ({source()}), {_CLIENTS} clients")
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=".") as made:
        folder = Path(made).resolve()
        if "folder" in stores:
            _measure(folder / "data", _Place("folder", {}, folder / "store", None), asked.runs)
        if "minio" in stores:
            reason = why_no_minio()
            if reason is not None:
                print(f"no MinIO here: {reason}", file=sys.stderr)
                return 2
            with running_minio() as minio, counted(minio.endpoint_url) as wire:
                through = minio.bucket().through(wire.url).environment
                _measure(folder / "data-s3", _Place("MinIO", through, None, wire), asked.runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
