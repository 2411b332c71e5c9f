"""Repairs lost chunks, and rebuilds runs without a manifest, from segments and the table.

Only somebody outside Tailrace removes an object that a manifest names. A reader that gets 404 then
calls the repair (`ChunkRepairer`):

    text gone, index present  each batch by its ULID, from segments or table, in the order and
                              with the checksums of the index: the same bytes
    index gone                the records of the chunk's writer and positions, if all lines of
                              the chunk are one node's: the same text, under a new id;
                              else the same lines in order of ULID (`OrphanChunks`)

If a reader found that a text does not match its index (`Chunks.changed`), the text counts as gone.
An index that fails its checksums (`Chunks.damaged`) counts as gone, too.

A `logs.txt` that is gone or was overwritten is a chunk like the others. If its index is gone too,
it becomes an ordinary chunk, from which the run is sealed again. A rebuilt chunk is compared with
the manifest before it counts. A chunk that cannot be rebuilt is reported; the other lines of its
run can be read as before.

`RunRebuilder` rebuilds the log of a run from its records in segments and table. It does so only if
nothing else of the run is left: no manifest, no log, no line that a node still holds or has yet to
flush (those lines would come by themselves, in their order). The rebuilt log has the order of ULID.
A line's id contains its batch's id, so the batches get their ids and checksums again, and a copy
that appears later is left out as always. Deleted and expired lines are not among the records, and
stay away.

A run without a manifest may once have had one that somebody outside removed. Remaining chunks are
evidence of it (`OrphanEvidence`). Their indexes have positions of writers. A chunk of a flush that
was killed before its swap holds lines that its node has yet to flush. A chunk with lines below the
flushed position of its node was named by a manifest. Such a run is rebuilt from its records before
a flush gives it a manifest without its older lines, and before an older `partial.txt` of Tailrace
counts as its whole log. A run that also has lines of OpenMetadata, which are in no record, is left
unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from service.run_log.backlog import Deletions
from service.run_log.chunks import (
    FIRST,
    PUT,
    Chunks,
    ChunkWriter,
    Moved,
    goes_on,
    parse_first_lines,
    stored_directory,
)
from service.run_log.contracts import FlushProgress, OncePerRun
from service.run_log.merge import ChunkMerger
from service.run_log.openmetadata import WRITER
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import (
    BATCH,
    Indexes,
    RecordMeta,
    Rows,
    RunKey,
    digest,
    lowest_and_highest,
)
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import (
    ChunkLost,
    LimitReached,
    NotFound,
    PreconditionFailed,
    StoreUnavailable,
    Unavailable,
)
from tailrace.logstore.objects.store import ObjectInfo, ObjectPart, ObjectStore
from tailrace.logstore.runs.chunk_index import Blocks
from tailrace.logstore.runs.manifest import Chunk, Manifest, Manifests
from tailrace.logstore.runs.report import read_watermark

# --- Runs without a manifest --------------------------------------------------------------------


log = logging.getLogger(__name__)


class OrphanEvidence:
    """The evidence for one node; `progress` says which of its own lines are in chunks."""

    def __init__(
        self, store: ObjectStore, node: str, *, prefix: str, progress: FlushProgress, foreign: str
    ) -> None:
        self._store = store
        self._node = node
        self._prefix = prefix
        self._progress = progress
        self._foreign = foreign

    async def found(self, key: RunKey) -> bool:
        """Returns true if chunks remain that a manifest has named, or a `logs.txt` of a close.

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
            logs = await self._store.head(keys.logs(self._prefix, key))
        except NotFound:
            return False
        return PUT in logs.metadata and not await self.waits(logs)

    async def waits(self, logs: ObjectInfo) -> bool:
        """Returns true for a `logs.txt` of a close that was killed before it put a first manifest.

        Its lines are still to be flushed, so they come into the run by themselves. Raises
        `StoreUnavailable`.
        """
        first = parse_first_lines(logs.metadata.get(FIRST, ""))
        return first is not None and first[1] >= await self._dealt_with(first[0])

    async def _dealt_with(self, node: str) -> int:
        if node == self._node:
            return self._progress.flushed_pos
        return (await read_watermark(self._store, node)).pos


Records = Callable[[RunKey, int, int], AsyncIterator[pa.RecordBatch]]
"""Records of a run with ULIDs between two, inclusive, in order of ULID, each once: at least
the columns `ulid` and `message`. Raises `Unavailable`, `LimitReached` or `Damaged` unless
all records are found."""

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
    """After each record's newline."""
    pos: int | None = None
    """Position of its first record, if its records show it."""


