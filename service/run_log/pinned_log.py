"""Pins the log of a run as one snapshot has it, for replies that outlive a snapshot.

A download reads piece by piece, and lines move meanwhile: into chunks, and to another place when a
close sorts them. A slow reader must not hold the files of a journal. So the first snapshot fixes
the lines of the reply and their order, and each piece is read from a later snapshot (`now`):

- Lines in chunks are read from the chunks of the first snapshot. The sweeper leaves chunks that no
  manifest names any more for a day.
- Each batch beyond them is found by its ULID and digest, wherever it is by then.

If a line cannot be found any more, the reply breaks off. Line and byte numbers are those of the
first snapshot.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.run_log.chunks import Moved
from service.run_log.lines import PartLines, ReadText, RecordPart, read_parts
from service.run_log.snapshot import ChunkPlace, RunSnapshot, UnflushedRows
from tailrace.logstore.batch import BATCH, Indexes, RecordMeta, Rows, RunKey, of_batch, ulid_of
from tailrace.logstore.errors import NotFound, Unavailable
from tailrace.logstore.runs.manifest import Chunk, Manifest

_MOST_TOGETHER = 4096


class _Where(NamedTuple):
    """The place of consecutive batches: how many, and the first one's line and byte."""

    batches: int
    line: int
    byte: int


@dataclass(frozen=True, slots=True)
class _RowsAlone:
    """Batches of a node without their texts, which are read elsewhere."""

    node: str
    rows: Rows
    runs: Sequence[RunKey]
    connectors: Sequence[str | None] = (None,)

    def text(self, indexes: Indexes) -> bytes:  # noqa: ARG002
        raise self._elsewhere()

    def slice(self, index: int, low: int, high: int) -> bytes:  # noqa: ARG002
        raise self._elsewhere()

    def meta(self, index: int) -> RecordMeta | None:  # noqa: ARG002
        raise self._elsewhere()

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:  # noqa: ARG002
        raise self._elsewhere()

    def _elsewhere(self) -> Moved:
        return Moved(f"texts of {self.node} are not read here")


class PinnedLog:
    """The lines of a run as one snapshot has them, in its order."""

    def __init__(self, snapshot: RunSnapshot) -> None:
        self.manifest = snapshot.manifest
        self.exists = snapshot.exists
        self.chunk_lines, self.chunk_bytes = snapshot.chunk_lines, snapshot.chunk_bytes
        self.lines, self.size = snapshot.lines, snapshot.size
        self.silent = frozenset(snapshot.elsewhere.silent)
        parts = [np.zeros(0, BATCH), *[stretch.rows for stretch in snapshot.stretches]]
        self.rows: Rows = np.concatenate(parts)
        self.ends = _ends(self.rows["lines"], self.chunk_lines)
        self.byte_ends = _ends(self.rows["size"], self.chunk_bytes)

    def at(self, now: RunSnapshot) -> LogNow:
        """Returns the rest of the log at a later snapshot.

        Raises `NotFound` if lines were deleted.
        """
        if now.manifest.generation != self.manifest.generation:
            key = self.manifest.key
            raise NotFound(f"the run {key.run!r} of {key.fqn!r} was deleted meanwhile")
        manifest = _readable(self.manifest, now.manifest)
        chunks = RunSnapshot(manifest, now.chunks, now.pin, (), now.line_indexes, now.elsewhere)
        return LogNow(self, now, chunks)


