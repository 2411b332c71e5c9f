"""Which hours go, when, and what becomes of late lines. No Spark: files come by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactor.cleanup import expire
from compactor.context import Compactor
from compactor.report import PassReport
from compactor.settings import Compaction
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.runs.deletions import RunRetention
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import Advance, Table, commit_segments
from tests.compactor.dated_store import DatedStore
from tests.compactor.files import add_files
from tests.compactor.lake import HOUR, NOON, Lake, batch

DAY = 24 * HOUR


def at(lake: Lake, now: int) -> None:
    """Moves the lake's clock."""
    lake.clock.shift_ms = now - SystemClock().now_ms()


def hours(lake: Lake) -> list[int]:
    """Which hours the table has, from noon on."""
    return sorted((file.start_ms - NOON) // HOUR for file in lake.snapshot().files)


def after_expiry(lake: Lake, compactor: Compactor | None = None) -> PassReport:
    report = PassReport()
    lake.run(expire(compactor or lake.compactor, report))
    return report


def kept(lake: Lake, *, days: int | None = None, bytes_: int | None = None) -> None:
    lake.limits = Compaction(retention_days=days, retention_bytes=bytes_)


def test_an_hour_goes_when_it_ended_so_long_ago_and_not_before(any_lake: Lake) -> None:
    lake = any_lake
    at(lake, NOON)
    add_files(lake, *([batch("f", "r", NOON + i * HOUR, 3)] for i in range(3)))
    kept(lake, days=7)
    at(lake, NOON + 7 * DAY + HOUR - 60_000)
    assert after_expiry(lake).hours_expired == 0
    assert lake.snapshot().version == 1
    at(lake, NOON + 7 * DAY + 2 * HOUR + 1_000)
    report = after_expiry(lake)
    assert (report.hours_expired, report.rows_expired) == (2, 6)
    assert report.bytes_expired > 0
    assert hours(lake) == [2]
    assert lake.snapshot().expired_ms == NOON + 2 * HOUR


def test_the_files_stay_for_queries_that_run(lake: Lake) -> None:
    at(lake, NOON)
    running = add_files(lake, [batch("f", "r", NOON, 3)])
    kept(lake, days=1)
    at(lake, NOON + 3 * DAY)
    after_expiry(lake)
    assert lake.snapshot().files == ()
    there = [lake.run(lake.store.head(f"{keys.TABLE}/{file.path}")) for file in running.files]
    assert [info.size for info in there] == [file.size for file in running.files]


def test_nothing_goes_if_all_is_kept_for_ever(lake: Lake) -> None:
    add_files(lake, [batch("f", "r", NOON - 5_000 * DAY, 3)])
    kept(lake, days=0)
    assert after_expiry(lake).hours_expired == 0
    assert lake.snapshot().version == 1


@pytest.mark.parametrize(
    ("runs", "gone"),
    [
        (RunRetention(expiration_days=2), 1),
        (RunRetention(expiration_days=1, expiration_days_of={"audit.*": 3}), 0),
        (RunRetention(expiration_days=1, expiration_days_of={"audit.*": 0}), 0),
    ],
)
def test_unless_told_the_table_keeps_what_any_pipeline_keeps(
    lake: Lake, runs: RunRetention, gone: int
) -> None:
    at(lake, NOON)
    add_files(lake, [batch("f", "r", NOON, 3)])
    at(lake, NOON + 2 * DAY + HOUR + 1_000)
    assert after_expiry(lake, replace(lake.compactor, runs=runs)).hours_expired == gone


def test_the_oldest_hours_go_until_the_rest_has_room(lake: Lake) -> None:
    at(lake, NOON)
    snapshot = add_files(
        lake,
        *([batch("f", "r", NOON + i * HOUR, 40, tag=str(j))] for i in range(4) for j in range(2)),
    )
    sizes = [sum(f.size for f in snapshot.files if f.start_ms == NOON + i * HOUR) for i in range(4)]
    kept(lake, bytes_=sum(sizes))
    assert after_expiry(lake).hours_expired == 0
    kept(lake, bytes_=sum(sizes[2:]))
    assert after_expiry(lake).hours_expired == 2
    assert hours(lake) == [2, 2, 3, 3]
    kept(lake, bytes_=1)
    after_expiry(lake)
    assert hours(lake) == [3, 3], "the newest stays, whatever its size"


def test_late_lines_of_an_hour_that_went_go_as_well(lake: Lake) -> None:
    at(lake, NOON)
    size = add_files(lake, *([batch("f", "r", NOON + i * HOUR, 9)] for i in range(2))).files[0].size
    kept(lake, bytes_=size + 1)
    after_expiry(lake)
    assert hours(lake) == [1]
    kept(lake, bytes_=100 * size)
    add_files(lake, [batch("f", "late", NOON, 1)])
    assert after_expiry(lake).rows_expired == 1
    assert hours(lake) == [1]


def test_who_loses_to_another_commit_plans_anew(lake: Lake) -> None:
    at(lake, NOON)
    add_files(lake, [batch("f", "r", NOON, 3)])
    kept(lake, days=1)
    at(lake, NOON + 2 * DAY)
    seq = 0

    class Racing(Table):
        """Somebody commits between our look and our commit, three times."""

        def snapshot(self) -> TableSnapshot:
            nonlocal seq
            found = super().snapshot()
            if seq < 3:
                seq += 1
                advance, table = [Advance("n", seq, seq)], Table(self.uri)
                commit_segments(table, found, [], advance, job=f"{seq}", clock=lake.clock)
            return found

    report = after_expiry(lake, replace(lake.compactor, table=Racing(lake.compactor.table.uri)))
    assert report.hours_expired == 1
    assert (lake.snapshot().mark("n"), lake.snapshot().files) == (3, ())


def test_a_machine_whose_clock_is_ahead_removes_nothing_before_its_time(lake: Lake) -> None:
    at(lake, NOON + 400 * DAY)
    add_files(lake, [batch("f", "r", NOON, 3)])
    kept(lake, days=30)
    store = DatedStore(lake, NOON)
    assert after_expiry(lake, replace(lake.compactor, store=store)).hours_expired == 0
    assert after_expiry(lake).hours_expired == 1
