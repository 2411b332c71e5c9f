"""Compaction of segments into the table, cold and warm, beside DuckDB on the same files.

    python -m benchmarks.compaction [--megabytes 200] [--rounds 3]

Two nodes' segments of 64 MiB of real lines in batches of 1,000; a tenth of the batches
went to both nodes. Cold is `python compactor/job.py` from start to exit. Warm is another
pass in a process whose Spark has done one already. DuckDB does the same merge with as
many threads: duplicates out, sorted by fqn, run, ULID, one folder per hour, zstd.
Speed is text in (with the duplicates) per second. Goals: at least 0.5 of DuckDB warm, and
at most 2 bytes written per byte of segment. The full form is `--megabytes 2000`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb

from benchmarks.corpus import blocks, source
from compactor.compactor import Compactor
from compactor.intake.take_in import take_in_all
from compactor.place.folder import FolderPlacement
from compactor.report import Report
from compactor.settings import Compaction
from compactor.spark.session import Session
from logstore import keys, ulid
from logstore.batch import RunKey
from logstore.clock import SystemClock
from logstore.disk import Disk
from logstore.entropy import system_entropy
from logstore.objects.local import LocalStore
from logstore.segments.carry import Carry
from logstore.segments.writer import encode_segment
from logstore.table.table import Table
from tests.batches import make_batches

ROOT = Path(__file__).resolve().parents[1]
SEGMENT_BYTES = 64 << 20
BATCH_LINES = 1_000
DUPLICATED = 0.1
START_MS = 1_795_262_400_000  # 2026-11-21T12:00:00Z
TEXT_PER_MS = 2_000  # bytes: a busy store, 2 MB/s
NODES = ("node-a", "node-b")

Batch = tuple[RunKey, int, bytes]


@dataclass
class Input:
    """A folder of segments; `text` is bytes of lines in them, with the duplicates."""

    folder: Path
    text: int
    segments: int


def batches(size: int) -> Iterator[Batch]:
    """Batches of real lines with rising ULIDs, `size` bytes of text."""
    dice = random.Random(1)
    done, lines = 0, 0
    text = bytearray()
    for block in blocks(1):
        text += block
        lines += block.count(b"\n")
        if lines < BATCH_LINES:
            continue
        at = START_MS + done // TEXT_PER_MS
        first = ulid.lowest_at(at) | dice.getrandbits(54) << ulid.LINE_BITS
        number = dice.randrange(20)
        yield (
            RunKey(f"service.pipeline_{number % 10}", f"run-{number}"),
            first,
            text.decode(errors="replace").encode(),
        )
        done += len(text)
        text.clear()
        lines = 0
        if done >= size:
            return


def store_at(data: Path) -> LocalStore:
    return LocalStore(str(data / "store"), Disk(), SystemClock(), system_entropy())


async def make_input(data: Path, size: int) -> Input:
    """Segments of two nodes, as the service writes them."""
    store, dice = store_at(data), random.Random(2)
    pending: dict[str, list[Batch]] = {node: [] for node in NODES}
    held, seqs, pos = dict.fromkeys(NODES, 0), dict.fromkeys(NODES, 0), dict.fromkeys(NODES, 0)
    total = 0

    async def cut(node: str) -> None:
        seqs[node] += 1
        rows = make_batches(node, pending[node], first_pos=pos[node])
        pos[node] += int(rows.rows["records"].sum())
        body = encode_segment(rows, node=node, seq=seqs[node], carry=Carry()).body
        await store.put(keys.segment(node, seqs[node]), body)
        pending[node], held[node] = [], 0

    for index, batch in enumerate(batches(size)):
        for node in NODES if dice.random() < DUPLICATED else (NODES[index % 2],):
            pending[node].append(batch)
            held[node] += len(batch[2])
            total += len(batch[2])
            if held[node] >= SEGMENT_BYTES:
                await cut(node)
    for node in NODES:
        if pending[node]:
            await cut(node)
    return Input(data, total, sum(seqs.values()))


def fresh_table(made: Input) -> None:
    shutil.rmtree(made.folder / "store" / keys.TABLE, ignore_errors=True)


def cold(made: Input) -> tuple[float, int]:
    """Seconds from start to exit of a process of its own, and rows written."""
    fresh_table(made)
    command = [sys.executable, str(ROOT / "compactor" / "job.py"), "--data", str(made.folder)]
    start = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return time.monotonic() - start, json.loads(done.stdout)["rows_out"]


def warm(made: Input, session: Session) -> tuple[float, Report]:
    fresh_table(made)
    store = store_at(made.folder)
    table = Table(store.uri(keys.TABLE))
    compactor = Compactor(
        store,
        table,
        FolderPlacement(Disk(), table.uri),
        SystemClock(),
        system_entropy(),
        Compaction(),
        session,
        lambda _step: None,
    )
    report = Report()
    start = time.monotonic()
    asyncio.run(take_in_all(compactor, report))
    return time.monotonic() - start, report


def duck(made: Input, out: Path) -> tuple[float, int]:
    """The same merge by DuckDB, and the rows of it."""
    shutil.rmtree(out, ignore_errors=True)
    files = str(made.folder / "store" / "segments" / "*" / "*.parquet")
    start = time.monotonic()
    with duckdb.connect() as db:
        db.execute(f"SET threads={os.cpu_count()}; SET memory_limit='2GB'; SET TimeZone='UTC'")
        db.execute(f"SET temp_directory='{out}.tmp'")
        db.execute(
            f"""COPY (
                SELECT * EXCLUDE (before, hour_start),
                    strftime(hour_start, '%Y-%m-%d') AS date, strftime(hour_start, '%H') AS hour
                FROM (SELECT *, make_timestamp({START_MS} * 1000) AS hour_start, lag(ulid) OVER
                        (PARTITION BY fqn, run_id ORDER BY ulid) AS before
                      FROM read_parquet('{files}'))
                WHERE before IS DISTINCT FROM ulid ORDER BY fqn, run_id, ulid
            ) TO '{out}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (date, hour))"""
        )
        spent = time.monotonic() - start
        count = f"SELECT count(*) FROM read_parquet('{out}/*/*/*.parquet')"
        rows = db.execute(count).fetchall()[0][0]
    return spent, int(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--megabytes", type=int, default=200, help="text without the duplicates, MB"
    )
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        made = asyncio.run(make_input(Path(folder) / "data", flags.megabytes * 1_000_000))
        compare(made, Path(folder) / "duck", flags.rounds)


