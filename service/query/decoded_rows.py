"""Lines of a row group that have a text, as Parquet's reader decodes them.

Messages are decoded first, and of the other columns only the pieces that have a line of these.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from service.query.footers import ATTRIBUTES, MESSAGE, Footer, Group
from service.query.hot import SCHEMA
from service.query.text_rows import candidate_rows

_MOST_SHARE: Final = 32  # one row of so many may hold the text
_FEWEST_ROWS: Final = 256  # that may hold it in any case
_PIECE_ROWS: Final = 2_048  # of messages, that are decoded at a time
_OTHER_ROWS: Final = 8_192  # of the other columns: each piece costs a call for every one of them
_NAMES: Final = [name for name in SCHEMA.names if name != MESSAGE]

NOTHING: Final = pa.RecordBatch.from_pylist([], SCHEMA)
"""No lines."""


def decoded(footer: Footer, group: Group, texts: Sequence[bytes], *, bare: bool) -> pa.RecordBatch:
    """The lines that may have one of the texts; `bare`: none has attributes. Raises `TooMany`."""
    most = max((group.end - group.first) // _MOST_SHARE, _FEWEST_ROWS)
    rows, messages = _messages(footer, group, texts, most)
    if not rows:
        return NOTHING
    names = [name for name in _NAMES if name != ATTRIBUTES or not bare]
    others = _rows(footer, group, names, rows)
    return records_of(others.append_column(MESSAGE, messages))


def attributes_of(footer: Footer, group: Group, rows: Sequence[int]) -> pa.ChunkedArray:
    """The attributes of some rows of the row group."""
    with footer.open() as file:
        read = file.read_row_group(group.number, columns=[ATTRIBUTES], use_threads=False)
    return read.column(0).take(pa.array(rows))


def records_of(rows: pa.Table) -> pa.RecordBatch:
    """These rows, as a search gives them."""
    rows = rows.combine_chunks()
    columns = [
        rows.column(one.name).combine_chunks().cast(one.type)
        if one.name in rows.schema.names
        else pa.nulls(rows.num_rows, one.type)
        for one in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _messages(
    footer: Footer, group: Group, texts: Sequence[bytes], most: int
) -> tuple[list[int], pa.ChunkedArray]:
    """The candidates' rows in the row group, and their messages. Raises `TooMany`.

    They are decoded some at a time: for larger buffers the system would have to make room.
    """
    rows, found, first = list[int](), list[pa.Array](), 0
    with footer.open() as file:
        for piece in file.iter_batches(
            _PIECE_ROWS, row_groups=[group.number], columns=[MESSAGE], use_threads=False
        ):
            column = piece.column(0)
            here = candidate_rows(pa.chunked_array([column]), texts, most - len(rows))
            if here:
                found.append(column.take(pa.array(here)))
                rows += [first + row for row in here]
            first += len(column)
    return rows, pa.chunked_array(found, pa.string())


def _rows(footer: Footer, group: Group, names: Sequence[str], rows: Sequence[int]) -> pa.Table:
    """These columns of some rows of the row group, in order. Behind the last nothing is decoded."""
    found, first = list[pa.RecordBatch](), 0
    with footer.open() as file:
        for piece in file.iter_batches(
            _OTHER_ROWS, row_groups=[group.number], columns=names, use_threads=False
        ):
            end = first + piece.num_rows
            here = rows[bisect_left(rows, first) : bisect_left(rows, end)]
            if here:
                found.append(piece.take(pa.array([row - first for row in here])))
            first = end
            if rows[-1] < end:
                break
    return pa.Table.from_batches(found)
