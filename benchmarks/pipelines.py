"""Log pipelines over stored segments: `python -m benchmarks.pipelines [--megabytes 200]`.

Real lines of 13 pipelines in segments of 8 MB of text, each line behind the time at which its batch
came: what lines say themselves is years away, and an event of the future waits for its time. A
process of `tailrace pipelines` with 1, 4 and 16 pipelines, each with a filter that takes everything
and a rolling file per service and pipeline, reads all of them, from its start until all is in the
files. Beside it, in turn, a bare loop: it reads the same segments with pyarrow, and writes the
messages to as many files. MB and lines count once for each pipeline. The last row has one more
pipeline whose appender never comes back from its first events; it is to cost the others nothing.

`--stuck-seconds 600` measures the same over time: segments of half a megabyte come every two
seconds, and two processes with as many pipelines read them at once, one of them with the stuck
pipeline beside. A delay is from when a segment is in the store until its lines are in all files.
The memory of both is shown twenty times. `--segment-seconds` makes segments come more often.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.corpus import lines_of, source
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import encode_segment
from tests.batches import Entry, make_batches

_SEGMENT_BYTES = 8_000_000
_SMALL_SEGMENT_BYTES = 500_000
_SMALL_SEGMENT_SECONDS = 2.0
_SAMPLES = 20
_PATIENCE_SECONDS = 120.0
_BATCH_LINES = 1000
_BARE = """
import sys, glob, pyarrow.parquet as pq
files = [open(f"{sys.argv[2]}/{n}", "wb") for n in range(int(sys.argv[3]))]
for path in sorted(glob.glob(sys.argv[1] + "/segments/*/*.parquet")):
    for group in pq.ParquetFile(path).iter_batches(1 << 17, columns=["message"]):
        lines = "\\n".join(group.column(0).to_pylist()).encode() + b"\\n"
        for file in files:
            file.write(lines)
"""
_STUCK = """
import threading
from tailrace.pipelines.appenders.simple import Stdout

class Stuck(Stdout):
    def append(self, events):
        threading.Event().wait()

APPENDERS = {"stuck": Stuck}
"""


@dataclass(frozen=True)
class Cost:
    """What a child took: seconds of the clock and of processors, and its memory in MB."""

    seconds: float
    cpu: float
    megabytes: float


class Node:
    """Fills a store with the segments of a node, of real lines."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self._store = LocalStore(f"{folder}/store", Disk(), SystemClock(), random.Random(1))
        self._lines = lines_of(megabytes * 12_000)
        self._at = SystemClock().now_ms() - 10_000_000
        self._number = self._seq = self.lines = self.bytes = 0

    def put(self, size: int, at_ms: int | None = None) -> None:
        """Puts a segment of so many bytes of text; its batches came at that time."""
        entries: list[Entry] = []
        first, end = self.lines, self.bytes + size
        while self.bytes < end:
            number = self._number
            start = number * _BATCH_LINES % max(len(self._lines) - _BATCH_LINES, 1)
            lines = self._lines[start : start + _BATCH_LINES]
            moment = self._at + number if at_ms is None else at_ms
            stamp = datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="milliseconds")
            text = "".join([f"{stamp} {line.decode(errors='replace')}" for line in lines]).encode()
            run = RunKey(f"svc{number % 3}.pipeline_{number % 13}", "run")
            entries.append((run, moment << 80 | number << 32, text))
            self._number += 1
            self.bytes += len(text)
            self.lines += _BATCH_LINES
        self._seq += 1
        body = encode_segment(
            make_batches("n", entries, first_pos=first), node="n", seq=self._seq, carry=Carry()
        )
        asyncio.run(self._store.put(keys.segment("n", self._seq), bytes(body.body)))


def build(folder: Path, megabytes: int) -> tuple[int, int]:
    """Fills a store with segments; bytes and lines of text."""
    node, total = Node(folder, megabytes), megabytes * 1_000_000
    while node.bytes < total:
        node.put(min(_SEGMENT_BYTES, total - node.bytes))
    return node.bytes, node.lines


