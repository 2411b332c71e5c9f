"""Records of a snapshot in order of ULID, which is the order of their producers.

The log has the order of arrival. A batch's records have rising ULIDs and stand together, so this
is an order of batches, and the chunks' indexes have the ids of all of them: directories say which
pieces may hold the next ids, and only those are read. Memory is that of the blocks that are given
and of one piece, whatever the run's length. Where the clocks of producers differ, neighbours
by ULID are apart in the log: texts are read in windows, and the last ones are kept for a page.

A place in this order is the ULID of a record, and a client gets it as `u1.{ULID}`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from logstore import ulid as ulids
from logstore.batch import of_batch
from logstore.errors import InvalidCursor, InvalidInput
from logstore.runs.blocks import Blocks
from logstore.runs.manifest import Chunk, Manifest
from service.runs.chunks import Chunks
from service.runs.cursors import line_behind
from service.runs.part_lines import PartLines, ReadText, read_parts
from service.runs.parts import RecordPart
from service.runs.snapshot import Place, Snapshot

_PREFIX = "u1."
_LOW = (1 << 64) - 1
_HIGHEST = (1 << 128) - 1
_WINDOW_BYTES = 256 << 10
_WINDOWS = 16

_ROW = np.dtype(
    [
        ("hi", "<u8"),  # of the batch's ULID
        ("lo", "<u8"),
        ("pos", "<i8"),  # of its first record
        ("line", "<i8"),  # from the beginning of the log
        ("lines", "<i8"),
        ("records", "<i8"),
        ("size", "<i8"),
    ]
)
_Rows = NDArray[np.void]
LineRange = tuple[int, int]
ReadParts = Callable[[int, int, int, ReadText], Awaitable[PartLines]]
"""The records of lines from a number to before another, of so many bytes; how to read texts."""
NO_LIMIT = 1 << 62


class Edge(NamedTuple):
    """Where a range of records ends: records of `batch` from position `pos` on lie beyond.

    Batches with a higher ULID lie beyond, too; those with a lower one lie before.
    """

    batch: int
    pos: int


def encode_place(ulid: int) -> str:
    """Encodes a place as the token that a client passes back."""
    return _PREFIX + ulids.encode(ulid)


def decode_place(text: str, field: str) -> int:
    """The ULID of a place. Raises `InvalidCursor`."""
    try:
        if text.startswith(_PREFIX):
            return int(ulids.parse(text[len(_PREFIX) :]))
    except InvalidInput:
        pass
    raise InvalidCursor(
        f"not a place in the order of ULIDs: {text[:80]!r}",
        field=field,
        hint="With order=ulid a page goes on where one with order=ulid has ended.",
    )


async def from_ulid(snapshot: Snapshot, ulid: int, lines: int, size: int) -> list[LineRange]:
    """The records from `ulid` on, in order: of about so many lines and bytes. Raises `Moved`."""
    rows = await _sweep(snapshot, ulid, lines, size, forward=True)
    return _ranges(_first_lines(rows, lines))


async def before_ulid(snapshot: Snapshot, ulid: int, lines: int) -> list[LineRange]:
    """The last records before `ulid`, in order: of about so many lines. Raises `Moved`."""
    rows = await _sweep(snapshot, ulid, lines, NO_LIMIT, forward=False)
    return _ranges(_last_lines(rows, lines)[::-1])


async def read_ranges(
    snapshot: Snapshot,
    ranges: Sequence[LineRange],
    max_bytes: int,
    read: ReadParts | None = None,
) -> list[RecordPart]:
    """The records of these lines in this order, as many as fit into `max_bytes`, one at least.

    They are read by `read`, or of the snapshot. Raises `Moved`, `Unavailable`.
    """
    read = read or partial(read_parts, snapshot)
    windows = _Windows(snapshot.chunks)
    parts: list[RecordPart] = []
    size = 0
    for start, end in ranges:
        at = start
        while at < end and (size < max_bytes or not parts):
            found = await read(at, end, max_bytes - size, windows.text)
            parts += found.parts
            size += sum([len(part.text) for part in found.parts])
            at = found.end
        if at < end:
            break
    return parts


# --- which batches come next --------------------------------------------------------------


async def _sweep(snapshot: Snapshot, ulid: int, lines: int, size: int, *, forward: bool) -> _Rows:
    """The nearest rows on one side of a ULID, the nearest first, until they are enough."""
    edge = await _edge(snapshot, ulid)
    kept = _nearest(_beyond(snapshot, _hot_rows(snapshot), edge, forward), lines, size, forward)
    for nearest, place, number in await _pieces(snapshot, edge.batch, forward):
        if _enough(kept, lines, size):
            last = _batch(kept[-1])
            if (nearest > last) if forward else (nearest < last):
                break
        blocks, _ = await snapshot.chunks.piece(snapshot.manifest.key, place.chunk, number)
        more = _beyond(snapshot, _block_rows(blocks, place), edge, forward)
        kept = _nearest(np.concatenate([kept, more]), lines, size, forward)
    return kept


async def _edge(snapshot: Snapshot, ulid: int) -> Edge:
    batch = ulids.batch_of(ulid)
    first = await _position_of(snapshot, batch)
    return Edge(batch, 0 if first is None else first + ulid - batch)


async def _position_of(snapshot: Snapshot, batch: int) -> int | None:
    """The position of the batch's first record, if the run has it."""
    for stretch in snapshot.stretches:
        for at in np.flatnonzero(of_batch(stretch.rows, batch))[:1].tolist():
            return int(stretch.rows["pos"][at])
    for place in snapshot.places:
        blocks = await snapshot.chunks.blocks_of(snapshot.manifest.key, place.chunk, batch)
        if len(blocks):
            return int(blocks["pos"][0])
    return None


