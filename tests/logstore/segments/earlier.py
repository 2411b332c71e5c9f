"""Segments and tables as the version before the column `carried` wrote them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tailrace.logstore.segments import file_format
from tailrace.logstore.segments.file_format import CARRIED, SCHEMAS
from tailrace.logstore.segments.reader import open_segment
from tailrace.logstore.segments.writer import EncodedSegment
from tailrace.logstore.table.schema import COLUMNS, PARTITIONS
from tailrace.logstore.table.table import Table

EARLIER_COLUMNS: Final[Any] = COLUMNS.remove(COLUMNS.get_field_index(CARRIED))


def earlier_segment(encoded: EncodedSegment) -> bytes:
    """The same segment in version 1."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMAS[1], compression="zstd", write_page_checksum=True) as writer:
        for rows in open_segment(encoded.body).groups():
            writer.write_table(rows.select(SCHEMAS[1].names), row_group_size=max(len(rows), 1))
        writer.add_key_value_metadata(file_format.encode(replace(encoded.footer, version=1)))
    return file_format.sealed(memoryview(sink.getvalue()))


def earlier_table(table: Table) -> DeltaTable:
    """The table, made without the column."""
    options = dict(table.options()) or None
    if table.snapshot().delta is None:
        DeltaTable.create(
            table.uri,
            EARLIER_COLUMNS,
            partition_by=list(PARTITIONS),
            name="tailrace",
            storage_options=options,
        )
    return DeltaTable(table.uri, storage_options=options)
