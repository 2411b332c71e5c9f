"""The records of a segment for consumers: as Parquet, ndjson or text.

Cutting a segment does not apply deletions; its readers do, and this module is one. A segment that
no deletion touches is sent as Parquet byte for byte as it is stored, under the store's ETag. A
segment that a deletion touches is rewritten in memory without the deleted rows, under an ETag that
names the deletions. It has the footer of plain Parquet, because the seal covers the segment as it
was cut.

ndjson and text are made row group by row group and piece by piece. Between two pieces a reader
holds only its position in the segment. Decoded row groups are in a cache of bounded size, and are
fetched and decoded again if other readers displaced them. Memory is therefore that of the cache, of
the row groups that are being decoded, and of a few pieces per reader, whether it reads or not.
Before the first record all bytes are checked, in constant memory. Text reads only the columns that
it needs of a row group.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from service.query.output import ResultEncoder, pieces
from service.query.sources import Deletion
from service.queue.catalog import SegmentName
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cache import ENTRY_BYTES, Cache
from tailrace.logstore.errors import NotFound, StoreUnavailable, Unavailable
from tailrace.logstore.objects.store import ObjectInfo, ObjectStore
from tailrace.logstore.segments.file_format import CHECKED, SCHEMA, Footer, undeleted
from tailrace.logstore.segments.reader import (
    SegmentFile,
    StoredSegment,
    fetch_segment,
    stored_segment,
)
from tailrace.logstore.state import advice
from tailrace.logstore.table.schema import RECORD_SCHEMA

_ROWS: Final = 4096  # decoded at once: buffers below the size of decision 015
_DECODED_AT_ONCE: Final = 2  # segments
_PIECES: Final = 4  # at once: a thread's turn is worth about a MiB
_PIECE_BYTES: Final = 256 << 10
_RUN: Final = ("fqn", "run_id")
Deletions = Callable[[], Awaitable[Sequence[Deletion]]]


@dataclass(frozen=True, slots=True)
class OpenedSegment:
    """A stored segment and the deletions that touch it: (fqn, run or None, highest ULID)."""

    name: SegmentName
    info: ObjectInfo
    stored: StoredSegment
    deleted: tuple[Deletion, ...]

    @property
    def footer(self) -> Footer:
        """The segment's footer."""
        return self.stored.footer

    @property
    def etag(self) -> str:
        """The ETag of its records with the present deletions, without quotes."""
        stored = self.info.etag.strip('"')
        if not self.deleted:
            return stored
        which = repr(sorted(map(str, self.deleted))).encode()
        return f"{stored}-{xxhash.xxh3_64_hexdigest(which)}"


