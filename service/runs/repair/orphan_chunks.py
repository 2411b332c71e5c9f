"""Rebuilds neighbouring chunks without indexes together, in order of ULID.

A record does not say which node wrote it. If a chunk had lines of several nodes, or its
neighbours lack their indexes too, these neighbours are rebuilt as one range, in order of ULID,
with the writer `WRITER` and about `chunk_bytes` per chunk. The result counts only if it has as
many bytes, lines and records as the manifest says, so that the numbers of all other lines stay.
A live reader may get these lines a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import NotFound
from logstore.objects.store import ObjectStore
from logstore.runs.manifest import Chunk, Manifest
from logstore.runs.manifests import Manifests
from service.runs.chunks import Chunks, ChunkWriter, Moved
from service.runs.openmetadata.importer import WRITER
from service.runs.repair.rebuild import RebuiltBatch, RebuiltBatches, Records, batches_of

_CHUNK_BYTES = 8 << 20


class OrphanChunks:
    """The orphan chunks of one node; `records` is None if searching is impossible."""

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
        """Rebuilds `first` and its neighbours; False if some of their lines are lost.

        Raises as a search, `StoreUnavailable`, `OutcomeUnknown`.
        """
        records = self._records()
        if records is None:
            return False
        lost = await self._lost(manifest, first)
        try:
            made = await self._made(manifest, lost, records)
        except Moved:  # an index beside them, which has to say what is not theirs
            return False
        if _totals(made) != _totals(lost):
            return False
        await self._swap(manifest.key, lost, made)
        return True

    async def _lost(self, manifest: Manifest, first: Chunk) -> list[Chunk]:
        """`first` and the following chunks that lack their indexes too."""
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
                closing=None,  # a close that was under way begins again
            )

        await self._manifests.update(key, change)


def _totals(chunks: Sequence[Chunk]) -> tuple[int, int, int]:
    return (
        sum([chunk.bytes for chunk in chunks]),
        sum([chunk.lines for chunk in chunks]),
        sum([chunk.records for chunk in chunks]),
    )
