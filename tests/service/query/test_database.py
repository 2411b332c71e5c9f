"""What a search's database may touch: files below its folders, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.query.duckdb import Database, LockedDatabase, in_this_process
from service.query.duckdb_process import ProcessConnection
from service.query.sql import literal
from service.settings import QuerySettings
from tailrace.logstore.errors import Damaged, LimitReached, StoreUnavailable, TailraceError


@pytest.fixture(params=[in_this_process, ProcessConnection])
def database(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    folders, spill = [str(tmp_path / "store")], str(tmp_path / "spill")
    made = Database(LockedDatabase(QuerySettings(), folders, spill, connect=request.param))
    yield made
    made.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM read_parquet('{outside}')",
        "SELECT count(*) FROM read_text('/etc/passwd')",
        "SELECT count(*) FROM read_text('{inside}/../outside.parquet')",
        "COPY (SELECT 1) TO '{outside}.copy'",
        "ATTACH '{outside}.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT count(*) FROM read_parquet('http://127.0.0.1:9/x.parquet')",
        "SET enable_external_access = true",
        "SET memory_limit = '1TB'",
    ],
)
def test_nothing_else_is_read_written_loaded_or_set(
    database: Database, tmp_path: Path, statement: str
) -> None:
    (tmp_path / "store").mkdir()
    outside = tmp_path / "outside.parquet"
    pq.write_table(pa.table({"a": [1]}), outside)
    filled = statement.format(outside=outside, inside=tmp_path / "store")
    with pytest.raises(Damaged):
        database.number(filled, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside.parquet", "store"]


def test_names_of_files_are_not_patterns_of_others(database: Database, tmp_path: Path) -> None:
    folder = tmp_path / "store" / "od[d] *name?"
    folder.mkdir(parents=True)
    path = folder / "a.parquet"
    pq.write_table(pa.table({"a": [1, 2]}), path)
    other = tmp_path / "store" / "odd my-names"
    other.mkdir()
    pq.write_table(pa.table({"a": [3]}), other / "a.parquet")
    statement = "SELECT count(*) FROM read_parquet($files)"
    assert database.number(statement, {"files": [literal(str(path))]}) == 2


def test_an_error_of_a_feed_comes_out_as_it_was_raised(database: Database) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"a": [1]})
        raise StoreUnavailable("no disk", hint="buy one")

    database.feed("journal", pa.schema([("a", pa.int64())]), broken())
    with pytest.raises(StoreUnavailable) as caught:
        database.number("SELECT count(*) FROM journal", {})
    assert caught.value.hint == "buy one"


def test_what_was_interrupted_stays_so(database: Database) -> None:
    reason = TailraceError("enough")
    database.interrupt(reason)
    with pytest.raises(TailraceError) as caught:
        database.number("SELECT 1", {})
    assert caught.value is reason


def test_a_process_that_ends_by_itself_ends_its_search(tmp_path: Path) -> None:
    """The kernel may take the one that needs the most memory."""
    processes: list[ProcessConnection] = []

    def connect(config: Mapping[str, Any]) -> ProcessConnection:
        processes.append(ProcessConnection(config))
        return processes[-1]

    database = Database(
        LockedDatabase(QuerySettings(), [], str(tmp_path / "spill"), connect=connect)
    )
    processes[0].interrupt()  # not by way of the database, which knows of nothing
    with pytest.raises(LimitReached, match="ended with status -9"):
        database.check_regex("a")
    with pytest.raises(LimitReached, match="ended with status -9"):
        database.hold("few", pa.table({"a": [1]}))
    with pytest.raises(LimitReached, match="ended with status -9"):
        database.feed("journal", pa.schema([("a", pa.int64())]), iter(()))
    with pytest.raises(LimitReached, match="ended with status -9"):
        database.number("SELECT 1", {})
    database.close()


def test_an_error_has_its_class_on_both_sides() -> None:
    process = ProcessConnection({})
    try:
        with pytest.raises(duckdb.ParserException, match="syntax error"):
            process.execute("SELEC 1")
        batches = process.execute("SELECT 7 AS a").to_arrow_reader(1)
        assert [batch.to_pylist() for batch in batches] == [[{"a": 7}]]
    finally:
        process.close()
