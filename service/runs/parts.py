"""Records of a run's log as Arrow, with all that is known of each where they stand.

A `RecordPart` is whole records of one batch. What a part carries of its records (times, levels,
attributes, the connector) is taken as it is; times and levels that it does not carry are found
in the text by the rules of segments (decision 011), where a record carries on what the one before
it in the same parts had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.batch import BATCH, CONSTANT_ATTRIBUTES, Indexes, RecordMeta, Rows, RunKey
from logstore.segments.carry import Carry
from logstore.segments.columns import record_batches
from logstore.segments.ulids import line_ulids
from logstore.table.schema import COLUMNS, PARTITIONS

SCHEMA: Final = pa.schema([field for field in COLUMNS if field.name not in PARTITIONS])
_LOW = (1 << 64) - 1


class RecordPart(NamedTuple):
    """Whole records of one batch, in order; `first` is the number within it of the first of them.

    `ulid` is the batch's, `pos` the first record's; `meta` has ends within `text`. `attributes` are
    those of a batch whose lines all have the same.
    """

    ulid: int
    first: int
    pos: int
    records: int
    lines: int
    text: bytes
    meta: RecordMeta | None
    connector: str | None
    attributes: Mapping[str, str] | None = None

    @property
    def low(self) -> int:
        """The ULID of its first record."""
        return self.ulid + self.first

    @property
    def high(self) -> int:
        """The ULID of its last record."""
        return self.ulid + self.first + self.records - 1


class _PartBatches:
    """Parts as an implementation of `logstore.batch.Batches`, each with an id of its own."""

    def __init__(self, key: RunKey, parts: Sequence[RecordPart]) -> None:
        self.node = ""
        self.runs = [key]
        names = {part.connector: None for part in parts}
        self.connectors: list[str | None] = list(names)
        numbers = {name: number for number, name in enumerate(self.connectors)}
        self._parts = parts
        self.rows: Rows = np.zeros(len(parts), BATCH)
        self.rows["offset"] = self.rows["ulid_lo"] = np.arange(len(parts))
        self.rows["ulid_hi"] = [part.ulid >> 64 for part in parts]
        self.rows["pos"] = [part.pos for part in parts]
        self.rows["size"] = [len(part.text) for part in parts]
        self.rows["records"] = [part.records for part in parts]
        self.rows["lines"] = [part.lines for part in parts]
        constant = np.array([part.attributes is not None for part in parts], np.bool_)
        structured = np.array([part.meta is not None for part in parts], np.bool_)
        self.rows["meta"] = structured | constant
        self.rows["flags"] = np.where(constant, CONSTANT_ATTRIBUTES, 0)
        self.rows["connector"] = [numbers[part.connector] for part in parts]

    def text(self, indexes: Indexes) -> bytes:
        """The texts of the rows at `indexes`, one after another."""
        return b"".join([self._parts[index].text for index in indexes.tolist()])

    def slice(self, index: int, low: int, high: int) -> bytes:
        """The bytes of one row's text from `low` to before `high`."""
        return self._parts[index].text[low:high]

    def meta(self, index: int) -> RecordMeta | None:
        """What the records of one row carry."""
        return self._parts[index].meta

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:
        """What all records of one row have."""
        return self._parts[index].attributes


def as_records(
    key: RunKey, parts: Sequence[RecordPart], carry: Carry | None = None
) -> pa.RecordBatch:
    """The records of all parts, in their order, with the columns of `SCHEMA`.

    `carry` is moved on behind them. Raises `Damaged` if a text does not have the records that
    its part says.
    """
    batches = _PartBatches(key, parts)
    order = np.arange(len(parts), dtype=np.int64)
    found = [
        batch.select(SCHEMA.names).cast(SCHEMA)
        for batch in record_batches(batches, carry or Carry(), save=True, order=order)
    ]
    table = pa.Table.from_batches(found, SCHEMA).combine_chunks()
    whole = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], SCHEMA)
    return whole.set_column(0, SCHEMA.field("ulid"), _ulids(batches.rows, parts))


def _ulids(rows: Rows, parts: Sequence[RecordPart]) -> pa.Array:
    named = rows.copy()
    named["ulid_lo"] = [part.ulid & _LOW for part in parts]
    counts = rows["records"].astype(np.int64)
    firsts = np.array([part.first for part in parts], np.int64) - (np.cumsum(counts) - counts)
    return line_ulids(named, counts, np.arange(counts.sum()) + np.repeat(firsts, counts))
