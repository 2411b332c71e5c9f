"""Reads run logs as records: pages, catching up, whole runs; in order of arrival or of ULID.

Text, position and ULID of each record come from the run's log and its index, so a record can be
read whenever its lines can. Time, level, connector and attributes come from a search for the record
(`Details`): chunks do not have them, and the search knows the values that a line inherits from the
line before it. A record that no search finds, such as one that OpenMetadata wrote, has the time and
level that are found in its text (decision 080).

The order of ULIDs is the order of the producers; the log has the order of arrival. A batch's
records have rising ULIDs and are contiguous, so this is an order of batches. The chunks' indexes
have the ids of all batches: directories say which pieces may hold the next ids, and only those are
read. Memory is that of the returned blocks and of one piece, whatever the run's length. Where the
clocks of producers differ, neighbours by ULID are apart in the log: texts are read in windows, and
the last ones are kept for a page.

A place in this order is the ULID of a record; a client gets it as `u1.{ULID}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from service.run_log.chunks import Chunks
from service.run_log.cursors import (
    MAX_PAGE_BYTES,
    After,
    Begun,
    LinePage,
    OneSource,
    WantedPage,
    after_piece,
    cursor_at,
    line_behind,
    line_of_record,
    must_exist,
    no_record,
    place_after,
    read_after,
    read_page,
    silent_of,
    sources_of,
    sum_of,
    unseen,
)
from service.run_log.lines import (
    HeldPlace,
    PartLines,
    ReadText,
    RecordPart,
    as_records,
    given,
    read_parts,
)
from service.run_log.pinned_log import LogNow, PinnedLog
from service.run_log.snapshot import ChunkPlace, RunSnapshot, Snapshots, fetching
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey, of_batch
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.errors import InvalidCursor, InvalidInput
from tailrace.logstore.position import Cursor
from tailrace.logstore.runs.chunk_index import Blocks
from tailrace.logstore.runs.manifest import Chunk, Manifest
from tailrace.logstore.table.schema import RECORD_SCHEMA

# --- The order of ULIDs -------------------------------------------------------------------------


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
"""Reads records of lines from a number to before another, up to a size, with a text reader."""
NO_LIMIT = 1 << 62


class Edge(NamedTuple):
    """The end of a range of records: records of `batch` from position `pos` on lie beyond.

    Batches with a higher ULID lie beyond, too; those with a lower one lie before.
    """

    batch: int
    pos: int


def encode_place(ulid: int) -> str:
    """Encodes a place as the token that a client passes back."""
    return _PREFIX + ulids.encode(ulid)


def decode_place(text: str, field: str) -> int:
    """Decodes a place to its ULID. Raises `InvalidCursor`."""
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


async def from_ulid(snapshot: RunSnapshot, ulid: int, lines: int, size: int) -> list[LineRange]:
    """Returns records from `ulid` on, in order: about `lines` and `size` bytes. Raises `Moved`."""
    rows = await _sweep(snapshot, ulid, lines, size, forward=True)
    return _ranges(_first_lines(rows, lines))


async def before_ulid(snapshot: RunSnapshot, ulid: int, lines: int) -> list[LineRange]:
    """Returns the last records before `ulid`, in order: about `lines` lines. Raises `Moved`."""
    rows = await _sweep(snapshot, ulid, lines, NO_LIMIT, forward=False)
    return _ranges(_last_lines(rows, lines)[::-1])


async def read_ranges(
    snapshot: RunSnapshot,
    ranges: Sequence[LineRange],
    max_bytes: int,
    read: ReadParts | None = None,
) -> list[RecordPart]:
    """Returns the records of these lines in this order, up to `max_bytes`, at least one.

    They are read by `read`, or from the snapshot. Raises `Moved`, `Unavailable`.
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


# --- the next batches ---------------------------------------------------------------------------


