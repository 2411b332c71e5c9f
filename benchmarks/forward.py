"""The forwarder, and OpenTelemetry's collector beside it: `make bench BENCH=forward`.

    OTELCOL=otelcol python -m benchmarks.forward [--megabytes 1000] [--backlog 2000]

`OTELCOL` is a collector with the `filelog` receiver and the `nop` exporter, as the builder of its
repository makes it; it reads into nothing. The forwarder reads, ships to a real service on this
machine, and is done when everything is acknowledged as durable.

    bulk     one file: MB and lines per second, and per second of the program's CPU; its memory
    idle     1,000 files in which nothing happens: share of one core
    append   a line a time: from the write to the acknowledgement, as a relay between both sees it
    backlog  the same, while a large file beside it is read
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from benchmarks.corpus import corpus, source
from benchmarks.process import Watched
from benchmarks.relay import Relay
from tailrace.forwarder.checkpoints import read_states
from tailrace.logstore.errors import NotFound
from tests.e2e.service_process import ServiceProcess
from tests.servers.ports import free_port

COLLECTOR: Final = "OTELCOL"
_ACCEPTED: Final = re.compile(r"^otelcol_receiver_accepted_log_records\S* (\S+)$", re.MULTILINE)
_CORPUS_MB: Final = 1000
_FILES: Final = 1000
_PATIENCE_SECONDS: Final = 1800.0


class Forwarding:
    """`tailrace forward` on a folder of its own."""

    def __init__(self, folder: Path, target: str, **keys: Any) -> None:
        self._folder = folder
        self._config = folder / "logs.yaml"
        self._storage = folder / "checkpoints"
        least = {"targets": [target], "storage": str(self._storage), "start_at": "beginning"}
        self._config.write_text(yaml.safe_dump({**least, "fqn": "bench.{stem}", **keys}))
        with (folder / "forward.log").open("ab") as log:
            command = [sys.executable, "-m", "tailrace", "forward", "--config", str(self._config)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.terminate()
        status = self._process.wait(60)
        if status != 0:
            raise RuntimeError(f"the forwarder ended with {status}: {self._said()}")

    def acknowledged(self) -> int:
        """Bytes of all files."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the forwarder ended: {self._said()}")
        try:
            states = read_states(str(self._storage))
        except NotFound:
            return 0
        return sum(state.cursor.offset for state in states.values())

    def _said(self) -> str:
        return (self._folder / "forward.log").read_text(errors="replace")[-2000:]