async def _pieces(snapshot: Snapshot, batch: int, forward: bool) -> list[tuple[int, Place, int]]:
    """The pieces that may hold batches on this side, the nearest first, each with its nearest."""
    found: list[tuple[int, Place, int]] = []
    low, high = (batch, _HIGHEST) if forward else (0, batch)
    for place in snapshot.places:
        if place.chunk.last < low or place.chunk.first > high:
            continue
        directory = await snapshot.chunks.directory(snapshot.manifest.key, place.chunk)
        end = "first" if forward else "last"
        for number in directory.overlapping(low, high):
            entry = directory.entries[number]
            found.append((int(entry[f"{end}_hi"]) << 64 | int(entry[f"{end}_lo"]), place, number))
    found.sort(key=lambda piece: piece[0], reverse=not forward)
    return found


def _hot_rows(snapshot: Snapshot) -> _Rows:
    parts = [np.empty(0, _ROW)]
    for stretch in snapshot.stretches:
        rows = _rows_of(stretch.rows)
        rows["line"] = stretch.ends - rows["lines"]
        parts.append(rows)
    return np.concatenate(parts)


def _block_rows(blocks: Blocks, place: Place) -> _Rows:
    rows = _rows_of(blocks)
    rows["line"] = blocks["line"].astype(np.int64) + place.line
    return rows


def _rows_of(source: NDArray[np.void]) -> _Rows:
    rows = np.empty(len(source), _ROW)
    rows["hi"], rows["lo"] = source["ulid_hi"], source["ulid_lo"]
    for name in ("pos", "lines", "records", "size"):
        rows[name] = source[name]
    return rows


def _beyond(snapshot: Snapshot, rows: _Rows, edge: Edge, forward: bool) -> _Rows:
    """The rows, or parts of rows, on one side of the edge."""
    hi, lo = edge.batch >> 64, edge.batch & _LOW
    within = (rows["hi"] == hi) & (rows["lo"] == lo)
    if forward:
        chosen = (rows["hi"] > hi) | ((rows["hi"] == hi) & (rows["lo"] > lo))
        chosen |= within & (rows["pos"] + rows["records"] > edge.pos)
    else:
        chosen = (rows["hi"] < hi) | ((rows["hi"] == hi) & (rows["lo"] < lo))
        chosen |= within & (rows["pos"] < edge.pos)
    cut = within & (rows["pos"] < edge.pos) & (rows["pos"] + rows["records"] > edge.pos)
    for at in np.flatnonzero(cut).tolist():
        _cut(snapshot, rows[at : at + 1], edge.pos, forward)
    beyond: _Rows = rows[chosen]
    return beyond


