"""Reads Parquet files of a store by ranges, and checks footers before pyarrow parses them.

`fetch_tail` reads the last bytes of a file, which hold its footer. The footer says which ranges
hold which columns; their rows can be read once these ranges are added to the file. `footer_at` and
`footer_of` check a footer. A damaged file raises `Damaged`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.logstore.errors import Damaged
from tailrace.logstore.objects.store import ObjectStore, RangeReader
from tailrace.logstore.table.line_map import UnknownPages, struct_at


class SparseFile(RangeReader):
    """A readable, seekable file of `size` bytes. A read outside its ranges is `Damaged`.

    That error is right: Parquet's footer says which ranges a row group needs, so a read of others
    means that the footer contradicts itself.
    """

    def __init__(self, size: int, start: int, data: bytes) -> None:
        super().__init__(size)
        self._ranges = [(start, data)]

    def add(self, start: int, data: bytes) -> None:
        """Makes `data` readable from offset `start` on."""
        self._ranges.append((start, data))

    def first(self) -> tuple[int, bytes]:
        """The range that the file was created with: its offset, and its bytes."""
        return self._ranges[0]

    def range_at(self, start: int, size: int) -> bytes:
        for first, data in self._ranges:
            if first <= start and start + size <= first + len(data):
                return data[start - first : start - first + size]
        raise Damaged(f"bytes {start} to {start + size} of the segment were not fetched")


_TAIL: Final = 256 << 10  # bytes; nearly every footer is smaller: a row group has one KB of it
_MAGIC: Final = b"PAR1"


def footer_bytes(tail: bytes) -> int:
    """The size of the footer in bytes, from the last bytes of a Parquet file; 0 for other files."""
    return int.from_bytes(tail[-8:-4], "little") + 8 if tail[-4:] == _MAGIC else 0


async def fetch_tail(
    store: ObjectStore, key: str, size: int, *, if_match: str | None = None
) -> SparseFile:
    """The file of `size` bytes, of which only the footer is fetched.

    Raises `Damaged` if it has another size or is no Parquet file, `NotFound`,
    `PreconditionFailed`, `StoreUnavailable`.
    """
    start = max(size - _TAIL, 0)
    tail = (await store.get(key, offset=start, if_match=if_match))[1]
    need = footer_bytes(tail)
    if len(tail) != size - start or not 0 < need <= size:
        raise Damaged(f"{key} is not a Parquet file of {size} bytes")
    if need > len(tail):
        start = size - need
        tail = (await store.get(key, offset=start, if_match=if_match))[1]
    return SparseFile(size, start, tail)


def opened(tail: SparseFile, key: str) -> pq.ParquetFile:
    """The Parquet file over the fetched ranges. Raises `Damaged`."""
    try:
        return pq.ParquetFile(tail, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"{key} is not a Parquet file: {error}") from error


def chunks_of(footer: Any, index: int) -> dict[str, Any]:
    """The footer's entry for each column of a row group, by the column's path."""
    group = footer.row_group(index)
    every = [group.column(number) for number in range(group.num_columns)]
    return {chunk.path_in_schema: chunk for chunk in every}


def byte_range(first: Any, last: Any) -> tuple[int, int]:
    """The range in the file that holds the bytes of two columns and all between them."""
    start = first.dictionary_page_offset or first.data_page_offset
    begin = last.dictionary_page_offset or last.data_page_offset
    return int(start), int(begin + last.total_compressed_size)


# Footers, checked before pyarrow looks at their columns.
#
# pyarrow ends the process for a column whose entry in a row group contradicts the schema: another
# type, a histogram of another length, a missing column. One flipped bit does that. So the entries
# are read first, by the fields of `FileMetaData` in parquet-format's `parquet.thrift`.


_TYPES: Final = (
    *("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY"),
    "FIXED_LEN_BYTE_ARRAY",
)
# Fields by their numbers: of the file, a row group, a column of it, its data, sizes of its levels.
_ROW_GROUPS, _COLUMNS, _DATA, _ENCRYPTION, _TYPE, _SIZES = 4, 1, 3, 8, 1, 16
_REPETITIONS, _DEFINITIONS = 2, 3
_STATISTICS: Final = 12
_BOUNDS: Final = (1, 2, 5, 6)
_BOUND_BYTES: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_UNREADABLE: Final = (LookupError, ValueError, TypeError, AttributeError, RecursionError)
_END_BYTES: Final = 8  # the length of the footer, and Parquet's magic
_TAIL_BYTES: Final = 64 << 10


def footer_at(path: str) -> Any:
    """The footer of the file at the path, as pyarrow's `FileMetaData`.

    Raises `Damaged` if it is no sound Parquet file, `OSError` if it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        tail = os.pread(file.fileno(), _TAIL_BYTES, max(size - _TAIL_BYTES, 0))
        need = footer_bytes(tail)
        if not 0 < need <= size:
            raise Damaged(f"{path} is not a Parquet file")
        if need > len(tail):
            tail = os.pread(file.fileno(), need, size - need)
    return footer_of(tail)


def footer_of(tail: bytes) -> Any:
    """The footer at the end of these bytes, which have all of it. Raises `Damaged`."""
    try:
        footer = pq.read_metadata(BytesIO(tail))
        raw, _ = struct_at(tail[len(tail) - footer_bytes(tail) : -_END_BYTES], 0)
        for group in raw.get(_ROW_GROUPS, ()):
            _check_group(footer, group[_COLUMNS])
    except (OSError, pa.ArrowException, UnknownPages, *_UNREADABLE) as error:
        raise Damaged(f"the footer does not read: {error}") from error
    return footer


def _check_group(footer: Any, columns: list[Mapping[int, Any]]) -> None:
    if len(columns) != footer.num_columns:
        raise Damaged(f"a row group has {len(columns)} columns, not {footer.num_columns}")
    for index, column in enumerate(columns):
        described, data = footer.schema.column(index), column[_DATA]
        sizes = data.get(_SIZES, {})
        if _ENCRYPTION in column or _TYPES[data[_TYPE]] != described.physical_type:
            raise Damaged(f"the column {described.path} of a row group is of another type")
        bounds = [data.get(_STATISTICS, {}).get(field) for field in _BOUNDS]
        size = _BOUND_BYTES.get(described.physical_type)
        if size and any(bound is not None and len(bound) != size for bound in bounds):
            raise Damaged(f"a bound of the column {described.path} of a row group does not read")
        for field, level in (
            (_REPETITIONS, described.max_repetition_level),
            (_DEFINITIONS, described.max_definition_level),
        ):
            if len(sizes.get(field, ())) not in (0, level + 1):
                raise Damaged(f"the column {described.path} of a row group has other levels")