class RebuiltBatches:
    """An implementation of `tailrace.logstore.batch.Batches`; positions are numbers of records."""

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
        """Returns the texts of the rows at `indexes`, one after another."""
        return b"".join([self._batches[index].text for index in indexes.tolist()])

    def slice(self, index: int, low: int, high: int) -> bytes:
        """Returns the bytes of one row's text from `low` to before `high`."""
        return self._batches[index].text[low:high]

    def meta(self, index: int) -> RecordMeta | None:
        """Returns the ends of records, if they are not the ends of lines."""
        ends = self._batches[index].ends
        if int(self.rows["lines"][index]) == len(ends):
            return None
        return RecordMeta(ends, [None] * len(ends), [None] * len(ends), [None] * len(ends))

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:  # noqa: ARG002
        """Returns None: a run's log has no attributes."""
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
        """Returns true if a recent try found that nothing can be rebuilt."""
        return self._records() is None or self._once.idle(key)

    async def run(self, key: RunKey) -> bool:
        """Rebuilds a run of which nothing is left; returns true if it has a manifest now.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """
        return await self._once.do(key)

    def stop(self) -> None:
        """Ends running work; the next access begins again."""
        self._once.stop()

    async def without_manifest(self, key: RunKey) -> bool:
        """Does the same for a run whose manifest somebody removed, if evidence exists.

        Rebuilt lines may include lines that are yet to be flushed; the flush leaves them out by
        their ids. The flush may hold the run's lock, so this method merges nothing. Raises
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
            # Searches are busy. Nobody waits for a run that most likely never existed: a later
            # access tries again.
            self.put_off += 1
            return False
        if not chunks:
            return False
        # A segment may have come between the check and the search. A copy of this folder ships
        # under this node's name, so no marker tells of its lines before. Now every segment that was
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
        """Returns the manifest as stored.

        None if another node was first and the chunks are removed.
        """

        async def decide(newest: Manifest | None) -> Manifest | None:
            return manifest if newest is None else None

        key = manifest.key
        stored = (await self._manifests.update_by(key, decide)).manifest
        if not {chunk.id for chunk in stored.chunks} & {chunk.id for chunk in manifest.chunks}:
            await self._writer.remove(key, manifest.chunks)
            return None
        self.rebuilt += 1
        log.warning("the log of %s/%s was missing; rebuilding it from records", key.fqn, key.run)
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


# --- Chunks without indexes ---------------------------------------------------------------------


class OrphanChunks:
    """Rebuilds neighbouring chunks without indexes together, in order of ULID.

    A record does not say which node wrote it. If a chunk had lines of several nodes, or its
    neighbours lack their indexes too, these neighbours are rebuilt as one range, in order of ULID,
    with the writer `WRITER` and about `chunk_bytes` per chunk. The result counts only if it has as
    many bytes, lines and records as the manifest says, so that the numbers of all other lines stay.
    A live reader may get these lines a second time.

    `records` is None if searches are impossible.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifests: Manifests,
        chunks: Chunks,
        writer: ChunkWriter,
        *,
        records: Callable[[], Records | None],
        chunk_bytes: int = _CHUNK_BYTES,
    ) -> None:
        self._store = store
        self._manifests = manifests
        self._chunks = chunks
        self._writer = writer
        self._records = records
        self._chunk_bytes = chunk_bytes

    async def make(self, manifest: Manifest, first: Chunk) -> bool:
        """Rebuilds `first` and its neighbours; false if some of their lines are lost.

        Raises the errors of a search, `StoreUnavailable`, `OutcomeUnknown`.
        """
        records = self._records()
        if records is None:
            return False
        lost = await self._lost(manifest, first)
        try:
            made = await self._made(manifest, lost, records)
        except Moved:  # another chunk's index, which says which records are not the range's
            return False
        if _totals(made) != _totals(lost):
            return False
        await self._swap(manifest.key, lost, made)
        return True

    async def _lost(self, manifest: Manifest, first: Chunk) -> list[Chunk]:
        """Returns `first` and the following chunks that lack their indexes too."""
        found = [first]
        for chunk in manifest.chunks[manifest.chunks.index(first) + 1 :]:
            if chunk.index is not None:
                break
            try:
                info = await self._store.head(self._chunks.index_key(manifest.key, chunk))
            except NotFound:
                found.append(chunk)
                continue
            if info.size == chunk.index_bytes:
                break
            found.append(chunk)
        return found

    async def _made(
        self, manifest: Manifest, lost: Sequence[Chunk], records: Records
    ) -> list[Chunk]:
        low, high = min([c.first for c in lost]), max([c.last for c in lost]) | ulids.LINE_MASK
        others = replace(manifest, chunks=tuple([c for c in manifest.chunks if c not in lost]))
        made: list[Chunk] = []
        held: list[RebuiltBatch] = []
        size = 0
        pos = manifest.dealt_with(WRITER)

        async def write() -> None:
            nonlocal held, size, pos
            batches = RebuiltBatches(manifest.key, held, pos)
            rows = np.flatnonzero(~await self._chunks.listed(others, batches.rows))
            if len(rows):
                chunk_id = self._manifests.fresh_id()
                made.append(await self._writer.write(manifest.key, chunk_id, batches, rows))
            held, size, pos = [], 0, batches.end

        async for batch in batches_of(records(manifest.key, low, high)):
            if size and size + len(batch.text) > self._chunk_bytes:
                await write()
            held.append(batch)
            size += len(batch.text)
        if held:
            await write()
        return made

    async def _swap(self, key: RunKey, lost: Sequence[Chunk], made: Sequence[Chunk]) -> None:
        ids = [chunk.id for chunk in lost]
        end = max([chunk.writers[WRITER][1] for chunk in made])

        def change(newest: Manifest) -> Manifest | None:
            names = [chunk.id for chunk in newest.chunks]
            at = names.index(ids[0]) if ids[0] in names else 0
            if names[at : at + len(ids)] != ids:
                return None
            chunks = (*newest.chunks[:at], *made, *newest.chunks[at + len(ids) :])
            settled = replace(newest, chunks=tuple(lost)).settled()
            return replace(
                newest,
                chunks=chunks,
                writers={**newest.writers, WRITER: end},
                closes={**newest.closes, WRITER: end} if settled else newest.closes,
                closing=None,  # a close that was in progress begins again
            )

        await self._manifests.update(key, change)


