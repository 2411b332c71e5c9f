"""What is in a segment, for whoever consumes it: as Parquet, ndjson or text.

Cutting a segment does not apply deletions; readers do, and this is one. A segment that no
deletion touches is given as Parquet byte for byte as it is stored, under the store's ETag. One
that is touched is made again without the deleted rows, in memory, under an ETag that names
the deletions; its footer is plain Parquet's, for the seal covers what was cut.

ndjson and text are made row group by row group and piece by piece, so memory is that of the
stored segment, one row group and a few pieces. Text takes from a row group no more columns than
it needs.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import NotFound
from logstore.objects.store import ObjectInfo, ObjectStore
from logstore.segments.footer import CHECKED, Footer
from logstore.segments.reader import SegmentFile, fetch_segment, read_footer
from logstore.segments.schema import SCHEMA
from service.query.hot import SCHEMA as RECORDS
from service.query.output import Output
from service.query.view import Deletion
from service.queue.segment import Name

_ROWS: Final = 4096  # decoded at once: buffers below the size of decision 015
_PIECES: Final = 4  # at once: a thread's turn is worth about a MiB
_RUN: Final = ("fqn", "run_id")
Deletions = Callable[[], Awaitable[Sequence[Deletion]]]


@dataclass(frozen=True, slots=True)
class Opened:
    """A stored segment and the deletions that touch it: (fqn, run or None, highest ULID)."""

    name: Name
    info: ObjectInfo
    footer: Footer
    deleted: tuple[Deletion, ...]

    @property
    def etag(self) -> str:
        """Of its records as they are now, without quotes."""
        stored = self.info.etag.strip('"')
        if not self.deleted:
            return stored
        which = repr(sorted(map(str, self.deleted))).encode()
        return f"{stored}-{xxhash.xxh3_64_hexdigest(which)}"


class Contents:
    """Of the segments of a store. At most `readers` are decoded at the same time."""

    def __init__(self, store: ObjectStore, deletions: Deletions, readers: int) -> None:
        self._store = store
        self._deletions = deletions
        self._decoding = asyncio.Semaphore(readers)

    async def open(self, name: Name) -> Opened:
        """Raises `NotFound`, `Damaged`, `StoreUnavailable`."""
        try:
            info = await self._store.head(name.key)
            footer = await read_footer(self._store, name.key, size=info.size)
        except NotFound as error:
            raise NotFound(
                f"no segment {name.id}",
                hint="It may have been deleted: all groups had it, or were evicted.",
            ) from error
        return Opened(name, info, footer, tuple(_touching(await self._deletions(), footer)))

    def stored(self, opened: Opened, offset: int, size: int) -> AsyncIterator[bytes]:
        """Bytes of a segment that no deletion touches. Raises as `open`, `PreconditionFailed`."""
        return self._store.stream(
            opened.name.key, offset=offset, size=size, if_match=opened.info.etag
        )

    async def rewritten(self, opened: Opened) -> bytes:
        """A segment as Parquet without what was deleted. Raises as `open`."""
        async with self._decoding:
            return await asyncio.to_thread(_rewrite, await self.whole(opened), opened.deleted)

    async def whole(self, opened: Opened) -> SegmentFile:
        """The stored segment, checked from its first byte to its last. Raises as `open`."""
        return await fetch_segment(self._store, opened.name.key)

    async def records(
        self, opened: Opened, segment: SegmentFile, output: Output
    ) -> AsyncIterator[bytes]:
        """The records in order of ULID, as `output` encodes them. Raises `Damaged`."""
        encoded = _encoded(segment, opened.deleted, output)
        while pieces := await self._some(encoded):
            for piece in pieces:
                yield piece

    async def _some(self, encoded: Iterator[bytes]) -> list[bytes]:
        """The next pieces. Reading waits for its turn here, not while the client reads."""
        async with self._decoding:
            return await asyncio.to_thread(lambda: list(islice(encoded, _PIECES)))


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


def _kept(table: pa.Table, deleted: Sequence[Deletion]) -> pa.Table:
    """The rows that no deletion covers."""
    for fqn, run, t in deleted:
        gone = pc.equal(table["fqn"].cast(pa.string()), fqn)
        if run is not None:
            gone = pc.and_(gone, pc.equal(table["run_id"].cast(pa.string()), run))
        gone = pc.and_(gone, pc.less_equal(table["ulid"], ulids.encode(t)))
        table = table.filter(pc.invert(gone))
    return table


def _rewrite(segment: SegmentFile, deleted: Sequence[Deletion]) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, SCHEMA.remove_metadata(), compression="zstd") as writer:
        for table in segment.groups():
            writer.write_table(_kept(table, deleted).cast(SCHEMA))
    return sink.getvalue()


def _encoded(segment: SegmentFile, deleted: Sequence[Deletion], output: Output) -> Iterator[bytes]:
    columns = output.columns
    needed = None
    if columns is not None:
        needed = list({*CHECKED, *(_RUN if deleted else ()), *columns})
    wanted = pa.schema([RECORDS.field(name) for name in columns or RECORDS.names])
    for index in range(len(segment.footer.checksums)):
        table = _kept(segment.group(index, needed, rows=_ROWS), deleted)
        for batch in table.select(wanted.names).cast(wanted).to_batches():
            yield from output.records(batch)
