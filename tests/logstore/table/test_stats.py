"""Bounds come from the footer, and only those that are known and short."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import orjson
import pytest

from tailrace.logstore import ulid
from tailrace.logstore.errors import Damaged, StoreUnavailable
from tailrace.logstore.table.schema import read_footer
from tests.logstore.table.conftest import NOON, WriteFile


def test_bounds_span_all_row_groups(write_file: WriteFile) -> None:
    file = write_file("a", rows=5)
    stats = orjson.loads(file.stats)
    assert (file.rows, file.date, file.hour) == (5, date(2026, 11, 21), 12)
    assert stats["numRecords"] == 5
    assert stats["minValues"]["ulid"] == ulid.encode(ulid.lowest_at(NOON))
    assert stats["maxValues"]["ulid"] == ulid.encode(ulid.lowest_at(NOON + 4))
    assert stats["minValues"]["ts"] == "2026-11-21T12:00:00.000000Z"
    assert stats["maxValues"]["ts"] == "2026-11-21T12:00:00.004000Z"
    assert stats["nullCount"]["fqn"] == 0
    assert "message" not in stats["minValues"]


def test_a_bound_too_long_for_the_log_is_left_out(write_file: WriteFile) -> None:
    stats = orjson.loads(write_file("a", fqn="f" * 2_000).stats)
    assert "fqn" not in stats["minValues"]
    assert "run_id" in stats["minValues"]


def test_a_file_that_is_no_parquet_is_damaged(tmp_path: Path) -> None:
    place = tmp_path / "x.parquet"
    place.write_bytes(b"not a Parquet file, but long enough to be read as one")
    with pytest.raises(Damaged):
        read_footer(str(place))


def test_a_file_that_is_gone_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        read_footer(str(tmp_path / "none.parquet"))