async def _sweep(
    snapshot: RunSnapshot, ulid: int, lines: int, size: int, *, forward: bool
) -> _Rows:
    """Returns the nearest rows on one side of a ULID, the nearest first, until they are enough."""
    edge = await _edge(snapshot, ulid)
    kept = _nearest(
        _beyond(snapshot, _unflushed_rows(snapshot), edge, forward), lines, size, forward
    )
    for nearest, place, number in await _pieces(snapshot, edge.batch, forward):
        if _enough(kept, lines, size):
            last = _batch(kept[-1])
            if (nearest > last) if forward else (nearest < last):
                break
        blocks, _ = await snapshot.chunks.piece(snapshot.manifest.key, place.chunk, number)
        more = _beyond(snapshot, _block_rows(blocks, place), edge, forward)
        kept = _nearest(np.concatenate([kept, more]), lines, size, forward)
    return kept


async def _edge(snapshot: RunSnapshot, ulid: int) -> Edge:
    batch = ulids.batch_of(ulid)
    first = await _position_of(snapshot, batch)
    return Edge(batch, 0 if first is None else first + ulid - batch)


async def _position_of(snapshot: RunSnapshot, batch: int) -> int | None:
    """Returns the position of the batch's first record, if the run has it."""
    for stretch in snapshot.stretches:
        for at in np.flatnonzero(of_batch(stretch.rows, batch))[:1].tolist():
            return int(stretch.rows["pos"][at])
    for place in snapshot.places:
        blocks = await snapshot.chunks.blocks_of(snapshot.manifest.key, place.chunk, batch)
        if len(blocks):
            return int(blocks["pos"][0])
    return None


async def _pieces(
    snapshot: RunSnapshot, batch: int, forward: bool
) -> list[tuple[int, ChunkPlace, int]]:
    """Yields the pieces that may hold batches on this side, each with its nearest ULID.

    The nearest piece comes first.
    """
    found: list[tuple[int, ChunkPlace, int]] = []
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


def _unflushed_rows(snapshot: RunSnapshot) -> _Rows:
    parts = [np.empty(0, _ROW)]
    for stretch in snapshot.stretches:
        rows = _rows_of(stretch.rows)
        rows["line"] = stretch.ends - rows["lines"]
        parts.append(rows)
    return np.concatenate(parts)


def _block_rows(blocks: Blocks, place: ChunkPlace) -> _Rows:
    rows = _rows_of(blocks)
    rows["line"] = blocks["line"].astype(np.int64) + place.line
    return rows


def _rows_of(source: NDArray[np.void]) -> _Rows:
    rows = np.empty(len(source), _ROW)
    rows["hi"], rows["lo"] = source["ulid_hi"], source["ulid_lo"]
    for name in ("pos", "lines", "records", "size"):
        rows[name] = source[name]
    return rows


def _beyond(snapshot: RunSnapshot, rows: _Rows, edge: Edge, forward: bool) -> _Rows:
    """Returns the rows, or parts of rows, on one side of the edge."""
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


def _cut(snapshot: RunSnapshot, row: _Rows, pos: int, forward: bool) -> None:
    """Cuts a row to the records on one side of a position."""
    line, lines, records = int(row["line"][0]), int(row["lines"][0]), int(row["records"][0])
    before = pos - int(row["pos"][0])
    at = line + before
    if records != lines:  # a batch after the chunks: there each such record is a block
        stretch = next(s for s in snapshot.stretches if line < s.end_line)
        number = int(np.searchsorted(stretch.ends, line, "right"))
        at = line_behind(snapshot, stretch, number, before)
    if forward:
        row["pos"], row["line"], row["lines"] = pos, at, lines - (at - line)
        row["records"] = records - before
    else:
        row["lines"], row["records"] = at - line, before


def _nearest(rows: _Rows, lines: int, size: int, forward: bool) -> _Rows:
    """Returns the nearest rows first, and no more than are enough."""
    order = np.lexsort((rows["pos"], rows["lo"], rows["hi"]))
    rows = rows[order if forward else order[::-1]]
    full = (np.cumsum(rows["lines"]) >= lines) | (np.cumsum(rows["size"]) >= size)
    return rows[: int(np.argmax(full)) + 1] if full.any() else rows


def _enough(rows: _Rows, lines: int, size: int) -> bool:
    return bool(int(rows["lines"].sum()) >= lines or int(rows["size"].sum()) >= size)


def _batch(row: np.void) -> int:
    return int(row["hi"]) << 64 | int(row["lo"])


def _first_lines(rows: _Rows, lines: int) -> _Rows:
    """Cuts from the last row its lines beyond `lines`."""
    surplus = int(rows["lines"].sum()) - lines
    if surplus > 0 and len(rows):
        rows["lines"][-1] -= surplus
    return rows


