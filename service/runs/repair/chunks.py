"""Repair of chunks: rebuilds a chunk that vanished from the store from its records.

Only somebody outside Tailrace removes an object that a manifest names. A reader that gets 404
then calls the repair:

    text gone, index there    each batch by its ULID, from segments or table, in the order and
                              with the checksums of the index: the same bytes
    index gone                the records of the chunk's writer and positions, if all lines of
                              the chunk are one node's: the same text, under a new id;
                              else the same lines in order of ULID (`orphan_chunks`)

A text of which a reader found that it does not match its index (`Chunks.changed`) counts as gone,
and so does an index that fails its checksums (`Chunks.damaged`).

`logs.txt` that is gone or was overwritten is a chunk like the others; if its index is gone too,
it becomes an ordinary chunk, from which the run is sealed again. A rebuilt chunk is compared
with the manifest before it counts. A chunk that cannot be rebuilt is reported; the other lines
of its run can be read as before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from dataclasses import dataclass, replace

import numpy as np

from logstore import ulid as ulids
from logstore.batch import RunKey, digest, lowest_and_highest
from logstore.clock import Clock
from logstore.errors import ChunkLost, LimitReached, NotFound, PreconditionFailed, StoreUnavailable
from logstore.objects.store import ObjectInfo, ObjectStore, Part
from logstore.runs.blocks import Blocks
from logstore.runs.manifest import Chunk, Manifest
from logstore.runs.manifests import Manifests
from service.runs.chunks import Chunks, ChunkWriter, Moved, goes_on
from service.runs.locks import OncePerRun
from service.runs.repair.orphan_chunks import OrphanChunks
from service.runs.repair.rebuild import RebuiltBatch, RebuiltBatches, Records, batches_of

log = logging.getLogger(__name__)

_MOST_BYTES = 256 << 20
_ROUNDS = 100
_REMEMBERED_SECONDS = 5.0
_LOST_SECONDS = 60.0
_SHOWN_SECONDS = 7200.0


class _Unfound(Exception):
    """A batch of the chunk is nowhere, or has other bytes."""


class _Ambiguous(_Unfound):
    """Positions do not tell which records are the chunk's."""


@dataclass(slots=True)
class _Open:
    """The batch that the next piece may continue, and how much of it was read."""

    text: bytes = b""
    given: int = 0


class ChunkRepairer:
    """The repair of one node; `records` is None if searching is impossible."""

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
        """Chunks that were found to be gone for good in the last hours."""
        since = self._clock.monotonic() - _SHOWN_SECONDS
        self._lost = {key: lost for key, lost in self._lost.items() if lost[1] > since}
        return [why for why, _ in self._lost.values()]

    async def repair(self, key: RunKey) -> bool:
        """Rebuilds missing objects that the run's manifest names; whether there were any.

        Raises `ChunkLost` if it cannot be, `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
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
                return True  # merged, or about to be sealed, while we looked
            self.vanished += 1
            log.warning(
                "chunk %s of %s/%s was taken away or written over; making it again",
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
        """The first damaged chunk: the object at its text's key, and whether its index is there.

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

    # --- the text, from the index and the records ------------------------------------

    async def _text_again(self, manifest: Manifest, chunk: Chunk, there: ObjectInfo | None) -> None:
        key = manifest.key
        entries = (await self._chunks.directory(key, chunk)).entries
        parts: list[Part | bytes] = []
        size, opened = 0, _Open()
        for number in range(len(entries)):
            blocks, _ = await self._chunks.piece(key, chunk, number)
            text = await self._piece(key, blocks, opened)
            size += len(text)
            if len(entries) > 1:  # held in the store, not in memory; swept after a day
                where = self._chunks.text_key(key, _loose(chunk, self._manifests.fresh_id()))
                await self._store.put(where, text)
                parts.append(Part(where))
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
            return  # somebody else was first: whoever reads looks again
        if chunk.kind == "logs":
            await self._name(key, chunk, replace(chunk, etag=info.etag))

    async def _piece(self, key: RunKey, blocks: Blocks, opened: _Open) -> bytes:
        """The text of the blocks, each batch checked as a whole."""
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

    # --- the index, from the records of its writer ------------------------------------

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
            # Of two copies of a batch a search gives either, and with it that one's position.
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
        """The chunk's batches in order of position, from the records."""
        key = manifest.key
        ((writer, (low, high)),) = chunk.writers.items()
        found = list((await self._batches(key, chunk.first, chunk.last)).values())
        batches = RebuiltBatches(key, found, 0)
        batches.node = writer
        batches.rows["pos"] = [low if b.pos is None else b.pos for b in found]
        inside = (batches.rows["pos"] >= low) & (batches.rows["pos"] < high)
        # Positions tell this writer's chunks apart, so no index but those of others is asked.
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
    """Whether the object begins with the chunk's text."""
    if chunk.kind == "chunk":
        return there.size == chunk.bytes
    return there.etag == chunk.etag or (manifest.closing is not None and goes_on(chunk, there))


def _loose(chunk: Chunk, chunk_id: str) -> Chunk:
    return replace(chunk, id=chunk_id, kind="chunk")


def _content(chunk: Chunk) -> tuple[int, ...]:
    return chunk.bytes, chunk.lines, chunk.records, chunk.first, chunk.last
