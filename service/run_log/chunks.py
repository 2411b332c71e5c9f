"""Reads and writes chunks in the store, and selects the new batches of a run.

Indexes are cached; texts are read in ranges. If a chunk is gone, or `logs.txt` is another one, the
caller's manifest is old: `Moved`. The caller then reads the manifest again; line numbers stay as
they are. An index that fails its checksums counts as gone (`Chunks.damaged`), so the repair makes
it again.

`select_new` selects the batches of a run that are not in its chunks yet. It leaves out batches that
the manifest says are flushed, deleted ones, those that the chunks have under another position
(another node's copy, a retry), and those that came twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from service.runtime.process import Offload
from tailrace.logstore import keys
from tailrace.logstore.batch import (
    Batches,
    Indexes,
    Rows,
    RunKey,
    lowest_and_highest,
    of_batch,
    of_run,
    ulid_of,
)
from tailrace.logstore.cache import ENTRY_BYTES, Cache
from tailrace.logstore.cas import write_until_known
from tailrace.logstore.errors import Damaged, NotFound, PreconditionFailed, UnsupportedVersion
from tailrace.logstore.keys import decode, encode
from tailrace.logstore.objects.store import Body, ObjectInfo, ObjectPart, ObjectStore
from tailrace.logstore.runs.chunk_index import (
    BLOCK,
    Blocks,
    Directory,
    blocks_of,
    build_index,
    decode_tail,
    encode_tail,
    open_piece,
    positions,
)
from tailrace.logstore.runs.manifest import INLINE_BYTES, Chunk, Copy, Manifest

T = TypeVar("T")
Piece = tuple[Blocks, list[str]]
_SPAN_BYTES = 60
_TAIL_BYTES = 64 << 10
PUT = "tailrace-put"
"""In the metadata of `logs.txt`: the ULID of the close that wrote it."""
FIRST = "tailrace-first"
"""In the metadata of a `logs.txt` that is put before the run has a manifest: `first_lines`."""


class Moved(NotFound):
    """The caller's manifest is old: read it again and continue at the same line."""


