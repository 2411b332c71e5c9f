"""Lines and bytes of a snapshot by number, with one ranged get for what is in a chunk."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from service.runs.snapshot import Place, Snapshot, Stretch, line_ends


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines, and the number of the line after them."""

    text: bytes
    end: int


async def read_lines(
    snapshot: Snapshot, start: int, end: int, max_bytes: int, *, whole_blocks: bool = False
) -> Lines:
    """Lines from `start` to before `end`, fewer if they take more than `max_bytes`.

    At least one line is given if there is one. With `whole_blocks` it ends where a block
    does. Batches whose records hold newlines are not divided at the hot end; another that is
    alone larger than `max_bytes` is. Raises `Moved`.
    """
    end = min(end, snapshot.lines)
    pieces: list[bytes] = []
    size = 0
    while start < end and (size < max_bytes or not pieces):
        room = max_bytes - size
        if start < snapshot.chunk_lines:
            part = await _from_chunk(snapshot, start, end, room, whole_blocks)
        else:
            part = _from_stretch(snapshot, start, end, room, bool(pieces))
        if part.end == start:
            break
        pieces.append(part.text)
        size += len(part.text)
        start = part.end
    return Lines(b"".join(pieces), start)


def place_of_line(snapshot: Snapshot, line: int) -> Place:
    """The chunk that holds the line."""
    return snapshot.places[bisect_right(snapshot.places, line, key=lambda p: p.line) - 1]


async def _from_chunk(
    snapshot: Snapshot, start: int, end: int, room: int, whole_blocks: bool
) -> Lines:
    """From one piece of one chunk's index: one ranged get of text."""
    place = place_of_line(snapshot, start)
    key, chunk = snapshot.manifest.key, place.chunk
    low, high = start - place.line, min(end - place.line, chunk.lines)
    directory = await snapshot.chunks.directory(key, chunk)
    number = directory.piece_of_line(low)
    entry = directory.entries[number]
    blocks, _ = await snapshot.chunks.piece(key, chunk, number)
    high = min(high, int(entry["line"] + entry["lines"]))
    first = int(np.searchsorted(blocks["line"], low, "right")) - 1
    last = int(np.searchsorted(blocks["line"], high, "left"))
    ends = blocks["offset"] + blocks["size"]
    begin = int(blocks["offset"][first])
    fitting = int(np.searchsorted(ends, begin + room, "right"))
    last = min(last, max(fitting, first + 1))
    block_end = int(blocks["line"][last - 1] + blocks["lines"][last - 1])
    high = block_end if whole_blocks else min(high, block_end)
    text = await snapshot.chunks.text(snapshot.manifest, chunk, begin, int(ends[last - 1]) - begin)
    return Lines(_trim(text, low - int(blocks["line"][first]), high - low), place.line + high)


def _trim(text: bytes, skip: int, count: int) -> bytes:
    """`count` lines after the first `skip`."""
    ends = line_ends(text)
    begin = int(ends[skip - 1]) if skip else 0
    return text[begin : int(ends[skip + count - 1])]


def _from_stretch(snapshot: Snapshot, start: int, end: int, room: int, some: bool) -> Lines:
    stretch = next(s for s in snapshot.stretches if start < s.end_line)
    first = int(np.searchsorted(stretch.ends, start, "right"))
    last = int(np.searchsorted(stretch.ends, end, "left")) + 1
    begin = int(stretch.byte_ends[first]) - int(stretch.rows["size"][first])
    fitting = int(np.searchsorted(stretch.byte_ends, begin + room, "right"))
    last = min(last, max(fitting, first + 1), len(stretch.rows))
    high = _whole(stretch, first, last, min(end, int(stretch.ends[last - 1])), some)
    if high <= start:
        return Lines(b"", start)
    last = int(np.searchsorted(stretch.ends, high, "left")) + 1
    text = snapshot.stretch_text(stretch, first, last)
    row_line = int(stretch.ends[first]) - int(stretch.rows["lines"][first])
    if len(text) > room and last == first + 1:
        row = stretch.rows[first]
        if int(row["records"]) == int(row["lines"]):
            high = _fitting(text, start - row_line, high - row_line, room) + row_line
    return Lines(_trim(text, start - row_line, high - start), high)


def _fitting(text: bytes, start: int, high: int, room: int) -> int:
    """`high`, or the end of the lines from `start` on that take no more than `room`; one does."""
    ends = line_ends(text)
    begin = int(ends[start - 1]) if start else 0
    return min(high, max(int(np.searchsorted(ends, begin + room, "right")), start + 1))


def _whole(stretch: Stretch, first: int, last: int, high: int, some: bool) -> int:
    """`high`, moved to an end of the last row if that cannot be divided."""
    row = stretch.rows[last - 1]
    if int(row["records"]) == int(row["lines"]) or high == int(stretch.ends[last - 1]):
        return high
    if last - 1 > first:
        return int(stretch.ends[last - 2])
    begin = int(stretch.ends[first]) - int(row["lines"])
    return begin if some else int(stretch.ends[first])
