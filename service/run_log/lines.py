"""Reads lines, bytes and records of a snapshot by line number, with one ranged get per chunk.

The text of a chunk is compared with the digests of its index, batch by batch, as far as whole
batches were read. A chunk that differs is `Moved`, and `Chunks.changed` reports it to the repair.

A `RecordPart` is whole records of one batch. In a chunk a part is one block of its index, or as
many lines of it as are wanted. After the chunks it is one batch, or as many of its records. A read
that begins within a record begins with that record's first line, and it ends where a record ends.

`as_records` makes Arrow records of parts. Metadata in a part (times, levels, attributes, the
connector) is used unchanged. Missing times and levels are found in the text by the rules of
segments (decision 011): a record inherits them from the record before it in the same parts.

`HeldPlace` is the place of a reader that got lines from nodes while the store was silent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from service.run_log.chunks import Moved
from service.run_log.snapshot import (
    BatchLines,
    ChunkPlace,
    RunSnapshot,
    UnflushedRows,
    has_plain_records,
    read_lines_of,
    read_records_of,
)
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import (
    BATCH,
    CONSTANT_ATTRIBUTES,
    Indexes,
    RecordMeta,
    Rows,
    RunKey,
    line_ends,
)
from tailrace.logstore.errors import InvalidCursor
from tailrace.logstore.position import Cursor, decode_cursor, encode_cursor
from tailrace.logstore.runs.chunk_index import Blocks, changed_batch
from tailrace.logstore.runs.manifest import Chunk, Manifest
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.file_format import line_ulids
from tailrace.logstore.segments.writer import record_batches
from tailrace.logstore.table.schema import RECORD_SCHEMA


@dataclass(frozen=True, slots=True)
class LineRange:
    """Whole lines, and the number of the line after them."""

    text: bytes
    end: int


async def read_lines(
    snapshot: RunSnapshot, start: int, end: int, max_bytes: int, *, whole_blocks: bool = False
) -> LineRange:
    """Reads lines from `start` to before `end`, fewer if they take more than `max_bytes`.

    It returns at least one line if one exists. With `whole_blocks` it ends where a block ends.
    Where lines have no final place it ends where a record ends, even if the first record is longer.
    Raises `Moved`, `Unavailable`.
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
            part = _unflushed_lines(snapshot, start, end, budget, bool(pieces))
        if part.end == start:
            break
        pieces.append(part.text)
        size += len(part.text)
        start = part.end
    return LineRange(b"".join(pieces), start)


def place_of_line(snapshot: RunSnapshot, line: int) -> ChunkPlace:
    """Returns the chunk that holds the line."""
    return snapshot.places[bisect_right(snapshot.places, line, key=lambda p: p.line) - 1]


class ChunkBlocks(NamedTuple):
    """Blocks of one piece of a chunk's index, from `first` to before `last`.

    `low` and `high` are the wanted lines of the chunk; the blocks may end before `high`. Their text
    is `size` bytes of the chunk's, from `offset` on. `ended`: the last block ends its batch.
    """

    place: ChunkPlace
    blocks: Blocks
    first: int
    last: int
    low: int
    high: int
    offset: int
    size: int
    ended: bool


async def blocks_of_lines(snapshot: RunSnapshot, start: int, end: int, budget: int) -> ChunkBlocks:
    """Returns the blocks that have the lines of a chunk from line `start` on, at least one.

    They are of one piece of the index and end at line `end` at most. Several blocks have at most
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
    else:  # otherwise the next piece may continue the batch
        ended = number + 1 == len(directory.entries)
    return ChunkBlocks(place, blocks, first, last, low, high, offset, size, ended)


def check_text(snapshot: RunSnapshot, found: ChunkBlocks, text: bytes) -> None:
    """Raises `Moved` if a batch of the text does not match its digest."""
    batch = changed_batch(found.blocks[found.first : found.last], text, ended=found.ended)
    if batch is not None:
        chunk, chunks = found.place.chunk, snapshot.chunks
        chunks.changed.add(chunk.id)
        where = chunks.text_key(snapshot.manifest.key, chunk)
        raise Moved(f"batch {ulids.encode(batch)} of {where} does not match its checksum")


async def _chunk_lines(
    snapshot: RunSnapshot, start: int, end: int, budget: int, whole_blocks: bool
) -> LineRange:
    """Reads lines of one piece of a chunk's index: one ranged get of text."""
    found = await blocks_of_lines(snapshot, start, end, budget)
    place, blocks, low = found.place, found.blocks, found.low
    last = blocks[found.last - 1]
    block_end = int(last["line"] + last["lines"])
    several = last["records"] != last["lines"] and start >= snapshot.manifest.fixed_lines
    high = block_end if whole_blocks or several else min(found.high, block_end)
    text = await snapshot.chunks.text(snapshot.manifest, place.chunk, found.offset, found.size)
    check_text(snapshot, found, text)
    skip = low - int(blocks["line"][found.first])
    return LineRange(_trim(text, skip, high - low), place.line + high)


