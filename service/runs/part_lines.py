"""Lines of a snapshot as parts: the records that they belong to, whole.

In a chunk a part is one block of its index, or as many lines of it as are wanted. Behind the
chunks it is one batch, or as many of its records. A read that begins within a record begins with
that record's first line, and it ends where a record ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from logstore.batch import RecordMeta, line_ends
from logstore.runs.blocks import Blocks
from logstore.runs.manifest import Chunk, Manifest
from service.runs.large_batch import has_plain_records, read_lines_of
from service.runs.lines import blocks_of_lines, check_text, rows_of_lines
from service.runs.parts import RecordPart
from service.runs.snapshot import Place, Snapshot, Stretch


@dataclass(frozen=True, slots=True)
class PartLines:
    """Parts, the number of their first line, and that of the line after the last of them."""

    parts: list[RecordPart]
    start: int
    end: int


class BatchHead(NamedTuple):
    """Where a batch begins: its first position, and its first line in the chunk."""

    pos: int
    line: int


class RecordRange(NamedTuple):
    """Some records of a batch, by their numbers within it."""

    first: int
    end: int


ReadText = Callable[[Manifest, Chunk, int, int], Awaitable[bytes]]
"""A range of a chunk's text: the manifest, the chunk, offset and size in bytes."""


async def read_parts(
    snapshot: Snapshot, start: int, end: int, max_bytes: int, text: ReadText | None = None
) -> PartLines:
    """The records of lines from `start` to before `end`, fewer if they take more than `max_bytes`.

    Gives at least one record if there is one. Texts of chunks are read by `text`. Raises `Moved`,
    `Unavailable`.
    """
    end = min(end, snapshot.lines)
    parts: list[RecordPart] = []
    first, size = start, 0
    while start < end and (size < max_bytes or not parts):
        budget = max_bytes - size
        if start < snapshot.chunk_lines:
            found = await _chunk_parts(snapshot, start, end, budget, text or snapshot.chunks.text)
        else:
            found = _hot_parts(snapshot, start, end, budget, bool(parts))
        if not found.parts:
            break
        if not parts:
            first = found.start
        parts += found.parts
        size += sum([len(part.text) for part in found.parts])
        start = found.end
    return PartLines(parts, first, start)


# --- chunks ------------------------------------------------------------------------


async def _chunk_parts(
    snapshot: Snapshot, start: int, end: int, budget: int, read: ReadText
) -> PartLines:
    """The records of one piece of a chunk's index: one ranged get of text."""
    found = await blocks_of_lines(snapshot, start, end, budget)
    place, blocks, first, last, low, high, begin, size, _ = found
    chosen = blocks[first:last]
    text = await read(snapshot.manifest, place.chunk, begin, size)
    check_text(snapshot, found, text)
    heads = await heads_of(snapshot, place, blocks, first, last)
    parts = [
        _of_block(
            block,
            int(block["pos"]) - head.pos,
            text[int(block["offset"]) - begin :][: int(block["size"])],
        )
        for block, head in zip(chosen, heads, strict=True)
    ]
    stop = int(chosen["line"][-1] + chosen["lines"][-1])
    parts[-1], stop = _without_end(parts[-1], stop, high)
    at = int(chosen["line"][0])
    parts[0], at = _without_beginning(parts[0], at, low)
    return PartLines(parts, place.line + at, place.line + stop)


async def heads_of(
    snapshot: Snapshot, place: Place, blocks: Blocks, first: int, last: int
) -> list[BatchHead]:
    """Where the batch of each block begins, from `first` to before `last`. Raises `Moved`."""
    known = np.where(blocks["first"][:last], np.arange(last), -1)
    heads = np.maximum.accumulate(known)[first:]
    pairs = zip(blocks["pos"][heads].tolist(), blocks["line"][heads].tolist(), strict=True)
    found = [BatchHead(*pair) for pair in pairs]
    begun = int(np.count_nonzero(heads < 0))
    if begun:  # the batch began in the piece before
        ulid = ulid_of_block(blocks[first])
        batch = await snapshot.chunks.blocks_of(snapshot.manifest.key, place.chunk, ulid)
        found[:begun] = [BatchHead(int(batch["pos"][0]), int(batch["line"][0]))] * begun
    return found


def ulid_of_block(block: np.void) -> int:
    """The ULID of the block's batch."""
    return int(block["ulid_hi"]) << 64 | int(block["ulid_lo"])


def _of_block(block: np.void, number: int, text: bytes) -> RecordPart:
    records, lines = int(block["records"]), int(block["lines"])
    meta = None
    if records != lines:
        # One record, for the index has a block for each that holds newlines.
        records, meta = 1, RecordMeta([len(text)], [None], [None], [None])
    return RecordPart(
        ulid_of_block(block), number, int(block["pos"]), records, lines, text, meta, None
    )


def _without_beginning(part: RecordPart, line: int, wanted: int) -> tuple[RecordPart, int]:
    """The part, which begins at `line`, from line `wanted` on, if each of its records is one."""
    skip = wanted - line
    if skip <= 0 or part.records != part.lines:
        return part, line
    return (
        part._replace(
            first=part.first + skip,
            pos=part.pos + skip,
            records=part.records - skip,
            lines=part.lines - skip,
            text=part.text[int(line_ends(part.text)[skip - 1]) :],
        ),
        wanted,
    )


