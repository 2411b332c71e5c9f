"""Reads lines and bytes of a snapshot by number, with one ranged get per chunk.

The text of a chunk is compared with the digests of its index, batch by batch, as far as whole
batches were read. A chunk that differs is `Moved`, and `Chunks.changed` tells the repair so.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from logstore import ulid as ulids
from logstore.batch import line_ends
from logstore.runs.blocks import Blocks, changed_batch
from service.runs.chunks import Moved
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
    ends. Where lines have no final place it ends where a record ends, even if the first one is
    longer. Raises `Moved`, `Unavailable`.
    """
    end = min(end, snapshot.lines)
    pieces: list[bytes] = []
    size = 0
    while start < end and (size < max_bytes or not pieces):
        budget = max_bytes - size
        if start < snapshot.chunk_lines:
            part = await _chunk_lines(snapshot, start, end, budget, whole_blocks)
        else:
            stretch, first, last, line = rows_of_lines(snapshot, start, end, budget)
            at = int(stretch.indexes[first])
            if last <= first and (start > line or not has_plain_records(stretch.batches, at)):
                await snapshot.line_indexes.prepare(stretch.batches, at)
            part = _hot_lines(snapshot, start, end, budget, bool(pieces))
        if part.end == start:
            break
        pieces.append(part.text)
        size += len(part.text)
        start = part.end
    return Lines(b"".join(pieces), start)


def place_of_line(snapshot: Snapshot, line: int) -> Place:
    """The chunk that holds the line."""
    return snapshot.places[bisect_right(snapshot.places, line, key=lambda p: p.line) - 1]


class ChunkBlocks(NamedTuple):
    """Blocks of one piece of a chunk's index, from `first` to before `last`.

    `low` and `high` are the wanted lines of the chunk; the blocks may end before `high`. Their text
    is `size` bytes of the chunk's, from `offset` on. `ended`: the last of them ends its batch.
    """

    place: Place
    blocks: Blocks
    first: int
    last: int
    low: int
    high: int
    offset: int
    size: int
    ended: bool


async def blocks_of_lines(snapshot: Snapshot, start: int, end: int, budget: int) -> ChunkBlocks:
    """The blocks that have the lines of a chunk from line `start` on, one at least.

    They are of one piece of the index, have line `end` at most, and if there are several, at most
    `budget` bytes.
    """
    place = place_of_line(snapshot, start)
    key, chunk = snapshot.manifest.key, place.chunk
    low = start - place.line
    directory = await snapshot.chunks.directory(key, chunk)
    number = directory.piece_of_line(low)
    blocks, _ = await snapshot.chunks.piece(key, chunk, number)
    high = min(end - place.line, int(blocks["line"][-1] + blocks["lines"][-1]))
    first = int(np.searchsorted(blocks["line"], low, "right")) - 1
    last = int(np.searchsorted(blocks["line"], high, "left"))
    ends = blocks["offset"] + blocks["size"]
    offset = int(blocks["offset"][first])
    fitting = int(np.searchsorted(ends, offset + budget, "right"))
    last = min(last, max(fitting, first + 1))
    size = int(ends[last - 1]) - offset
    if last < len(blocks):
        ended = bool(blocks["first"][last])
    else:  # else the next piece may continue the batch
        ended = number + 1 == len(directory.entries)
    return ChunkBlocks(place, blocks, first, last, low, high, offset, size, ended)


def check_text(snapshot: Snapshot, found: ChunkBlocks, text: bytes) -> None:
    """Raises `Moved` if a batch of their text does not match its digest."""
    batch = changed_batch(found.blocks[found.first : found.last], text, ended=found.ended)
    if batch is not None:
        chunk, chunks = found.place.chunk, snapshot.chunks
        chunks.changed.add(chunk.id)
        where = chunks.text_key(snapshot.manifest.key, chunk)
        raise Moved(f"batch {ulids.encode(batch)} of {where} does not match its checksum")


async def _chunk_lines(
    snapshot: Snapshot, start: int, end: int, budget: int, whole_blocks: bool
) -> Lines:
    """Lines of one piece of a chunk's index: one ranged get of text."""
    found = await blocks_of_lines(snapshot, start, end, budget)
    place, blocks, low = found.place, found.blocks, found.low
    last = blocks[found.last - 1]
    block_end = int(last["line"] + last["lines"])
    several = last["records"] != last["lines"] and start >= snapshot.manifest.fixed_lines
    high = block_end if whole_blocks or several else min(found.high, block_end)
    text = await snapshot.chunks.text(snapshot.manifest, place.chunk, found.offset, found.size)
    check_text(snapshot, found, text)
    skip = low - int(blocks["line"][found.first])
    return Lines(_trim(text, skip, high - low), place.line + high)


def _trim(text: bytes, skip: int, count: int) -> bytes:
    """`count` lines after the first `skip`."""
    ends = line_ends(text)
    begin = int(ends[skip - 1]) if skip else 0
    return text[begin : int(ends[skip + count - 1])]


class HotRows(NamedTuple):
    """Rows of a stretch, from `first` to before `last`; the first begins with line `line`.

    Without any whole row, `last` is `first` or below.
    """

    stretch: Stretch
    first: int
    last: int
    line: int


def rows_of_lines(snapshot: Snapshot, start: int, end: int, budget: int) -> HotRows:
    """The whole rows behind the chunks from line `start` on.

    They end at line `end` at the latest, and have at most `budget` bytes.
    """
    stretch = next(s for s in snapshot.stretches if start < s.end_line)
    first = int(np.searchsorted(stretch.ends, start, "right"))
    begin = int(stretch.byte_ends[first]) - int(stretch.rows["size"][first])
    last = min(
        int(np.searchsorted(stretch.ends, end, "right")),
        int(np.searchsorted(stretch.byte_ends, begin + budget, "right")),
    )
    line = int(stretch.ends[first]) - int(stretch.rows["lines"][first])
    return HotRows(stretch, first, last, line)


def _hot_lines(snapshot: Snapshot, start: int, end: int, budget: int, some: bool) -> Lines:
    """Whole batches, or a part of the first if not all of it is requested or fits."""
    stretch, first, last, line = rows_of_lines(snapshot, start, end, budget)
    skip = start - line
    if last <= first:
        part = _from_batch(snapshot, stretch, first, skip, end - start, budget)
        if some and (len(part.text) > budget or part.lines > end - start):
            return Lines(b"", start)
        return Lines(part.text, start + part.lines)
    text = snapshot.stretch_text(stretch, first, last)
    high = int(stretch.ends[last - 1])
    return Lines(_trim(text, skip, high - start), high)


def _from_batch(
    snapshot: Snapshot, stretch: Stretch, at: int, skip: int, most: int, budget: int
) -> BatchLines:
    batches, index = stretch.batches, int(stretch.indexes[at])
    read = read_lines_of if has_plain_records(batches, index) else read_records_of
    most = min(most, int(stretch.rows["lines"][at]) - skip)
    return read(batches, index, snapshot.line_indexes, skip, most, budget)
