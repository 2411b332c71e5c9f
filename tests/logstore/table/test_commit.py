"""What exactness rests on: delta-rs's behaviour as pinned, and our refusals."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tailrace.logstore.errors import (
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
)
from tailrace.logstore.table.schema import NewFile
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import Advance, Table, TableChange, commit, commit_segments
from tests.logstore.table.conftest import HOUR, WriteFile
from tests.simulation.clocks import ManualClock


def ingest(
    table: Table,
    snapshot: TableSnapshot,
    clock: ManualClock,
    *files: NewFile,
    node: str = "n1",
    first: int = 1,
    last: int = 1,
    job: str = "J",
) -> TableSnapshot:
    return commit_segments(
        table, snapshot, files, [Advance(node, first, last)], job=job, clock=clock
    )


def test_the_mark_is_read_back_from_the_application_transaction(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    after = ingest(table, table.create(), clock, write_file("a"), last=7)
    assert after.mark("n1") == 7
    assert Table(table.uri).snapshot().mark("n1") == 7


def test_a_stale_snapshot_is_refused_even_for_another_node(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    stale = table.create()
    ingest(table, stale, clock, write_file("a"), job="J1")
    with pytest.raises(PreconditionFailed):
        ingest(table, stale, clock, write_file("b"), node="n2", job="J2")
    newest = table.snapshot()
    assert newest.marks(["n1", "n2"]) == {"n1": 1, "n2": 0}
    assert len(newest.files) == 1


@pytest.mark.parametrize(("first", "last"), [(1, 1), (1, 3), (3, 3), (4, 4), (2, 1)])
def test_only_the_next_segments_are_taken_in(
    table: Table, clock: ManualClock, write_file: WriteFile, first: int, last: int
) -> None:
    snapshot = ingest(table, table.create(), clock, write_file("a"))
    with pytest.raises(PreconditionFailed):
        ingest(table, snapshot, clock, write_file("b"), first=first, last=last, job="J2")
    assert table.snapshot().version == snapshot.version


def test_several_nodes_advance_in_one_version_or_not_at_all(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    base = table.create()
    both = [Advance("n1", 1, 2), Advance("n2", 1, 5)]
    after = commit_segments(table, base, [write_file("a")], both, job="J1", clock=clock)
    assert after.marks(["n1", "n2"]) == {"n1": 2, "n2": 5}
    one_wrong = [Advance("n1", 3, 3), Advance("n2", 1, 5)]
    with pytest.raises(PreconditionFailed):
        commit_segments(table, after, [write_file("b")], one_wrong, job="J2", clock=clock)
    assert table.snapshot().mark("n1") == 2


def test_segments_without_a_line_move_the_mark(table: Table, clock: ManualClock) -> None:
    after = ingest(table, table.create(), clock, last=2)
    assert after.mark("n1") == 2
    assert after.files == ()


def test_a_commit_that_failed_but_happened_is_recognised(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    """The answer was lost: the same job tries again on the snapshot that it still holds."""
    planned = table.create()
    ingest(table, planned, clock, write_file("a"), job="MINE")
    ingest(table, table.snapshot(), clock, write_file("b"), first=2, last=2, job="OTHER")
    again = ingest(table, planned, clock, write_file("a"), job="MINE")
    assert again.mark("n1") == 2
    assert len(again.files) == 2


class Unanswered:
    """delta-rs's table, the first of whose commits are not confirmed: `done` ones are made."""

    def __init__(self, delta: DeltaTable, *, lost: int, done: int = 0) -> None:
        self._delta = delta
        self._lost, self._done = lost, done
        self.tried = 0

    def create_write_transaction(self, *args: Any, **kwargs: Any) -> None:
        self.tried += 1
        if self.tried <= self._done or self.tried > self._lost:
            self._delta.create_write_transaction(*args, **kwargs)
        if self.tried <= self._lost:
            raise CommitFailedError("no answer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delta, name)


def unanswered(table: Table, *, lost: int, done: int = 0) -> tuple[TableSnapshot, Unanswered]:
    base = table.create()
    assert base.delta is not None
    delta: Any = Unanswered(base.delta, lost=lost, done=done)
    return TableSnapshot(base.uri, base.version, delta, table.log), delta


def test_a_commit_that_failed_and_is_not_there_is_tried_again(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    planned, delta = unanswered(table, lost=1)
    after = ingest(table, planned, clock, write_file("a"), job="MINE")
    assert (delta.tried, after.version, after.mark("n1"), len(after.files)) == (2, 1, 1, 1)


def test_a_commit_that_failed_and_is_there_is_not_tried_again(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    planned, delta = unanswered(table, lost=1, done=1)
    after = ingest(table, planned, clock, write_file("a"), job="MINE")
    assert (delta.tried, after.version, after.mark("n1"), len(after.files)) == (1, 1, 1, 1)


def test_a_commit_that_is_never_confirmed_ends_as_unknown(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    planned, delta = unanswered(table, lost=1_000)
    with pytest.raises(OutcomeUnknown):
        ingest(table, planned, clock, write_file("a"), job="MINE")
    assert 1 < delta.tried < 100
    assert table.snapshot().version == 0


def test_files_that_the_vacuum_may_take_are_refused(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    file = write_file("a")
    base = table.create()
    clock.ms += 12 * HOUR + 1
    with pytest.raises(PreconditionFailed, match="older than 12 h"):
        ingest(table, base, clock, file)
    clock.ms -= 1
    assert ingest(table, base, clock, file).mark("n1") == 1


def test_no_table_no_commit(table: Table, clock: ManualClock) -> None:
    with pytest.raises(NotFound):
        ingest(table, table.snapshot(), clock)


def test_a_commit_that_cannot_be_looked_up_stays_unknown(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    base = table.create()
    log = Path(table.uri) / "_delta_log"
    (log / f"{1:020d}.json").write_text("{ this is not a commit")
    with pytest.raises(OutcomeUnknown):
        ingest(table, base, clock, write_file("a"))
    with pytest.raises(StoreUnavailable):
        table.snapshot()


def test_racing_writers_each_take_in_their_segments_once(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    table.create()
    files = {n: [write_file(f"{n}-{i}") for i in range(5)] for n in ("n1", "n2", "n3")}

    def drive(node: str) -> None:
        for index, file in enumerate(files[node]):
            attempt = 0
            while table.snapshot().mark(node) <= index:
                attempt += 1
                try:
                    job = f"{node}-{index}-{attempt}"
                    seq = index + 1
                    snapshot = table.snapshot()
                    ingest(table, snapshot, clock, file, node=node, first=seq, last=seq, job=job)
                except PreconditionFailed:
                    continue

    threads = [threading.Thread(target=drive, args=(node,)) for node in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    newest = table.snapshot()
    assert newest.marks(files) == {"n1": 5, "n2": 5, "n3": 5}
    assert sorted(f.path for f in newest.files) == sorted(
        f.path for group in files.values() for f in group
    )


def test_two_drivers_with_the_same_segments_commit_them_once(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    base = table.create()
    files = [write_file(f"driver-{i}") for i in range(4)]
    outcomes: list[str] = []

    def drive(index: int) -> None:
        try:
            ingest(table, base, clock, files[index], job=f"J{index}")
            outcomes.append("committed")
        except PreconditionFailed:
            outcomes.append("refused")

    threads = [threading.Thread(target=drive, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["committed", "refused", "refused", "refused"]
    assert len(table.snapshot().files) == 1


def test_files_go_and_come_in_one_version(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    before = ingest(table, table.create(), clock, write_file("a"), write_file("b"))
    gone = [file for file in before.files if file.path.endswith("a.parquet")]
    change = TableChange(files=[write_file("c")], removed=gone, purged_ms=17, same_lines=True)
    after = commit(table, before, change, job="J2", clock=clock)
    assert after.version == before.version + 1
    names = sorted(file.path.rpartition("/")[2] for file in after.files)
    assert names == ["b.parquet", "c.parquet"]
    assert (after.mark("n1"), after.purged_ms) == (1, 17)


def test_a_file_that_the_snapshot_has_not_is_not_removed(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    before = ingest(table, table.create(), clock, write_file("a"))
    after = commit(table, before, TableChange(removed=before.files), job="J2", clock=clock)
    with pytest.raises(PreconditionFailed, match="to remove"):
        commit(table, after, TableChange(removed=before.files), job="J3", clock=clock)
    assert (after.files, table.snapshot().version) == ((), after.version)


def test_of_two_that_remove_the_same_file_one_is_refused(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    before = ingest(table, table.create(), clock, write_file("a"))
    same = [TableChange(files=[write_file(name)], removed=before.files) for name in ("b", "c")]
    commit(table, before, same[0], job="J2", clock=clock)
    with pytest.raises(PreconditionFailed):
        commit(table, before, same[1], job="J3", clock=clock)
    assert len(table.snapshot().files) == 1