def _trim(text: bytes, skip: int, count: int) -> bytes:
    """Returns `count` lines after the first `skip`."""
    ends = line_ends(text)
    begin = int(ends[skip - 1]) if skip else 0
    return text[begin : int(ends[skip + count - 1])]


class LineRows(NamedTuple):
    """Rows of a stretch, from `first` to before `last`; the first begins with line `line`.

    Without any whole row, `last` is `first` or below.
    """

    stretch: UnflushedRows
    first: int
    last: int
    line: int


def rows_of_lines(snapshot: RunSnapshot, start: int, end: int, budget: int) -> LineRows:
    """Returns the whole rows after the chunks from line `start` on.

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
    return LineRows(stretch, first, last, line)


def _unflushed_lines(
    snapshot: RunSnapshot, start: int, end: int, budget: int, some: bool
) -> LineRange:
    """Reads whole batches, or a part of the first if not all of it is requested or fits."""
    stretch, first, last, line = rows_of_lines(snapshot, start, end, budget)
    skip = start - line
    if last <= first:
        part = _from_batch(snapshot, stretch, first, skip, end - start, budget)
        if some and (len(part.text) > budget or part.lines > end - start):
            return LineRange(b"", start)
        return LineRange(part.text, start + part.lines)
    text = snapshot.stretch_text(stretch, first, last)
    high = int(stretch.ends[last - 1])
    return LineRange(_trim(text, skip, high - start), high)


def _from_batch(
    snapshot: RunSnapshot, stretch: UnflushedRows, at: int, skip: int, most: int, budget: int
) -> BatchLines:
    batches, index = stretch.batches, int(stretch.indexes[at])
    read = read_lines_of if has_plain_records(batches, index) else read_records_of
    most = min(most, int(stretch.rows["lines"][at]) - skip)
    return read(batches, index, snapshot.line_indexes, skip, most, budget)


# --- Records ------------------------------------------------------------------------------------


_LOW = (1 << 64) - 1


class RecordPart(NamedTuple):
    """Whole records of one batch, in order; `first` is the first record's number within the batch.

    `ulid` is the batch's, `pos` the first record's; `meta` has ends within `text`. `attributes` are
    those of a batch whose lines all have the same.
    """

    ulid: int
    first: int
    pos: int
    records: int
    lines: int
    text: bytes
    meta: RecordMeta | None
    connector: str | None
    attributes: Mapping[str, str] | None = None

    @property
    def low(self) -> int:
        """Returns the ULID of its first record."""
        return self.ulid + self.first

    @property
    def high(self) -> int:
        """Returns the ULID of its last record."""
        return self.ulid + self.first + self.records - 1


class _PartBatches:
    """Parts as an implementation of `tailrace.logstore.batch.Batches`, each with an id of its
    own."""

    def __init__(self, key: RunKey, parts: Sequence[RecordPart]) -> None:
        self.node = ""
        self.runs = [key]
        names = {part.connector: None for part in parts}
        self.connectors: list[str | None] = list(names)
        numbers = {name: number for number, name in enumerate(self.connectors)}
        self._parts = parts
        self.rows: Rows = np.zeros(len(parts), BATCH)
        self.rows["offset"] = self.rows["ulid_lo"] = np.arange(len(parts))
        self.rows["ulid_hi"] = [part.ulid >> 64 for part in parts]
        self.rows["pos"] = [part.pos for part in parts]
        self.rows["size"] = [len(part.text) for part in parts]
        self.rows["records"] = [part.records for part in parts]
        self.rows["lines"] = [part.lines for part in parts]
        constant = np.array([part.attributes is not None for part in parts], np.bool_)
        structured = np.array([part.meta is not None for part in parts], np.bool_)
        self.rows["meta"] = structured | constant
        self.rows["flags"] = np.where(constant, CONSTANT_ATTRIBUTES, 0)
        self.rows["connector"] = [numbers[part.connector] for part in parts]

    def text(self, indexes: Indexes) -> bytes:
        """Returns the texts of the rows at `indexes`, one after another."""
        return b"".join([self._parts[index].text for index in indexes.tolist()])

    def slice(self, index: int, low: int, high: int) -> bytes:
        """Returns the bytes of one row's text from `low` to before `high`."""
        return self._parts[index].text[low:high]

    def meta(self, index: int) -> RecordMeta | None:
        """Returns the metadata of one row's records."""
        return self._parts[index].meta

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:
        """Returns the attributes that all records of one row have."""
        return self._parts[index].attributes


