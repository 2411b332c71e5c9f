"""The compactor's merge done by DuckDB: duplicates out, sorted, one folder per hour, zstd."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import duckdb

from benchmarks.backlog import START_MS, Backlog
from tailrace.logstore import ulid

_HOUR_MS = 3_600_000


def merge(backlog: Backlog, out: Path, memory: str) -> tuple[float, int]:
    """Seconds for the merge into the folder `out`, and the rows of it.

    With as many threads as there are CPUs, and `memory` before it goes by way of the disk.
    """
    shutil.rmtree(out, ignore_errors=True)
    files = str(backlog.folder / "store" / "segments" / "*" / "*.parquet")
    start = time.monotonic()
    with duckdb.connect() as db:
        db.execute(f"SET threads={os.cpu_count()}; SET memory_limit='{memory}'; SET TimeZone='UTC'")
        db.execute(f"SET temp_directory='{out}.tmp'")
        db.execute(
            f"""COPY (
                SELECT * EXCLUDE (before, hour_start),
                    strftime(hour_start, '%Y-%m-%d') AS date, strftime(hour_start, '%H') AS hour
                FROM (SELECT *, {_hour(backlog.shape.hours)} AS hour_start, lag(ulid) OVER
                        (PARTITION BY fqn, run_id ORDER BY ulid) AS before
                      FROM read_parquet('{files}'))
                WHERE before IS DISTINCT FROM ulid ORDER BY fqn, run_id, ulid
            ) TO '{out}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (date, hour))"""
        )
        spent = time.monotonic() - start
        count = f"SELECT count(*) FROM read_parquet('{out}/*/*/*.parquet')"
        rows = db.execute(count).fetchall()[0][0]
    shutil.rmtree(out)
    return spent, int(rows)


def _hour(hours: int) -> str:
    """The beginning of a line's hour, by comparing its ULID with the hours' lowest."""
    starts = [START_MS + hour * _HOUR_MS for hour in range(hours)]
    whens = [
        f"WHEN ulid < '{ulid.encode(ulid.lowest_at(start + _HOUR_MS))}'"
        f" THEN make_timestamp({start} * 1000)"
        for start in starts[:-1]
    ]
    last = f"make_timestamp({starts[-1]} * 1000)"
    return f"CASE {' '.join(whens)} ELSE {last} END" if whens else last
