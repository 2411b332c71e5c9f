"""Footers of Parquet files, checked before pyarrow looks at a column of theirs.

pyarrow ends the process for a column whose entry in a row group contradicts the schema: for another
type, a histogram of another length, a column too few. One flipped bit does that. So the entries are
read here first, as `FileMetaData` in parquet-format's `parquet.thrift` has them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from logstore.errors import Damaged
from logstore.objects.parquet import footer_bytes
from logstore.table.pages.headers import UnknownPages, struct_at

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
        told, _ = struct_at(tail[len(tail) - footer_bytes(tail) : -_END_BYTES], 0)
        for group in told.get(_ROW_GROUPS, ()):
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
