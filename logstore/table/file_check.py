"""Checks files of the table in their store: every page, and the footer against the table's log.

`check_footer` reads a file's end, `check_table_file` all of it, a few row groups at a time, without
decoding. `check_statistics` decodes a row group, for callers that have the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logstore import keys
from logstore.errors import Damaged
from logstore.objects.parquet import SparseFile, fetch_tail, opened
from logstore.objects.store import ObjectStore
from logstore.table.footers import footer_of
from logstore.table.pages.checksums import DamagedPages, check_row_groups, row_group_range
from logstore.table.schema import ADDED, COLUMNS, PARTITIONS
from logstore.table.snapshot import TableFile
from logstore.table.stats import bounds_of

_FETCHED_BYTES: Final = 8 << 20  # of row groups, in a request
_TYPES: Final = {column.name: column.type for column in COLUMNS if column.name not in PARTITIONS}
_COMPARED: Final = {"ulid": "ulids", "fqn": "fqns", "run_id": "runs"}


async def check_footer(store: ObjectStore, file: TableFile) -> SparseFile:
    """The file with its footer fetched, which agrees with the table's log.

    Raises `Damaged`, `NotFound`, `StoreUnavailable`.
    """
    key = f"{keys.TABLE}/{file.path}"
    tail = await fetch_tail(store, key, file.size)
    with _as_damage("the footer does not read"):
        await asyncio.to_thread(_compare_footer, footer_of(tail.first()[1]), file)
    return tail


async def check_table_file(
    store: ObjectStore, file: TableFile, *, statistics: bool = False
) -> bool:
    """Checks every page of a file; returns False if it has no CRCs.

    With `statistics` it decodes all columns and compares them with the bounds in the footer. Raises
    `Damaged` with column and row group, `NotFound`, `StoreUnavailable`.
    """
    key, tail = f"{keys.TABLE}/{file.path}", await check_footer(store, file)
    start, body = tail.first()
    footer, checked = opened(tail, key).metadata, True
    for groups in _together(footer):
        low = row_group_range(footer, groups[0])[0]
        high = row_group_range(footer, groups[-1])[1]
        if not 0 <= low < high <= file.size:
            raise Damaged("the footer names bytes that the file has not")
        sparse = SparseFile(file.size, start, body)
        sparse.add(low, (await store.get(key, offset=low, size=high - low))[1])
        checked &= await asyncio.to_thread(check_row_groups, footer, sparse.range_at, groups)
        if statistics:
            parquet = opened(sparse, key)
            for index in groups:
                await asyncio.to_thread(check_statistics, parquet, index)
    return checked


def check_statistics(parquet: pq.ParquetFile, index: int) -> None:
    """Compares the bounds of a row group's columns with their values. Raises `Damaged`."""
    with _as_damage(f"row group {index} does not read"):
        _compare_statistics(parquet, index)


def _compare_statistics(parquet: pq.ParquetFile, index: int) -> None:
    rows = parquet.read_row_group(index, use_threads=False)
    group = parquet.metadata.row_group(index)
    if rows.num_rows != group.num_rows:
        raise Damaged(f"row group {index} has {rows.num_rows} rows of {group.num_rows}")
    for number in range(group.num_columns):
        chunk = group.column(number)
        found = chunk.statistics
        name = chunk.path_in_schema
        if found is None or name not in rows.column_names:
            continue
        column = rows.column(name)
        same = not found.has_null_count or found.null_count == column.null_count
        if found.has_min_max:
            bounds = pc.min_max(column).as_py()
            same &= (found.min, found.max) == (bounds["min"], bounds["max"])
        if not same:
            raise DamagedPages(f"row group {index}, column {name}: its bounds are not its values'")


def check_schema(footer: Any) -> None:
    """Raises `Damaged` unless the columns are those of the table.

    It comes before all else: of a column of another type pyarrow may end the process.
    """
    with _as_damage("the schema does not read"):
        schema = footer.schema.to_arrow_schema()
    for name, kind in _TYPES.items():
        index = schema.get_field_index(name)
        if index < 0:
            if name in ADDED:
                continue
            raise Damaged(f"it has no column {name}")
        found = schema.field(index).type
        if pa.types.is_dictionary(found):
            found = found.value_type
        if found != kind:
            raise Damaged(f"its column {name} is of type {found}, not {kind}")


def _compare_footer(footer: Any, file: TableFile) -> None:
    """Raises `Damaged` if the footer is not what the table's log says of the file."""
    check_schema(footer)
    if file.rows and footer.num_rows != file.rows:
        raise Damaged(f"its footer says {footer.num_rows} rows, the table's log says {file.rows}")
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    if sum(group.num_rows for group in groups) != footer.num_rows:
        raise Damaged("its row groups have not the rows of its footer")
    for column, attribute in _COMPARED.items():
        said, found = getattr(file, attribute), bounds_of(footer, column)
        if said is not None and found is not None and said != found:
            raise Damaged(f"its footer says {column} {found}, the table's log says {said}")


@contextmanager
def _as_damage(what: str) -> Iterator[None]:
    """Turns what pyarrow raises of a footer that is not as it was written into `Damaged`."""
    try:
        yield
    except (OSError, pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        raise Damaged(f"{what}: {error}") from error


def _together(footer: Any) -> Iterator[range]:
    """Row groups in order, so many at a time as one request fetches."""
    first, size = 0, 0
    for index in range(footer.num_row_groups):
        low, high = row_group_range(footer, index)
        if size and size + high - low > _FETCHED_BYTES:
            yield range(first, index)
            first, size = index, 0
        size += high - low
    if first < footer.num_row_groups:
        yield range(first, footer.num_row_groups)
