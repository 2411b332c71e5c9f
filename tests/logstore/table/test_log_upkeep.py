"""The table's log stays short, and marks survive: what delta-rs does with each commit."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import Advance, Table, TableChange, commit
from tests.logstore.table.conftest import WriteFile
from tests.simulation.clocks import ManualClock

DAY_SECONDS = 86_400


def commits(
    table: Table, snapshot: TableSnapshot, clock: ManualClock, numbers: range
) -> TableSnapshot:
    for i in numbers:
        change = TableChange(advances=[Advance("n", i, i)], purged_ms=i, expired_ms=i)
        snapshot = commit(table, snapshot, change, job=f"J{i}", clock=clock)
    return snapshot


def log_of(table: Table) -> list[str]:
    return sorted(path.name for path in (Path(table.uri) / "_delta_log").iterdir())


def grow_old(table: Table, days: int) -> None:
    for path in (Path(table.uri) / "_delta_log").iterdir():
        moment = path.stat().st_mtime - days * DAY_SECONDS
        os.utime(path, (moment, moment))


def test_marks_survive_when_the_commits_that_made_them_are_gone(
    table: Table, clock: ManualClock
) -> None:
    clock.ms = 1  # transactions are as old as they can be
    first = [Advance("quiet", 1, 7)]
    made = commit(table, table.create(), TableChange(advances=first), job="first", clock=clock)
    snapshot = commits(table, made, clock, range(1, 45))
    assert "00000000000000000001.json" in log_of(table)
    grow_old(table, days=3)
    after = commits(table, table.snapshot(), clock, range(45, 46))
    assert after.version == snapshot.version + 1
    left = log_of(table)
    assert "00000000000000000001.json" not in left
    assert len(left) < 20
    reopened = Table(table.uri).snapshot()
    assert reopened.marks(["quiet", "n"]) == {"quiet": 7, "n": 45}
    assert (reopened.purged_ms, reopened.expired_ms) == (45, 45)


def test_what_a_reader_of_yesterday_needs_stays(table: Table, clock: ManualClock) -> None:
    commits(table, table.create(), clock, range(1, 45))
    before = log_of(table)
    grow_old(table, days=1)
    commits(table, table.snapshot(), clock, range(45, 46))
    assert set(before) <= set(log_of(table))


def test_a_file_that_was_removed_is_no_orphan_for_a_day(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    """However old the file itself is, and also when the checkpoint is all that knows of it."""
    clock.ms = int(time.time() * 1000)
    files = [write_file("today"), write_file("long-ago")]
    for file in files:
        moment = time.time() - 30 * DAY_SECONDS
        os.utime(Path(table.uri) / file.path, (moment, moment))
    fresh = [replace(file, modified_ms=clock.ms) for file in files]
    snapshot = commit(table, table.create(), TableChange(files=fresh), job="A", clock=clock)
    by_name = {file.path.rpartition("/")[2]: file for file in snapshot.files}
    change = TableChange(removed=[by_name["today.parquet"]])
    snapshot = commit(table, snapshot, change, job="B", clock=clock)
    clock.ms -= 25 * 3_600_000
    change = TableChange(removed=[by_name["long-ago.parquet"]])
    snapshot = commit(table, snapshot, change, job="C", clock=clock)
    assert table.orphans(24) == [by_name["long-ago.parquet"].path]
    commits(table, snapshot, clock, range(1, 25))
    assert any("checkpoint.parquet" in name for name in log_of(table))
    assert table.orphans(24) == [by_name["long-ago.parquet"].path]
