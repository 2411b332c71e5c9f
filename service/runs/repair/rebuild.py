"""Rebuilds the log of a run from its records in segments and table.

This is only for a run of which nothing else is left: no manifest, no log, no line that a node
still holds or has yet to flush (those lines would come by themselves, in their order). The
rebuilt log has the order of ULID. A line's id contains its batch's id, so the batches get their
ids and checksums again, and a copy that appears later is left out as always. Deleted and expired
lines are not among the records, and stay away.

A run without a manifest may once have had one that somebody outside removed. Chunks that are
left are evidence of it. Their indexes have positions of writers: a chunk of a flush that was
killed before its swap holds lines that its node has yet to flush, while a chunk with lines below
what its node has flushed was named by a manifest. Such a run is rebuilt from its records before
a flush gives it a manifest without its older lines, and before an older `partial.txt` of
Tailrace counts as its whole log. A run that also has lines of OpenMetadata, which are in no
record, is left as it is.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from logstore import keys
from logstore import ulid as ulids
from logstore.batch import BATCH, Indexes, RecordMeta, Rows, RunKey, digest
from logstore.clock import Clock
from logstore.errors import (
    LimitReached,
    NotFound,
    StoreUnavailable,
    Unavailable,
)
from logstore.objects.store import ObjectStore
from logstore.runs.manifest import Chunk, Manifest
from logstore.runs.manifests import Manifests
from logstore.runs.watermark import read_watermark
from service.runs.chunks import PUT, ChunkWriter, stored_directory
from service.runs.deletions import Deletions
from service.runs.locks import OncePerRun
from service.runs.merge import ChunkMerger
from service.runs.openmetadata.importer import WRITER
from service.runs.pending import FlushProgress

log = logging.getLogger(__name__)


class OrphanEvidence:
    """The evidence for one node; `progress` says which of its own lines are in chunks."""

    def __init__(
        self,
        store: ObjectStore,
        node: str,
        *,
        prefix: str,
        progress: FlushProgress,
        foreign: str,
    ) -> None:
        self._store = store
        self._node = node
        self._prefix = prefix
        self._progress = progress
        self._foreign = foreign

    async def found(self, key: RunKey) -> bool:
        """Whether chunks are left that a manifest has named, or a `logs.txt` that a close wrote.

        Raises `StoreUnavailable`.
        """
        low: dict[str, int] = {}
        async for info in self._store.list(keys.chunks_of(self._prefix, key)):
            if not info.key.endswith(".idx"):
                continue
            directory = await stored_directory(self._store, info)
            for _, writer, first, _ in () if directory is None else directory.ranges:
                low[writer] = min(low.get(writer, first), first)
        if self._foreign in low:
            return False
        for writer, first in low.items():
            if first < await self._dealt_with(writer):
                return True
        if low:
            return False
        try:
            return PUT in (await self._store.head(keys.logs(self._prefix, key))).metadata
        except NotFound:
            return False

    async def _dealt_with(self, node: str) -> int:
        if node == self._node:
            return self._progress.flushed_pos
        return (await read_watermark(self._store, node)).pos


Records = Callable[[RunKey, int, int], AsyncIterator[pa.RecordBatch]]
"""Records of a run with ULIDs between two, inclusive, in order of ULID, each once: at least
the columns `ulid` and `message`. Raises `Unavailable`, `LimitReached` or `Damaged` unless
they are all there are."""

_HIGHEST = (1 << 128) - 1
_BATCH_DIGITS = 21  # of a ULID's 26: the others number its lines
_FIRST_LINE = "00000"
_ABSENT_SECONDS = 60.0
_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class RebuiltBatch:
    """A batch, from its records."""

    ulid: int
    text: bytes
    ends: tuple[int, ...]
    """Behind each record's newline."""
    pos: int | None = None
    """Of its first record, if its records tell."""


class RebuiltBatches:
    """An implementation of `logstore.batch.Batches`; positions are numbers of records."""

    def __init__(self, key: RunKey, batches: Sequence[RebuiltBatch], first: int) -> None:
        self.node = WRITER
        self.runs = [key]
        self.connectors: list[str | None] = [None]
        self._batches = batches
        self.rows: Rows = np.zeros(len(batches), BATCH)
        pos = first
        for row, batch in zip(self.rows, batches, strict=True):
            row["pos"], row["size"], row["records"] = pos, len(batch.text), len(batch.ends)
            row["ulid_hi"], row["ulid_lo"] = batch.ulid >> 64, batch.ulid & (1 << 64) - 1
            row["digest"], row["lines"] = digest(batch.text), batch.text.count(b"\n")
            pos += len(batch.ends)
        self.end = pos

    def text(self, indexes: Indexes) -> bytes:
        """The texts of the rows at `indexes`, one after another."""
        return b"".join([self._batches[index].text for index in indexes.tolist()])

    def slice(self, index: int, low: int, high: int) -> bytes:
        """The bytes of one row's text from `low` to before `high`."""
        return self._batches[index].text[low:high]

    def meta(self, index: int) -> RecordMeta | None:
        """The ends of records, if they are not the ends of lines."""
        ends = self._batches[index].ends
        if int(self.rows["lines"][index]) == len(ends):
            return None
        return RecordMeta(ends, [None] * len(ends), [None] * len(ends), [None] * len(ends))

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:  # noqa: ARG002
        """None: a run's log has no attributes."""
        return None


