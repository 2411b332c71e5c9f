"""Table files as Spark writes them: row groups that readers can skip."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from compactor.settings import Compaction
from compactor.spark.engine import RewriteInput
from compactor.spark.session import Session
from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.table.schema import ROW_GROUP_BYTES, ROW_GROUP_ROWS
from tests.compactor.lake import NOON, Batch, Lake, batch
from tests.logstore.table.pages.mapped import expected, given, made

pytestmark = pytest.mark.spark

_MORE = 5  # lines of the last group
_LONG = 1 << 20  # characters of a long line


@pytest.fixture
def short(warm: Lake) -> Lake:
    """A table file of more than two row groups of short lines, and another of its hour."""
    half = ROW_GROUP_ROWS + _MORE // 2
    warm.put("a", [batch("f", "r1", NOON, half), batch("f", "r2", NOON + 1, half + _MORE % 2)])
    warm.compact()
    return warm


def test_each_group_but_the_last_has_the_same_number_of_short_lines(short: Lake) -> None:
    (footer,) = _footers(short)
    assert _rows(footer) == [ROW_GROUP_ROWS, ROW_GROUP_ROWS, _MORE]


def test_what_is_written_again_has_the_same_groups(
    short: Lake, session: Session, tmp_path: Path
) -> None:
    (file,) = short.snapshot().files
    work = RewriteInput({file.uri: file.size}, file.rows, 1, [])
    assert session.rewrite(work, str(tmp_path / "out")) == file.rows
    (part,) = (tmp_path / "out").glob("part-*")
    assert _rows(pq.read_metadata(part)) == [ROW_GROUP_ROWS, ROW_GROUP_ROWS, _MORE]


def test_what_a_purge_leaves_has_the_same_groups(short: Lake) -> None:
    short.limits = Compaction(purge_seconds=0)
    short.delete("f", "r1", (NOON + 1) << 80)
    short.compact()
    (footer,) = _footers(short)
    left = ROW_GROUP_ROWS + _MORE // 2 + _MORE % 2
    assert _rows(footer) == [ROW_GROUP_ROWS, left - ROW_GROUP_ROWS]


def test_bounds_of_a_group_are_those_of_its_lines(short: Lake) -> None:
    (file,) = short.snapshot().files
    parquet = pq.ParquetFile(file.uri)
    for index in range(parquet.num_row_groups):
        rows = parquet.read_row_group(index, columns=["ulid", "fqn", "run_id"])
        for name in rows.column_names:
            values, bounds = rows[name].to_pylist(), _statistics(parquet.metadata, index)[name]
            assert (bounds.min, bounds.max) == (min(values), max(values))


def test_readers_find_bounds_pages_and_dictionaries_where_they_help(warm: Lake) -> None:
    fqn, run = "service." + "f" * 100, "run " + "é" * 100
    warm.put("a", [batch(fqn, run, NOON, 20), batch(fqn + "g", run + "0", NOON, 20)])
    warm.compact()
    (footer,) = _footers(warm)
    found = _statistics(footer, 0)
    bounded = {name for name, bounds in found.items() if bounds is not None and bounds.has_min_max}
    assert {"ulid", "fqn", "run_id", "ts", "pos"} <= bounded
    assert found["level"] is not None  # of lines without a level there are only nulls to count
    assert not {"message", "attributes.key_value.key", "attributes.key_value.value"} & bounded
    assert (found["fqn"].min, found["fqn"].max) == (fqn, fqn + "g")
    assert (found["run_id"].min, found["run_id"].max) == (run, run + "0")
    for name, chunk in _chunks(footer, 0).items():
        assert chunk.has_offset_index
        assert chunk.has_column_index == (found[name] is not None)
        assert chunk.has_dictionary_page == (name in {"fqn", "run_id"})


def test_each_group_has_a_map_of_its_lines(warm: Lake) -> None:
    warm.put("a", [batch("f", "r1", NOON, ROW_GROUP_ROWS), batch("f", "r2", NOON + 1, 700)])
    warm.compact()
    (file,) = warm.snapshot().files
    for group in range(2):
        found = made(Path(file.uri), group)
        assert found is not None
        assert given(Path(file.uri), found) == expected(Path(file.uri), group)


@pytest.mark.in_turn(4)
def test_a_group_of_long_lines_ends_by_its_bytes(warm: Lake) -> None:
    dice = random.Random(1)
    warm.put("a", [_long_line(dice, number) for number in range(100)])
    warm.compact()
    (footer,) = _footers(warm)
    sizes = [footer.row_group(index).total_byte_size for index in range(footer.num_row_groups)]
    assert sum(_rows(footer)) == 100
    assert len(sizes) > 3
    assert max(sizes) < 2 * ROW_GROUP_BYTES


def _long_line(dice: random.Random, number: int) -> Batch:
    text = dice.randbytes(_LONG // 2).hex()
    return RunKey("f", "r"), ulid.lowest_at(NOON + number), text.encode() + b"\n"


def _footers(lake: Lake) -> list[Any]:
    return [pq.read_metadata(file.uri) for file in lake.snapshot().files]


def _rows(footer: Any) -> list[int]:
    return [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]


def _chunks(footer: Any, index: int) -> dict[str, Any]:
    group = footer.row_group(index)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema: column for column in columns}


def _statistics(footer: Any, index: int) -> dict[str, Any]:
    return {name: chunk.statistics for name, chunk in _chunks(footer, index).items()}