def as_records(
    key: RunKey, parts: Sequence[RecordPart], carry: Carry | None = None
) -> pa.RecordBatch:
    """Returns the records of all parts, in their order, with the columns of `RECORD_SCHEMA`.

    It moves `carry` (time and level for the next line) past them. Raises `Damaged` if a text does
    not have the records that its part says.
    """
    batches = _PartBatches(key, parts)
    order = np.arange(len(parts), dtype=np.int64)
    found = [
        batch.select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)
        for batch in record_batches(batches, carry or Carry(), save=True, order=order)
    ]
    table = pa.Table.from_batches(found, RECORD_SCHEMA).combine_chunks()
    whole = (
        table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], RECORD_SCHEMA)
    )
    return whole.set_column(0, RECORD_SCHEMA.field("ulid"), _ulids(batches.rows, parts))


def _ulids(rows: Rows, parts: Sequence[RecordPart]) -> pa.Array:
    named = rows.copy()
    named["ulid_lo"] = [part.ulid & _LOW for part in parts]
    counts = rows["records"].astype(np.int64)
    firsts = np.array([part.first for part in parts], np.int64) - (np.cumsum(counts) - counts)
    return line_ulids(named, counts, np.arange(counts.sum()) + np.repeat(firsts, counts))


# --- Parts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartLines:
    """Parts, the number of their first line, and that of the line after the last of them."""

    parts: list[RecordPart]
    start: int
    end: int


class BatchHead(NamedTuple):
    """The beginning of a batch: its first position, and its first line in the chunk."""

    pos: int
    line: int


class RecordRange(NamedTuple):
    """Some records of a batch, by their numbers within it."""

    first: int
    end: int


ReadText = Callable[[Manifest, Chunk, int, int], Awaitable[bytes]]
"""A range of a chunk's text: the manifest, the chunk, offset and size in bytes."""


async def read_parts(
    snapshot: RunSnapshot, start: int, end: int, max_bytes: int, text: ReadText | None = None
) -> PartLines:
    """Reads the records of lines from `start` to before `end`, fewer beyond `max_bytes`.

    It returns at least one record if one exists. `text` reads texts of chunks. Raises `Moved`,
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
            found = _unflushed_parts(snapshot, start, end, budget, bool(parts))
        if not found.parts:
            break
        if not parts:
            first = found.start
        parts += found.parts
        size += sum([len(part.text) for part in found.parts])
        start = found.end
    return PartLines(parts, first, start)


# --- chunks -------------------------------------------------------------------------------------


async def _chunk_parts(
    snapshot: RunSnapshot, start: int, end: int, budget: int, read: ReadText
) -> PartLines:
    """Reads the records of one piece of a chunk's index: one ranged get of text."""
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
    snapshot: RunSnapshot, place: ChunkPlace, blocks: Blocks, first: int, last: int
) -> list[BatchHead]:
    """Returns where each block's batch begins, from `first` to before `last`. Raises `Moved`."""
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
    """Returns the ULID of the block's batch."""
    return int(block["ulid_hi"]) << 64 | int(block["ulid_lo"])


def _of_block(block: np.void, number: int, text: bytes) -> RecordPart:
    records, lines = int(block["records"]), int(block["lines"])
    meta = None
    if records != lines:
        # One record, because the index has a block for each record that holds newlines.
        records, meta = 1, RecordMeta([len(text)], [None], [None], [None])
    return RecordPart(
        ulid_of_block(block), number, int(block["pos"]), records, lines, text, meta, None
    )


def _without_beginning(part: RecordPart, line: int, wanted: int) -> tuple[RecordPart, int]:
    """Cuts the part, which begins at `line`, to begin at `wanted`, if each record is one line."""
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
    """Cuts the part, which ends at line `end`, to end at `wanted`, if each record is one line."""
    surplus = end - wanted
    if surplus <= 0 or part.records != part.lines:
        return part, end
    left = part.records - surplus
    text = part.text[: int(line_ends(part.text)[left - 1])]
    return part._replace(records=left, lines=left, text=text), wanted


# --- after the chunks ---------------------------------------------------------------------------