def measured(command: list[str], done: Callable[[], bool], environment: dict[str, str]) -> Cost:
    """Runs a child until `done`, then asks it to stop."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    child = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    while child.poll() is None and not done():
        time.sleep(0.2)
    seconds = time.perf_counter() - began
    memory = _memory(child.pid, "VmHWM")
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    child.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(seconds, cpu, memory or after.ru_maxrss / 1024)


def _memory(pid: int, name: str) -> float:
    """MB of a process by the kernel's name for them; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return (
        int(next(line for line in status.splitlines() if line.startswith(name)).split()[1]) / 1024
    )


@dataclass(frozen=True)
class Setup:
    """A process of `tailrace pipelines` to be started, and the folder of its pipelines' files."""

    command: list[str]
    environment: dict[str, str]
    out: Path

    def written(self) -> int:
        """Bytes in all files."""
        return sum(path.stat().st_size for path in self.out.glob("*/*/*.log"))


def pipelines(folder: Path, count: int, *, stuck: bool = False) -> Setup:
    """`tailrace pipelines` with so many pipelines, and perhaps one more that is stuck."""
    name = f"{count}{'-and-stuck' if stuck else ''}"
    definitions, out = folder / f"pipelines-{name}", folder / f"out-{name}"
    (definitions / "lib").mkdir(parents=True)
    (definitions / "lib" / "stuck.py").write_text(_STUCK)
    if stuck:
        never = {"name": f"s{count}", "appenders": [{"type": "stuck", "name": "s"}]}
        (definitions / "stuck.yaml").write_text(json.dumps(never))
    for number in range(count):
        appender = {
            "type": "rolling_file",
            "name": "files",
            "dir": str(out / str(number)),
            "path": "{service}/{fqn}.log",
        }
        content = {
            "name": f"p{name}_{number}",
            "filter": {"fqn": "svc*"},
            "idle_node_ms": 1000,
            "checkpoint_interval_ms": 2000,
            "appenders": [appender],
        }
        (definitions / f"{number}.yaml").write_text(json.dumps(content))
    arguments = ["--data", str(folder), "--dir", str(definitions)]
    arguments += ["--lib", str(definitions / "lib")]
    settings = {"TAILRACE_STORE": f"{folder}/store", "TAILRACE_PIPELINES__STOP_SECONDS": "1"}
    return Setup([sys.executable, "-m", "tailrace", "pipelines", *arguments], settings, out)


def through_pipelines(folder: Path, count: int, size: int, *, stuck: bool = False) -> Cost:
    """All segments through so many pipelines."""
    setup = pipelines(folder, count, stuck=stuck)
    return measured(setup.command, lambda: setup.written() >= count * size, setup.environment)


def bare(folder: Path, count: int) -> Cost:
    """The loop without anything."""
    out = folder / f"bare-{count}"
    out.mkdir()
    return measured(
        [sys.executable, "-c", _BARE, f"{folder}/store", str(out), str(count)], lambda: False, {}
    )


