"""A table in a folder, and Parquet files for it as Spark would have written them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.logstore import ulid
from tailrace.logstore.table.schema import NewFile, describe, read_footer
from tailrace.logstore.table.table import Table
from tests.simulation.clocks import ManualClock

HOUR = 3_600_000
NOON = 1_795_262_400_000  # 2026-11-21T12:00:00Z


WriteFile = Callable[..., NewFile]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(str(tmp_path / "table"))


@pytest.fixture
def write_file(table: Table) -> WriteFile:
    def write(
        name: str, *, first_ms: int = NOON, rows: int = 3, fqn: str = "svc.etl", run: str = "r1"
    ) -> NewFile:
        ids = [ulid.lowest_at(first_ms + i) for i in range(rows)]
        path = f"date=2026-11-21/hour={first_ms // HOUR % 24:02}/{name}.parquet"
        place = Path(table.uri) / path
        place.parent.mkdir(parents=True, exist_ok=True)
        columns = {
            "ulid": [ulid.encode(i) for i in ids],
            "ts": pa.array([ulid.time_ms(i) * 1000 for i in ids], pa.timestamp("us", "UTC")),
            "fqn": [fqn] * rows,
            "run_id": [run] * rows,
            "message": [f"line {i}" for i in range(rows)],
        }
        pq.write_table(pa.table(columns), place, row_group_size=2)
        size = place.stat().st_size
        return describe(read_footer(str(place)), path=path, size=size, modified_ms=NOON)

    return write
