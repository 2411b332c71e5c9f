"""A table and segments of the version before lines were marked as carried."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from compactor.context import Compactor
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.file_format import CARRIED
from tailrace.logstore.segments.writer import encode_segment, record_batches
from tests.batches import make_batches
from tests.compactor.lake import HOUR, NOON, Batch, Lake, batch
from tests.compactor.plain_engine import PlainEngine
from tests.logstore.segments.earlier import EARLIER_COLUMNS, earlier_segment, earlier_table

TRACE = b"ERROR failed\n  at a\nCaused by: b\ndone\n"
MARKS = [None, True, True, None]
HOUR_IS_OVER = NOON + HOUR + HOUR // 2


def trace(at_ms: int) -> Batch:
    key, first, _ = batch("f", "r", at_ms, 1)
    return key, first, TRACE


def put_earlier_file(lake: Lake, some: list[Batch]) -> None:
    """The table of an earlier version, with a file of it."""
    rows = pa.Table.from_batches(record_batches(make_batches("old", some), Carry()))
    hour, count = datetime.fromtimestamp(NOON / 1000, UTC), rows.num_rows
    rows = rows.append_column("date", pa.array([hour.date()] * count, pa.date32()))
    rows = rows.append_column("hour", pa.array([hour.hour] * count, pa.int32()))
    write_deltalake(
        earlier_table(lake.compactor.table),
        rows.select(EARLIER_COLUMNS.names).cast(EARLIER_COLUMNS),
        mode="append",
        partition_by=["date", "hour"],
    )


def put_earlier_segment(lake: Lake, node: str, one: Batch) -> None:
    encoded = encode_segment(make_batches(node, [one]), node=node, seq=1, carry=Carry())
    lake.put_bytes(keys.segment(node, 1), earlier_segment(encoded))
    lake.taken.append(one)


def marks(compactor: Compactor) -> Any:
    """Those of all lines in order, as a reader of Delta gets them."""
    table = DeltaTable(compactor.table.uri).to_pyarrow_table()
    return table.sort_by([("ulid", "ascending")]).column(CARRIED).to_pylist()


def check_upgrade(lake: Lake) -> None:
    """Passes of this version over a table, a segment and new segments of the earlier one."""
    lake.clock.shift_ms = HOUR_IS_OVER - SystemClock().now_ms()
    put_earlier_file(lake, [trace(NOON + n) for n in range(3)])
    put_earlier_segment(lake, "a", trace(NOON + 3))
    lake.put("b", [trace(NOON + 4)])
    lake.compact()
    assert marks(lake.compactor) == [None] * 16 + MARKS
    assert not lake.snapshot().is_outdated
    marked = {file.path: file.marked for file in lake.snapshot().files}
    assert sorted(marked.values()) == [False, True]
    for n in range(5, 8):  # so many that the hour is rewritten
        lake.put("b", [trace(NOON + n)])
        lake.compact()
    assert all(file.marked for file in lake.snapshot().files)
    assert marks(lake.compactor) == [None] * 16 + MARKS * 4


def test_passes_give_a_table_of_the_earlier_version_the_marks(lake: Lake) -> None:
    lake.session = PlainEngine()
    check_upgrade(lake)


@pytest.mark.spark
def test_spark_gives_a_table_of_the_earlier_version_the_marks(warm: Lake) -> None:
    check_upgrade(warm)


def check_purge(lake: Lake) -> None:
    """A pass without segments, in which a purge rewrites a file of the earlier version."""
    lake.clock.shift_ms = HOUR_IS_OVER - SystemClock().now_ms()
    kept, gone = trace(NOON), batch("f", "gone", NOON + 1, 2)
    put_earlier_file(lake, [kept, gone])
    lake.delete("f", "gone", gone[1] + 1)
    report = lake.compact()
    assert (report.segments, report.rows_purged) == (0, 2)
    assert not lake.snapshot().is_outdated
    assert [file.marked for file in lake.snapshot().files] == [True]
    assert marks(lake.compactor) == [None] * 4


def test_a_purge_gives_a_table_of_the_earlier_version_the_column(lake: Lake) -> None:
    lake.session = PlainEngine()
    check_purge(lake)


@pytest.mark.spark
def test_sparks_purge_gives_a_table_of_the_earlier_version_the_column(warm: Lake) -> None:
    check_purge(warm)
