"""Merges small chunks, sorts chunks of several nodes, and publishes `partial.txt`.

Merging joins neighbouring chunks, so that a manifest stays small. The store composes the texts, and
whole pieces of the indexes; small neighbouring pieces are read and packed together. When a manifest
names more than `merge_above` chunks, the `merge_width` neighbours with the fewest bytes are merged:
small ones often, large ones rarely, so that a byte is copied about log(run) times.

`partial.txt` is the log so far of an open run, for people and OpenMetadata's readers. The store
composes it from the chunks, at most every `seconds`, and only while copying stays linear: the log
has doubled since, or is small. Tailrace never reads it.

Sorting brings chunks of several nodes into the order of ULIDs before they are sealed. A chunk has
the order in which one node took its batches. If nodes take batches of one run in turn, their chunks
lie one after another, and a producer that went from node to node finds its lines out of order. A
producer that waits for its replies has rising ULIDs at every node, because each node assigns ULIDs
above the one that the client echoes. So the order of all ULIDs is the order of every such producer,
without a record of who sent what.

    chunks of the close ──► groups that overlap ──► new chunks, in order ──► manifest ──► sealed

Lines of one node stay in the order in which it took them, which is that of their producers, too. So
nothing is read for a single node. For several nodes, the indexes are read. A group that is in order
stays unchanged. The text of any other group passes through this node once. The blocks are merged in
a sweep over the pieces of the indexes by their lowest ULIDs, so memory is that of the pieces whose
ULIDs overlap, and of one new chunk.

The first manifest that names a new chunk also says what `logs.txt` is about to become. So a sort
that is killed is repeated, and its chunks are swept after a day.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.run_log.chunks import Chunks, ChunkWriter, Moved
from service.run_log.contracts import RunLocks
from service.settings import Tuning
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.clock import Clock
from tailrace.logstore.objects.store import ObjectPart, ObjectStore
from tailrace.logstore.runs.chunk_index import (
    BLOCK,
    ENTRY,
    PIECE_BLOCKS,
    Blocks,
    Directory,
    Entries,
    PositionRange,
    encode_piece,
    encode_tail,
    entry_of,
    joined,
    positions,
)
from tailrace.logstore.runs.manifest import FORMAT, Chunk, Manifest, Manifests

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
        """Returns the neighbours to merge; None if too few are left."""
        width, fixed = self._tuning.merge_width, manifest.fixed_chunks
        start = 0 if manifest.logs is None else 1  # a closed part stays as it is
        windows = [
            manifest.chunks[at : at + width]
            for at in range(start, len(manifest.chunks) - width + 1)
            if at + width <= fixed or at >= fixed  # lines with their final place are not mixed up
        ]
        sizes = [sum([chunk.bytes for chunk in window]) for window in windows]
        return windows[sizes.index(min(sizes))] if windows else None

    async def joined(
        self, key: RunKey, group: Sequence[Chunk], chunk_id: str, *, etag: str = ""
    ) -> Chunk:
        """Returns the chunk that joins `group`; stores its index, unless it is small."""
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
    ) -> tuple[list[ObjectPart | bytes], Directory]:
        """Returns the pieces of all indexes in order, small neighbours packed into one."""
        owners = [
            (chunk, number)
            for chunk, directory in zip(group, directories, strict=True)
            for number in range(len(directory.entries))
        ]
        parts: list[ObjectPart | bytes] = []
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
        """Reads several pieces as blocks of one text."""
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
    """Returns ranges of pieces that become one: few blocks, few bytes."""
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


def _coalesced(parts: Sequence[ObjectPart | bytes]) -> list[ObjectPart | bytes]:
    """Joins adjacent ranges of one object."""
    found: list[ObjectPart | bytes] = []
    for part in parts:
        last = found[-1] if found else None
        if (
            isinstance(part, ObjectPart)
            and isinstance(last, ObjectPart)
            and last.key == part.key
            and last.offset + (last.size or 0) == part.offset
        ):
            found[-1] = ObjectPart(part.key, last.offset, (last.size or 0) + (part.size or 0))
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
    """Returns the manifest with the chunks `ids` as one; None if it no longer has them."""
    names = [chunk.id for chunk in manifest.chunks]
    if ids[0] not in names or manifest.closing is not None:
        return None
    at = names.index(ids[0])
    if names[at : at + len(ids)] != ids:
        return None
    chunks = (*manifest.chunks[:at], merged, *manifest.chunks[at + len(ids) :])
    return replace(manifest, chunks=chunks)


# --- partial.txt --------------------------------------------------------------------------------


_SMALL_BYTES = 5 << 20
_GROWTH = 2.0
_REMEMBERED = 10_000


class PartialPublisher:
    """Publishes `partial.txt` for the runs of one node."""

    def __init__(
        self,
        store: ObjectStore,
        manifests: Manifests,
        chunks: Chunks,
        locks: RunLocks,
        prefix: str,
        clock: Clock,
        *,
        seconds: float,
        alone: bool,
    ) -> None:
        """`alone`: no other node exists, so that nobody else closes a run meanwhile."""
        self._store = store
        self._manifests = manifests
        self._locks = locks
        self._chunks = chunks
        self._prefix = prefix
        self._clock = clock
        self._seconds = seconds
        self._alone = alone
        self._published: BoundedCache[RunKey, tuple[int, float]] = BoundedCache(_REMEMBERED)
        self.published = 0

    def due(self, manifest: Manifest) -> bool:
        """Returns true if it is worth publishing now."""
        if manifest.state != "open" or not manifest.chunks:
            return False
        size, at = self._published.peek(manifest.key) or (0, float("-inf"))
        if self._clock.monotonic() - at < self._seconds:
            return False
        return manifest.bytes > size and (
            manifest.bytes < _SMALL_BYTES or manifest.bytes >= size * _GROWTH
        )

    def has_published(self, key: RunKey) -> bool:
        """Returns true if this process has written it, as far as it remembers."""
        return key in self._published

    async def publish(self, key: RunKey, *, due: bool = False) -> None:
        """Writes it if the run is open and, with `due`, if it is worth publishing.

        Raises `Unavailable`, `OutcomeUnknown`.
        """
        # Under the lock, so that it cannot come after the close that removes it.
        async with self._locks.of(key):
            # After a flush, the version that it wrote was the newest a moment ago.
            read = self._manifests.recent if due else self._manifests.get
            manifest = (await read(key)).manifest
            if manifest.state != "open" or (due and not self.due(manifest)):
                return
            await self._write(manifest)
            if self._alone:
                return
            # Another node may have closed it meanwhile, and removed the earlier `partial.txt`.
            if (await self._manifests.get(key)).manifest.state != "open":
                await self._store.delete([keys.partial(self._prefix, key)])

    async def _write(self, manifest: Manifest) -> None:
        """Writes it from the newest manifest."""
        key = manifest.key
        parts = [self._chunks.text_part(key, chunk) for chunk in manifest.chunks]
        await self._store.compose(
            keys.partial(self._prefix, key),
            parts,
            metadata={
                "last-flushed-line": str(manifest.lines),
                "total-bytes": str(manifest.bytes),
                "writer-epoch": str(manifest.epoch),
                "writer-version": str(FORMAT),
            },
        )
        self.published += 1
        self._published.put(key, (manifest.bytes, self._clock.monotonic()))

    def forget(self, key: RunKey) -> None:
        """Drops the state of a run that was closed or deleted."""
        self._published.pop(key)


# --- Sorting ------------------------------------------------------------------------------------


_GAPS = (64 << 10, 16 << 10, 4 << 10, 0)
"""Sizes of gaps between wanted ranges of a text that one request reads as well."""
_MOST_READ = 4
"""A read with such gaps has at most this many times the wanted bytes."""

_ROW = np.dtype([("block", BLOCK), ("chunk", "<u4"), ("order", "<u8")])
"""A block, which of the group's chunks has it, and where it stands in the group."""
_Rows = NDArray[np.void]


