"""Deleted lines leave the table's files, and nothing else does. Files come by hand."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from compactor.assignment import Alone
from compactor.cleanup import expire
from compactor.purge import pending, purge
from compactor.report import PassReport
from compactor.settings import Compaction
from compactor.spark.engine import MergeInput, RewriteInput, WrittenCounts
from tailrace.logstore import keys, ulid
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import PreconditionFailed
from tailrace.logstore.runs.deletions import Deletion, StoredDeletion
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import Advance, TableChange, commit
from tests.compactor.another_driver import elsewhere
from tests.compactor.dated_store import DatedStore
from tests.compactor.files import add_files, commit_files, write_file
from tests.compactor.lake import HOUR, NOON, Batch, Lake, batch
from tests.compactor.maintenance.test_consumers import Between
from tests.compactor.plain_engine import PlainEngine

EVER = ulid.highest_at(NOON + 1_000 * HOUR)
AT_ONCE = Compaction(purge_seconds=0)


class NoEngine:
    """What must do without one."""

    running = False

    def cores(self) -> int:
        raise AssertionError("an engine was started")

    def merge(self, work: MergeInput, folder: str) -> WrittenCounts:
        raise AssertionError("an engine was started")

    def rewrite(self, work: RewriteInput, folder: str) -> int:
        raise AssertionError("an engine was started")

    def share_batches(self, some: Mapping[str, int], others: Mapping[str, int]) -> bool:
        raise AssertionError("an engine was started")

    def stop(self) -> None:
        """Nothing runs."""


@pytest.fixture
def plain(lake: Lake) -> Lake:
    lake.session = PlainEngine()
    lake.limits = AT_ONCE
    return lake


def purged(lake: Lake) -> PassReport:
    report = PassReport()
    lake.run(purge(lake.compactor, report))
    return report


def later(lake: Lake, seconds: float = 61) -> None:
    """What was stored before is older than the margin."""
    lake.clock.shift_ms += round(seconds * 1000)


def paths(snapshot: TableSnapshot) -> set[str]:
    return {file.path for file in snapshot.files}


def of(run: str, hour: int, fqn: str = "f", lines: int = 20) -> Batch:
    return batch(fqn, run, NOON + hour * HOUR, lines)


def test_a_runs_lines_leave_the_files_that_have_some_and_no_other_file(plain: Lake) -> None:
    mixed = [of("gone", 0), of("kept", 0), of("zz", 0, "a")]
    before = add_files(plain, mixed, [of("kept", 1)], [of("other", 2)])
    plain.delete("f", "gone", EVER)
    later(plain)
    report = purged(plain)
    plain.holds([*mixed[1:], of("kept", 1), of("other", 2)])
    assert (report.files_purged, report.rows_purged, report.deletions_waiting) == (1, 20, 0)
    untouched = {file.path for file in before.files if file.start_ms > NOON}
    assert untouched < paths(plain.snapshot())


def test_what_is_done_is_not_looked_at_again(plain: Lake) -> None:
    add_files(plain, [of("gone", 0), of("kept", 0)])
    plain.delete("f", "gone", EVER)
    later(plain)
    purged(plain)
    version = plain.snapshot().version
    for file in plain.snapshot().files:
        plain.run(plain.store.delete([f"{keys.TABLE}/{file.path}"]))  # a look would be an alarm
    report = purged(plain)
    assert (report.alarms, report.deletions_waiting) == ([], 0)
    assert plain.snapshot().version == version


def test_a_deletion_that_cannot_be_read_holds_up_no_other_and_is_done_once_it_reads(
    plain: Lake,
) -> None:
    """As of a version that was upgraded since: the record is the one that was stored then."""
    kept, other = of("kept", 0), of("r", 1, "torn")
    add_files(plain, [of("gone", 0), kept], [other])
    plain.delete("torn", None, EVER)
    plain.delete("f", "gone", EVER)
    key = keys.deleted_pipeline("torn")
    path = Path(plain.settings.store_folder) / key
    intact, was = path.read_bytes(), path.stat()
    path.write_bytes(b"")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    later(plain)
    (alarm,) = purged(plain).alarms
    assert key in alarm
    plain.holds([kept, other])
    path.write_bytes(intact)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert purged(plain).alarms == []
    plain.holds([kept])


def test_a_deletion_of_this_very_minute_is_done_and_looked_at_once_more(plain: Lake) -> None:
    add_files(plain, [of("gone", 0), of("kept", 0)])
    plain.clock.shift_ms = -HOUR  # so that the minute does not end, however slow the machine is
    stored_ms = SystemClock().now_ms()
    plain.delete("f", "gone", EVER)
    assert purged(plain).rows_purged == 20
    plain.holds([of("kept", 0)])
    assert 0 < plain.snapshot().purged_ms < stored_ms - HOUR // 2
    plain.clock.shift_ms = HOUR
    assert purged(plain).rows_purged == 0
    assert plain.snapshot().purged_ms > stored_ms - 2_000


def deleted_at(lake: Lake, run: str, at_ms: int) -> None:
    """A deletion that its store says it has since then."""
    before = set(lake.keys(keys.DELETED))
    lake.delete("f", run, EVER)
    (key,) = set(lake.keys(keys.DELETED)) - before
    os.utime(lake.store.uri(key), ns=(at_ms * 1_000_000, at_ms * 1_000_000))


@pytest.mark.parametrize("seconds_before", [0, 30, 59])
def test_a_deletion_that_was_stored_before_the_listing_and_not_in_it_is_done_too(
    plain: Lake, seconds_before: int
) -> None:
    """A store may tell whole seconds, or when an upload began."""
    add_files(plain, [of("gone", 0), of("slow", 0), of("kept", 0)])
    listed = SystemClock().now_ms()
    plain.clock.shift_ms = HOUR  # the store's clock decides, which is behind
    plain.store = DatedStore(plain, listed)
    stored_at = (listed // 1_000 - seconds_before) * 1_000
    for run in ("gone", "slow"):
        deleted_at(plain, run, stored_at)
        assert purged(plain).rows_purged == 20
    plain.holds([of("kept", 0)])


def test_a_file_with_nothing_else_in_it_needs_no_engine(any_lake: Lake) -> None:
    lake = any_lake
    lake.session, lake.limits = NoEngine(), AT_ONCE
    add_files(lake, [of("gone", 0)], [of("kept", 0)])
    lake.delete("f", "gone", EVER)
    report = purged(lake)
    lake.holds([of("kept", 0)])
    assert (report.files_purged, report.files_rewritten) == (1, 0)


def test_what_is_above_the_deletion_is_of_the_run_that_came_after(plain: Lake) -> None:
    old, new = batch("f", "r", NOON, 40), batch("f", "r", NOON + 1_000, 40)
    add_files(plain, [old, new])
    plain.delete("f", "r", ulid.highest_at(NOON))
    purged(plain)
    plain.holds([new])


def test_a_pipeline_goes_with_all_its_runs(plain: Lake) -> None:
    add_files(plain, [of("1", 0), of("2", 0), of("1", 0, "ff")], [of("3", 1), of("3", 1, "e")])
    plain.delete("f", None, EVER)
    purged(plain)
    plain.holds([of("1", 0, "ff"), of("3", 1, "e")])


def test_names_of_any_script_and_bounds_that_the_log_left_out(plain: Lake) -> None:
    long, strange = "x" * 3_000, "ƒ\U0001f600 名"
    sent = [of("r", 0, long), of(strange, 0, strange), of("r", 0, strange)]
    add_files(plain, sent)
    plain.delete(strange, strange, EVER)
    plain.delete(long, None, EVER)
    purged(plain)
    plain.holds([sent[2]])


def test_many_small_deletions_wait_and_are_done_together(plain: Lake) -> None:
    plain.limits = Compaction(purge_seconds=3_600, purge_bytes=1)
    add_files(plain, [of("a", 0), of("b", 0), of("c", 0)])
    plain.delete("f", "a", EVER)
    assert purged(plain).deletions_waiting == 1
    later(plain, 1_800)
    plain.delete("f", "b", EVER)
    assert purged(plain).deletions_waiting == 2
    later(plain, 1_801)
    assert (purged(plain).rows_purged, plain.snapshot().version) == (40, 3)
    plain.holds([of("c", 0)])


def test_small_files_do_not_wait(plain: Lake) -> None:
    plain.limits = Compaction(purge_seconds=1e9)
    add_files(plain, [of("a", 0), of("b", 0)])
    plain.delete("f", "a", EVER)
    assert purged(plain).rows_purged == 20


def test_what_expires_soon_is_left_to_the_retention(lake: Lake) -> None:
    """And the deletion is done when it is gone, not before."""
    lake.session = NoEngine()
    lake.limits = Compaction(purge_seconds=0, retention_days=1)
    yesterday = SystemClock().now_ms() // HOUR * HOUR - 24 * HOUR
    lines = {run: batch("f", run, yesterday, 20) for run in ("gone", "kept")}
    later_on = batch("f", "kept", yesterday + 5 * HOUR, 20)
    add_files(lake, list(lines.values()), [later_on])
    lake.delete("f", "gone", ulid.highest_at(yesterday + 10 * HOUR))
    later(lake)
    report = purged(lake)
    assert (report.deletions_waiting, report.rows_purged) == (1, 0)
    later(lake, 3_601)
    lake.run(expire(lake.compactor, PassReport()))
    assert purged(lake).deletions_waiting == 0
    lake.holds([later_on])


@pytest.mark.parametrize("step", ["rewrite written", "rewrite placed", "hour purged", "purged"])
def test_killed_at_any_step_it_is_done_by_the_next(plain: Lake, step: str) -> None:
    kept = [of("kept", hour) for hour in range(3)]
    add_files(plain, *([of("gone", hour), kept[hour]] for hour in range(3)))
    plain.delete("f", "gone", EVER)

    def killed(name: str) -> None:
        if name == step:
            raise KeyboardInterrupt

    plain.reached = killed
    with pytest.raises(KeyboardInterrupt):
        purged(plain)
    plain.reached = lambda _step: None
    purged(plain)
    plain.holds(kept)
    later(plain)
    purged(plain)
    assert plain.snapshot().purged_ms > 0


@dataclass
class Busy(PlainEngine):
    """While it works, somebody commits."""

    lake: Lake | None = None
    others: Sequence[Sequence[Batch]] = ()

    def rewrite(self, work: RewriteInput, folder: str) -> int:
        rows = super().rewrite(work, folder)
        if self.lake is not None and self.others:
            lake, more = self.lake, self.others[0]
            self.others = self.others[1:]
            mark = lake.snapshot().mark("n")
            commit_files(lake, [write_file(lake, more)], [Advance("n", mark + 1, mark + 1)])
        return rows


def test_what_others_commit_meanwhile_stays_and_is_looked_at(plain: Lake) -> None:
    add_files(plain, [of("gone", 0), of("kept", 0)], [of("gone", 1), of("kept", 1)])
    plain.session = Busy(lake=plain, others=[[of("new", 0)], [of("gone", 3), of("new", 3)]])
    plain.delete("f", "gone", EVER)
    later(plain)
    report = purged(plain)
    plain.holds([of("kept", 0), of("kept", 1), of("new", 0), of("new", 3)])
    assert (report.rows_purged, report.deletions_waiting) == (60, 0)
    assert plain.snapshot().purged_ms > 0


def test_what_others_commit_between_a_look_and_its_note_is_looked_at(tmp_path: Path) -> None:
    """At each step: what is called done is never done of a version that nobody looked at."""

    def comes_at(step: int) -> bool:
        """Whether there was such a step."""
        lake = Lake(tmp_path / str(step), limits=AT_ONCE, session=PlainEngine())
        add_files(lake, [of("a", 0), of("z", 0)])  # a look at it finds nothing
        lake.delete("f", "gone", EVER)
        later(lake)
        straight = lake.store

        async def come() -> None:
            lake.store = straight
            elsewhere(lambda: add_files(lake, [of("gone", 1), of("kept", 1)]))

        lake.store = line = Between(straight, step, come)
        report = purged(lake)
        if line.left > 0:
            return False
        assert (report.rows_purged, report.deletions_waiting) == (20, 0)
        assert lake.snapshot().purged_ms > 0
        lake.holds([of("a", 0), of("z", 0), of("kept", 1)])
        return True

    step = 1
    while comes_at(step):
        step += 1
    assert step > 3, "the deletions' list, a deletion, a file"


def test_two_at_once_take_each_line_out_once(plain: Lake) -> None:
    add_files(plain, [of("gone", 0), of("kept", 0)])
    plain.delete("f", "gone", EVER)
    other = Lake(plain.data, limits=AT_ONCE, session=PlainEngine())

    class Meanwhile(PlainEngine):
        def rewrite(self, work: RewriteInput, folder: str) -> int:
            rows = super().rewrite(work, folder)
            if not reports:
                reports.append(PassReport())
                other.run(purge(other.compactor, reports[0]))
            return rows

    reports: list[PassReport] = []
    plain.session = Meanwhile()
    assert purged(plain).rows_purged == 0
    assert reports[0].rows_purged == 20
    plain.holds([of("kept", 0)])


class Losing(Alone):
    """Somebody else has each hour by the time that it is to be committed."""

    def check(self, nodes: Collection[str]) -> None:
        raise PreconditionFailed(f"the lease of {nodes} is lost")


def test_an_hour_whose_lease_is_lost_is_left_to_who_has_it(plain: Lake) -> None:
    before = add_files(plain, [of("gone", 0), of("kept", 0)])
    plain.delete("f", "gone", EVER)
    report = PassReport()
    plain.run(purge(replace(plain.compactor, assigner=Losing()), report))
    assert (report.rows_purged, report.deletions_waiting) == (0, 1)
    assert plain.snapshot().version == before.version


def test_a_file_that_does_not_read_is_an_alarm_and_never_called_done(plain: Lake) -> None:
    snapshot = add_files(plain, [of("gone", 0), of("kept", 0)], [of("gone", 1), of("kept", 1)])
    first = min(snapshot.files, key=lambda file: file.start_ms)
    plain.put_bytes(f"{keys.TABLE}/{first.path}", b"not Parquet")
    plain.delete("f", "gone", EVER)
    later(plain)
    report = purged(plain)
    assert [first.path in alarm for alarm in report.alarms] == [True]
    assert report.rows_purged == 20
    assert plain.snapshot().purged_ms == 0


def test_without_a_table_there_is_nothing_to_do(plain: Lake) -> None:
    plain.delete("f", "r", EVER)
    assert purged(plain).deletions_waiting == 0


def stored(run: str, modified_ms: int) -> StoredDeletion:
    deletion = Deletion("f", run, 1)
    return StoredDeletion(deletion, modified_ms, deletion.key)


def test_what_is_said_to_be_done_is_what_was_surely_listed() -> None:
    snapshot = TableSnapshot("nowhere")
    two = [stored("b", 5_000), stored("a", 4_000)]
    assert pending(snapshot, two, 60_000).until_ms == 5_000
    assert pending(snapshot, two, 4_500).until_ms == 4_500
    assert [one.deletion.run for one in pending(snapshot, two, 1).deletions] == ["a", "b"]
    assert pending(snapshot, [], 60_000).deletions == ()


def test_what_was_stored_at_the_very_time_that_is_said_is_done(plain: Lake) -> None:
    """Else it would be looked for in every pass, and the time be said again."""
    table = plain.compactor.table
    change, clock = TableChange(purged_ms=5_000), SystemClock()
    snapshot = commit(table, table.create(), change, job="J", clock=clock)
    three = [stored("a", 4_999), stored("b", 5_000), stored("c", 5_001)]
    found = pending(snapshot, three, 60_000)
    assert [one.deletion.run for one in found.deletions] == ["c"]
    assert found.until_ms == 5_001


def test_of_very_many_the_oldest_are_done_first_those_of_one_moment_together() -> None:
    every = [stored(f"{i}", 1_000 * (i // 2)) for i in range(2, 8)]
    some = pending(TableSnapshot("nowhere"), every, 60_000, most=3)
    assert [one.deletion.run for one in some.deletions] == ["2", "3"]
    assert some.until_ms == 1_999
    same = [stored(f"{i}", 1_000) for i in range(5)]
    assert len(pending(TableSnapshot("nowhere"), same, 60_000, most=3).deletions) == 5


@pytest.mark.spark
def test_a_deleted_run_leaves_the_table_with_the_next_pass(warm: Lake) -> None:
    sent = [batch("f", f"r{i}", NOON + i * 1_000, 30) for i in range(3)]
    warm.put("a", sent)
    warm.compact()
    warm.delete("f", "r1", EVER)
    report = warm.compact()
    assert (report.rows_purged, report.alarms) == (30, [])
    warm.holds([sent[0], sent[2]])