def _last_lines(rows: _Rows, lines: int) -> _Rows:
    """Does the same for rows of which the last is the first in order."""
    surplus = int(rows["lines"].sum()) - lines
    if surplus > 0 and len(rows):
        rows["line"][-1] += surplus
        rows["lines"][-1] -= surplus
    return rows


def _ranges(rows: _Rows) -> list[LineRange]:
    """Returns their lines; neighbours in the log are joined."""
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
        self._kept: BoundedCache[tuple[str, int], bytes] = BoundedCache(_WINDOWS)

    async def text(self, manifest: Manifest, chunk: Chunk, offset: int, size: int) -> bytes:
        """Returns a range of the chunk's text. Raises `Moved`."""
        if chunk.id in self._chunks.changed:  # the kept text may be damaged
            for known in [known for known in self._kept if known[0] == chunk.id]:
                self._kept.pop(known)
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
            self._kept.put((chunk.id, number), found)
        return found


DETAILS = ("ulid", "ts", "pos", "level", "connector_id", "attributes", "carried")


class KnownRecords(NamedTuple):
    """The metadata of records in journal, segments and table, with the columns of `DETAILS`.

    `missing` are keys of sources that could not be read.
    """

    records: pa.Table
    missing: Sequence[str]


Details = Callable[[RunKey, int, int, pa.Array], Awaitable[KnownRecords]]
"""Finds metadata of a run's records by these ULIDs, which lie between two.

Raises `Unavailable`, `LimitReached`.
"""


@dataclass(frozen=True, slots=True)
class RecordPage:
    """A page without its text, and its records as parts; `key` is the run."""

    key: RunKey
    parts: Sequence[RecordPart]
    page: LinePage

    def as_text(self) -> LinePage:
        """Returns the page with its lines as text."""
        return replace(self.page, text=b"".join([part.text for part in self.parts]))


@dataclass(frozen=True, slots=True)
class RecordPiece:
    """Records after a cursor, and the cursor after the last of them.

    The first record has `seen` lines that were before the cursor. `sources`: see `sources_of`.
    """

    parts: Sequence[RecordPart]
    cursor: Cursor | HeldPlace
    seen: int
    sources: Sequence[OneSource] = ()


class ArrowRecords(NamedTuple):
    """Records with the columns of `/query`, and the keys of sources that could not be read."""

    batch: pa.RecordBatch
    missing: Sequence[str]


class _PartsOfLines(NamedTuple):
    parts: list[RecordPart]
    start: int
    end: int

    @property
    def text(self) -> bytes:
        return b""


