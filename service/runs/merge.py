"""Merging: neighbouring chunks become one, so that a manifest stays small.

The store composes the texts, and whole pieces of the indexes; small neighbouring pieces are
read and packed together. When a manifest names more than `merge_above` chunks, the `merge_width`
neighbours with the fewest bytes are merged: small ones often, large ones rarely, so that a byte
is copied about log(run) times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from logstore.batch import RunKey
from logstore.objects.store import ObjectStore, Part
from logstore.runs.blocks import Blocks, positions
from logstore.runs.index import (
    ENTRY,
    Directory,
    Entries,
    PositionRange,
    encode_tail,
    entry_of,
    joined,
)
from logstore.runs.manifest import Chunk, Manifest
from logstore.runs.manifests import Manifests
from logstore.runs.piece import PIECE_BLOCKS, encode_piece
from service.runs.chunks import Chunks, Moved
from service.runs.locks import RunLocks
from service.runs.settings import Tuning

_PACK_BYTES = 256 << 10


class ChunkMerger:
    """Merges the chunks of runs, and joins indexes for closes too."""

    def __init__(
        self,
        store: ObjectStore,
        manifests: Manifests,
        chunks: Chunks,
        locks: RunLocks,
        tuning: Tuning,
    ) -> None:
        self._store = store
        self._manifests = manifests
        self._chunks = chunks
        self._locks = locks
        self._tuning = tuning
        self.merges = 0

    async def merge(self, manifest: Manifest) -> Manifest:
        """Merges until few enough are left. Raises `Unavailable`, `OutcomeUnknown`, `NotFound`."""
        async with self._locks.of(manifest.key):
            while len(manifest.chunks) > self._tuning.merge_above and manifest.closing is None:
                group = self._cheapest(manifest)
                if group is None:
                    break
                manifest = await self._merge_once(manifest, group)
        return manifest

    async def _merge_once(self, manifest: Manifest, group: tuple[Chunk, ...]) -> Manifest:
        ids = [chunk.id for chunk in group]
        merged = await self.joined(manifest.key, group, self._manifests.fresh_id())
        parts = [self._chunks.text_part(manifest.key, chunk) for chunk in group]
        info = await self._store.compose(self._chunks.text_key(manifest.key, merged), parts)
        if info.size != merged.bytes:
            raise Moved(f"a chunk of {manifest.key} is cut")

        def change(newest: Manifest) -> Manifest | None:
            return _replaced(newest, ids, merged)

        self.merges += 1
        return (await self._manifests.update(manifest.key, change)).manifest

    def _cheapest(self, manifest: Manifest) -> tuple[Chunk, ...] | None:
        """The neighbours to merge; None if there are not enough."""
        width, fixed = self._tuning.merge_width, manifest.fixed_chunks
        start = 0 if manifest.logs is None else 1  # a closed part stays as it is
        windows = [
            manifest.chunks[at : at + width]
            for at in range(start, len(manifest.chunks) - width + 1)
            if at + width <= fixed or at >= fixed  # what has its final place is not mixed up
        ]
        sizes = [sum([chunk.bytes for chunk in window]) for window in windows]
        return windows[sizes.index(min(sizes))] if windows else None

    async def joined(
        self, key: RunKey, group: Sequence[Chunk], chunk_id: str, *, etag: str = ""
    ) -> Chunk:
        """The entry of the chunk that joins `group`; stores its index, unless it is small."""
        if etag and len(group) == 1 and group[0].text is not None:  # its index is the same
            return replace(group[0], id=chunk_id, kind="logs", etag=etag, text=None)
        directories = [await self._chunks.directory(key, chunk) for chunk in group]
        whole = joined(directories)
        parts, directory = await self._packed(key, group, directories, whole)
        tail = encode_tail(directory)
        chunk = _entry(group, chunk_id, directory, len(tail), etag)
        if etag and all(one.text is not None for one in group):
            inner = [part for part in parts if isinstance(part, bytes)]
            return replace(chunk, index=b"".join([*inner, tail]))
        await self._store.compose(self._chunks.index_key(key, chunk), [*parts, tail])
        return chunk

    async def _packed(
        self,
        key: RunKey,
        group: Sequence[Chunk],
        directories: Sequence[Directory],
        whole: Directory,
    ) -> tuple[list[Part | bytes], Directory]:
        """The pieces of all indexes in order, small neighbours packed into one."""
        owners = [
            (chunk, number)
            for chunk, directory in zip(group, directories, strict=True)
            for number in range(len(directory.entries))
        ]
        parts: list[Part | bytes] = []
        entries: list[Entries] = []
        ranges: list[PositionRange] = []
        by_piece = _spans_by_piece(whole)
        at = 0
        for low, high in _stretches(whole):
            number = len(entries)
            if high - low == 1:
                chunk, place = owners[low]
                own = directories[group.index(chunk)].entries[place]
                at_own, size = int(own["at"]), int(own["size"])
                parts.append(self._chunks.index_part(key, chunk, at_own, size))
                entry = whole.entries[low].copy()
                entry["at"] = at
                ranges += [(number, *rest) for rest in by_piece.get(low, [])]
            else:
                blocks, writers = await self._read(key, owners[low:high], whole, low)
                body = encode_piece(blocks, writers)
                parts.append(body)
                entry = entry_of(blocks, body, at)
                ranges += [(number, n, *span) for n, span in positions(blocks, writers).items()]
            entries.append(entry)
            at += int(entry["size"])
        return _coalesced(parts), Directory(np.array(entries, ENTRY), tuple(ranges))

    async def _read(
        self, key: RunKey, pieces: Sequence[tuple[Chunk, int]], whole: Directory, low: int
    ) -> tuple[Blocks, list[str]]:
        """Several pieces as blocks of one text."""
        parts = []
        writers: list[str] = []
        for place, (chunk, number) in enumerate(pieces):
            blocks, names = await self._chunks.piece(key, chunk, number)
            writers += [name for name in names if name not in writers]
            part = blocks.copy()
            part["writer"] = np.array([writers.index(name) for name in names])[blocks["writer"]]
            entry = whole.entries[low + place]
            part["offset"] += entry["byte"] - blocks["offset"][0]
            part["line"] += entry["line"] - blocks["line"][0]
            parts.append(part)
        return np.concatenate(parts), writers


def _stretches(whole: Directory) -> list[tuple[int, int]]:
    """Ranges of pieces that become one: few blocks, few bytes."""
    found: list[tuple[int, int]] = []
    blocks = size = low = 0
    for number, entry in enumerate(whole.entries):
        blocks, size = blocks + int(entry["blocks"]), size + int(entry["size"])
        if number > low and (blocks > PIECE_BLOCKS or size > _PACK_BYTES):
            found.append((low, number))
            low, blocks, size = number, int(entry["blocks"]), int(entry["size"])
    if len(whole.entries):
        found.append((low, len(whole.entries)))
    return found


def _spans_by_piece(directory: Directory) -> dict[int, list[tuple[str, int, int]]]:
    found: dict[int, list[tuple[str, int, int]]] = {}
    for piece, writer, low, high in directory.ranges:
        found.setdefault(piece, []).append((writer, low, high))
    return found


def _coalesced(parts: Sequence[Part | bytes]) -> list[Part | bytes]:
    """Joins adjacent ranges of one object."""
    found: list[Part | bytes] = []
    for part in parts:
        last = found[-1] if found else None
        if (
            isinstance(part, Part)
            and isinstance(last, Part)
            and last.key == part.key
            and last.offset + (last.size or 0) == part.offset
        ):
            found[-1] = Part(part.key, last.offset, (last.size or 0) + (part.size or 0))
        else:
            found.append(part)
    return found


def _entry(
    group: Sequence[Chunk], chunk_id: str, directory: Directory, tail_bytes: int, etag: str
) -> Chunk:
    first, last = directory.extremes()
    return Chunk(
        id=chunk_id,
        kind="logs" if etag else "chunk",
        bytes=sum([chunk.bytes for chunk in group]),
        lines=sum([chunk.lines for chunk in group]),
        records=sum([chunk.records for chunk in group]),
        first=first,
        last=last,
        blocks=int(directory.entries["blocks"].sum()),
        index_bytes=directory.body_bytes + tail_bytes,
        tail_bytes=tail_bytes,
        writers=directory.writers(),
        etag=etag,
    )


def _replaced(manifest: Manifest, ids: list[str], merged: Chunk) -> Manifest | None:
    """The manifest with the chunks `ids` as one; None if it no longer has them."""
    names = [chunk.id for chunk in manifest.chunks]
    if ids[0] not in names or manifest.closing is not None:
        return None
    at = names.index(ids[0])
    if names[at : at + len(ids)] != ids:
        return None
    chunks = (*manifest.chunks[:at], merged, *manifest.chunks[at + len(ids) :])
    return replace(manifest, chunks=chunks)