class Chunks:
    """Reads the chunks of all runs."""

    def __init__(self, store: ObjectStore, prefix: str, *, cache_bytes: int = 32 << 20) -> None:
        self._store = store
        self._prefix = prefix
        self.changed: set[str] = set()
        """Chunks whose text was read and is not that of their index."""
        self.damaged: set[str] = set()
        """Chunks whose index was read and fails its checksums."""
        self._directories: Cache[Directory] = Cache(cache_bytes)
        self._pieces: Cache[Piece] = Cache(cache_bytes)

    def text_key(self, key: RunKey, chunk: Chunk) -> str:
        """Returns the key of the chunk's text."""
        if chunk.kind == "logs":
            return keys.logs(self._prefix, key)
        return keys.chunk_text(self._prefix, key, chunk.id)

    def index_key(self, key: RunKey, chunk: Chunk) -> str:
        """Returns the key of the chunk's index."""
        return keys.chunk_index(self._prefix, key, chunk.id)

    def text_part(
        self, key: RunKey, chunk: Chunk, *, if_match: str | None = None
    ) -> ObjectPart | bytes:
        """Returns the chunk's text as a part of an object that the store composes."""
        if chunk.text is not None:
            return chunk.text
        return ObjectPart(self.text_key(key, chunk), 0, chunk.bytes, if_match)

    def index_part(self, key: RunKey, chunk: Chunk, offset: int, size: int) -> ObjectPart | bytes:
        """Returns a range of the chunk's index as a part of an object that the store composes."""
        if chunk.index is not None:
            return chunk.index[offset : offset + size]
        return ObjectPart(self.index_key(key, chunk), offset, size)

    # --- indexes -------------------------------------------------------------------

    async def directory(self, key: RunKey, chunk: Chunk) -> Directory:
        """Returns the directory of the chunk's index, in at most one ranged get."""
        found = self._directories.get(chunk.id)
        if found is None:
            tail = await self._index(
                key, chunk, chunk.index_bytes - chunk.tail_bytes, chunk.tail_bytes
            )
            found = self._checked(chunk, lambda: decode_tail(tail))
            size = found.entries.nbytes + _SPAN_BYTES * len(found.ranges)
            self._directories.put(chunk.id, found, size + ENTRY_BYTES)
        return found

    async def piece(self, key: RunKey, chunk: Chunk, number: int) -> Piece:
        """Returns a piece of the chunk's index, in at most one ranged get."""
        found = self._pieces.get((chunk.id, number))
        if found is None:
            entry = (await self.directory(key, chunk)).entries[number]
            body = await self._index(key, chunk, int(entry["at"]), int(entry["size"]))
            found = self._checked(chunk, lambda: open_piece(entry, body))
            self._pieces.put((chunk.id, number), found, found[0].nbytes + ENTRY_BYTES)
        return found

    def _checked(self, chunk: Chunk, decode: Callable[[], T]) -> T:
        """Decodes data of an index. Raises `Moved` if it is damaged."""
        try:
            return decode()
        except UnsupportedVersion:
            raise
        except Damaged as error:
            self.damaged.add(chunk.id)
            raise Moved(f"the index of chunk {chunk.id} is damaged: {error}") from error

    async def _index(self, key: RunKey, chunk: Chunk, offset: int, size: int) -> bytes:
        if chunk.index is not None:
            return chunk.index[offset : offset + size]
        try:
            where = self.index_key(key, chunk)
            return (await self._store.get(where, offset=offset, size=size))[1]
        except NotFound as error:
            raise Moved(str(error)) from error

    # --- batches in the index ------------------------------------------------------

    async def listed(self, manifest: Manifest, rows: Rows) -> NDArray[np.bool_]:
        """Returns which of the batches are in the chunks: same ULID and same digest."""
        found = np.zeros(len(rows), np.bool_)
        low, high = lowest_and_highest(rows)
        for chunk in manifest.chunks:
            if len(rows) == 0 or chunk.last < low or chunk.first > high:
                continue
            directory = await self.directory(manifest.key, chunk)
            for number in directory.overlapping(low, high):
                blocks, _ = await self.piece(manifest.key, chunk, number)
                found |= _same(rows, blocks[blocks["first"] == 1])
        return found

    async def find(self, manifest: Manifest, ulid: int) -> tuple[int, int] | None:
        """Returns digest and records of a batch; None if the chunks do not hold it."""
        for chunk in manifest.chunks:
            batch = await self.blocks_of(manifest.key, chunk, ulid)
            if len(batch):
                digest = int(batch["digest"][batch["first"] == 1][0])
                return digest, int(batch["records"].sum(dtype=np.uint64))
        return None

    async def blocks_of(self, key: RunKey, chunk: Chunk, ulid: int) -> Blocks:
        """Returns the blocks of a batch in the chunk, in order; none if it does not hold it."""
        found = [np.zeros(0, BLOCK)]
        if chunk.first <= ulid <= chunk.last:
            directory = await self.directory(key, chunk)
            for number in directory.overlapping(ulid, ulid):
                blocks, _ = await self.piece(key, chunk, number)
                found.append(blocks[of_batch(blocks, ulid)])
        return np.concatenate(found)

    # --- texts ---------------------------------------------------------------------

    async def text(self, manifest: Manifest, chunk: Chunk, offset: int, size: int) -> bytes:
        """Returns a range of the chunk's text, in one get. Raises `Moved`."""
        if chunk.text is not None:
            return chunk.text[offset : offset + size]
        where = self.text_key(manifest.key, chunk)
        try:
            return await self._range(where, offset, size, chunk.etag or None)
        except (NotFound, PreconditionFailed):
            etag = await self._extended(manifest, chunk)
        try:
            return await self._range(where, offset, size, etag)
        except (NotFound, PreconditionFailed) as error:
            raise Moved(str(error)) from error

    async def _range(self, where: str, offset: int, size: int, etag: str | None) -> bytes:
        body = (await self._store.get(where, offset=offset, size=size, if_match=etag))[1]
        if len(body) != size:
            raise NotFound(f"{where} is cut")
        return body

    async def stream(
        self, manifest: Manifest, chunk: Chunk, offset: int, size: int
    ) -> AsyncIterator[bytes]:
        """Streams a range of the chunk's text, in constant memory. Raises `Moved`."""
        if chunk.text is not None:
            yield chunk.text[offset : offset + size]
            return
        where = self.text_key(manifest.key, chunk)
        etag: str | None = chunk.etag or None
        try:
            if etag is not None and (await self._store.head(where)).etag != etag:
                etag = await self._extended(manifest, chunk)
            pieces = self._store.stream(where, offset=offset, size=size, if_match=etag)
            async for piece in pieces:
                size -= len(piece)
                yield piece
            if size > 0:
                raise NotFound(f"{where} is cut")
        except (NotFound, PreconditionFailed) as error:
            raise Moved(str(error)) from error

    async def _extended(self, manifest: Manifest, chunk: Chunk) -> str:
        """Returns the ETag of a `logs.txt` that a close has extended, but not yet named.

        Its beginning is the log that the manifest names. Raises `Moved` if it is not.
        """
        if chunk.kind != "logs" or manifest.closing is None:
            raise Moved(f"chunk {chunk.id} is gone")
        info = await self._store.head(self.text_key(manifest.key, chunk))
        if not goes_on(chunk, info):
            raise Moved(f"{info.key} is another text")
        return info.etag


