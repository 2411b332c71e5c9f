"""Sorting: chunks that several nodes wrote come into the order of ULIDs before they are sealed.

A chunk has the order in which one node took its batches. Where nodes take batches of one run in
turn, their chunks lie one after another, and a producer that went from node to node finds its lines
out of order. A producer that waits for its replies has rising ULIDs at every node, because each
node mints above the ULID that the client echoes. So the order of all ULIDs is the order of every
such producer, without a record of who sent what.

    chunks of the close ──► groups that overlap ──► new chunks, in order ──► manifest ──► sealed

Lines of one node stay in the order in which it took them, which is that of their producers, too.
Nothing is read for them. Of several nodes, the indexes are read. A group that is in order stays as
it is. The text of another one goes through this node once. The blocks are merged in a sweep over
the pieces of the indexes by their lowest ULIDs, so memory is that of the pieces whose ULIDs
overlap, and of one new chunk.

No manifest names a new chunk before the one that also says what `logs.txt` is about to become: a
sort that is killed is repeated, and its chunks are swept after a day.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from logstore.runs.blocks import BLOCK, Blocks
from logstore.runs.manifest import Chunk, Manifest
from logstore.runs.manifests import Manifests
from service.runs.chunks import Chunks, ChunkWriter

_GAPS = (64 << 10, 16 << 10, 4 << 10, 0)
"""Bytes between two wanted ranges of a text that are read as well, rather than asking twice."""
_MOST_READ = 4
"""How many times the wanted bytes such gaps may make of it."""

_ROW = np.dtype([("block", BLOCK), ("chunk", "<u4"), ("order", "<u8")])
"""A block, which of the group's chunks has it, and where it stands in the group."""
_Rows = NDArray[np.void]


class _PieceStart(NamedTuple):
    """The lowest batch ULID of a piece, and where the piece is."""

    first: int
    chunk: int
    number: int


class Exchange(NamedTuple):
    """Chunks of a manifest, by their ids, and those that take their place.

    `by_position`: the lines of each node are still in order of their positions.
    """

    ids: tuple[str, ...]
    made: tuple[Chunk, ...]
    by_position: bool

    def apply(self, manifest: Manifest) -> Manifest:
        """The manifest with the new chunks; it has the old ones."""
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
        """New chunks for those of the first `count` that are not in order.

        What has its final place stays. `known` were made by an earlier try. Raises
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
        """New chunks of the group's lines; whether each node's are still in order of position."""
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
        """All blocks of the group in order of ULID, a batch's together; adds to `writers`."""
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
            if at + 1 < len(starts):  # what comes may have this ULID and any above it
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
        """Ranges of the chunk's text that hold the blocks: their beginnings, and their bytes."""
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
    """The chunks in groups: every ULID of a group is above those of the groups before it."""
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
    """Whether the positions of each writer rise, also above the last ones `seen`."""
    rises = True
    for writer in np.unique(blocks["writer"]).tolist():
        positions = blocks["pos"][blocks["writer"] == writer].astype(np.int64)
        rises &= int(positions[0]) > seen.get(writer, -1) and bool((np.diff(positions) > 0).all())
        seen[writer] = max(seen.get(writer, -1), int(positions.max()))
    return rises


def _batches(rows: _Rows) -> list[_Rows]:
    """The rows in runs of whole batches; most are short."""
    heads = np.flatnonzero(rows["block"]["first"])
    return np.split(rows, heads[heads > 0])


def _texts(
    rows: _Rows, ranges: dict[int, tuple[NDArray[np.int64], list[bytes]]]
) -> list[memoryview]:
    """The text of each row; neighbours in their chunk together."""
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