def _totals(chunks: Sequence[Chunk]) -> tuple[int, int, int]:
    return (
        sum([chunk.bytes for chunk in chunks]),
        sum([chunk.lines for chunk in chunks]),
        sum([chunk.records for chunk in chunks]),
    )


_MOST_BYTES = 256 << 20
_ROUNDS = 100
_REMEMBERED_SECONDS = 5.0
_LOST_SECONDS = 60.0
_SHOWN_SECONDS = 7200.0


class _Unfound(Exception):
    """A batch of the chunk is nowhere, or has other bytes."""


class _Ambiguous(_Unfound):
    """Positions do not show which records are the chunk's."""


@dataclass(slots=True)
class _OpenBatch:
    """The batch that the next piece may continue, and how much of it was read."""

    text: bytes = b""
    given: int = 0


class ChunkRepairer:
    """The repair of one node; `records` is None if searches are impossible."""

    def __init__(
        self,
        store: ObjectStore,
        manifests: Manifests,
        chunks: Chunks,
        writer: ChunkWriter,
        clock: Clock,
        *,
        records: Callable[[], Records | None],
    ) -> None:
        self._store = store
        self._manifests = manifests
        self._chunks = chunks
        self._writer = writer
        self._clock = clock
        self._records = records
        self._orphans = OrphanChunks(store, manifests, chunks, writer, records=records)
        self._once = OncePerRun(clock, self._run, remembered_seconds=_REMEMBERED_SECONDS)
        self._lost: dict[RunKey, tuple[str, float]] = {}
        self.vanished = 0
        self.repaired = 0

    def problems(self) -> list[str]:
        """Returns the chunks that were found to be lost for good in the last hours."""
        since = self._clock.monotonic() - _SHOWN_SECONDS
        self._lost = {key: lost for key, lost in self._lost.items() if lost[1] > since}
        return [why for why, _ in self._lost.values()]

    async def repair(self, key: RunKey) -> bool:
        """Rebuilds missing objects that the run's manifest names; returns true if any were missing.

        Raises `ChunkLost` if that is impossible, `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """
        why, until = self._lost.get(key, ("", 0.0))
        if why and self._clock.monotonic() < until:
            raise ChunkLost(why)
        return await self._once.do(key)

    def stop(self) -> None:
        """Ends running work; the next reader begins again."""
        self._once.stop()

    async def _run(self, key: RunKey) -> bool:
        """Tries every chunk: one that is lost for good prevents no other repair."""
        repaired = False
        lost: dict[str, ChunkLost] = {}
        for _ in range(_ROUNDS):
            manifest = (await self._manifests.get(key)).manifest
            vanished = await self._first(manifest, lost)
            if vanished is None:
                if not lost:
                    self._lost.pop(key, None)
                break
            if (await self._manifests.get(key)).manifest.version != manifest.version:
                return True  # merged, or about to be sealed, meanwhile
            self.vanished += 1
            log.warning(
                "chunk %s of %s/%s was removed or overwritten; rebuilding it",
                vanished[0].id,
                key.fqn,
                key.run,
            )
            try:
                await self._try(manifest, *vanished)
                repaired = True
            except ChunkLost as error:
                lost[vanished[0].id] = error
        if lost and not repaired:
            raise next(iter(lost.values()))
        return repaired

    async def _first(
        self, manifest: Manifest, lost: Container[str]
    ) -> tuple[Chunk, ObjectInfo | None, bool] | None:
        """Returns the first damaged chunk, the object at its text's key, and if its index exists.

        Chunks that are known to be `lost` are left out.
        """
        key = manifest.key
        for chunk in manifest.chunks:
            if chunk.id in lost:
                continue
            if chunk.text is not None:
                continue  # the checksum of the manifest is that of its bytes
            text = await self._head(self._chunks.text_key(key, chunk))
            indexed = chunk.index is not None
            if not indexed:
                index = await self._head(self._chunks.index_key(key, chunk))
                indexed = index is not None and index.size == chunk.index_bytes
            indexed &= chunk.id not in self._chunks.damaged
            whole = text is not None and _same(manifest, chunk, text)
            if not indexed or not whole or chunk.id in self._chunks.changed:
                return chunk, text, indexed
        return None

    async def _try(
        self, manifest: Manifest, chunk: Chunk, text: ObjectInfo | None, has_index: bool
    ) -> None:
        key = manifest.key
        try:
            if has_index:
                await self._text_again(manifest, chunk, text)
            else:
                await self._index_or_all_again(manifest, chunk, text)
        except _Unfound as error:
            damaged = chunk.id in self._chunks.changed | self._chunks.damaged
            state = "damaged" if damaged else "gone"
            why = f"chunk {chunk.id} of {key.fqn}/{key.run} is {state}, and {error}"
            self._lost[key] = why, self._clock.monotonic() + _LOST_SECONDS
            raise ChunkLost(why) from error
        except LimitReached as error:
            raise StoreUnavailable(f"chunk {chunk.id} is made again later: {error}") from error
        self._chunks.changed.discard(chunk.id)
        self._chunks.damaged.discard(chunk.id)
        self.repaired += 1

    async def _head(self, where: str) -> ObjectInfo | None:
        try:
            return await self._store.head(where)
        except NotFound:
            return None

    # --- the text, from the index and the records ----------------------------------

    async def _text_again(self, manifest: Manifest, chunk: Chunk, there: ObjectInfo | None) -> None:
        key = manifest.key
        entries = (await self._chunks.directory(key, chunk)).entries
        parts: list[ObjectPart | bytes] = []
        size, opened = 0, _OpenBatch()
        for number in range(len(entries)):
            blocks, _ = await self._chunks.piece(key, chunk, number)
            text = await self._piece(key, blocks, opened)
            size += len(text)
            if len(entries) > 1:  # held in the store, not in memory; swept after a day
                where = self._chunks.text_key(key, _loose(chunk, self._manifests.fresh_id()))
                await self._store.put(where, text)
                parts.append(ObjectPart(where))
            else:
                parts.append(text)
        if size != chunk.bytes:
            raise _Unfound(f"its index speaks of {size} bytes")
        where = self._chunks.text_key(key, chunk)
        try:
            info = await self._store.compose(
                where,
                parts,
                if_absent=there is None,
                if_match=None if there is None else there.etag,
            )
        except PreconditionFailed:
            return  # another repair was first: the reader looks again
        if chunk.kind == "logs":
            await self._name(key, chunk, replace(chunk, etag=info.etag))

    async def _piece(self, key: RunKey, blocks: Blocks, opened: _OpenBatch) -> bytes:
        """Returns the text of the blocks, each batch checked as a whole."""
        firsts = blocks[blocks["first"] == 1]
        found = await self._batches(key, *lowest_and_highest(firsts)) if len(firsts) else {}
        pieces: list[bytes] = []
        for high, low, size, first, check in blocks[
            ["ulid_hi", "ulid_lo", "size", "first", "digest"]
        ].tolist():
            if first:
                batch = found.get(high << 64 | low)
                if batch is None or digest(batch.text) != check:
                    raise _Unfound(f"batch {ulids.encode(high << 64 | low)} is nowhere else")
                opened.text, opened.given = batch.text, 0
            pieces.append(opened.text[opened.given : opened.given + size])
            opened.given += size
        return b"".join(pieces)

    async def _batches(self, key: RunKey, low: int, high: int) -> dict[int, RebuiltBatch]:
        records = self._records()
        if records is None:
            raise _Unfound("nothing here can look for its lines")
        found = batches_of(records(key, low, high | ulids.LINE_MASK))
        return {batch.ulid: batch async for batch in found}

    # --- the index, from the records of its writer ---------------------------------

    async def _index_or_all_again(
        self, manifest: Manifest, chunk: Chunk, there: ObjectInfo | None
    ) -> None:
        try:
            await self._index_again(manifest, chunk, there)
        except _Ambiguous:
            if not await self._orphans.make(manifest, chunk):
                raise

    async def _index_again(
        self, manifest: Manifest, chunk: Chunk, there: ObjectInfo | None
    ) -> None:
        if len(chunk.writers) != 1 or chunk.bytes > _MOST_BYTES:
            raise _Ambiguous("its index too; several nodes' lines stood in it, or too many")
        key = manifest.key
        batches = await self._of_writer(manifest, chunk)
        rows = np.arange(len(batches.rows))
        if int(batches.rows["size"].sum()) != chunk.bytes:
            # Of two copies of a batch a search returns either, and with it that one's position.
            raise _Ambiguous("its index too; not all of its lines are left, or they are copies")
        if there is not None and not _same(manifest, chunk, there):
            there = None
        if there is not None:
            stored = (await self._store.get(there.key, size=chunk.bytes))[1]
            if stored != batches.text(rows):
                raise _Unfound("its index; the text does not match its records")
        made = await self._writer.write(key, self._manifests.fresh_id(), batches, rows)
        if _content(made) != _content(chunk):
            raise _Unfound("its index too; not all of its lines are left")
        if chunk.kind == "logs" and there is not None:
            made = replace(made, kind="logs", etag=there.etag)
        await self._name(key, chunk, made)  # without its `logs.txt` the run is sealed again

    async def _of_writer(self, manifest: Manifest, chunk: Chunk) -> RebuiltBatches:
        """Returns the chunk's batches in order of position, from the records."""
        key = manifest.key
        ((writer, (low, high)),) = chunk.writers.items()
        found = list((await self._batches(key, chunk.first, chunk.last)).values())
        batches = RebuiltBatches(key, found, 0)
        batches.node = writer
        batches.rows["pos"] = [low if b.pos is None else b.pos for b in found]
        inside = (batches.rows["pos"] >= low) & (batches.rows["pos"] < high)
        # Positions tell this writer's chunks apart, so only indexes of others are read.
        others = replace(
            manifest, chunks=tuple([c for c in manifest.chunks if set(c.writers) != {writer}])
        )
        try:
            inside &= ~await self._chunks.listed(others, batches.rows)
        except Moved as error:
            raise _Ambiguous("its index too, and that of another node's chunk beside it") from error
        order = np.argsort(batches.rows["pos"], kind="stable")
        chosen = [found[number] for number in order.tolist() if inside[number]]
        kept = RebuiltBatches(key, chosen, low)
        kept.node = writer
        kept.rows["pos"] = [low if b.pos is None else b.pos for b in chosen]
        return kept

    async def _name(self, key: RunKey, old: Chunk, new: Chunk) -> None:
        """Names the rebuilt chunk. A close that intended the old one must begin again."""

        def change(newest: Manifest) -> Manifest | None:
            if old not in newest.chunks:
                return None
            chunks = tuple([new if chunk == old else chunk for chunk in newest.chunks])
            closing = newest.closing
            if closing is not None:
                ids = tuple([new.id if one == old.id else one for one in closing.chunks])
                # Under another id than its own: a `logs.txt` that it wrote must not pass for ours.
                closing = replace(closing, put=self._manifests.fresh_id(), chunks=ids)
            return replace(newest, chunks=chunks, closing=closing)

        await self._manifests.update(key, change)


def _same(manifest: Manifest, chunk: Chunk, there: ObjectInfo) -> bool:
    """Returns true if the object begins with the chunk's text."""
    if chunk.kind == "chunk":
        return there.size == chunk.bytes
    return there.etag == chunk.etag or (manifest.closing is not None and goes_on(chunk, there))


def _loose(chunk: Chunk, chunk_id: str) -> Chunk:
    return replace(chunk, id=chunk_id, kind="chunk")


def _content(chunk: Chunk) -> tuple[int, ...]:
    return chunk.bytes, chunk.lines, chunk.records, chunk.first, chunk.last