def goes_on(chunk: Chunk, logs: ObjectInfo) -> bool:
    """Returns true if `logs.txt` begins with the closed log: it is that, or a close extended it.

    An object of another writer does not have the metadata of a close.
    """
    return logs.etag == chunk.etag or (logs.size >= chunk.bytes and PUT in logs.metadata)


def first_lines(chunk: Chunk) -> str:
    """Returns the writer of the chunk's lines, and the position of the first of them."""
    ((writer, (low, _)),) = chunk.writers.items()
    return f"{low} {encode(writer)}"


def parse_first_lines(text: str) -> tuple[str, int] | None:
    """Returns writer and position; None if the text is not of `first_lines`."""
    low, _, name = text.partition(" ")
    writer = decode(name)
    return None if writer is None or not low.isdecimal() else (writer, int(low))


async def stored_directory(store: ObjectStore, index: ObjectInfo) -> Directory | None:
    """Returns the directory of an index that was listed; None if it cannot be read.

    Raises `StoreUnavailable`, `UnsupportedVersion`.
    """
    try:
        offset = max(index.size - _TAIL_BYTES, 0)
        try:
            return decode_tail((await store.get(index.key, offset=offset))[1])
        except UnsupportedVersion:
            raise
        except Damaged:
            return decode_tail((await store.get(index.key))[1])
    except UnsupportedVersion:
        raise
    except (NotFound, Damaged):
        return None


def _same(rows: Rows, blocks: Blocks) -> NDArray[np.bool_]:
    """Returns which rows have a block of the same ULID and digest."""
    triples = _triples(rows)
    return np.isin(triples, _triples(blocks))


def _triples(rows: Rows | Blocks) -> NDArray[np.void]:
    """Returns ULID and digest as 24 comparable bytes."""
    packed = np.empty((len(rows), 3), "<u8")
    packed[:, 0], packed[:, 1], packed[:, 2] = rows["ulid_hi"], rows["ulid_lo"], rows["digest"]
    return packed.view("S24").reshape(-1) if len(rows) else np.empty(0, "S24")


def repeated(parts: Sequence[Rows]) -> list[NDArray[np.bool_]]:
    """Returns which rows repeat an earlier row's ULID and digest, part by part."""
    every = np.concatenate([_triples(rows) for rows in parts]) if parts else np.empty(0, "S24")
    again = np.ones(len(every), np.bool_)
    again[np.unique(every, return_index=True)[1]] = False
    cuts = np.cumsum([len(rows) for rows in parts])[:-1]
    return [np.asarray(part, np.bool_) for part in np.split(again, cuts)]


class ChunkWriter:
    """Writes chunks of one run; no manifest names them yet."""

    def __init__(self, store: ObjectStore, chunks: Chunks, offload: Offload) -> None:
        self._store = store
        self._chunks = chunks
        self._offload = offload

    async def write(
        self, key: RunKey, chunk_id: str, batches: Batches, rows: Indexes, *, room: int = 0
    ) -> Chunk:
        """Stores the rows as a new chunk.

        It does not store a chunk whose text has at most `room` bytes and whose index is small: its
        bytes go into the manifest. Raises `StoreUnavailable`, `OutcomeUnknown`.
        """
        size = int(batches.rows["size"][rows].sum())
        if size <= room:
            small = _inline(*_build(chunk_id, batches, rows))
            if small is not None:
                return small
        chunk, text, index = await self._offload(lambda: _build(chunk_id, batches, rows))
        await self._put(self._chunks.text_key(key, chunk), text)
        await self._put(self._chunks.index_key(key, chunk), index)
        return chunk

    async def write_blocks(
        self,
        key: RunKey,
        chunk_id: str,
        blocks: Blocks,
        writers: Sequence[str],
        text: Callable[[], bytes],
    ) -> Chunk:
        """Stores blocks of other chunks, one after another, as a new one; `text` joins their texts.

        Raises as `write`.
        """
        chunk, body, index = await self._offload(
            lambda: _with_index(chunk_id, moved_together(blocks), writers, text())
        )
        await self._put(self._chunks.text_key(key, chunk), body)
        await self._put(self._chunks.index_key(key, chunk), index)
        return chunk

    async def remove(self, key: RunKey, written: Sequence[Chunk]) -> None:
        """Removes chunks that no manifest ever named. Raises as `write`."""
        names = (self._chunks.index_key, self._chunks.text_key)
        where = [name(key, chunk) for name in names for chunk in written]
        await write_until_known(lambda: self._store.delete(where))

    async def _put(self, key: str, body: Body) -> None:
        """Puts an object whose key is used once: putting the same bytes again does no harm."""
        await write_until_known(lambda: self._store.put(key, body))


