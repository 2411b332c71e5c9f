"""Two compactors started together beside one: `python -m benchmarks.drivers [--rounds 2]`.

Each is a process with a Spark of one core, warm, and shares the two nodes of a backlog by leases as
it does in service. A batch is a dozenth of the backlog, as at the defaults where 3 GB of segments
wait. Printed: seconds until the last is done, what each took in, the ratio. Each line is then
in the table as often as after one compactor alone.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TypeAlias

from benchmarks.backlog import Backlog, Shape, make
from benchmarks.corpus import source
from benchmarks.passes import fresh_table
from compactor.ingest import ingest_all
from compactor.report import PassReport
from compactor.runner import make_session, open_compactor
from compactor.settings import Compaction, CompactorSettings
from tailrace.logstore import keys
from tailrace.logstore.table.table import open_table

_CONTEXT = multiprocessing.get_context("spawn")
_BATCHES = 12
Said: TypeAlias = tuple[int, int]
"""Segments and rows that a pass took in."""


def settings_of(data: Path, batch_bytes: int) -> CompactorSettings:
    """As `tailrace compact --data` has them, but for size and cores."""
    compaction = Compaction(master="local[1]", driver_memory="1g", batch_bytes=batch_bytes)
    return CompactorSettings(data=str(data), compaction=compaction)


def drive(
    warm: Path, data: Path, batch_bytes: int, starts: list[Event], said: Queue[Said | None]
) -> None:
    """A compactor: takes a small backlog of its own in, then one pass at each start."""
    session = make_session(settings_of(data, batch_bytes))

    async def one_pass(folder: Path) -> PassReport:
        report = PassReport()
        settings = settings_of(folder, batch_bytes)
        async with open_compactor(settings, session, lambda _step: None) as compactor:
            await ingest_all(compactor, report)
        return report

    asyncio.run(one_pass(warm))
    said.put(None)
    for start in starts:
        start.wait()
        report = asyncio.run(one_pass(data))
        said.put((report.segments, report.rows_out))
    session.stop()


def run(folder: Path, backlog: Backlog, count: int, rounds: int) -> tuple[float, int]:
    """Median seconds that so many compactors need together, and the rows that came out."""
    size = sum(file.stat().st_size for file in (backlog.folder / "store").rglob("*.parquet"))
    starts = [_CONTEXT.Event() for _ in range(rounds)]
    said: Queue[Said | None] = _CONTEXT.Queue()
    processes = [_started(folder / f"warm-{i}", backlog, size, starts, said) for i in range(count)]
    for _ in processes:
        said.get()
    seconds = []
    for start in starts:
        fresh_table(backlog)
        shutil.rmtree(backlog.folder / "store" / "coordination", ignore_errors=True)
        began = time.monotonic()
        start.set()
        shares = [one for one in (said.get() for _ in processes) if one is not None]
        seconds.append(time.monotonic() - began)
        parts = " + ".join(str(segments) for segments, _ in shares)
        print(f"{count}: {seconds[-1]:.1f} s; segments {parts}", flush=True)
    for process in processes:
        process.join()
    table = open_table(settings_of(backlog.folder, size))
    return statistics.median(seconds), sum(file.rows for file in table.snapshot().files)


def _started(
    warm: Path, backlog: Backlog, size: int, starts: list[Event], said: Queue[Said | None]
) -> SpawnProcess:
    make(warm, Shape(10))
    shutil.rmtree(warm / "store" / keys.TABLE, ignore_errors=True)
    job = (warm, backlog.folder, size // _BATCHES, starts, said)
    process = _CONTEXT.Process(target=drive, args=job)
    process.start()
    return process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=400, help="text without duplicates, MB")
    parser.add_argument("--segments", type=int, default=300, help="into how many it is cut")
    parser.add_argument("--rounds", type=int, default=2)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as made:
        folder = Path(made)
        backlog = make(folder / "data", Shape(flags.megabytes, flags.segments, runs=200))
        print(f"{backlog.text / 1e6:.0f} MB of text ({source()}), {os.cpu_count()} CPUs")
        one, rows = run(folder, backlog, 1, flags.rounds)
        two, same = run(folder, backlog, 2, flags.rounds)
    if rows != same:
        raise SystemExit(f"one compactor left {rows} rows, two left {same}")
    print(f"two compactors take a backlog in {one / two:.2f} times as fast as one")


if __name__ == "__main__":
    main()