class _PieceStart(NamedTuple):
    """The lowest batch ULID of a piece, and where the piece is."""

    first: int
    chunk: int
    number: int


class Exchange(NamedTuple):
    """Chunks of a manifest, by their ids, and the chunks that replace them.

    `by_position`: the lines of each node are still in order of their positions.
    """

    ids: tuple[str, ...]
    made: tuple[Chunk, ...]
    by_position: bool

    def apply(self, manifest: Manifest) -> Manifest:
        """Returns the manifest with the new chunks in place of the old ones, which it has."""
        at = [chunk.id for chunk in manifest.chunks].index(self.ids[0])
        end = at + len(self.ids)
        chunks = (*manifest.chunks[:at], *self.made, *manifest.chunks[end:])
        # A copy that was left out counts as seen with the lines of its node around it. That holds
        # as long as the batch itself lies before those.
        by_ulid = manifest.by_ulid or not self.by_position or bool(manifest.copies)
        return replace(manifest, chunks=chunks, by_ulid=by_ulid)


@dataclass(slots=True)
class _NewChunk:
    """Blocks of a chunk that is to be written: whole batches, in order."""

    rows: list[_Rows]
    bytes: int = 0


class ChunkSorter:
    """Sorts the chunks of one run; its caller holds the run's lock."""

    def __init__(
        self,
        manifests: Manifests,
        chunks: Chunks,
        writer: ChunkWriter,
        *,
        chunk_bytes: int,
        foreign: str,
    ) -> None:
        """`foreign` is the writer of imported text, which stays before the lines of all nodes."""
        self._manifests = manifests
        self._chunks = chunks
        self._writer = writer
        self._chunk_bytes = chunk_bytes
        self._foreign = foreign

    async def sort(
        self, manifest: Manifest, count: int, known: Mapping[tuple[str, ...], Exchange]
    ) -> list[Exchange]:
        """Makes new chunks for those of the first `count` that are not in order.

        Lines with their final place stay. `known` chunks were made by an earlier try. Raises
        `Moved`, `StoreUnavailable`, `OutcomeUnknown`.
        """
        found: list[Exchange] = []
        chunks = [
            chunk
            for chunk in manifest.chunks[manifest.fixed_chunks : count]
            if self._foreign not in chunk.writers
        ]
        if len({writer for chunk in chunks for writer in chunk.writers}) < 2:
            return found
        for group in _overlapping(chunks):
            ids = tuple([chunk.id for chunk in group])
            if ids in known:
                found.append(known[ids])
                continue
            if await self._in_order(manifest, group):
                continue
            made, by_position = await self._sorted(manifest, group)
            found.append(Exchange(ids, tuple(made), by_position))
        return found

    async def discard(self, manifest: Manifest, exchanges: Iterable[Exchange]) -> None:
        """Removes new chunks that came too late for the manifest. Raises as `sort`."""
        named = {chunk.id for chunk in manifest.chunks}
        unnamed = [c for one in exchanges for c in one.made if c.id not in named]
        if unnamed:
            await self._writer.remove(manifest.key, unnamed)

    async def _in_order(self, manifest: Manifest, group: Sequence[Chunk]) -> bool:
        last = 0
        for chunk in group:
            for number in range(len((await self._chunks.directory(manifest.key, chunk)).entries)):
                blocks, _ = await self._chunks.piece(manifest.key, chunk, number)
                order = np.lexsort((np.arange(len(blocks)), blocks["ulid_lo"], blocks["ulid_hi"]))
                if _ulid(blocks[0]) < last or (np.diff(order) < 0).any():
                    return False
                last = _ulid(blocks[-1])
        return True

    async def _sorted(self, manifest: Manifest, group: Sequence[Chunk]) -> tuple[list[Chunk], bool]:
        """Sorts a group into new chunks.

        Also returns if each node's lines are in order of position.
        """
        writers: list[str] = []
        made: list[Chunk] = []
        seen: dict[int, int] = {}
        by_position = True
        new = _NewChunk([])
        async for rows in self._swept(manifest, group, writers):
            by_position &= _rises(rows["block"], seen)
            for batch in _batches(rows):
                size = int(batch["block"]["size"].sum())
                if new.rows and new.bytes + size > self._chunk_bytes:
                    made.append(await self._write(manifest, group, new, writers))
                    new = _NewChunk([])
                new.rows.append(batch)
                new.bytes += size
        if new.rows:
            made.append(await self._write(manifest, group, new, writers))
        return made, by_position

    async def _swept(
        self, manifest: Manifest, group: Sequence[Chunk], writers: list[str]
    ) -> AsyncIterator[_Rows]:
        """Yields all blocks of the group in order of ULID, a batch's together.

        Adds to `writers`.
        """
        starts: list[_PieceStart] = []
        for at, chunk in enumerate(group):
            entries = (await self._chunks.directory(manifest.key, chunk)).entries
            lows = zip(entries["first_hi"].tolist(), entries["first_lo"].tolist(), strict=True)
            starts += [_PieceStart(hi << 64 | lo, at, n) for n, (hi, lo) in enumerate(lows)]
        starts.sort()
        pool = np.empty(0, _ROW)
        for at, start in enumerate(starts):
            piece = await self._rows(manifest, group, start, writers)
            pool = np.concatenate([pool, piece])
            ready = np.ones(len(pool), np.bool_)
            if at + 1 < len(starts):  # later pieces may have this ULID and any above it
                ready = _below(pool["block"], starts[at + 1].first)
            rows, pool = pool[ready], pool[~ready]
            if len(rows):
                hi, lo = rows["block"]["ulid_hi"], rows["block"]["ulid_lo"]
                yield rows[np.lexsort((rows["order"], lo, hi))]

    async def _rows(
        self, manifest: Manifest, group: Sequence[Chunk], start: _PieceStart, writers: list[str]
    ) -> _Rows:
        chunk = group[start.chunk]
        blocks, names = await self._chunks.piece(manifest.key, chunk, start.number)
        writers += [name for name in names if name not in writers]
        rows = np.empty(len(blocks), _ROW)
        rows["block"] = blocks
        rows["block"]["writer"] = np.array([writers.index(n) for n in names])[blocks["writer"]]
        rows["chunk"] = start.chunk
        rows["order"] = (start.chunk << 40) + blocks["line"].astype(np.uint64)
        return rows

    async def _write(
        self, manifest: Manifest, group: Sequence[Chunk], new: _NewChunk, writers: Sequence[str]
    ) -> Chunk:
        rows = np.concatenate(new.rows)
        ranges = {
            at: await self._read(manifest, group[at], rows["block"][rows["chunk"] == at])
            for at in np.unique(rows["chunk"]).tolist()
        }
        return await self._writer.write_blocks(
            manifest.key,
            self._manifests.fresh_id(),
            rows["block"],
            writers,
            lambda: b"".join(_texts(rows, ranges)),
        )

    async def _read(
        self, manifest: Manifest, chunk: Chunk, blocks: Blocks
    ) -> tuple[NDArray[np.int64], list[bytes]]:
        """Reads ranges of the chunk's text that hold the blocks: their starts, and their bytes."""
        starts = np.sort(blocks["offset"].astype(np.int64))
        ends = np.sort((blocks["offset"] + blocks["size"]).astype(np.int64))
        wanted = int((ends - starts).sum())
        lows, highs = starts, ends
        for gap in _GAPS:
            breaks = np.flatnonzero(starts[1:] - ends[:-1] > gap)
            lows = starts[np.concatenate([[0], breaks + 1])]
            highs = ends[np.concatenate([breaks, [len(ends) - 1]])]
            if int((highs - lows).sum()) <= _MOST_READ * wanted:
                break
        texts = [
            await self._chunks.text(manifest, chunk, low, high - low)
            for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
        ]
        return lows, texts


