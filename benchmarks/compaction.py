"""Compaction of segments into the table, cold and warm, beside DuckDB on the same files.

    python -m benchmarks.compaction [--megabytes 200] [--rounds 3]
    python -m benchmarks.compaction --full [--folder FOLDER]

Two nodes' segments of real lines, a tenth of the batches went to both nodes. Cold is
`python compactor/job.py` from start to exit. Warm is another pass in a process whose Spark
has done one already. DuckDB does the same merge with as many threads and as much memory as
Spark's heap: duplicates out, sorted by fqn, run, ULID, one folder per hour, zstd. Speed is
text in (with the duplicates) per second.

The short form merges segments of 64 MiB. The full one merges 1 GB in 4,000 segments of
uneven sizes and then 5 GB in 20,000, of 2,000 runs in three hours, warm. Goals: at least
0.6 of DuckDB, cost that grows as the text does, at most 2 bytes written per byte of segment.
`--folder` keeps the segments of the full form for another time (1.3 GB, minutes to make).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import duckdb_merge
from benchmarks.backlog import Backlog, Shape, make
from benchmarks.corpus import source
from benchmarks.passes import executor_memory, fresh_table, ingest
from compactor.report import PassReport
from compactor.spark.session import Session

ROOT = Path(__file__).resolve().parents[1]
MEMORY = "2g"


def uneven(megabytes: int) -> Shape:
    """So much text as the full form has it: 5 GB are 20,000 segments of 2,000 runs."""
    return Shape(megabytes, segments=4 * megabytes, runs=2_000, batch_blocks=1, text_per_ms=500)


def cold(backlog: Backlog) -> tuple[float, int]:
    """Seconds from start to exit of a process of its own, and rows written."""
    fresh_table(backlog)
    command = [sys.executable, str(ROOT / "compactor" / "job.py"), "--data", str(backlog.folder)]
    start = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return time.monotonic() - start, json.loads(done.stdout)["rows_out"]


def duck(backlog: Backlog, report: PassReport) -> float:
    """Megabytes a second of DuckDB, which must come to the same rows."""
    seconds, rows = duckdb_merge.merge(backlog, backlog.folder.parent / "duck", f"{MEMORY}b")
    if rows != report.rows_out:
        raise SystemExit(f"row counts differ: {report.rows_out}, {rows}")
    return backlog.text / 1e6 / seconds


def head(backlog: Backlog) -> None:
    shape = backlog.shape
    print(
        f"{backlog.text / 1e6:.0f} MB of text ({source()}), {backlog.segments} segments,"
        f" {shape.runs} runs, {shape.hours} hours, {os.cpu_count()} CPUs",
        flush=True,
    )


def tail(report: PassReport) -> None:
    written = report.table_bytes / report.segment_bytes
    print(f"bytes written per byte of segment: {written:.2f} (goal 2)")
    print(
        f"rows: {report.rows_in} in, {report.duplicates} duplicates, {report.rows_out} out;"
        f" {report.files} files in {report.commits} commits",
        flush=True,
    )


def short(backlog: Backlog, rounds: int) -> None:
    """Cold, then warm and DuckDB in turns."""
    head(backlog)
    mb = backlog.text / 1e6
    spent, rows = cold(backlog)
    print(f"cold: {spent:.1f} s, {mb / spent:.1f} MB/s, process start included")
    session = Session(MEMORY)
    ingest(backlog, session)
    ours, theirs = [], []
    for _ in range(rounds):
        seconds, report = ingest(backlog, session)
        if rows != report.rows_out:
            raise SystemExit(f"row counts differ: {rows}, {report.rows_out}")
        ours.append(mb / seconds)
        theirs.append(duck(backlog, report))
        print(f"warm: {ours[-1]:.1f} MB/s {report.seconds}; DuckDB: {theirs[-1]:.1f} MB/s")
    print(f"executor's peak: {executor_memory(session)}, heap limit {MEMORY}")
    session.stop()
    print(f"warm / DuckDB: {statistics.median(ours) / statistics.median(theirs):.2f} (goal 0.6)")
    tail(report)


def full(folder: Path, sizes: Sequence[int]) -> None:
    """Each size once, warm, and DuckDB on the same files."""
    backlogs = [make(folder / f"{size}mb", uneven(size)) for size in sizes]
    session = Session(MEMORY)
    ingest(backlogs[0], session)
    costs = []
    for backlog in backlogs:
        head(backlog)
        mb = backlog.text / 1e6
        seconds, report = ingest(backlog, session)
        costs.append(seconds / mb)
        print(f"warm: {seconds:.0f} s, {mb / seconds:.1f} MB/s {report.seconds}", flush=True)
        print(f"executor's peak: {executor_memory(session)}, heap limit {MEMORY}")
        tail(report)
        theirs = duck(backlog, report)
        print(f"DuckDB: {theirs:.1f} MB/s; warm / DuckDB: {mb / seconds / theirs:.2f} (goal 0.6)")
    session.stop()
    print(f"seconds per MB, the last by the first: {costs[-1] / costs[0]:.2f} (linear is 1)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--megabytes", type=int, default=200, help="text without the duplicates, MB"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--full", action="store_true", help="1 and 5 GB in thousands of segments")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 5_000], help="with --full")
    parser.add_argument("--folder", type=Path, help="where the full form's segments are kept")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as made:
        if flags.full:
            full(flags.folder or Path(made), flags.sizes)
        else:
            short(make(Path(made) / "data", Shape(flags.megabytes)), flags.rounds)


if __name__ == "__main__":
    main()
