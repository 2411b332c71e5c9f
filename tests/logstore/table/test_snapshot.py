"""A snapshot stays what it was, and prunes only what cannot match."""

from __future__ import annotations

from tailrace.logstore import ulid
from tailrace.logstore.table.schema import NewFile
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import Advance, Table, commit_segments
from tests.logstore.table.conftest import HOUR, NOON, WriteFile
from tests.simulation.clocks import ManualClock


def commit(table: Table, clock: ManualClock, *files: NewFile, last: int = 1) -> TableSnapshot:
    advance = Advance("n1", last, last)
    return commit_segments(table, table.create(), files, [advance], job=f"J{last}", clock=clock)


def test_a_table_that_does_not_exist_is_empty(table: Table) -> None:
    snapshot = table.snapshot()
    assert snapshot.version == -1
    assert snapshot.files == ()
    assert snapshot.mark("n1") == 0


def test_a_snapshot_does_not_see_later_commits(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    before = commit(table, clock, write_file("a"))
    after = commit(table, clock, write_file("b"), last=2)
    assert [file.path for file in before.files] == ["date=2026-11-21/hour=12/a.parquet"]
    assert before.mark("n1") == 1
    assert len(after.files) == 2
    assert after.marks(["n1", "n2"]) == {"n1": 2, "n2": 0}


def test_files_carry_their_place_and_bounds(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    (file,) = commit(table, clock, write_file("a", rows=4)).files
    assert file.uri == f"{table.uri}/date=2026-11-21/hour=12/a.parquet"
    assert (file.date.isoformat(), file.hour, file.rows) == ("2026-11-21", 12, 4)
    assert file.ulids == (
        ulid.encode(ulid.lowest_at(NOON)),
        ulid.encode(ulid.lowest_at(NOON + 3)),
    )
    assert file.fqns == ("svc.etl", "svc.etl")


def test_files_are_pruned_by_ulid_fqn_and_run(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    snapshot = commit(
        table,
        clock,
        write_file("a", run="r1"),
        write_file("b", first_ms=NOON + 10_000, run="r2"),
        write_file("c", first_ms=NOON + HOUR, fqn="other"),
    )

    def names(**bounds: object) -> list[str]:
        return sorted(file.path[-9] for file in snapshot.files_for(**bounds))  # type: ignore[arg-type]

    assert names() == ["a", "b", "c"]
    assert names(lowest=ulid.lowest_at(NOON + 2)) == ["a", "b", "c"]
    assert names(lowest=ulid.lowest_at(NOON + 3)) == ["b", "c"]
    assert names(highest=ulid.lowest_at(NOON)) == ["a"]
    assert names(highest=ulid.lowest_at(NOON) - 1) == []
    assert names(lowest=ulid.lowest_at(NOON + HOUR - 1)) == ["c"]
    assert names(fqn="svc.etl") == ["a", "b"]
    assert names(fqn="svc.etl", run="r2") == ["b"]
    assert names(fqn="nobody") == []


def test_a_file_without_bounds_may_hold_anything(
    table: Table, clock: ManualClock, write_file: WriteFile
) -> None:
    snapshot = commit(table, clock, write_file("a", fqn="f" * 2_000))
    assert len(snapshot.files_for(fqn="f" * 2_000)) == 1