class RecordReader:
    """Reads runs as records at one node. `details` returns None if searches are impossible."""

    def __init__(self, snapshots: Snapshots, details: Callable[[], Details | None]) -> None:
        self._snapshots = snapshots
        self._details = details

    async def page(
        self,
        key: RunKey,
        *,
        after: str | None = None,
        limit: int,
        tail: int | None = None,
        before: str | None = None,
        around: int | None = None,
        by_ulid: bool = False,
        max_bytes: int = MAX_PAGE_BYTES,
        stored: bool = False,
    ) -> RecordPage:
        """Returns records of about `limit` lines, as `RunLogReader.page` returns lines.

        The page ends where a record ends. If it begins within a record, it begins with that
        record's first line. With `by_ulid` the order is that of ULIDs, and places are of that
        order. Raises `NotFound`, `InvalidCursor`, `StoreUnavailable`.
        """
        take = self._snapshots.with_one if stored else self._snapshots.read
        if by_ulid:
            wanted = _UlidPage.parsed(limit, after, before, tail, around, max_bytes)
            return await take(key, wanted.read)
        lines = WantedPage.parsed(limit, after=after, before=before, tail=tail, around=around)

        async def read(snapshot: RunSnapshot) -> RecordPage:
            async def parts(start: int, end: int) -> _PartsOfLines:
                found = await read_parts(snapshot, start, end, max_bytes)
                return _PartsOfLines(found.parts, found.start, found.end)

            found, page = await read_page(snapshot, lines, parts)
            return RecordPage(key, found.parts, page)

        return await take(key, read)

    async def after(
        self,
        key: RunKey,
        where: Cursor | int | HeldPlace | None,
        *,
        max_bytes: int,
        begun: Begun | None = None,
    ) -> After[RecordPiece]:
        """Returns records after a place, up to about `max_bytes`; none at the live end.

        Of a batch that was `begun` it returns only the records of the remaining lines.
        """

        async def piece(
            snapshot: RunSnapshot, start: int, end: int, before: Cursor | None, apart: bool
        ) -> tuple[RecordPiece, int]:
            found = await read_parts(snapshot, start, end, max_bytes)
            sources = await sources_of(snapshot, before, found.start, found.end, apart=apart)
            if found.start >= snapshot.chunk_lines:
                parts = [(p.ulid, p.pos, p.records, p.lines, p.first, 0) for p in found.parts]
                sources = [source._replace(batches=parts, begun=0) for source in sources]
            after = await place_after(snapshot, before, sources, found.end, apart=apart)
            return RecordPiece(found.parts, after, start - found.start, sources), found.end

        async def read(snapshot: RunSnapshot) -> After[RecordPiece]:
            if snapshot.held:
                return await held_records(snapshot, where, max_bytes)
            return await read_after(snapshot, where, begun, piece)

        return await self._snapshots.read(key, read)

    async def whole(
        self, key: RunKey, *, by_ulid: bool, max_bytes: int, held: bool = False
    ) -> AsyncIterator[Sequence[RecordPart]]:
        """Yields all records of the run as of the first piece, in pieces of about `max_bytes`.

        `held`: the records that nodes hold, without the store. Raises `NotFound` (with the first
        piece, or if the run is deleted meanwhile), `Unavailable`.
        """
        at = _Whole(key, by_ulid, max_bytes)
        if held:
            async with self._snapshots.held(key) as snapshot:
                while not at.done:
                    yield await fetching(snapshot, at.step)
            return
        while not at.done:
            yield await self._snapshots.with_one(key, at.step)

    async def records(self, key: RunKey, parts: Sequence[RecordPart]) -> ArrowRecords:
        """Returns the parts' records in their order, with all known metadata.

        Raises `Unavailable`, `LimitReached`, `Damaged`.
        """
        # Off the event loop: 20 ms for half a MiB.
        batch = await asyncio.to_thread(as_records, key, parts)
        details = self._details()
        if details is None or not parts:
            return ArrowRecords(batch, ())
        low, high = min(part.low for part in parts), max(part.high for part in parts)
        known = await details(key, low, high, batch.column("ulid"))
        return ArrowRecords(_detailed(batch, known.records), known.missing)


async def held_records(
    snapshot: RunSnapshot, where: Cursor | int | HeldPlace | None, max_bytes: int
) -> After[RecordPiece]:
    """Returns records after a place in a snapshot of the lines that nodes hold."""
    ranges = await unseen(snapshot, where)
    if not ranges:
        return after_piece(snapshot, None, ranges, 0)
    start, end = ranges[0]
    found = await read_parts(snapshot, start, end, max_bytes)
    sent = await sum_of(snapshot, [(start, found.end)])
    place = given(where, await cursor_at(snapshot, found.end), sent)
    piece = RecordPiece(found.parts, place, start - found.start)
    return after_piece(snapshot, piece, ranges, found.end)


def _detailed(batch: pa.RecordBatch, known: pa.Table) -> pa.RecordBatch:
    """Returns the batch with the known metadata in place of the metadata found in its text."""
    if known.num_rows == 0:
        return batch
    found = known.combine_chunks().to_batches()[0]
    where = pc.index_in(batch.column("ulid"), value_set=found.column("ulid"))
    own = pa.array(np.arange(batch.num_rows), pa.int64())
    takes = pc.coalesce(pc.add(where.cast(pa.int64()), batch.num_rows), own)
    for name in DETAILS[1:]:
        both = pa.concat_arrays([batch.column(name), found.column(name)])
        number = batch.schema.get_field_index(name)
        batch = batch.set_column(number, RECORD_SCHEMA.field(name), both.take(takes))
    return batch


