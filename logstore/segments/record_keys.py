"""The identity of records in Arrow: records with one key are copies of each other."""

from __future__ import annotations

from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

KEY_COLUMNS: Final = ("ulid", "fqn", "run_id")
KEY_ORDER: Final = [(name, "ascending") for name in KEY_COLUMNS]

Records = TypeVar("Records", pa.Table, pa.RecordBatch)


def repeats(records: pa.Table | pa.RecordBatch) -> pa.BooleanArray:
    """Which records, of some sorted by their keys, have the key of the one before them.

    The array is as long as the records; its first value is false.
    """
    if records.num_rows == 0:
        return pa.array([], pa.bool_())
    same = None
    for column in map(records.column, KEY_COLUMNS):
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        equal = pc.equal(values[1:], values[:-1])
        same = equal if same is None else pc.and_(same, equal)
    return pa.concat_arrays([pa.array([False]), same])


def distinct(records: Records) -> Records:
    """Records sorted by their keys, the first of each key; themselves if no key repeats."""
    repeated = repeats(records)
    return records.filter(pc.invert(repeated)) if pc.any(repeated).as_py() else records


def keys_of(records: pa.Table | pa.RecordBatch) -> list[tuple[str, str, str]]:
    """The keys of records, in their order."""
    return list(zip(*(records.column(name).to_pylist() for name in KEY_COLUMNS), strict=True))
