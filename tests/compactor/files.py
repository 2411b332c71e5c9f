"""Files of the table, as Spark would have left them, committed without it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.logstore import keys, ulid
from tailrace.logstore.table.schema import COLUMNS, PARTITIONS, NewFile, describe
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import Advance, TableChange, commit
from tests.compactor.lake import Batch, Lake, records

_SCHEMA = pa.schema([field for field in COLUMNS if field.name not in PARTITIONS])
_GROUP_ROWS = 16


def write_file(lake: Lake, batches: Iterable[Batch], *, group_rows: int = _GROUP_ROWS) -> NewFile:
    """A file with the batches' lines, all of one hour, of layout 0, that no version has."""
    rows = sorted(records(batches))
    time_ms = ulid.time_ms(ulid.decode(rows[0][2]))
    columns = {
        "ulid": [row[2] for row in rows],
        "ts": pa.array([time_ms * 1000] * len(rows), pa.timestamp("us", "UTC")),
        "fqn": [row[0] for row in rows],
        "run_id": [row[1] for row in rows],
        "message": [row[3] for row in rows],
    }
    missing = [field for field in _SCHEMA if field.name not in columns]
    columns |= {field.name: pa.nulls(len(rows), field.type) for field in missing}
    table = pa.table(columns).select(_SCHEMA.names).cast(_SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=group_rows, write_page_checksum=True)
    body = sink.getvalue().to_pybytes()
    name = hashlib.sha256(body).hexdigest()[:26]
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    path = f"{moment:date=%Y-%m-%d/hour=%H}/{name}-00000.parquet"
    lake.put_bytes(f"{keys.TABLE}/{path}", body)
    footer = pq.read_metadata(pa.BufferReader(body))
    return describe(footer, path=path, size=len(body), modified_ms=lake.clock.now_ms())


def add_files(lake: Lake, *files: Sequence[Batch]) -> TableSnapshot:
    """One commit with a file for each list of batches."""
    return commit_files(lake, [write_file(lake, batches) for batches in files])


def commit_files(
    lake: Lake, files: Sequence[NewFile], advances: Sequence[Advance] = ()
) -> TableSnapshot:
    """One commit with the files."""
    table = lake.compactor.table
    snapshot = table.create()
    change = TableChange(files=files, advances=advances)
    return commit(table, snapshot, change, job=f"by hand {snapshot.version}", clock=lake.clock)
