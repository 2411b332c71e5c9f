"""Trimming: replaces a chunk with lines from both sides of a deletion by one without deleted lines.

A node that does not know of a deletion yet flushes lines from before and after it into one
chunk, merges such chunks, or closes the run. The lines after the deletion must stay, so the
node that brings the deletion into the manifest writes that part of the chunk again: the store
composes its text, and its index is built from the blocks that stay. No manifest names the new
chunk until the swap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from logstore.batch import RunKey, lowest_and_highest
from logstore.errors import NotFound, PreconditionFailed, StoreUnavailable
from logstore.objects.store import ObjectStore, Part
from logstore.runs.blocks import Blocks, positions
from logstore.runs.index import build_index, encode_tail
from logstore.runs.manifest import Chunk, Manifest
from logstore.runs.manifests import Manifests, Versioned
from service.runs.chunks import Chunks, Moved, goes_on
from service.runs.selection import above

_TRIES = 8


class Trimmer:
    """Brings deletions into manifests."""

    def __init__(self, store: ObjectStore, manifests: Manifests, chunks: Chunks) -> None:
        self._store = store
        self._manifests = manifests
        self._chunks = chunks

    async def swap(self, key: RunKey, t: int) -> tuple[Versioned, Manifest | None]:
        """Brings the deletion into the manifest: the newest manifest, and the one that it replaced.

        The second is None if another node was first. Raises `Unavailable`, `OutcomeUnknown`.
        """
        replaced: Manifest | None = None

        async def decide(newest: Manifest | None) -> Manifest | None:
            nonlocal replaced
            manifest = newest or Manifest(key)
            if manifest.generation >= t:
                return None
            replaced = manifest
            return await self.through(manifest, t)

        for _ in range(_TRIES):
            try:
                return await self._manifests.update_by(key, decide), replaced
            except Moved as error:  # merged or closed while its chunks were read
                moved = error
        raise StoreUnavailable(f"the chunks of {key.fqn}/{key.run} move all the time: {moved}")

    async def through(self, manifest: Manifest, t: int) -> Manifest:
        """`manifest.deleted_through(t)`, with the lines above `t` of chunks that straddle it.

        Raises `Moved`, `StoreUnavailable`, `OutcomeUnknown`.
        """
        if manifest.generation >= t:
            return manifest
        straddling = manifest.straddling(t)
        if not straddling:
            return manifest.deleted_through(t)
        rests = {chunk.id: await self._rest(manifest, chunk, t) for chunk in straddling}
        chunks = tuple([rests.get(chunk.id, chunk) for chunk in manifest.chunks])
        # Not as it was closed any more, even if nothing else goes: `logs.txt` is another text.
        fixed = sum([chunk.lines for chunk in chunks[: manifest.fixed_chunks]])
        reopened = replace(
            manifest,
            state="open",
            asking=(),
            closing=None,
            partial=None,
            chunks=chunks,
            fixed=fixed,
        )
        return reopened.deleted_through(t)

    async def _rest(self, manifest: Manifest, chunk: Chunk, t: int) -> Chunk:
        """A new chunk of the lines above `t`."""
        key = manifest.key
        whole, writers = await self._blocks(key, chunk)
        kept = whole[above(whole, t)]
        stretches = list(_stretches(kept))
        parts: list[Part | bytes]
        if chunk.text is not None:
            parts = [chunk.text[low:high] for low, high in stretches]
        else:
            where = await self._part(manifest, chunk)
            parts = [replace(where, offset=low, size=high - low) for low, high in stretches]
        blocks = kept.copy()
        blocks["offset"] = np.cumsum(kept["size"]) - kept["size"]
        blocks["line"] = np.cumsum(kept["lines"], dtype=np.uint64) - kept["lines"]
        body, directory = build_index(blocks, writers)
        tail = encode_tail(directory)
        first, last = lowest_and_highest(blocks)
        rest = Chunk(
            id=self._manifests.fresh_id(),
            kind="chunk",
            bytes=int(blocks["size"].sum()),
            lines=int(blocks["lines"].sum(dtype=np.uint64)),
            records=int(blocks["records"].sum(dtype=np.uint64)),
            first=first,
            last=last,
            blocks=len(blocks),
            index_bytes=len(body) + len(tail),
            tail_bytes=len(tail),
            writers=positions(blocks, writers),
        )
        try:
            info = await self._store.compose(self._chunks.text_key(key, rest), parts)
        except (NotFound, PreconditionFailed) as error:
            raise Moved(str(error)) from error
        if info.size != rest.bytes:
            raise Moved(f"chunk {chunk.id} of {key} is cut")
        await self._store.put(self._chunks.index_key(key, rest), body + tail)
        return rest

    async def _blocks(self, key: RunKey, chunk: Chunk) -> tuple[Blocks, list[str]]:
        parts: list[Blocks] = []
        writers: list[str] = []
        for number in range(len((await self._chunks.directory(key, chunk)).entries)):
            blocks, names = await self._chunks.piece(key, chunk, number)
            writers += [name for name in names if name not in writers]
            part = blocks.copy()
            part["writer"] = np.array([writers.index(name) for name in names])[blocks["writer"]]
            parts.append(part)
        return np.concatenate(parts), writers

    async def _part(self, manifest: Manifest, chunk: Chunk) -> Part:
        """The chunk's text, as it is in the store now. Raises `Moved`."""
        where = self._chunks.text_key(manifest.key, chunk)
        if chunk.kind == "chunk":
            return Part(where)
        try:
            there = await self._store.head(where)
        except NotFound as error:
            raise Moved(str(error)) from error
        if not goes_on(chunk, there):
            raise Moved(f"{where} is another text than the manifest names")
        return Part(where, if_match=there.etag)


def _stretches(blocks: Blocks) -> Iterator[tuple[int, int]]:
    """The byte ranges of adjacent blocks in the text."""
    starts = blocks["offset"].astype(np.int64)
    ends = starts + blocks["size"].astype(np.int64)
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    lows, highs = [0, *breaks.tolist()], [*breaks.tolist(), len(blocks)]
    for low, high in zip(lows, highs, strict=True):
        yield int(starts[low]), int(ends[high - 1])
