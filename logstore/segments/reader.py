"""Reads segments from their bytes and from the store.

No function here returns rows that were not written. A whole body is first checked against its
seal, a footer that was fetched alone against the second half of the seal, and each row group
against its pages' CRCs and its checksum. A newer format raises `UnsupportedVersion`,
every other fault `Damaged`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from logstore.batch import RunKey
from logstore.errors import Damaged
from logstore.objects.parquet import SparseFile
from logstore.objects.store import Body, ObjectStore
from logstore.segments import footer as footers
from logstore.segments import seal
from logstore.segments.footer import Footer
from logstore.segments.schema import CARRIED, SCHEMA, SCHEMAS

_TAIL = 64 << 10  # holds the footer of most segments


@dataclass(frozen=True)
class SegmentFile:
    """An opened segment: its footer, and its row groups as far as their bytes are there."""

    footer: Footer
    parquet: pq.ParquetFile

    def group(
        self, index: int, columns: list[str] | None = None, *, rows: int | None = None
    ) -> pa.Table:
        """A row group, verified by its checksum if its columns are read. Raises `Damaged`.

        With `rows` its columns are in chunks of that many rows, so that no buffer has to be
        enlarged repeatedly while it is read.
        """
        try:
            table = self._read(index, columns, rows)
        except (OSError, pa.ArrowException) as error:
            raise Damaged(f"row group {index} does not read: {error}") from error
        checked = columns is None or set(columns).issuperset(footers.CHECKED)
        if checked and footers.rows_checksum(table) != self.footer.checksums[index]:
            raise Damaged(f"the rows of row group {index} do not match their checksum")
        if CARRIED not in table.column_names and (columns is None or CARRIED in columns):
            return table.append_column(SCHEMA.field(CARRIED), pa.nulls(len(table), pa.bool_()))
        return table

    def _read(self, index: int, columns: list[str] | None, rows: int | None) -> pa.Table:
        if rows is None or self.parquet.metadata.row_group(index).num_rows == 0:
            return self.parquet.read_row_group(index, columns=columns, use_threads=False)
        chunks = self.parquet.iter_batches(rows, [index], columns, use_threads=False)
        return pa.Table.from_batches(chunks)

    def groups(self, indexes: Iterable[int] | None = None) -> Iterator[pa.Table]:
        """The row groups, one at a time."""
        chosen = range(len(self.footer.checksums)) if indexes is None else indexes
        return (self.group(index) for index in chosen)


def open_segment(body: Body) -> SegmentFile:
    """Opens a segment from its whole body. Raises `Damaged`, `UnsupportedVersion`."""
    seal.check(memoryview(body))
    return _opened(pa.BufferReader(body))


def verify_segment(body: Body) -> Footer:
    """Reads every row of the body once. Raises `Damaged`, `UnsupportedVersion`."""
    segment = open_segment(body)
    rows = sum(table.num_rows for table in segment.groups())
    if rows != segment.footer.rows:
        raise Damaged(f"{rows} rows where the footer says {segment.footer.rows}")
    return segment.footer


async def read_footer(store: ObjectStore, key: str, *, size: int | None = None) -> Footer:
    """The footer of a stored segment, in one or two requests; one more without its `size`.

    Raises `NotFound`, `StoreUnavailable`, `Damaged`, `UnsupportedVersion`.
    """
    return (await fetch_statistics(store, key, size=size)).footer


async def fetch_statistics(store: ObjectStore, key: str, *, size: int | None = None) -> SegmentFile:
    """A stored segment without its row groups: footer and statistics. Raises as `read_footer`."""
    known = (await store.head(key)).size if size is None else size
    return _opened(await _tail(store, key, known))


async def fetch_segment(store: ObjectStore, key: str, *, run: RunKey | None = None) -> SegmentFile:
    """A stored segment; with `run`, only the row groups that hold rows of it are fetched.

    Raises `NotFound`, `StoreUnavailable`, `Damaged`, `UnsupportedVersion`.
    """
    if run is None:
        return open_segment((await store.get(key))[1])
    size = (await store.head(key)).size
    sparse = await _tail(store, key, size)
    segment = _opened(sparse)
    share = segment.footer.run(run)
    for start, end in _byte_ranges(segment, () if share is None else share.groups):
        sparse.add(start, (await store.get(key, offset=start, size=end - start))[1])
    return segment


class StoredSegment:
    """A segment in the store, of which only the footer is held."""

    def __init__(self, store: ObjectStore, key: str, size: int, tail: SparseFile) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._tail = tail
        self.footer = _opened(tail).footer

    async def check(self) -> None:
        """Reads the segment once, in pieces. Raises `Damaged` unless every byte is as written."""
        cut, digest = seal.pages(memoryview(self._tail.first()[1]), self._size)
        seen = xxhash.xxh3_64()
        async for piece in self._store.stream(self._key, size=cut):
            seen.update(piece)
        if seen.intdigest() != digest:
            raise Damaged(f"the pages of {self._key} do not match its seal")

    async def group(self, index: int) -> SegmentFile:
        """The segment with the bytes of one row group. Raises as `fetch_segment`."""
        sparse = SparseFile(self._size, *self._tail.first())
        segment = _opened(sparse)
        for start, end in _byte_ranges(segment, [index]):
            sparse.add(start, (await self._store.get(self._key, offset=start, size=end - start))[1])
        return segment


async def stored_segment(store: ObjectStore, key: str, size: int) -> StoredSegment:
    """A stored segment for reading row group by row group. Raises as `read_footer`."""
    return StoredSegment(store, key, size, await _tail(store, key, size))


async def _tail(store: ObjectStore, key: str, size: int) -> SparseFile:
    """The footer and its seal, checked."""
    start = max(size - _TAIL, 0)
    tail = (await store.get(key, offset=start))[1]
    if len(tail) < 12:
        raise Damaged(f"{key} has {size} bytes, too few for a segment")
    need = int.from_bytes(tail[-8:-4], "little") + 8 + seal.SIZE
    if need > len(tail) and tail[-4:] == b"PAR1" and need <= size:
        tail = (await store.get(key, offset=size - need))[1]
    seal.check_tail(memoryview(tail))
    return SparseFile(size, size - len(tail), tail)


def _opened(source: pa.NativeFile | SparseFile) -> SegmentFile:
    try:
        parquet = pq.ParquetFile(source, page_checksum_verification=True)
        footer = footers.decode(parquet.metadata.metadata)
        _check_shape(parquet, footer)
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"not a segment: {error}") from error
    return SegmentFile(footer, parquet)


def _check_shape(parquet: pq.ParquetFile, footer: Footer) -> None:
    """Raises `Damaged` unless schema, row groups and footer belong together."""
    if not parquet.schema_arrow.equals(SCHEMAS[footer.version], check_metadata=False):
        raise Damaged("the columns are not those of a segment")
    if parquet.num_row_groups != len(footer.checksums) or parquet.metadata.num_rows != footer.rows:
        raise Damaged("the footer speaks of other row groups than there are")


def _byte_ranges(segment: SegmentFile, groups: Iterable[int]) -> list[tuple[int, int]]:
    """Where the row groups stand in the object; neighbours are one span."""
    ranges: list[tuple[int, int]] = []
    for index in groups:
        start, end = _byte_range(segment.parquet.metadata.row_group(index))
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, end))
    return ranges


def _byte_range(group: pq.RowGroupMetaData) -> tuple[int, int]:
    chunks = [group.column(index) for index in range(group.num_columns)]
    starts = [c.dictionary_page_offset or c.data_page_offset for c in chunks]
    ends = [start + c.total_compressed_size for start, c in zip(starts, chunks, strict=True)]
    return min(starts), max(ends)