def compare(made: Input, out: Path, rounds: int) -> None:
    mb = made.text / 1e6
    print(f"{mb:.0f} MB of text ({source()}), {made.segments} segments, {os.cpu_count()} CPUs")
    spent, rows = cold(made)
    print(f"cold: {spent:.1f} s, {mb / spent:.1f} MB/s, process start included")
    session = Session("2g")
    warm(made, session)
    ours, theirs = [], []
    for _ in range(rounds):
        seconds, report = warm(made, session)
        duck_seconds, duck_rows = duck(made, out)
        if not rows == report.rows_out == duck_rows:
            raise SystemExit(f"row counts differ: {rows}, {report.rows_out}, {duck_rows}")
        ours.append(seconds)
        theirs.append(duck_seconds)
        print(
            f"warm: {mb / seconds:.1f} MB/s {report.seconds}; DuckDB: {mb / duck_seconds:.1f} MB/s"
        )
    session.stop()
    ratio = statistics.median(theirs) / statistics.median(ours)
    written = report.table_bytes / report.segment_bytes
    print(f"warm / DuckDB: {ratio:.2f} (goal 0.5)")
    print(f"bytes written per byte of segment: {written:.2f} (goal 2)")
    print(f"rows: {report.rows_in} in, {report.duplicates} duplicates, {report.rows_out} out")


if __name__ == "__main__":
    main()
