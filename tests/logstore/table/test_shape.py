"""A table that another program changed is refused, and what is harmless is not."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from tailrace.logstore.errors import UnsupportedVersion
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import Advance, Table, commit_segments
from tests import reshaped
from tests.logstore.table.conftest import WriteFile
from tests.reshaped import Action, Reshape
from tests.simulation.clocks import ManualClock


@pytest.fixture
def filled(table: Table, clock: ManualClock, write_file: WriteFile) -> TableSnapshot:
    """Version 1, with five lines and a mark."""
    made = write_file("a", rows=5)
    return commit_segments(
        table, table.create(), [made], [Advance("n", 1, 1)], job="J", clock=clock
    )


def extra(columns: list[Action]) -> list[Action]:
    return [*columns, {"name": "note", "type": "string", "nullable": True, "metadata": {}}]


def checked(columns: list[Action]) -> list[Action]:
    return [
        c | {"metadata": {"delta.invariants": "{}"}} if c["name"] == "pos" else c for c in columns
    ]


def other_type(columns: list[Action]) -> list[Action]:
    return [c | {"type": "integer"} if c["name"] == "pos" else c for c in columns]


def fewer(columns: list[Action]) -> list[Action]:
    return [column for column in columns if column["name"] != "level"]


REFUSED: list[tuple[Reshape, str]] = [
    (reshaped.with_deletion_vector, "its readers must know deletionVectors"),
    (reshaped.with_column_mapping, "its readers must know columnMapping"),
    (reshaped.with_columns(fewer), "column level is gone"),
    (reshaped.with_columns(other_type), "column pos is of another type"),
    (reshaped.with_partitions("date"), "it is partitioned by date"),
]
NOT_WRITTEN: list[tuple[Reshape, str]] = [
    (reshaped.with_columns(extra), "it has a column note"),
    (reshaped.with_columns(checked), "column pos has delta.invariants"),
    (reshaped.with_configuration(appendOnly="true"), "it has delta.appendOnly = true"),
    (
        reshaped.with_configuration(**{"constraints.c": "pos > 0"}),
        "it has delta.constraints.c = pos > 0",
    ),
    (
        reshaped.with_writer_features("appendOnly", "rowTracking"),
        "its writers must know rowTracking",
    ),
]
HARMLESS: list[Reshape] = [
    reshaped.with_writer_features("appendOnly", "invariants", "changeDataFeed"),
    reshaped.with_configuration(logRetentionDuration="interval 30 days"),
]


def test_what_is_refused_is_a_real_one(filled: TableSnapshot) -> None:
    """delta-rs, which knows deletion vectors, has three lines; the file as it stands five."""
    (file,) = filled.files
    reshaped.with_deletion_vector(Path(filled.uri), [0, 2])
    known = QueryBuilder().register("t", DeltaTable(filled.uri)).execute("SELECT ulid FROM t")
    assert pa.table(known).num_rows == 3
    plain = duckdb.sql(f"SELECT count(*) FROM read_parquet('{file.uri}')").fetchone()
    assert plain == (5,)


@pytest.mark.parametrize(("change", "reason"), REFUSED)
def test_a_table_of_another_shape_is_not_read(
    filled: TableSnapshot, table: Table, change: Reshape, reason: str
) -> None:
    change(Path(table.uri))
    for opened in (
        table.snapshot,
        table.create,
        lambda: table.marks_at(0, ["n"]),
        lambda: table.orphans(24),
    ):
        with pytest.raises(UnsupportedVersion, match=reason) as refused:
            opened()
        assert "A table of another shape" in refused.value.hint
    assert table.mark("n") == 1


@pytest.mark.parametrize(("change", "reason"), REFUSED + NOT_WRITTEN)
def test_nor_written_to(
    filled: TableSnapshot,
    table: Table,
    clock: ManualClock,
    write_file: WriteFile,
    change: Reshape,
    reason: str,
) -> None:
    """A snapshot of before does not help: what it plans is not the next version."""
    change(Path(table.uri))
    newest = TableSnapshot(table.uri, 2, DeltaTable(table.uri))
    advance = Advance("n", 2, 2)
    with pytest.raises(UnsupportedVersion, match=reason):
        commit_segments(table, newest, [write_file("b")], [advance], job="K", clock=clock)
    assert DeltaTable(table.uri).version() == 2


@pytest.mark.parametrize("change", [change for change, _ in NOT_WRITTEN])
def test_what_only_writers_must_know_is_read(
    filled: TableSnapshot, table: Table, change: Reshape
) -> None:
    change(Path(table.uri))
    assert [file.path for file in table.snapshot().files] == [file.path for file in filled.files]


@pytest.mark.parametrize("change", HARMLESS)
def test_what_changes_nothing_is_read_and_written(
    filled: TableSnapshot, table: Table, clock: ManualClock, write_file: WriteFile, change: Reshape
) -> None:
    change(Path(table.uri))
    newest = table.snapshot()
    advance = Advance("n", 2, 2)
    after = commit_segments(table, newest, [write_file("b")], [advance], job="K", clock=clock)
    assert (len(after.files), after.mark("n")) == (2, 2)
    loaded = QueryBuilder().register("t", DeltaTable(table.uri)).execute("SELECT ulid FROM t")
    assert pa.table(loaded).num_rows == 8
