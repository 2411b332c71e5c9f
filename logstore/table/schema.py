"""The table's columns, in the types that Spark, DuckDB, Trino and Polars read alike.

The columns of a segment, and the partition of the ULID's time in UTC: `date` (a date) and
`hour` (an integer), written in paths as `date=YYYY-MM-DD/hour=HH`. Which file belongs to
which partition is said by the Delta log; the path only repeats it for readers of plain
Parquet.

Application transactions are named `segments/{node}`: their version is the node's **mark**,
the sequence of its last segment that is in the table. Two more have a time in milliseconds for
their version: no file holds lines that a deletion stored by `deletions` deletes, and hours that
ended by `expired` are beyond the retention: their files went, and late ones go.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from logstore.segments.schema import CARRIED

PARTITIONS: Final = ("date", "hour")
JOB: Final = "tailrace.job"
"""Key of the job's ULID in the commit info."""
ACTIONS: Final = "tailrace.actions"
"""Key of the number of the commit's actions there: an entry that was cut off has fewer."""
PURGED: Final = "deletions"
"""The application transaction that says up to when deletions are done."""
EXPIRED: Final = "expired"
"""The application transaction that says up to when hours are gone."""

COLUMNS: Final[Any] = pa.schema(
    [
        ("ulid", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("fqn", pa.string()),
        ("run_id", pa.string()),
        ("pos", pa.int64()),
        ("level", pa.string()),
        ("connector_id", pa.string()),
        ("message", pa.string()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        (CARRIED, pa.bool_()),
        ("date", pa.date32()),
        ("hour", pa.int32()),
    ]
)
ADDED: Final = frozenset({CARRIED})
"""Columns that earlier versions did not know. Where one is missing it is null in all lines."""


def application(node: str) -> str:
    """The name of the application transaction that carries the node's mark."""
    return f"segments/{node}"
