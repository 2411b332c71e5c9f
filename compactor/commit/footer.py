"""The footer of a table file in a store, read from its last bytes alone.

Rows of the file may be read once their bytes are added to what was fetched.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from logstore.errors import Damaged
from logstore.objects.store import ObjectStore
from logstore.segments.sparse import SparseFile

_TAIL: Final = 256 << 10  # bytes; nearly every footer is smaller: a row group has one KB of it
_MAGIC: Final = b"PAR1"


async def fetch_tail(
    store: ObjectStore, key: str, size: int, *, if_match: str | None = None
) -> SparseFile:
    """The file of `size` bytes, of which only the footer is fetched.

    Raises `Damaged` if it has another size or is no Parquet file, `NotFound`,
    `PreconditionFailed`, `StoreUnavailable`.
    """
    start = max(size - _TAIL, 0)
    tail = (await store.get(key, offset=start, if_match=if_match))[1]
    need = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) != size - start or tail[-4:] != _MAGIC or need > size:
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


def extent(first: Any, last: Any) -> tuple[int, int]:
    """The range in the file that holds the bytes of two columns and all between them."""
    start = first.dictionary_page_offset or first.data_page_offset
    begin = last.dictionary_page_offset or last.data_page_offset
    return int(start), int(begin + last.total_compressed_size)
