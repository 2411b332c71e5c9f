"""Writes chunks into the store: text, index, and their entry for the manifest."""

from __future__ import annotations

from logstore.batch import Batches, Indexes, RunKey, lowest_and_highest
from logstore.objects.store import Body, ObjectStore
from logstore.runs.blocks import blocks_of, positions
from logstore.runs.index import build_index, encode_tail
from logstore.runs.manifest import Chunk
from logstore.swap import write_until_known
from service.runs.chunks import Chunks
from service.runtime.threads import Offload


class ChunkWriter:
    """Writes chunks of one run; no manifest names them yet."""

    def __init__(self, store: ObjectStore, chunks: Chunks, offload: Offload) -> None:
        self._store = store
        self._chunks = chunks
        self._offload = offload

    async def write(self, key: RunKey, chunk_id: str, batches: Batches, rows: Indexes) -> Chunk:
        """Stores the rows as a new chunk. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        chunk, text, index = await self._offload(lambda: _build(chunk_id, batches, rows))
        await self._put(self._chunks.text_key(key, chunk), text)
        await self._put(self._chunks.index_key(key, chunk), index)
        return chunk

    async def _put(self, key: str, body: Body) -> None:
        """Puts an object whose key is used once: putting the same bytes again does no harm."""
        await write_until_known(lambda: self._store.put(key, body))


def _build(chunk_id: str, batches: Batches, rows: Indexes) -> tuple[Chunk, bytes, bytes]:
    text = batches.text(rows)
    blocks = blocks_of(batches, rows, text)
    body, directory = build_index(blocks, [batches.node])
    tail = encode_tail(directory)
    first, last = lowest_and_highest(blocks)
    chunk = Chunk(
        id=chunk_id,
        kind="chunk",
        bytes=len(text),
        lines=int(blocks["lines"].sum()),
        records=int(blocks["records"].sum()),
        first=first,
        last=last,
        blocks=len(blocks),
        index_bytes=len(body) + len(tail),
        tail_bytes=len(tail),
        writers=positions(blocks, [batches.node]),
    )
    return chunk, text, body + tail
