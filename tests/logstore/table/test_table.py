"""Making the table, and what is an orphan in it."""

from __future__ import annotations

import os
import threading
from datetime import date
from pathlib import Path

import duckdb

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.table.table import Advance, Table, commit_segments
from tests.logstore.table.conftest import WriteFile
from tests.simulation.clocks import ManualClock


def test_creating_twice_gives_the_same_table(table: Table) -> None:
    assert table.create().version == 0
    assert table.create().version == 0


def test_racing_creators_end_with_one_table(table: Table) -> None:
    versions: list[int] = []
    threads = [
        threading.Thread(target=lambda: versions.append(table.create().version)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert versions == [0, 0, 0, 0]


def test_orphans_are_files_that_are_old_and_in_no_version(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    live, old, young = (write_file(name) for name in ("live", "old", "young"))
    commit_segments(table, table.create(), [live], [Advance("n", 1, 1)], job="J", clock=clock)
    now = SystemClock().now_ms() / 1000
    for file, hours in ((live, 25), (old, 25), (young, 1)):
        moment = now - hours * 3_600
        os.utime(Path(table.uri) / file.path, (moment, moment))
    assert table.orphans(24) == [old.path]


def test_a_table_that_does_not_exist_has_no_orphans(table: Table) -> None:
    assert table.orphans(24) == []


def test_partitions_read_as_date_and_number_from_the_path(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    commit_segments(
        table, table.create(), [write_file("a")], [Advance("n", 1, 1)], job="J", clock=clock
    )
    pattern = f"{table.uri}/date=*/hour=*/*.parquet"
    rows = duckdb.sql(
        f"SELECT DISTINCT date, CAST(hour AS INT) FROM read_parquet('{pattern}')"
    ).fetchall()
    assert rows == [(date(2026, 11, 21), 12)]
