"""What is left out as deleted, at the edges of a time range."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.query.request import QueryRequest, UlidRange
from service.query.sources import Deletion, live
from service.query.sql import Scans, Statement
from tailrace.logstore import ulid
from tailrace.logstore.table.schema import RECORD_SCHEMA

LOW, HIGH = ulid.lowest_at(1_000), ulid.highest_at(2_000)
HOUR_RANGE = UlidRange(LOW, HIGH)


@pytest.mark.parametrize("count", [1, 64, 65])
def test_a_deletion_ends_with_its_last_line(count: int) -> None:
    middle = ulid.lowest_at(1_500)
    deletions: list[Deletion] = [("f", "r", middle), *[("g", "x", HIGH)] * (count - 1)]
    found = live(deletions, HOUR_RANGE)
    assert bool(found.tables) == (count > 64)
    with duckdb.connect() as connection:
        for name, table in found.tables.items():
            connection.register(name, table)
        for at, run, kept in ((middle, "r", 0), (middle + 1, "r", 1), (middle, "other", 1)):
            row = "SELECT 'f' AS fqn, $run AS run_id, $ulid AS ulid"
            statement = f"SELECT count(*) FROM ({row}) r WHERE true{found.terms}"
            bound = {"run": run, "ulid": ulid.encode(at)} | found.parameters
            assert connection.execute(statement, bound).fetchone() == (kept,)


def test_what_ends_before_the_time_range_needs_no_term() -> None:
    assert live([("f", "r", LOW - 1), ("f", None, LOW - 1)] * 100, HOUR_RANGE).terms == ""
    assert live([("f", "r", LOW)], HOUR_RANGE).terms != ""
    assert live([], HOUR_RANGE).terms == ""


@pytest.mark.parametrize("count", [0, 1, 64])
def test_only_keys_are_read_of_what_is_not_given(tmp_path: Path, count: int) -> None:
    """DuckDB sorts keys, and fetches the other columns of the rows that are left."""
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_pylist([], RECORD_SCHEMA), path)
    deletions: list[Deletion] = [("f", f"r{number}", HIGH) for number in range(count)]
    found, statement = live(deletions, HOUR_RANGE), Statement(QueryRequest(limit=9))
    text = statement.records(Scans(["table"]), None, 9, found.terms)
    bound = statement.parameters(HOUR_RANGE, None) | found.parameters | {"table": [path]}
    with duckdb.connect() as connection:
        ((_, plan),) = connection.execute(f"EXPLAIN {text}", bound).fetchall()
    assert "file_row_number" in plan