def _overlapping(chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    """Groups the chunks: every ULID of a group is above those of the groups before it."""
    found: list[list[Chunk]] = []
    highest: list[int] = []
    for chunk in chunks:
        group, last = [chunk], chunk.last
        while found and chunk.first <= highest[-1]:
            group, last = found.pop() + group, max(last, highest.pop())
        found.append(group)
        highest.append(last)
    return found


def _ulid(block: np.void) -> int:
    return int(block["ulid_hi"]) << 64 | int(block["ulid_lo"])


def _below(blocks: Blocks, ulid: int) -> NDArray[np.bool_]:
    high, low = ulid >> 64, ulid & (1 << 64) - 1
    same = (blocks["ulid_hi"] == high) & (blocks["ulid_lo"] < low)
    found: NDArray[np.bool_] = (blocks["ulid_hi"] < high) | same
    return found


def _rises(blocks: Blocks, seen: dict[int, int]) -> bool:
    """Returns true if the positions of each writer rise, also above the last ones `seen`."""
    rises = True
    for writer in np.unique(blocks["writer"]).tolist():
        positions = blocks["pos"][blocks["writer"] == writer].astype(np.int64)
        rises &= int(positions[0]) > seen.get(writer, -1) and bool((np.diff(positions) > 0).all())
        seen[writer] = max(seen.get(writer, -1), int(positions.max()))
    return rises


def _batches(rows: _Rows) -> list[_Rows]:
    """Splits the rows into groups of whole batches; most groups are short."""
    heads = np.flatnonzero(rows["block"]["first"])
    return np.split(rows, heads[heads > 0])


def _texts(
    rows: _Rows, ranges: dict[int, tuple[NDArray[np.int64], list[bytes]]]
) -> list[memoryview]:
    """Returns the text of each row; rows that are neighbours in their chunk are read together."""
    starts = rows["block"]["offset"].astype(np.int64)
    ends = starts + rows["block"]["size"].astype(np.int64)
    follows = (rows["chunk"][1:] == rows["chunk"][:-1]) & (starts[1:] == ends[:-1])
    heads = np.concatenate([[0], np.flatnonzero(~follows) + 1])
    tails = np.concatenate([heads[1:] - 1, [len(rows) - 1]])
    found = []
    for head, tail in zip(heads.tolist(), tails.tolist(), strict=True):
        lows, texts = ranges[int(rows["chunk"][head])]
        low, high = int(starts[head]), int(ends[tail])
        at = int(np.searchsorted(lows, low, "right")) - 1
        begin = low - int(lows[at])
        found.append(memoryview(texts[at])[begin : begin + high - low])
    return found