@contextmanager
def forwarding(target: str, **keys: Any) -> Iterator[Forwarding]:
    """A forwarder until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="tailrace-forward-") as folder:
        one = Forwarding(Path(folder), target, **keys)
        try:
            yield one
        finally:
            one.stop()


@contextmanager
def collecting(binary: str, include: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The collector, reading into nothing: its process and the address of its metrics."""
    port = free_port()
    reader = {"pull": {"exporter": {"prometheus": {"host": "127.0.0.1", "port": port}}}}
    config = {
        "receivers": {"filelog": {"include": list(include), "start_at": "beginning"}},
        "exporters": {"nop": {}},
        "service": {
            "pipelines": {"logs": {"receivers": ["filelog"], "exporters": ["nop"]}},
            "telemetry": {"metrics": {"readers": [reader]}, "logs": {"level": "error"}},
        },
    }
    with tempfile.TemporaryDirectory(prefix="tailrace-otelcol-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        process = subprocess.Popen([binary, "--config", str(path)], stderr=subprocess.DEVNULL)
        try:
            yield process.pid, f"http://127.0.0.1:{port}/metrics"
        finally:
            process.terminate()
            process.wait(60)


def _accepted(url: str) -> int:
    try:
        return round(sum(map(float, _ACCEPTED.findall(httpx.get(url, timeout=5).text))))
    except httpx.TransportError:
        return 0  # not up yet


def _wait(done: Any) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not done():
        if time.monotonic() > end:
            raise RuntimeError("it takes longer than half an hour")
        time.sleep(0.2)


def _report(name: str, size: int, lines: int, seconds: float, cpu: float, watched: Watched) -> None:
    print(
        f"  {name:28} {size / seconds / 1e6:6.1f} MB/s {size / cpu / 1e6:7.1f} MB/s per CPU-second "
        f"{lines / cpu / 1000:7.0f} thousand lines per CPU-second, RSS {watched.peak_mb:.0f} MB",
        flush=True,
    )


def bulk(service: ServiceProcess, binary: str | None, megabytes: int) -> None:
    """One file, from its beginning until all of it is acknowledged."""
    path = corpus(megabytes * 1_000_000)
    size, lines = path.stat().st_size, sum(block.count(b"\n") for block in _blocks(path))
    print(f"bulk: {size / 1e6:.0f} MB, {lines:,} lines, {source()}", flush=True)
    kinds: dict[str, dict[str, Any]] = {
        "text": {"include_file_name": False},
        "log.file.name": {},
        "multiline, tracebacks": {"multiline": {"builtin": ["python", "java", "go"]}},
    }
    for name, keys in kinds.items():
        begin = time.monotonic()
        with forwarding(service.url, include=[str(path)], **keys) as one:
            watched, serving = Watched(one.pid), Watched(service.pid)
            _wait(lambda one=one: one.acknowledged() >= size)
            seconds = time.monotonic() - begin
            _report(name, size, lines, seconds, watched.end(), watched)
            print(f"  {'':28} the service took {serving.end():.1f} s of CPU", flush=True)
    if binary is not None:
        begin = time.monotonic()
        with collecting(binary, [str(path)]) as (pid, url):
            watched = Watched(pid)
            _wait(lambda: _accepted(url) >= lines)
            seconds = time.monotonic() - begin
            _report("collector, into nothing", size, lines, seconds, watched.end(), watched)


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block


def idle(service: ServiceProcess, binary: str | None, seconds: float) -> None:
    """A thousand files in which nothing happens."""
    with tempfile.TemporaryDirectory(prefix="tailrace-idle-") as folder:
        for number in range(_FILES):
            line = f"file {number:04} {'x' * 80}\n"
            (Path(folder) / f"{number:04}.log").write_text(line * 12)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        include = [f"{folder}/*.log"]
        print(f"idle: {_FILES} files, {seconds:g} s", flush=True)
        for name, keys in {"hints": {}, "polled": {"hints": False}}.items():
            with forwarding(service.url, include=include, **keys) as one:
                _wait(lambda one=one: one.acknowledged() >= size)
                _share(name, one.pid, seconds)
        if binary is not None:
            with collecting(binary, include) as (pid, url):
                _wait(lambda: _accepted(url) >= _FILES * 12)
                _share("collector", pid, seconds)


def _share(name: str, pid: int, seconds: float) -> None:
    time.sleep(2)
    watched = Watched(pid)
    time.sleep(seconds)
    share = watched.end() / seconds
    print(f"  {name:28} {share:6.1%} of a core, RSS {watched.peak_mb:.0f} MB", flush=True)


def _make_large(path: Path, megabytes: int) -> None:
    """So many MB of the corpus, of which there is 1 GB: a larger file has it several times."""
    piece = corpus(min(megabytes, _CORPUS_MB) * 1_000_000)
    with path.open("wb") as large:
        while large.tell() < megabytes * 1_000_000:
            with piece.open("rb") as lines:
                shutil.copyfileobj(lines, large, 1 << 20)


def append(service: ServiceProcess, seconds: float, backlog: int = 0) -> None:
    """A line every 50 ms, alone or beside a large file that is read meanwhile."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-live-")))
        live = folder / "live.log"
        live.touch()
        if backlog:
            _make_large(folder / "large.log", backlog)
        relay = stack.enter_context(Relay(service.port))
        keys: dict[str, Any] = {"include": [f"{folder}/*.log"], "include_file_name": False}
        one = stack.enter_context(forwarding(relay.url, **keys))
        time.sleep(2)
        watched = Watched(one.pid)
        written = 0
        end = time.monotonic() + seconds
        with live.open("a", buffering=1) as file:
            while time.monotonic() < end:
                file.write(f"{relay.stamp()} line {written}\n")
                written += 1
                time.sleep(0.05)
        behind = (folder / "large.log").stat().st_size - one.acknowledged() if backlog else 0
        _wait(lambda: len(relay.seconds) >= written)
        watched.end()
        waits = sorted(relay.seconds)
        p50, p99 = statistics.median(waits), waits[int(len(waits) * 0.99)]
        name = f"beside {backlog} MB" if backlog else "alone"
        left = f", {behind / 1e6:.0f} MB were left" if backlog else ""
        print(
            f"  {name:28} p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, "
            f"max {waits[-1] * 1000:.1f} ms of {written} lines, RSS {watched.peak_mb:.0f} MB{left}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1000, help="of the file of bulk")
    parser.add_argument("--backlog", type=int, default=2000, help="MB beside the live file")
    parser.add_argument("--seconds", type=float, default=20, help="of idle, append and backlog")
    parser.add_argument("--only", choices=("bulk", "idle", "append", "backlog"))
    arguments = parser.parse_args()
    named = os.environ.get(COLLECTOR, "")
    binary = shutil.which(named) if named else None
    if binary is None:
        print(f"without the collector: {COLLECTOR} names none")
    folder = Path(tempfile.mkdtemp(prefix="tailrace-bench-forward-"))
    service = ServiceProcess(folder / "data")
    service.start()
    try:
        if arguments.only in (None, "bulk"):
            bulk(service, binary, arguments.megabytes)
        if arguments.only in (None, "idle"):
            idle(service, binary, arguments.seconds)
        if arguments.only in (None, "append", "backlog"):
            print("append: from the write of a line to the acknowledgement", flush=True)
        if arguments.only in (None, "append"):
            append(service, arguments.seconds)
        if arguments.only in (None, "backlog"):
            append(service, arguments.seconds, arguments.backlog)
    finally:
        service.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