async def batches_of(records: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[RebuiltBatch]:
    """Groups records in order of ULID into their batches."""
    current, messages, first = "", list[str](), None
    async for part in records:
        columns = [part.column(name).to_pylist() for name in ("ulid", "message")]
        known = "pos" in part.schema.names
        places = part.column("pos").to_pylist() if known else [None] * part.num_rows
        for line, message, pos in zip(*columns, places, strict=True):
            batch = line[:_BATCH_DIGITS]
            if batch != current and messages:
                yield _rebuilt(current, messages, first)
                messages = []
            if not messages:
                current, first = batch, pos
            messages.append(message)
    if messages:
        yield _rebuilt(current, messages, first)


def _rebuilt(batch: str, messages: Sequence[str], pos: int | None) -> RebuiltBatch:
    pieces = [message.encode() + b"\n" for message in messages]
    ends = np.cumsum([len(piece) for piece in pieces]).tolist()
    return RebuiltBatch(ulids.decode(batch + _FIRST_LINE), b"".join(pieces), tuple(ends), pos)


class RunRebuilder:
    """The rebuilder of one node. `held` finds lines of other nodes; `records` None: no search."""

    def __init__(
        self,
        manifests: Manifests,
        writer: ChunkWriter,
        deletions: Deletions,
        merger: ChunkMerger,
        clock: Clock,
        *,
        held: Callable[[RunKey], Awaitable[Callable[[Manifest], bool]]],
        records: Callable[[], Records | None],
        had_manifest: Callable[[RunKey], Awaitable[bool]],
        chunk_bytes: int = _CHUNK_BYTES,
    ) -> None:
        self._manifests = manifests
        self._writer = writer
        self._deletions = deletions
        self._merger = merger
        self._held = held
        self._records = records
        self._had_manifest = had_manifest
        self._chunk_bytes = chunk_bytes
        self._once = OncePerRun(clock, self._run, remembered_seconds=_ABSENT_SECONDS)
        self.rebuilt = 0
        self.put_off = 0

    def hopeless(self, key: RunKey) -> bool:
        """Whether a recent try found that nothing can be rebuilt."""
        return self._records() is None or self._once.idle(key)

    async def run(self, key: RunKey) -> bool:
        """Rebuilds a run of which nothing is left; whether it has a manifest now.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """
        return await self._once.do(key)

    def stop(self) -> None:
        """Ends running work; the next access begins again."""
        self._once.stop()

    async def without_manifest(self, key: RunKey) -> bool:
        """The same for a run whose manifest somebody removed, if there is evidence.

        Rebuilt lines may include some that are yet to be flushed; the flush leaves them out by
        their ids. It may hold the run's lock, so nothing is merged here. Raises
        `StoreUnavailable` while the records cannot be read.
        """
        records = self._records()
        if records is None or not await self._had_manifest(key):
            return False
        await self._deletions.refresh(key)
        horizon = self._deletions.horizon(key)
        try:
            chunks = await self._chunks(key, records, horizon + 1)
        except LimitReached as error:
            raise StoreUnavailable(f"{key.fqn}/{key.run} is rebuilt later: {error}") from error
        if not chunks:
            return False
        await self._swap(_manifest(key, chunks, horizon))
        return True

    async def _run(self, key: RunKey) -> bool:
        records = self._records()
        if records is None:
            return False
        await self._deletions.refresh(key)
        horizon = self._deletions.horizon(key)
        if (await self._held(key))(Manifest(key)):
            return False
        try:
            chunks = await self._chunks(key, records, horizon + 1)
        except (LimitReached, Unavailable):
            # Searches are busy. Nobody waits for what most likely never was: a later touch
            # looks again.
            self.put_off += 1
            return False
        if not chunks:
            return False
        # A segment may have come between the look and the search. A copy of this folder ships under
        # this node's name, so no marker tells of its lines before. Now every segment that was
        # searched is either above its watermark still, or its lines have a manifest.
        if (await self._held(key))(Manifest(key)):
            await self._writer.remove(key, chunks)
            return False
        stored = await self._swap(_manifest(key, chunks, horizon))
        if stored is not None:
            await self._merger.merge(stored)
        return True

    async def _chunks(self, key: RunKey, records: Records, low: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        held: list[RebuiltBatch] = []
        size = first = 0
        async for batch in batches_of(records(key, low, _HIGHEST)):
            if size and size + len(batch.text) > self._chunk_bytes:
                chunks.append(await self._write(key, held, first))
                first, size, held = first + chunks[-1].records, 0, []
            held.append(batch)
            size += len(batch.text)
        if held:
            chunks.append(await self._write(key, held, first))
        return chunks

    async def _write(self, key: RunKey, held: Sequence[RebuiltBatch], first: int) -> Chunk:
        batches = RebuiltBatches(key, held, first)
        chunk_id = self._manifests.fresh_id()
        return await self._writer.write(key, chunk_id, batches, np.arange(len(held)))

    async def _swap(self, manifest: Manifest) -> Manifest | None:
        """The manifest as stored; None if another node was first, and the chunks are removed."""

        async def decide(newest: Manifest | None) -> Manifest | None:
            return manifest if newest is None else None

        key = manifest.key
        stored = (await self._manifests.update_by(key, decide)).manifest
        if not {chunk.id for chunk in stored.chunks} & {chunk.id for chunk in manifest.chunks}:
            await self._writer.remove(key, manifest.chunks)
            return None
        self.rebuilt += 1
        log.warning("the log of %s/%s was gone; it is made again from records", key.fqn, key.run)
        return stored


def _manifest(key: RunKey, chunks: Sequence[Chunk], generation: int) -> Manifest:
    last_ms = ulids.time_ms(max([chunk.last for chunk in chunks]))
    return Manifest(
        key,
        generation=generation,
        owner=WRITER,
        chunks=tuple(chunks),
        writers={WRITER: sum([chunk.records for chunk in chunks])},
        first_ms=ulids.time_ms(min([chunk.first for chunk in chunks])),
        last_ms=last_ms,
        flushed_ms=last_ms,
    )