@dataclass(frozen=True, slots=True)
class LogNow:
    """A pinned log, the snapshot from which it is read, and its chunks as readable there."""

    log: PinnedLog
    now: RunSnapshot
    stored: RunSnapshot

    def order(self) -> RunSnapshot:
        """Returns all lines of the log, without the texts of those beyond the chunks."""
        log, stored = self.log, self.stored
        order = RunSnapshot(stored.manifest, stored.chunks, stored.pin, (), stored.line_indexes)
        if len(log.rows):
            batches = _RowsAlone(stored.pin.node, log.rows, [log.manifest.key])
            indexes, start = np.arange(len(log.rows)), (log.chunk_lines, log.chunk_bytes)
            order.stretches = [
                UnflushedRows(batches, indexes, log.rows, *start, log.ends, log.byte_ends)
            ]
        return order

    async def text(self, byte: int, size: int) -> bytes:
        """Returns up to `size` bytes from `byte` on, beyond the chunks. Raises `Moved`."""
        log, now = self.log, self.now
        number = int(np.searchsorted(log.byte_ends, byte, "right"))
        where = await self._find(number)
        begin = int(log.byte_ends[number]) - int(log.rows["size"][number])
        size = min(size, int(log.byte_ends[number + where.batches - 1]) - byte)
        at = byte - begin + where.byte
        if at >= now.chunk_bytes:
            return text_beyond_chunks(now, at, size)
        place = place_of_byte(now, at)
        return await now.chunks.text(now.manifest, place.chunk, at - place.byte, size)

    async def parts(
        self, start: int, end: int, max_bytes: int, text: ReadText | None = None
    ) -> PartLines:
        """Reads as `lines.read_parts`, by the line numbers of the log. Raises `Moved`."""
        log = self.log
        parts: list[RecordPart] = []
        first, size, end = start, 0, min(end, log.lines)
        while start < end and (size < max_bytes or not parts):
            snapshot, high, shift = self.stored, min(end, log.chunk_lines), 0
            if start >= log.chunk_lines:
                number = int(np.searchsorted(log.ends, start, "right"))
                where = await self._find(number)
                begin = int(log.ends[number]) - int(log.rows["lines"][number])
                snapshot, shift = self.now, begin - where.line
                high = min(end, int(log.ends[number + where.batches - 1]))
            found = await read_parts(snapshot, start - shift, high - shift, max_bytes - size, text)
            if not parts:
                first = found.start + shift
            parts += found.parts
            size += sum([len(part.text) for part in found.parts])
            start = found.end + shift
        return PartLines(parts, first, start)

    async def _find(self, number: int) -> _Where:
        """Returns where the batches from row `number` on are now, as many as are together."""
        now, wanted = self.now, self.log.rows[number : number + _MOST_TOGETHER]
        for stretch in now.stretches:
            for at in _same(stretch.rows, wanted[0]):
                row = stretch.rows[at]
                line = int(stretch.ends[at]) - int(row["lines"])
                byte = int(stretch.byte_ends[at]) - int(row["size"])
                return _Where(_together(stretch.rows[at:], wanted), line, byte)
        found = await self._find_in_chunks(wanted)
        if found is not None:
            return found
        gone = sorted({*now.elsewhere.silent} - self.log.silent)
        if gone:
            raise Unavailable(
                f"the rest of the reply is on nodes that no longer answer: {', '.join(gone)}",
                hint="Request the whole reply again.",
            )
        raise Moved("lines of a reply in progress are neither in chunks nor at a node")

    async def _find_in_chunks(self, wanted: Rows) -> _Where | None:
        now, ulid = self.now, ulid_of(wanted[0])
        for place in now.places:
            if not place.chunk.first <= ulid <= place.chunk.last:
                continue
            directory = await now.chunks.directory(now.manifest.key, place.chunk)
            for piece in directory.overlapping(ulid, ulid):
                blocks, _ = await now.chunks.piece(now.manifest.key, place.chunk, piece)
                heads = blocks[blocks["first"] == 1]
                for at in _same(heads, wanted[0]):
                    line, byte = int(heads["line"][at]), int(heads["offset"][at])
                    together = _together(heads[at:], wanted)
                    return _Where(together, place.line + line, place.byte + byte)
        return None


def _ends(sizes: NDArray[np.void], start: int) -> NDArray[np.int64]:
    ends: NDArray[np.int64] = start + np.cumsum(sizes.astype(np.int64))
    return ends


def _same(rows: NDArray[np.void], wanted: np.void) -> list[int]:
    """Returns the first row, if any, of the batch: with its ULID and digest."""
    same = of_batch(rows, ulid_of(wanted)) & (rows["digest"] == wanted["digest"])
    return [int(at) for at in np.flatnonzero(same)[:1]]


def _together(rows: NDArray[np.void], wanted: Rows) -> int:
    """Returns how many of the first rows are the wanted batches, in their order."""
    count = min(len(rows), len(wanted))
    same = np.ones(count, np.bool_)
    for name in ("ulid_hi", "ulid_lo", "digest"):
        same &= rows[name][:count] == wanted[name][:count]
    return count if same.all() else int(np.argmin(same))


def _readable(old: Manifest, now: Manifest) -> Manifest:
    """Returns the old manifest, with its chunks by the names under which they are readable now."""
    chunks = _same_lines(old, now) if _keeps_order(old, now) else None
    if chunks is None:
        chunks = old.chunks
        if old.logs is not None and now.logs is not None:
            # Within a generation `logs.txt` begins with its earlier contents.
            chunks = (replace(old.logs, etag=now.logs.etag), *old.chunks[1:])
    return replace(old, chunks=chunks, closing=now.closing)


def _same_lines(old: Manifest, now: Manifest) -> tuple[Chunk, ...] | None:
    """Returns the first chunks of `now` with exactly the lines and bytes of `old`, if any."""
    count = lines = 0
    while count < len(now.chunks) and lines < old.lines:
        lines, count = lines + now.chunks[count].lines, count + 1
    found = replace(now, chunks=now.chunks[:count])
    return found.chunks if (found.lines, found.bytes) == (old.lines, old.bytes) else None


def _keeps_order(old: Manifest, now: Manifest) -> bool:
    """Returns true if no close sorted lines since: only those of several nodes are sorted."""
    if now.fixed_lines <= old.fixed_lines:
        return True
    return len({who for chunk in now.chunks[: now.fixed_chunks] for who in chunk.writers}) < 2


def place_of_byte(snapshot: RunSnapshot, byte: int) -> ChunkPlace:
    """Returns the chunk that holds the byte."""
    return snapshot.places[bisect_right(snapshot.places, byte, key=lambda p: p.byte) - 1]


def text_beyond_chunks(snapshot: RunSnapshot, byte: int, size: int) -> bytes:
    """Returns up to `size` bytes beyond the chunks: whole batches, or a part of one."""
    stretch: UnflushedRows = next(s for s in snapshot.stretches if byte < s.end_byte)
    first = int(np.searchsorted(stretch.byte_ends, byte, "right"))
    last = int(np.searchsorted(stretch.byte_ends, byte + size, "right"))
    low = byte - int(stretch.byte_ends[first]) + int(stretch.rows["size"][first])
    if low or last <= first:
        return stretch.batches.slice(int(stretch.indexes[first]), low, low + size)
    return snapshot.stretch_text(stretch, first, last)