def _cut(snapshot: Snapshot, row: _Rows, pos: int, forward: bool) -> None:
    """Leaves of a row what is on one side of a position."""
    line, lines, records = int(row["line"][0]), int(row["lines"][0]), int(row["records"][0])
    before = pos - int(row["pos"][0])
    at = line + before
    if records != lines:  # a batch behind the chunks: there each such record is a block
        stretch = next(s for s in snapshot.stretches if line < s.end_line)
        number = int(np.searchsorted(stretch.ends, line, "right"))
        at = line_behind(snapshot, stretch, number, before)
    if forward:
        row["pos"], row["line"], row["lines"] = pos, at, lines - (at - line)
        row["records"] = records - before
    else:
        row["lines"], row["records"] = at - line, before


def _nearest(rows: _Rows, lines: int, size: int, forward: bool) -> _Rows:
    """The nearest rows first, and no more than are enough."""
    order = np.lexsort((rows["pos"], rows["lo"], rows["hi"]))
    rows = rows[order if forward else order[::-1]]
    full = (np.cumsum(rows["lines"]) >= lines) | (np.cumsum(rows["size"]) >= size)
    return rows[: int(np.argmax(full)) + 1] if full.any() else rows


def _enough(rows: _Rows, lines: int, size: int) -> bool:
    return bool(int(rows["lines"].sum()) >= lines or int(rows["size"].sum()) >= size)


def _batch(row: np.void) -> int:
    return int(row["hi"]) << 64 | int(row["lo"])


def _first_lines(rows: _Rows, lines: int) -> _Rows:
    """The rows without what the last of them has beyond so many lines."""
    surplus = int(rows["lines"].sum()) - lines
    if surplus > 0 and len(rows):
        rows["lines"][-1] -= surplus
    return rows


def _last_lines(rows: _Rows, lines: int) -> _Rows:
    """The same for rows of which the last is the first in order."""
    surplus = int(rows["lines"].sum()) - lines
    if surplus > 0 and len(rows):
        rows["line"][-1] += surplus
        rows["lines"][-1] -= surplus
    return rows


def _ranges(rows: _Rows) -> list[LineRange]:
    """Their lines, neighbours in the log together."""
    found: list[LineRange] = []
    for line, lines in rows[["line", "lines"]].tolist():
        if found and found[-1][1] == line:
            found[-1] = found[-1][0], line + lines
        else:
            found.append((line, line + lines))
    return found


class _Windows:
    """Reads texts of chunks in windows; the last ones are kept."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    async def text(self, manifest: Manifest, chunk: Chunk, offset: int, size: int) -> bytes:
        """A range of the chunk's text. Raises `Moved`."""
        if chunk.id in self._chunks.changed:  # what is kept of it may be damaged
            for known in [known for known in self._kept if known[0] == chunk.id]:
                del self._kept[known]
            return await self._chunks.text(manifest, chunk, offset, size)
        if size >= _WINDOW_BYTES:
            return await self._chunks.text(manifest, chunk, offset, size)
        first, last = offset // _WINDOW_BYTES, (offset + size - 1) // _WINDOW_BYTES
        pieces = [await self._window(manifest, chunk, n) for n in range(first, last + 1)]
        begin = offset - first * _WINDOW_BYTES
        return b"".join(pieces)[begin : begin + size]

    async def _window(self, manifest: Manifest, chunk: Chunk, number: int) -> bytes:
        found = self._kept.get((chunk.id, number))
        if found is None:
            begin = number * _WINDOW_BYTES
            size = min(_WINDOW_BYTES, chunk.bytes - begin)
            found = await self._chunks.text(manifest, chunk, begin, size)
            self._kept[chunk.id, number] = found
            if len(self._kept) > _WINDOWS:
                self._kept.popitem(last=False)
        self._kept.move_to_end((chunk.id, number))
        return found