def _build(chunk_id: str, batches: Batches, rows: Indexes) -> tuple[Chunk, bytes, bytes]:
    text = batches.text(rows)
    return _with_index(chunk_id, blocks_of(batches, rows, text), [batches.node], text)


def _inline(chunk: Chunk, text: bytes, index: bytes) -> Chunk | None:
    """Returns the chunk with its bytes; None if its index is too large, or its text not UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return None
    return replace(chunk, text=text, index=index) if len(index) <= INLINE_BYTES else None


def moved_together(blocks: Blocks) -> Blocks:
    """Returns the blocks with the places that they have one after another."""
    moved = blocks.copy()
    moved["offset"] = np.cumsum(blocks["size"]) - blocks["size"]
    moved["line"] = np.cumsum(blocks["lines"], dtype=np.uint64) - blocks["lines"]
    return moved


def _with_index(
    chunk_id: str, blocks: Blocks, writers: Sequence[str], text: bytes
) -> tuple[Chunk, bytes, bytes]:
    chunk, index = indexed_chunk(chunk_id, blocks, writers)
    return chunk, text, index


def indexed_chunk(chunk_id: str, blocks: Blocks, writers: Sequence[str]) -> tuple[Chunk, bytes]:
    """Returns the chunk whose text consists of these blocks, one after another, and its index."""
    body, directory = build_index(blocks, writers)
    tail = encode_tail(directory)
    first, last = lowest_and_highest(blocks)
    chunk = Chunk(
        id=chunk_id,
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
    return chunk, body + tail


# --- The selection of new batches ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewBatches:
    """Batches of one node that may have new lines of a run, at positions below `end`."""

    batches: Batches
    end: int

    @property
    def node(self) -> str:
        """Returns the writer."""
        return self.batches.node


def in_range(source: NewBatches, key: RunKey, start: int) -> Indexes:
    """Returns rows of the run from position `start` to the source's end."""
    indexes = of_run(source.batches, key)
    pos = source.batches.rows["pos"][indexes]
    return indexes[(pos >= start) & (pos < source.end)]


def above(rows: Rows, ulid: int) -> NDArray[np.bool_]:
    """Returns which rows have a batch ULID above `ulid`."""
    high, low = ulid >> 64, ulid & (1 << 64) - 1
    same = (rows["ulid_hi"] == high) & (rows["ulid_lo"] > low)
    exceeds: NDArray[np.bool_] = (rows["ulid_hi"] > high) | same
    return exceeds


async def select_new(
    sources: Sequence[NewBatches],
    chosen: Sequence[Indexes],
    manifest: Manifest,
    chunks: Chunks,
    horizon: int,
) -> list[Indexes]:
    """Returns the `chosen` rows that must be flushed. Raises `Moved`, `StoreUnavailable`."""
    kept = []
    for source, indexes in zip(sources, chosen, strict=True):
        rows = source.batches.rows[indexes]
        fresh = above(rows, max(horizon, manifest.generation))
        known = fresh & ~above(rows, manifest.last)
        if known.any():
            fresh[known] = ~await chunks.listed(manifest, rows[known])
        kept.append(indexes[fresh])
    parts = [source.batches.rows[i] for source, i in zip(sources, kept, strict=True)]
    if _rising(parts):
        return kept
    return [indexes[~again] for indexes, again in zip(kept, repeated(parts), strict=True)]


def left_out(
    sources: Sequence[NewBatches], chosen: Sequence[Indexes], kept: Sequence[Indexes], horizon: int
) -> list[Copy]:
    """Returns the `chosen` batches that `select_new` left out: the log has other copies."""
    found: list[Copy] = []
    for source, before, after in zip(sources, chosen, kept, strict=True):
        if len(before) == len(after):
            continue
        rows = source.batches.rows[before[~np.isin(before, after)]]
        rows = rows[above(rows, horizon)]
        found += [
            Copy(ulid_of(row), source.node, int(row["pos"]), int(row["records"])) for row in rows
        ]
    return found


def _rising(parts: Sequence[Rows]) -> bool:
    """Returns true if every ULID is above the one before it, so that none occurs twice."""
    last = 0
    for rows in parts:
        if len(rows) == 0:
            continue
        high, low = rows["ulid_hi"], rows["ulid_lo"]
        up = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
        least, most = lowest_and_highest(rows)
        if not up.all() or least <= last:
            return False
        last = most
    return True
