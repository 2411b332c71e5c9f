"""Placing in an object store: what happens if the removal of staged files is ambiguous."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.placement import STAGING, ObjectPlacement
from tailrace.logstore import keys, ulid
from tailrace.logstore.table.schema import COLUMNS, PARTITIONS
from tests.compactor.lake import NOON, Lake, lake_in
from tests.servers.minio import Bucket
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule

JOB = ulid.encode(ulid.lowest_at(NOON))
STAGED = f"{keys.TABLE}/{STAGING}/{JOB}/"


def part(rows: int) -> bytes:
    """A file as a task of Spark writes it: lines of one hour."""
    schema = pa.schema([field for field in COLUMNS if field.name not in PARTITIONS])
    lines = [
        {"ulid": ulid.encode(ulid.lowest_at(NOON) + n), "fqn": "f", "run_id": "r", "message": "m"}
        for n in range(rows)
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(lines, schema), sink)
    return bytes(sink.getvalue().to_pybytes())


@pytest.fixture
def lake(bucket: Bucket, tmp_path: Path) -> Iterator[Lake]:
    with lake_in(bucket, tmp_path / "data") as made:
        yield made


@pytest.mark.minio
@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE])
def test_an_ambiguous_removal_of_staged_files_is_repeated(lake: Lake, fault: Fault) -> None:
    """The files are placed by then: giving up would leave both, and repeat the whole job."""
    lake.put_bytes(f"{STAGED}part-00000-x.parquet", part(3))
    lake.put_bytes(f"{STAGED}part-00001-x.parquet", part(4))
    schedule = Schedule({1: fault}, applies=lambda call: call.startswith("delete"))
    store = FaultyStore(lake.store, schedule)
    placed = lake.run(ObjectPlacement(store).place(JOB))
    assert schedule.fired == 1
    assert sorted(file.rows for file in placed) == [3, 4]
    assert lake.keys(STAGED) == []
    assert lake.keys(f"{keys.TABLE}/date=") == sorted(
        f"{keys.TABLE}/{file.path}" for file in placed
    )
