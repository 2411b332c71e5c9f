"""Parquet files in a store of which only some ranges are fetched: the footer, then some columns.

`fetch_tail` reads the last bytes of a file, which hold its footer. The footer says which ranges
hold which columns; their rows can be read once these ranges are added to the file.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from logstore.errors import Damaged
from logstore.objects.ranges import RangeReader
from logstore.objects.store import ObjectStore


class SparseFile(RangeReader):
    """A readable, seekable file of `size` bytes. A read outside its ranges is `Damaged`.

    That error is right: Parquet's footer says which ranges a row group needs, so a read of
    others means that the footer contradicts itself.
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
    """How many bytes the footer takes at the end of a Parquet file, by its last bytes.

    0: they are of no such file.
    """
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
