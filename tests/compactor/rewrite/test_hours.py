"""Hours rewritten beside everything else that happens to a table. The engine is plain Python."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from compactor.assignment import HOURS, Alone, Assigner, Assignment, open_assigner
from compactor.cleanup import ORPHAN_HOURS
from compactor.ingest import ingest_all
from compactor.report import PassReport
from compactor.rewrite import replace as replace_files
from compactor.rewrite import rewrite_hours
from compactor.runner import once
from compactor.settings import Compaction, CompactorSettings
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import PreconditionFailed
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.table.schema import ROW_GROUP_ROWS, level_of
from tailrace.logstore.table.table import Advance, TableChange, commit
from tests.compactor.another_driver import elsewhere
from tests.compactor.files import add_files, commit_files, write_file
from tests.compactor.lake import HOUR, NOON, Batch, Lake, batch
from tests.compactor.plain_engine import PlainEngine

SETTLE = 900_000
HALF_PAST_ONE = NOON + HOUR + HOUR // 2


@pytest.fixture
def plain(lake: Lake) -> Lake:
    """A store in which an hour is over and nothing runs by Spark."""
    lake.session = PlainEngine()
    at(lake, HALF_PAST_ONE)
    return lake


def at(lake: Lake, now: int) -> None:
    lake.clock.shift_ms = now - SystemClock().now_ms()


def parts(count: int, *, salt: int = 0) -> list[Batch]:
    """Batches of runs that overlap in time, all of the hour at noon."""
    return [batch("f", f"r{i % 3}", NOON + i, 20, salt=salt + i) for i in range(count)]


def rewritten(lake: Lake) -> PassReport:
    report = PassReport()
    lake.run(rewrite_hours(lake.compactor, report))
    return report


def took_in(lake: Lake) -> PassReport:
    report = PassReport()
    lake.run(ingest_all(lake.compactor, report))
    return report


def levels(lake: Lake) -> list[int]:
    return sorted(level_of(file.path) for file in lake.snapshot().files)


@contextmanager
def meanwhile(lake: Lake, step: str, work: Callable[[Lake], object]) -> Iterator[None]:
    """When the step is reached for the first time, another driver does its work."""
    other = Lake(lake.data, session=lake.session, clock=lake.clock, limits=lake.limits)
    done = False

    def reached(name: str) -> None:
        nonlocal done
        if name == step and not done:
            done = True
            elsewhere(lambda: work(other))

    lake.reached = reached
    yield
    lake.reached = lambda _step: None
    assert done


def test_an_hour_that_is_over_becomes_one_sorted_file_with_the_same_lines(plain: Lake) -> None:
    sent = parts(5)
    add_files(plain, *([one] for one in sent))
    before = plain.snapshot()
    report = rewritten(plain)
    plain.holds(sent)
    assert levels(plain) == [1]
    assert (report.hours_rewritten, report.files_rewritten) == (1, 5)
    assert report.bytes_rewritten == plain.snapshot().files[0].size
    entry = plain.run(plain.store.get(f"{keys.TABLE}/_delta_log/{before.version + 1:020}.json"))[1]
    actions = [orjson.loads(line) for line in entry.splitlines()]
    changes = [a[kind]["dataChange"] for a in actions for kind in ("add", "remove") if kind in a]
    assert changes == [False] * 6
    again = rewritten(plain)
    assert (again.hours_rewritten, again.files_rewritten) == (0, 0)


def test_a_file_of_an_older_layout_is_rewritten_once_with_the_same_lines(plain: Lake) -> None:
    sent = [batch("f", "r1", NOON, ROW_GROUP_ROWS), batch("f", "r2", NOON + 1, 7)]
    snapshot = commit_files(plain, [write_file(plain, sent, group_rows=1 << 20)])
    assert [file.outdated for file in snapshot.files] == [True]
    report = rewritten(plain)
    plain.holds(sent)
    (file,) = plain.snapshot().files
    footer = pq.read_metadata(file.uri)
    rows = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
    assert (rows, file.outdated, levels(plain)) == ([ROW_GROUP_ROWS, 7], False, [1])
    assert (report.hours_rewritten, report.files_rewritten) == (1, 1)
    assert rewritten(plain).hours_rewritten == 0


def test_a_query_that_began_before_reads_each_line_once(plain: Lake) -> None:
    sent = parts(5)
    add_files(plain, *([one] for one in sent))
    pinned = plain.snapshot()
    at(plain, SystemClock().now_ms())  # delta-rs has no other: what it takes as old is by this one
    plain.run(once(plain.compactor))
    assert levels(plain) == [1]
    lines = [
        (row["run_id"], row["ulid"])
        for file in pinned.files
        for row in pq.ParquetFile(file.uri).read(["run_id", "ulid"]).to_pylist()
    ]
    assert len(lines) == len(set(lines)) == 100


def test_an_hour_is_not_over_before_it_has_settled(plain: Lake) -> None:
    add_files(plain, *([one] for one in parts(5)))
    at(plain, NOON + HOUR + SETTLE - 5_000)
    assert rewritten(plain).hours_rewritten == 0
    at(plain, NOON + HOUR + SETTLE)
    assert rewritten(plain).hours_rewritten == 1


def test_segments_that_wait_keep_an_hour_open_but_not_for_ever(plain: Lake) -> None:
    """A gap: what is behind it was uploaded within the hour, and may be full of it."""
    now = SystemClock().now_ms()
    hour = now // HOUR * HOUR
    sent = [batch("f", "r", hour + i, 5) for i in range(5)]
    add_files(plain, *([one] for one in sent))
    key = plain.put("a", [sent[0]], seq=2)
    os.utime(plain.store.uri(key), (now / 1000, now / 1000))  # also where an hour began since
    at(plain, hour + 2 * HOUR)
    assert rewritten(plain).hours_rewritten == 0
    long_ago = now / 1000 - 25 * 3600
    os.utime(plain.store.uri(key), (long_ago, long_ago))
    assert rewritten(plain).hours_rewritten == 1
    plain.holds(sent)


def test_deleted_lines_do_not_survive_a_rewriting(plain: Lake) -> None:
    sent = parts(6)
    add_files(plain, *([one] for one in sent))
    plain.delete("f", "r1", ulids.highest_at(NOON + HOUR))
    rewritten(plain)
    plain.holds([one for one in sent if one[0].run != "r1"])
    plain.delete("f", None, ulids.highest_at(NOON + HOUR))
    add_files(plain, *([one] for one in parts(5, salt=100)))
    rewritten(plain)
    assert plain.snapshot().files == ()


def test_two_that_rewrite_one_hour_replace_it_once(plain: Lake) -> None:
    sent = parts(5)
    add_files(plain, *([one] for one in sent))
    reports: list[PassReport] = []
    with meanwhile(plain, "rewrite placed", lambda other: reports.append(rewritten(other))):
        reports.append(rewritten(plain))
    assert [report.hours_rewritten for report in reports] == [1, 0]
    plain.holds(sent)
    assert levels(plain) == [1]


@pytest.mark.parametrize("gone", [1, 5])
def test_files_of_which_some_are_gone_are_not_replaced(plain: Lake, gone: int) -> None:
    """It is seen before the commit, which would refuse it as well, is tried again."""
    sent = parts(5)
    planned = add_files(plain, *([one] for one in sent))
    made = write_file(plain, sent)
    table, clock = plain.compactor.table, SystemClock()
    removed = planned.files[:gone]
    commit(table, planned, TableChange(removed=removed), job="OTHER", clock=clock)
    steps: list[str] = []
    plain.reached = steps.append
    change = TableChange([made], removed=planned.files)
    with pytest.raises(PreconditionFailed, match="moved"):
        plain.run(replace_files(plain.compactor, planned, change))
    assert steps == []
    left = {file.path for file in plain.snapshot().files}
    assert left == {file.path for file in planned.files} - {file.path for file in removed}


def test_all_files_of_the_table_are_replaced_though_others_commit(plain: Lake) -> None:
    sent = parts(5)
    planned = add_files(plain, *([one] for one in sent))
    made = write_file(plain, sent)
    table, clock = plain.compactor.table, SystemClock()
    commit(table, planned, TableChange(advances=[Advance("x", 1, 1)]), job="OTHER", clock=clock)
    change = TableChange([made], removed=planned.files)
    after = plain.run(replace_files(plain.compactor, planned, change))
    assert [file.path for file in after.files] == [made.path]
    plain.holds(sent)


@pytest.mark.parametrize(("later_ms", "runs"), [(0, ["r0", "r1", "r2"]), (1, ["r0", "r2"])])
def test_a_rewriting_does_deletions_that_came_after_the_last_purge(
    plain: Lake, later_ms: int, runs: list[str]
) -> None:
    """One that is said to be done is in no file; here it is said of one that was not."""
    add_files(plain, *([one] for one in parts(5)))
    plain.delete("f", "r1", ulids.highest_at(NOON + HOUR))
    (stored,) = plain.run(plain.compactor.deletions.all(plain.store))
    table, clock = plain.compactor.table, SystemClock()
    done = TableChange(purged_ms=stored.modified_ms - later_ms)
    commit(table, table.snapshot(), done, job="OTHER", clock=clock)
    assert rewritten(plain).hours_rewritten == 1
    assert sorted({record[1] for record in plain.table()}) == runs


def test_an_intake_into_the_hour_costs_no_second_rewriting(plain: Lake) -> None:
    """Late lines, some of them again: the rewriting is committed on the version that has them."""
    sent, late = parts(5), parts(2, salt=50)
    add_files(plain, *([one] for one in sent))
    plain.put("a", [*late, sent[2]])
    with meanwhile(plain, "rewrite placed", took_in):
        report = rewritten(plain)
    assert (report.hours_rewritten, report.files_rewritten) == (1, 5)
    plain.holds([*sent, *late])
    assert levels(plain) == [0, 1]
    assert plain.snapshot().mark("a") == 1


def test_what_an_intake_held_to_be_there_is_rewritten_meanwhile(plain: Lake) -> None:
    sent, late = parts(5), parts(2, salt=50)
    add_files(plain, *([one] for one in sent))
    plain.put("a", [*late, *sent])
    with meanwhile(plain, "placed", rewritten):
        took_in(plain)
    plain.holds([*sent, *late])
    assert plain.snapshot().mark("a") == 1


def test_a_purge_of_the_same_files_wins_or_loses_whole(plain: Lake) -> None:
    """Deleted while the hour is rewritten: lines that were read before do not come back."""
    sent = parts(6)
    add_files(plain, *([one] for one in sent))

    def delete(other: Lake) -> None:
        other.limits = Compaction(settle_seconds=10**9, purge_seconds=0)
        other.delete("f", "r1", ulids.highest_at(NOON + HOUR))
        other.compact()
        other.holds([one for one in sent if one[0].run != "r1"])

    with meanwhile(plain, "rewrite placed", delete):
        rewritten(plain)
    plain.holds([one for one in sent if one[0].run != "r1"])


def test_killed_at_any_step_the_lines_are_there_once_and_nothing_is_left_over(plain: Lake) -> None:
    sent = parts(5)
    add_files(plain, *([one] for one in sent))

    class KilledError(Exception):
        pass

    def kill(step: str) -> None:
        def reached(name: str) -> None:
            if name == step:
                raise KilledError(step)

        plain.reached = reached
        with pytest.raises(KilledError):
            rewritten(plain)
        plain.holds(sent)

    for step in ("rewrite written", "rewrite placed"):
        kill(step)
        assert levels(plain) == [0] * 5
    kill("hour committed")
    assert levels(plain) == [1]
    plain.reached = lambda _step: None
    at(plain, SystemClock().now_ms() + (ORPHAN_HOURS + 1) * HOUR)
    assert plain.compact().hours_rewritten == 0
    plain.holds(sent)


def test_new_files_too_old_to_be_committed_are_not(plain: Lake) -> None:
    """A driver that stood still for half a day: what it wrote may have been vacuumed."""
    sent = parts(5)
    add_files(plain, *([one] for one in sent))

    def stand_still(name: str) -> None:
        if name == "rewrite placed":
            plain.clock.shift_ms += 13 * HOUR

    plain.reached = stand_still
    at(plain, SystemClock().now_ms() + HOUR)
    report = rewritten(plain)
    assert report.hours_rewritten == 0
    assert levels(plain) == [0] * 5
    plain.reached = lambda _step: None
    at(plain, SystemClock().now_ms() + HOUR)
    assert rewritten(plain).hours_rewritten == 1
    plain.holds(sent)


def test_hours_are_shared_by_leases_that_are_gone_afterwards(plain: Lake, tmp_path: Path) -> None:
    hours = [[batch("f", "r", NOON + h * HOUR + i, 5) for i in range(4)] for h in range(3)]
    add_files(plain, *([one] for some in hours for one in some))
    at(plain, NOON + 5 * HOUR)
    held = ["2026-11-21T12"]

    def assigner(data: Path) -> AbstractAsyncContextManager[Assigner]:
        settings = CompactorSettings(data=str(data))
        return open_assigner(settings, plain.store, SystemClock(), system_entropy(), Disk())

    async def scenario() -> tuple[PassReport, PassReport]:
        async with assigner(tmp_path / "one") as one, assigner(tmp_path / "two") as two:
            async with two.joined(HOURS) as assignment:
                assert await assignment.claim(held, held) == held
                first, compactor = PassReport(), replace(plain.compactor, assigner=one)
                await rewrite_hours(compactor, first)
            second = PassReport()
            await rewrite_hours(replace(plain.compactor, assigner=two), second)
            return first, second

    first, second = asyncio.run(scenario())
    assert (first.hours_rewritten, first.hours_held_elsewhere) == (2, 1)
    assert (second.hours_rewritten, second.hours_held_elsewhere) == (1, 0)
    assert second.hour_leases["partitionsDeleted"] == 1
    plain.holds([one for some in hours for one in some])
    assert levels(plain) == [1, 1, 1]


class Losing(Alone):
    """Somebody else has each hour by the time that it is to be committed."""

    @asynccontextmanager
    async def joined(self, kind: str = "") -> AsyncIterator[Assignment]:
        assert kind == HOURS
        yield self

    def check(self, nodes: Collection[str]) -> None:
        raise PreconditionFailed(f"the lease of {nodes} is lost")


def test_an_hour_whose_lease_is_lost_is_not_committed(plain: Lake) -> None:
    add_files(plain, *([one] for one in parts(5)))
    report = PassReport()
    plain.run(rewrite_hours(replace(plain.compactor, assigner=Losing()), report))
    assert report.hours_rewritten == 0
    assert levels(plain) == [0] * 5