class Follower:
    """A process that reads segments as they come, and the delays of its files, in seconds."""

    def __init__(self, setup: Setup, count: int) -> None:
        self._setup, self._count = setup, count
        self._expected: deque[tuple[int, float]] = deque()
        self.delays: list[float] = []
        self._child = subprocess.Popen(
            setup.command,
            env={**os.environ, **setup.environment},
            stderr=subprocess.DEVNULL,
        )

    def expect(self, size: int, now: float) -> None:
        """From now on the store has so many bytes of text in all."""
        self._expected.append((size * self._count, now))

    def look(self, now: float) -> None:
        """Notes the delays of what is in the files by now."""
        written = self._setup.written()
        while self._expected and written >= self._expected[0][0]:
            self.delays.append(now - self._expected.popleft()[1])

    @property
    def waiting(self) -> int:
        """Segments that are not in all files."""
        return len(self._expected)

    def memory(self) -> tuple[float, float]:
        """MB that it has, and had at most."""
        return _memory(self._child.pid, "VmRSS"), _memory(self._child.pid, "VmHWM")

    def end(self) -> None:
        """Stops it."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        self._child.wait()


def beside_a_stuck_one(folder: Path, count: int, seconds: float, pause: float) -> None:
    """Prints delays of two processes over time; one has a pipeline that is stuck beside.

    A segment comes each `pause` seconds.
    """
    node = Node(folder, 20)
    node.put(_SMALL_SEGMENT_BYTES, SystemClock().now_ms())
    both = {
        f"{count}{' + stuck' if stuck else ''}": Follower(
            pipelines(folder, count, stuck=stuck), count
        )
        for stuck in (False, True)
    }
    try:
        for one in both.values():
            one.expect(node.bytes, time.perf_counter())
        _until_empty(both.values())  # the start is not measured
        for one in both.values():
            one.delays.clear()
        held: dict[str, list[float]] = {name: [] for name in both}
        sample_at = time.perf_counter()
        next_at = began = time.perf_counter()
        end = began + seconds
        while (now := time.perf_counter()) < end:
            if now >= next_at:
                node.put(_SMALL_SEGMENT_BYTES, SystemClock().now_ms())
                next_at += pause
                for one in both.values():
                    one.expect(node.bytes, time.perf_counter())
            for one in both.values():
                one.look(time.perf_counter())
            if now >= sample_at + seconds / _SAMPLES:
                sample_at += seconds / _SAMPLES
                for name, one in both.items():
                    held[name].append(one.memory()[0])
            time.sleep(0.02)
        _until_empty(both.values())
        heads = "pipelines", "segments", "p50 s", "p99 s", "most s", "last p50", "RSS MB", "peak MB"
        print(" ".join(f"{head:>12}" for head in heads))
        for name, one in both.items():
            cells = (name, f"{len(one.delays)}", *_delays(one.delays))
            print(
                " ".join(f"{cell:>12}" for cell in (*cells, *(f"{mb:.0f}" for mb in one.memory())))
            )
            print(f"{name} over time, RSS MB: {' '.join(f'{mb:.0f}' for mb in held[name])}")
    finally:
        for one in both.values():
            one.end()


def _until_empty(followers: Iterable[Follower]) -> None:
    end = time.perf_counter() + _PATIENCE_SECONDS
    while any(one.waiting for one in followers):
        if time.perf_counter() > end:
            raise SystemExit(f"segments are not in the files after {_PATIENCE_SECONDS:.0f} s")
        for one in followers:
            one.look(time.perf_counter())
        time.sleep(0.02)


def _delays(found: list[float]) -> tuple[str, ...]:
    """p50, p99, the longest, and p50 of the last tenth."""
    ordered, last = sorted(found), sorted(found[-max(len(found) // 10, 1) :])
    chosen = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1]
    return tuple(f"{one:.2f}" for one in (*chosen, last[len(last) // 2]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Log pipelines over stored segments.")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--pipelines", default="1,4,16")
    parser.add_argument(
        "--stuck-seconds",
        type=float,
        default=0,
        help="measure delays beside a stuck appender for so long, and nothing else",
    )
    parser.add_argument(
        "--segment-seconds",
        type=float,
        default=_SMALL_SEGMENT_SECONDS,
        help="from one segment to the next meanwhile",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as temporary:
        folder = Path(temporary)
        counts = [int(one) for one in arguments.pipelines.split(",")]
        if arguments.stuck_seconds:
            beside_a_stuck_one(
                folder, counts[-1], arguments.stuck_seconds, arguments.segment_seconds
            )
            return
        size, lines = build(folder, arguments.megabytes)
        print(f"{size / 1e6:.0f} MB of text, {lines:,} lines ({source()})")
        heads = (
            "pipelines",
            "MB/s",
            "per CPU-s",
            "lines/CPU-s",
            "RSS MB",
            "bare per CPU-s",
            "ratio",
        )
        print(" ".join(f"{head:>14}" for head in heads))
        rows = [*[(one, False) for one in counts], (counts[-1], True)]
        theirs = Cost(0, 0, 0)
        for count, stuck in rows:
            ours = through_pipelines(folder, count, size, stuck=stuck)
            theirs = theirs if stuck else bare(folder, count)
            total = size * count / 1e6
            cells = (
                f"{count} + stuck" if stuck else f"{count}",
                f"{total / ours.seconds:.0f}",
                f"{total / ours.cpu:.0f}",
                f"{lines * count / ours.cpu:,.0f}",
                f"{ours.megabytes:.0f}",
                f"{total / theirs.cpu:.0f}",
                f"{theirs.cpu / ours.cpu:.2f}",
            )
            print(" ".join(f"{cell:>14}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