def _without_end(part: RecordPart, end: int, wanted: int) -> tuple[RecordPart, int]:
    """The part, which ends at line `end`, up to line `wanted`, if each of its records is one."""
    surplus = end - wanted
    if surplus <= 0 or part.records != part.lines:
        return part, end
    left = part.records - surplus
    text = part.text[: int(line_ends(part.text)[left - 1])]
    return part._replace(records=left, lines=left, text=text), wanted


# --- behind the chunks ---------------------------------------------------------------


def _hot_parts(snapshot: Snapshot, start: int, end: int, budget: int, some: bool) -> PartLines:
    """Whole batches, or a part of the first if not all of it is wanted or fits."""
    stretch, first, last, line = rows_of_lines(snapshot, start, end, budget)
    if last <= first or start > line:
        records = records_of_lines(snapshot, stretch, first, start - line, end - line)
        part, skipped = part_of_row(snapshot, stretch, first, records, budget)
        if some and len(part.text) > budget:
            return PartLines([], start, start)
        return PartLines([part], line + skipped, line + skipped + part.lines)
    return PartLines(
        rows_as_parts(snapshot, stretch, first, last), line, int(stretch.ends[last - 1])
    )


def rows_as_parts(snapshot: Snapshot, stretch: Stretch, first: int, last: int) -> list[RecordPart]:
    """All records of the rows from `first` to before `last`."""
    text = memoryview(snapshot.stretch_text(stretch, first, last))
    parts, at = [], 0
    for number in range(first, last):
        row, index = stretch.rows[number], int(stretch.indexes[number])
        size, some = int(row["size"]), RecordRange(0, int(row["records"]))
        meta = stretch.batches.meta(index) if row["meta"] else None
        if meta is None and not has_plain_records(stretch.batches, index):
            some, meta = _whole(size)
        part = bytes(text[at : at + size])
        parts.append(_of_row(stretch, number, some, part, int(row["lines"]), meta))
        at += size
    return parts


def _of_row(
    stretch: Stretch,
    number: int,
    some: RecordRange,
    text: bytes,
    lines: int,
    meta: RecordMeta | None,
) -> RecordPart:
    row = stretch.rows[number]
    ulid = int(row["ulid_hi"]) << 64 | int(row["ulid_lo"])
    connector = stretch.batches.connectors[int(row["connector"])]
    records = some.end - some.first
    pos = int(row["pos"]) + some.first
    shared = stretch.batches.constant_attributes(int(stretch.indexes[number]))
    return RecordPart(ulid, some.first, pos, records, lines, text, meta, connector, shared)


def records_of_lines(
    snapshot: Snapshot, stretch: Stretch, number: int, low: int, high: int
) -> RecordRange:
    """The records that the row's lines from `low` to before `high` belong to."""
    index, row = int(stretch.indexes[number]), stretch.rows[number]
    high = min(high, int(row["lines"]))
    if has_plain_records(stretch.batches, index):
        return RecordRange(low, high)
    lines = snapshot.line_indexes.of(stretch.batches, index).lines
    if len(lines) != int(row["records"]):
        return RecordRange(0, int(row["records"]))
    first = int(np.searchsorted(lines, low, "right"))
    return RecordRange(first, int(np.searchsorted(lines, high, "left")) + 1)


def part_of_row(
    snapshot: Snapshot, stretch: Stretch, number: int, some: RecordRange, budget: int
) -> tuple[RecordPart, int]:
    """As many of these records as fit into `budget` bytes, one at least; the lines before them."""
    batches, index = stretch.batches, int(stretch.indexes[number])
    meta = batches.meta(index) if stretch.rows["meta"][number] else None
    if has_plain_records(batches, index):
        most = some.end - some.first
        read = read_lines_of(batches, index, snapshot.line_indexes, some.first, most, budget)
        kept = RecordRange(some.first, some.first + read.lines)
        ends = None if meta is None else line_ends(read.text).tolist()
        carried = None if meta is None or ends is None else _cut(meta, kept, ends)
        return _of_row(stretch, number, kept, read.text, read.lines, carried), some.first
    ends, lines = snapshot.line_indexes.of(batches, index)
    if len(ends) != int(stretch.rows["records"][number]):  # nobody knows where records end
        text = batches.slice(index, 0, int(stretch.rows["size"][number]))
        one, carried = _whole(len(text))
        return _of_row(stretch, number, one, text, int(lines[-1]), carried), 0
    begin = int(ends[some.first - 1]) if some.first else 0
    skipped = int(lines[some.first - 1]) if some.first else 0
    fitting = int(np.searchsorted(ends, begin + budget, "right"))
    kept = RecordRange(some.first, max(min(some.end, fitting), some.first + 1))
    text = batches.slice(index, begin, int(ends[kept.end - 1]))
    within = (ends[kept.first : kept.end] - begin).tolist()
    bare = RecordMeta(within, *[[None] * len(within)] * 3)
    carried = bare if meta is None else _cut(meta, kept, within)
    return _of_row(
        stretch, number, kept, text, int(lines[kept.end - 1]) - skipped, carried
    ), skipped


def _whole(size: int) -> tuple[RecordRange, RecordMeta]:
    """All of a batch as one record, where nobody knows where its records end."""
    return RecordRange(0, 1), RecordMeta([size], [None], [None], [None])


def _cut(meta: RecordMeta, some: RecordRange, ends: list[int]) -> RecordMeta:
    """What some records carry; they end at `ends` of their own text."""
    part = slice(some.first, some.end)
    return RecordMeta(ends, meta.ts[part], meta.levels[part], meta.attributes[part])
