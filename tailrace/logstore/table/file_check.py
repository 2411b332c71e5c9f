"""Checks files of the table in their store: every page, and the footer against the table's log.

`check_footer` reads a file's end, `check_table_file` all of it, a few row groups at a time, without
decoding. `check_statistics` decodes a row group, for callers that have the time.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace.logstore import keys
from tailrace.logstore.errors import Damaged
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.parquet import SparseFile, fetch_tail, footer_of, opened
from tailrace.logstore.table.line_map import Read, StoredPage, stored_pages
from tailrace.logstore.table.schema import ADDED, COLUMNS, PARTITIONS, bounds_of
from tailrace.logstore.table.snapshot import TableFile

# The check of pages against their CRCs, without decoding them.
#
# Each page has the CRC-32 of its body in its header; parquet-mr and `verify --repair` write it. A
# header has none of its own. So the headers are also compared with the footer: the pages of a
# column must have as many values, and as many decompressed bytes, as the footer says.
#
# If no page of a row group has a CRC, an older program wrote the file: it is **unchecked**, which
# is no damage. If some pages have one, all must.


_CRC_MASK: Final = 0xFFFF_FFFF  # Thrift has only signed integers


class DamagedPages(Damaged):
    """A column of a row group does not have the bytes that were written."""


def check_row_group(footer: Any, index: int, read: Read) -> bool:
    """Checks all pages of a row group; returns False if they have no CRCs.

    `footer` is pyarrow's, and `read` gives bytes of the file. Raises `DamagedPages` with column and
    row group, and what `read` raises.
    """
    group = footer.row_group(index)
    with_crc, without = 0, 0
    for number in range(group.num_columns):
        chunk = group.column(number)
        try:
            crcs = [page.crc is not None for page in _checked(chunk, read)]
        except Damaged as error:
            raise _named(index, chunk, str(error)) from error
        with_crc, without = with_crc + sum(crcs), without + len(crcs) - sum(crcs)
        if with_crc and without:
            raise _named(index, chunk, "a page has lost its CRC")
    return without == 0


def check_row_groups(footer: Any, read: Read, indexes: Iterable[int] | None = None) -> bool:
    """Checks these row groups, or all; returns False if one has no CRCs. Raises as above."""
    chosen = range(footer.num_row_groups) if indexes is None else indexes
    found = [check_row_group(footer, index, read) for index in chosen]
    return all(found)


def row_group_range(footer: Any, index: int) -> tuple[int, int]:
    """Returns the begin and the end of a row group's bytes in the file."""
    group = footer.row_group(index)
    ranges = [_range(group.column(number)) for number in range(group.num_columns)]
    return min(begin for begin, _ in ranges), max(begin + size for begin, size in ranges)


def _range(chunk: Any) -> tuple[int, int]:
    begin = chunk.data_page_offset
    if chunk.dictionary_page_offset is not None:
        begin = min(begin, chunk.dictionary_page_offset)
    return begin, chunk.total_compressed_size


def _checked(chunk: Any, read: Read) -> list[StoredPage]:
    """The pages of a column of a row group. Raises `Damaged`."""
    begin, size = _range(chunk)
    if begin < 0 or size < 0:
        raise Damaged("the footer does not read")
    data = bytes(read(begin, size))
    if len(data) != size:
        raise Damaged(f"the file ends at byte {begin + len(data)}")
    pages, view = list(stored_pages(data)), memoryview(data)
    for page in pages:
        body = view[page.at : page.at + page.stored]
        if page.crc is not None and zlib.crc32(body) != page.crc & _CRC_MASK:
            raise Damaged(f"the page at byte {begin + page.at} does not match its CRC")
    if sum(page.values for page in pages) != chunk.num_values:
        raise Damaged(f"its pages have not the {chunk.num_values} values of the footer")
    if sum(page.size for page in pages) != chunk.total_uncompressed_size:
        raise Damaged(f"its pages are not the {chunk.total_uncompressed_size} bytes of the footer")
    return pages


def _named(index: int, chunk: Any, reason: str) -> DamagedPages:
    return DamagedPages(f"row group {index}, column {chunk.path_in_schema}: {reason}")


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
    """Yields row groups in order, as many at a time as one request fetches."""
    first, size = 0, 0
    for index in range(footer.num_row_groups):
        low, high = row_group_range(footer, index)
        if size and size + high - low > _FETCHED_BYTES:
            yield range(first, index)
            first, size = index, 0
        size += high - low
    if first < footer.num_row_groups:
        yield range(first, footer.num_row_groups)