def _unflushed_parts(
    snapshot: RunSnapshot, start: int, end: int, budget: int, some: bool
) -> PartLines:
    """Reads whole batches, or a part of the first if not all of it is wanted or fits."""
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


def rows_as_parts(
    snapshot: RunSnapshot, stretch: UnflushedRows, first: int, last: int
) -> list[RecordPart]:
    """Returns all records of the rows from `first` to before `last`."""
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
    stretch: UnflushedRows,
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
    snapshot: RunSnapshot, stretch: UnflushedRows, number: int, low: int, high: int
) -> RecordRange:
    """Returns the records to which the row's lines from `low` to before `high` belong."""
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
    snapshot: RunSnapshot, stretch: UnflushedRows, number: int, some: RecordRange, budget: int
) -> tuple[RecordPart, int]:
    """Returns as many of these records as fit into `budget`, at least one; the lines before."""
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
    if len(ends) != int(stretch.rows["records"][number]):  # record boundaries are unknown
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
    """Returns the whole batch as one record, if its record boundaries are unknown."""
    return RecordRange(0, 1), RecordMeta([size], [None], [None], [None])


def _cut(meta: RecordMeta, some: RecordRange, ends: list[int]) -> RecordMeta:
    """Returns the metadata of some records; they end at `ends` of their own text."""
    part = slice(some.first, some.end)
    return RecordMeta(ends, meta.ts[part], meta.levels[part], meta.attributes[part])


# --- Places of readers without the store --------------------------------------------------------


PREFIX = "h1."
_COUNT_BITS = 32
_DIGEST_MASK = (1 << 31) - 1


class LineSum(NamedTuple):
    """A sum over lines in any order: their number, and a digest of the batches that have them."""

    lines: int = 0
    digest: int = 0

    def plus(self, batch: int, lines: int) -> LineSum:
        """Returns the sum with `lines` more lines of a batch, which is named by its ULID."""
        digest = xxhash.xxh32_intdigest(batch.to_bytes(16, "big")) * lines
        return LineSum(self.lines + lines, self.digest + digest & _DIGEST_MASK)

    def joined(self, other: LineSum) -> LineSum:
        """Returns the sum over the lines of both."""
        return LineSum(self.lines + other.lines, self.digest + other.digest & _DIGEST_MASK)


class HeldPlace(NamedTuple):
    """A reader's place in lines that nodes hold: lines with the sum `sent` came after `before`.

    While the object store was silent, its lines of the run were not known, so the place says
    nothing about them. It has the reader's place before (`before`: a cursor, a line number, or None
    for the beginning), the lines that were sent since by their positions (`seen`), and their
    sum. Once the store answers, the place is settled (`cursors.settled`). If the sent lines are
    exactly those that follow `before`, the reader continues after them. If the store has other
    lines between, or the reader had one of them before, the reader continues at `before`: it gets
    some lines again rather than miss any, and is told so.

    It is opaque to clients: `h1.` and base64url of the JSON [before, seen, sum]. Pages encode it
    as a number, as they encode cursors. The sum is one number: the digest above 32 bits of lines.
    """

    before: Cursor | int | None
    seen: Cursor
    sent: LineSum

    def encode(self) -> str:
        """Returns the text that a client passes back."""
        before = self.before.encode() if isinstance(self.before, Cursor) else self.before
        total = self.sent.digest << _COUNT_BITS | self.sent.lines
        return encode_cursor(PREFIX, [before, self.seen.encode(), total])

    @staticmethod
    def decode(text: str) -> HeldPlace:
        """Decodes a place. Raises `InvalidCursor`."""
        try:
            before, seen, total = decode_cursor(PREFIX, text)
            if not isinstance(total, int) or not isinstance(seen, str) or not 0 <= total < 1 << 63:
                raise ValueError(text)
            if isinstance(before, str):
                before = Cursor.decode(before)
            elif not (before is None or (isinstance(before, int) and before >= 0)):
                raise ValueError(text)
            sent = LineSum(total & (1 << _COUNT_BITS) - 1, total >> _COUNT_BITS)
            return HeldPlace(before, Cursor.decode(seen), sent)
        except (ValueError, TypeError) as error:
            raise InvalidCursor(f"not a cursor: {text[:80]!r}", field="cursor") from error


def given(where: HeldPlace | Cursor | int | None, seen: Cursor, sent: LineSum) -> HeldPlace:
    """Returns the place of a reader at `where` after more lines `sent`, which has seen `seen`."""
    if isinstance(where, HeldPlace):
        return HeldPlace(where.before, where.seen.joined(seen), where.sent.joined(sent))
    return HeldPlace(where, seen, sent)
