"""Reads lines and bytes of a snapshot by number, with one ranged get per chunk."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from logstore.batch import line_ends
from service.runs.large_batch import (
    BatchLines,
    has_plain_records,
    read_lines_of,
    read_records_of,
)
from service.runs.snapshot import Place, Snapshot, Stretch


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines, and the number of the line after them."""

    text: bytes
    end: int


async def read_lines(
    snapshot: Snapshot, start: int, end: int, max_bytes: int, *, whole_blocks: bool = False
) -> Lines:
    """Lines from `start` to before `end`, fewer if they take more than `max_bytes`.

    Gives at least one line if there is one. With `whole_blocks` it ends where a block
    ends. At the hot end it ends where a record ends, even if the first one is longer. Raises
    `Moved`, `Unavailable`.
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
    """Lines of one piece of a chunk's index: one ranged get of text."""
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
    """Whole batches, or a part of the first if not all of it is requested or fits."""
    stretch = next(s for s in snapshot.stretches if start < s.end_line)
    first = int(np.searchsorted(stretch.ends, start, "right"))
    begin = int(stretch.byte_ends[first]) - int(stretch.rows["size"][first])
    last = min(
        int(np.searchsorted(stretch.ends, end, "right")),
        int(np.searchsorted(stretch.byte_ends, begin + room, "right")),
    )
    skip = start - int(stretch.ends[first]) + int(stretch.rows["lines"][first])
    if last <= first:
        part = _from_batch(snapshot, stretch, first, skip, end - start, room)
        if some and (len(part.text) > room or part.lines > end - start):
            return Lines(b"", start)
        return Lines(part.text, start + part.lines)
    text = snapshot.stretch_text(stretch, first, last)
    high = int(stretch.ends[last - 1])
    return Lines(_trim(text, skip, high - start), high)


def _from_batch(
    snapshot: Snapshot, stretch: Stretch, at: int, skip: int, most: int, room: int
) -> BatchLines:
    batches, index = stretch.batches, int(stretch.indexes[at])
    read = read_lines_of if has_plain_records(batches, index) else read_records_of
    most = min(most, int(stretch.rows["lines"][at]) - skip)
    return read(batches, index, snapshot.line_indexes, skip, most, room)