@dataclass(frozen=True, slots=True)
class _UlidPage:
    """A page in the order of ULIDs: ULIDs in place of cursors."""

    limit: int
    after: int | None
    before: int | None
    tail: int | None
    around: int | None
    max_bytes: int

    @staticmethod
    def parsed(
        limit: int,
        after: str | None,
        before: str | None,
        tail: int | None,
        around: int | None,
        max_bytes: int,
    ) -> _UlidPage:
        first = None if after is None else decode_place(after, "after")
        last = None if before is None else decode_place(before, "before")
        return _UlidPage(limit, first, last, tail, around, max_bytes)

    async def read(self, snapshot: RunSnapshot) -> RecordPage:
        """Reads the page. Raises `NotFound`, `Moved`."""
        must_exist(snapshot)
        ranges = await self._ranges(snapshot)
        parts = await read_ranges(snapshot, ranges, self.max_bytes)
        lines = sum([part.lines for part in parts])
        after = before = None
        if parts:
            last, first = parts[-1].high, parts[0].low
            # A ULID says nothing about records in the store that were not sent.
            if not snapshot.held and await from_ulid(snapshot, last + 1, 1, 1):
                after = encode_place(last)
            if not snapshot.held and await before_ulid(snapshot, first, 1):
                before = encode_place(first)
        page = LinePage(
            text=b"",
            lines=lines,
            after=after,
            before=before,
            total_lines=snapshot.lines,
            total_bytes=snapshot.size,
            state=snapshot.state,
            missing=max(sum(end - start for start, end in ranges) - lines, 0) if after else 0,
            first_line=0,
            silent=silent_of(snapshot),
            held=snapshot.held,
        )
        return RecordPage(snapshot.manifest.key, parts, page)

    async def _ranges(self, snapshot: RunSnapshot) -> list[LineRange]:
        if self.around is not None:
            return await self._around(snapshot, self.around)
        if self.before is not None:
            return await before_ulid(snapshot, self.before, self.limit)
        if self.tail is not None:
            return await before_ulid(snapshot, _HIGHEST, self.tail)
        first = 0 if self.after is None else self.after + 1
        return await from_ulid(snapshot, first, self.limit, MAX_PAGE_BYTES)

    async def _around(self, snapshot: RunSnapshot, ulid: int) -> list[LineRange]:
        if await line_of_record(snapshot, ulid) is None:
            raise no_record(snapshot, ulid)
        half = self.limit - self.limit // 2
        found = await from_ulid(snapshot, ulid, half, MAX_PAGE_BYTES)
        left = self.limit - sum(end - start for start, end in found)
        if left <= 0:
            return found
        return await before_ulid(snapshot, ulid, left) + found


@dataclass(slots=True)
class _Whole:
    """The progress of reading a whole run; the first snapshot fixes its records and their order.

    `ranges` come next in the order of ULIDs, and after them the records from `ulid` on.
    """

    key: RunKey
    by_ulid: bool
    max_bytes: int
    log: PinnedLog | None = None
    line: int = 0
    ulid: int = 0
    ranges: Sequence[LineRange] = ()
    done: bool = False

    async def step(self, now: RunSnapshot) -> list[RecordPart]:
        """Returns the next records."""
        if self.log is None:
            must_exist(now)
            self.log = PinnedLog(now)
        return await (self._next_ulids if self.by_ulid else self._next_lines)(self.log.at(now))

    async def _next_lines(self, log: LogNow) -> list[RecordPart]:
        end = log.log.lines
        found = await log.parts(self.line, end, self.max_bytes)
        self.line, self.done = found.end, found.end >= end
        return found.parts

    async def _next_ulids(self, log: LogNow) -> list[RecordPart]:
        order, ranges = log.order(), self.ranges
        if not ranges:
            all_lines = NO_LIMIT
            ranges = await from_ulid(order, self.ulid, all_lines, self.max_bytes)
        parts = await read_ranges(order, ranges, self.max_bytes, log.parts)
        self.ranges = _without_first(ranges, sum([part.lines for part in parts]))
        if parts:
            self.ulid = parts[-1].high + 1
        self.done = not parts
        return parts


def _without_first(ranges: Sequence[LineRange], lines: int) -> list[LineRange]:
    """Returns the ranges without the first `lines` lines."""
    left: list[LineRange] = []
    for start, end in ranges:
        skipped = min(lines, end - start)
        lines -= skipped
        if skipped < end - start:
            left.append((start + skipped, end))
    return left
