"""Log pipelines over stored segments: `python -m benchmarks.pipelines [--megabytes 200]`.

Real lines of 13 pipelines in segments of 8 MB of text. A process of `tailrace pipelines` with 1, 4
and 16 pipelines, each with a filter that takes everything and a rolling file per service and
pipeline, reads all of them, from its start until all is in the files. Beside it, in turn, a bare
loop: it reads the same segments with pyarrow, and writes the messages to as many files. MB and
lines count once for each pipeline. The last row has one more pipeline whose appender never comes
back from its first events; it is to cost the others nothing.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.corpus import lines_of, source
from logstore import keys
from logstore.batch import RunKey
from logstore.clock import SystemClock
from logstore.disk import Disk
from logstore.objects.local import LocalStore
from logstore.segments.carry import Carry
from logstore.segments.writer import encode_segment
from tests.batches import Entry, make_batches

_SEGMENT_BYTES = 8_000_000
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
from pipelines.appenders.stdout import Stdout

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


def build(folder: Path, megabytes: int) -> tuple[int, int]:
    """Fills a store with segments; bytes and lines of text."""
    store = LocalStore(f"{folder}/store", Disk(), SystemClock(), random.Random(1))
    lines, total, seq, at = lines_of(megabytes * 12_000), 0, 0, SystemClock().now_ms() - 10_000_000
    entries: list[Entry] = []
    size, first, count = 0, 0, 0

    async def put() -> None:
        body = encode_segment(
            make_batches("n", entries, first_pos=first), node="n", seq=seq, carry=Carry()
        )
        await store.put(keys.segment("n", seq), bytes(body.body))

    number = 0
    while total < megabytes * 1_000_000:
        start = number * _BATCH_LINES % max(len(lines) - _BATCH_LINES, 1)
        text = b"".join(lines[start : start + _BATCH_LINES]).decode(errors="replace").encode()
        run = RunKey(f"svc{number % 3}.pipeline_{number % 13}", "run")
        entries.append((run, at + number << 80, text))
        number, size, total, count = (
            number + 1,
            size + len(text),
            total + len(text),
            count + _BATCH_LINES,
        )
        if size >= _SEGMENT_BYTES:
            seq += 1
            asyncio.run(put())
            entries, size, first = [], 0, count
    if entries:
        seq += 1
        asyncio.run(put())
    return total, count


def measured(command: list[str], done: Callable[[], bool], environment: dict[str, str]) -> Cost:
    """Runs a child until `done`, then asks it to stop."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    child = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    while child.poll() is None and not done():
        time.sleep(0.2)
    seconds = time.perf_counter() - began
    memory = _peak(child.pid)
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    child.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(seconds, cpu, memory or after.ru_maxrss / 1024)


def _peak(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return (
        int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
        / 1024
    )


def through_pipelines(folder: Path, count: int, size: int, *, stuck: bool = False) -> Cost:
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

    def done() -> bool:
        return sum(path.stat().st_size for path in out.glob("*/*/*.log")) >= count * size

    command = [sys.executable, "-m", "tailrace", "pipelines", *arguments]
    settings = {"TAILRACE_STORE": f"{folder}/store", "TAILRACE_PIPELINES__STOP_SECONDS": "1"}
    return measured(command, done, settings)


def bare(folder: Path, count: int) -> Cost:
    """The loop without anything."""
    out = folder / f"bare-{count}"
    out.mkdir()
    return measured(
        [sys.executable, "-c", _BARE, f"{folder}/store", str(out), str(count)], lambda: False, {}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Log pipelines over stored segments.")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--pipelines", default="1,4,16")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as temporary:
        folder = Path(temporary)
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
        counts = [int(one) for one in arguments.pipelines.split(",")]
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