class Rewritten:
    """A segment rewritten without deleted rows."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def part(self, offset: int, size: int) -> AsyncIterator[bytes]:
        """`size` bytes of it from an offset on, in pieces."""
        for start in range(offset, offset + size, _PIECE_BYTES):
            yield self.body[start : min(start + _PIECE_BYTES, offset + size)]


class Contents:
    """The contents of the segments of a store.

    `cache_bytes` limits the decoded row groups that are kept for readers, and separately the
    rewritten segments that are being sent.
    """

    def __init__(
        self,
        store: ObjectStore,
        deletions: Deletions,
        cache_bytes: int,
        *,
        unreadable: Callable[[], Mapping[str, Deletion]] = dict,
    ) -> None:
        self._store = store
        self._deletions = deletions
        self._unreadable = unreadable
        self._decoding = asyncio.Semaphore(_DECODED_AT_ONCE)
        self._decoded: Cache[pa.Table] = Cache(cache_bytes)
        self._most_rewritten = cache_bytes
        self._rewritten = 0
        self._reads = itertools.count()

    async def deleted(self) -> Sequence[Deletion]:
        """Every deletion that the node knows, or can find. Raises `StoreUnavailable`."""
        return await self._deletions()

    async def open(self, name: SegmentName) -> OpenedSegment:
        """Opens a segment. Raises `NotFound`, `Damaged`, `StoreUnavailable`."""
        try:
            info = await self._store.head(name.key)
            stored = await stored_segment(self._store, name.key, info.size)
        except NotFound as error:
            raise NotFound(
                f"no segment {name.id}",
                hint="It may have been removed, because all groups committed it or were evicted.",
            ) from error
        deleted = tuple(_touching(await self._deletions(), stored.footer))
        for key, all_of_it in self._unreadable().items():
            if any(_touching([all_of_it], stored.footer)):
                raise StoreUnavailable(
                    f"{name.id} may have deleted lines, because {key} cannot be read",
                    hint=advice(key),
                )
        return OpenedSegment(name, info, stored, deleted)

    def stored(self, opened: OpenedSegment, offset: int, size: int) -> AsyncIterator[bytes]:
        """Bytes of a segment that no deletion touches.

        Raises as `open`, and `PreconditionFailed`.
        """
        return self._store.stream(
            opened.name.key, offset=offset, size=size, if_match=opened.info.etag
        )

    async def rewritten(self, opened: OpenedSegment) -> Rewritten:
        """A segment as Parquet without deleted rows; its memory counts until it is released.

        Raises as `open`, and `Unavailable` while too many are being sent.
        """
        async with self._decoding:
            if self._rewritten and self._rewritten + opened.info.size > self._most_rewritten:
                raise Unavailable(
                    f"{self._rewritten} bytes of segments without deleted rows are being sent",
                    hint="Try again in a moment, or take the segment as ndjson or text.",
                )
            segment = await fetch_segment(self._store, opened.name.key)
            made = Rewritten(await asyncio.to_thread(_rewrite, segment, opened.deleted))
            self._rewritten += len(made.body)
            weakref.finalize(made, self._forget, len(made.body))
            return made

    def _forget(self, size: int) -> None:
        self._rewritten -= size

    async def records(self, opened: OpenedSegment, output: ResultEncoder) -> AsyncIterator[bytes]:
        """The records in order of ULID, as `output` encodes them. Raises `Damaged`."""
        reader = next(self._reads)
        for index in range(len(opened.footer.checksums)):
            key, row, rows = (reader, index), 0, 1
            try:
                while row < rows:
                    async with self._decoding:
                        table = await self._table(key, opened, output)
                        rows = table.num_rows
                        pieces, row = await asyncio.to_thread(_encoded, table, row, output)
                        del table
                    while pieces:
                        yield pieces.pop(0)
            finally:
                self._decoded.drop(key)

    async def _table(
        self, key: tuple[int, int], opened: OpenedSegment, output: ResultEncoder
    ) -> pa.Table:
        """The remaining rows of a row group, with the columns of the output."""
        known = self._decoded.get(key)
        if known is not None:
            return known
        segment = await opened.stored.group(key[1])
        table = await asyncio.to_thread(_decoded, segment, key[1], opened.deleted, output)
        self._decoded.put(key, table, table.get_total_buffer_size() + ENTRY_BYTES)
        return table


def _touching(deletions: Sequence[Deletion], footer: Footer) -> list[Deletion]:
    if not footer.rows:
        return []
    low, runs = ulids.decode(footer.low), {run.key for run in footer.runs}
    fqns = {run.fqn for run in runs}
    return [
        (fqn, run, t)
        for fqn, run, t in deletions
        if t >= low and (fqn in fqns if run is None else RunKey(fqn, run) in runs)
    ]


def _rewrite(segment: SegmentFile, deleted: Sequence[Deletion]) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, SCHEMA.remove_metadata(), compression="zstd") as writer:
        for table in segment.groups():
            writer.write_table(undeleted(table, deleted).cast(SCHEMA))
    return sink.getvalue()


def _decoded(
    segment: SegmentFile, index: int, deleted: Sequence[Deletion], output: ResultEncoder
) -> pa.Table:
    columns = output.columns
    needed = None
    if columns is not None:
        needed = list({*CHECKED, *(_RUN if deleted else ()), *columns})
    wanted = pa.schema([RECORD_SCHEMA.field(name) for name in columns or RECORD_SCHEMA.names])
    table = undeleted(segment.group(index, needed, rows=_ROWS), deleted)
    return table.select(wanted.names).cast(wanted)


def _encoded(table: pa.Table, row: int, output: ResultEncoder) -> tuple[list[bytes], int]:
    """The next pieces from `row` on, and the row after them."""
    found: list[bytes] = []
    for batch in table.slice(row).to_batches():
        for part in pieces(batch):
            found += output.records(part)
            row += part.num_rows
            if len(found) >= _PIECES:
                return found, row
    return found, row
