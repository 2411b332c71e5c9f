"""Translates cursors and ids of records to line numbers of a snapshot, and reads pages and pieces.

A client gets a bare line number only for lines that have their final place: those of `logs.txt`,
and those that were flushed by a node without other nodes (`Manifest.fixed`). Beyond them it gets a
cursor, as a decimal number. A cursor has the last seen position of every writer, and each line is
found again wherever it is by then. Lines of another node may enter the log before lines that a
reader has seen already; that reader gets them afterwards (`unseen`).

A close may sort lines by ULID so that those of a node are not in order of their positions. Within
such a part a cursor has a line number as well (`Manifest.by_ulid`).

A batch that a client sent to several nodes is in the log once, and was seen if any of its copies
was: a copy that this node can see by its position, any other by the newest ULIDs in the cursor.

While the store is silent a snapshot has only lines that nodes hold. A place in it is a `HeldPlace`,
which `settled` turns into a place in the whole log once the store answers.

A cursor of an earlier version (`c1.`) may not name every writer. Everything in the log up to its
last seen position, of any writer, then counts as seen.

Pages: a page begins in one of several ways (`WantedPage`). The caller of `read_page` reads its
contents, text or records; they may have fewer lines than wanted.

Pieces: a live reader gets `After`, a piece with the other facts of its snapshot, so that it needs
no second snapshot. A line keeps its place once it is in `logs.txt`, or was flushed where no other
nodes exist. Ids of such lines count lines. The order of other lines may change: beyond the chunks
each node shows its own lines first, and a close sorts the chunks of several nodes. Ids of such
lines name records (`sources_of`), and lines of one node are in the order of their positions. A
piece has lines of one kind, and beyond the chunks lines of one node (`piece_end`).

A reader of lines may leave within a record of several lines, and continue when the order has
changed. The rest of the record's batch then comes first (`resumed`), so that ids within the batch
stay valid.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from service.run_log.backlog import Fork
from service.run_log.chunks import Piece
from service.run_log.lines import PREFIX, HeldPlace, LineSum, given, heads_of, place_of_line
from service.run_log.snapshot import (
    ChunkPlace,
    RunSnapshot,
    UnflushedRows,
    lines_through,
    records_through,
)
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey, of_batch, ulid_of
from tailrace.logstore.errors import InvalidCursor, NotFound, StoreUnavailable
from tailrace.logstore.position import MOST_NEWEST, Cursor, Position, as_number, without_number
from tailrace.logstore.runs.chunk_index import Blocks
from tailrace.logstore.ulid import MAX_LINES

_NOWHERE = Position("", 0)


def parse_token(token: str) -> Cursor | int | HeldPlace:
    """Parses a client's token: a line number or a cursor. Raises `InvalidCursor`."""
    if token.isascii() and token.isdigit() and len(token) < 19:
        return int(token)
    token = without_number(token)
    return HeldPlace.decode(token) if token.startswith(PREFIX) else Cursor.decode(token)


class Settled(NamedTuple):
    """A place in a snapshot. `again`: it lies before lines that the reader was given."""

    place: Cursor | int | None
    again: bool = False


async def settled(snapshot: RunSnapshot, where: Cursor | int | HeldPlace | None) -> Settled:
    """Returns the place in this snapshot, of all lines or of held ones. Raises `Moved`."""
    held = where if isinstance(where, HeldPlace) else None
    before = where.before if isinstance(where, HeldPlace) else where
    if snapshot.held:
        known = _without_number(snapshot, before)
        return Settled(known if held is None else _as_cursor(known).joined(held.seen))
    if held is None:
        return Settled(before)
    base = await resolved(snapshot, before)
    behind = base.joined(held.seen)
    skipped = await unseen(snapshot, base)
    for low, high in await unseen(snapshot, behind):
        skipped = [part for span in skipped for part in cut(span, low, high)]
    count = sum([max(high - low, 0) for low, high in skipped])
    if count == held.sent.lines and await sum_of(snapshot, merged(skipped)) == held.sent:
        return Settled(behind)
    return Settled(before, again=held.sent.lines > 0)


async def sum_of(snapshot: RunSnapshot, ranges: Sequence[tuple[int, int]]) -> LineSum:
    """Returns the sum over these lines. Raises `Moved`."""
    found = LineSum()
    for low, high in ranges:
        for _, (batch, _, _, lines, _, _) in await _placed(
            snapshot, low, min(high, snapshot.chunk_lines)
        ):
            found = found.plus(batch, lines)
        for stretch in snapshot.stretches:
            begins = stretch.ends - stretch.rows["lines"]
            ours = np.minimum(stretch.ends, high) - np.maximum(begins, low)
            for at in np.flatnonzero(ours > 0).tolist():
                found = found.plus(ulid_of(stretch.rows[at]), int(ours[at]))
    return found


def _without_number(snapshot: RunSnapshot, where: Cursor | int | None) -> Cursor | int | None:
    """Returns the place without a line number, which is unknown while the store is silent.

    Line numbers are of chunks: a reader that has one does not get any line of the chunks again.
    """
    assert snapshot.flushed is not None
    if isinstance(where, Cursor) and where.line:
        return replace(where, line=0).joined(snapshot.flushed)
    return snapshot.flushed if isinstance(where, int) and where else where


def _as_cursor(where: Cursor | int | None) -> Cursor:
    return where if isinstance(where, Cursor) else Cursor()


async def line_of(snapshot: RunSnapshot, where: Cursor | int | HeldPlace) -> int:
    """Returns the number of the first unseen line. Raises `Moved`."""
    where = (await settled(snapshot, where)).place or 0
    if isinstance(where, int):
        if where < 0:
            raise InvalidCursor(f"not a line number: {where}", field="after")
        return min(where, snapshot.lines)
    found = [await _line_after(snapshot, n, p.pos) for n, p in where.positions.items()]
    return max(found, default=0) if not where.line else max(_known_line(snapshot, where), *found, 0)


def _known_line(snapshot: RunSnapshot, where: Cursor) -> int:
    """Returns the line before which all were seen; 0 for a place of another log, now deleted."""
    return where.line if where.line <= snapshot.manifest.fixed_lines else 0


async def token_at(snapshot: RunSnapshot, line: int) -> str:
    """Returns the token with which a client continues at `line`."""
    if line <= snapshot.manifest.fixed_lines:
        return str(line)
    return (await cursor_at(snapshot, line)).encode_numbered(line)


async def resolved(snapshot: RunSnapshot, where: Cursor | int | HeldPlace | None) -> Cursor:
    """Returns the same place as a cursor that names every writer. Raises `Moved`."""
    where = (await settled(snapshot, where)).place
    if isinstance(where, Cursor) and where.complete:
        return where
    return await cursor_at(snapshot, 0 if where is None else await line_of(snapshot, where))


async def cursor_at(snapshot: RunSnapshot, line: int) -> Cursor:
    """Returns a cursor that has seen everything before `line`, and nothing else. Raises `Moved`."""
    if snapshot.manifest.by_ulid and line < snapshot.manifest.fixed_lines:
        return Cursor(line=line)
    seen: dict[str, int] = {}
    for place in snapshot.places:
        if place.line + place.chunk.lines <= line:
            _raise(seen, {node: end - 1 for node, (_, end) in place.chunk.writers.items()})
        elif place.line < line:
            await _seen_in_chunk(snapshot, place, line - place.line, seen)
    for stretch in snapshot.stretches:
        if stretch.first_line < line:
            last = last_seen(snapshot, stretch, min(line, stretch.end_line))
            _raise(seen, {stretch.batches.node: last})
    positions = {node: place_of(snapshot, node, pos) for node, pos in seen.items()}
    return Cursor(positions, {} if snapshot.elsewhere.alone else _newest(snapshot, line))


async def joined_at(snapshot: RunSnapshot, cursor: Cursor | None, line: int) -> Cursor:
    """Returns the cursor of a reader that has seen `cursor` and everything before `line`."""
    here = await cursor_at(snapshot, line)
    if cursor is None or not cursor.complete:
        return here
    after = cursor.joined(here)
    # After such a part, positions are enough.
    return replace(after, line=0) if line >= snapshot.manifest.fixed_lines else after


def place_of(snapshot: RunSnapshot, node: str, pos: int) -> Position:
    """Returns the place of a record of a node, for cursors."""
    if node == snapshot.pin.node:
        return snapshot.pin.position(pos)
    return snapshot.elsewhere.positions(node, pos) or Position("", pos)


def _newest(snapshot: RunSnapshot, line: int) -> Mapping[str, tuple[int, ...]]:
    """Returns last records of each node's newest batches beyond the chunks and before `line`."""
    found = Cursor()
    for stretch in snapshot.stretches:
        if stretch.first_line < line:
            end = int(np.searchsorted(stretch.ends, line, "left")) + 1
            first = max(end - MOST_NEWEST, 0)
            ulids_ = []
            for at, row in enumerate(stretch.rows[first:end], first):
                records = int(row["records"])
                if line < int(stretch.ends[at]):
                    records = last_seen(snapshot, stretch, line) + 1 - int(row["pos"])
                if records > 0:
                    ulids_.append(ulid_of(row) + records - 1)
            found = found.advanced(stretch.batches.node, _NOWHERE, ulids_)
    return found.newest


async def line_of_record(snapshot: RunSnapshot, ulid: int) -> int | None:
    """Returns the number of the record's first line, None if the run lacks it. Raises `Moved`."""
    batch = ulids.batch_of(ulid)
    number = ulid - batch
    for stretch in snapshot.stretches:
        for at in np.flatnonzero(of_batch(stretch.rows, batch))[:1].tolist():
            known = number < int(stretch.rows["records"][at])
            return line_behind(snapshot, stretch, at, number) if known else None
    for place in snapshot.places:
        blocks = await snapshot.chunks.blocks_of(snapshot.manifest.key, place.chunk, batch)
        if len(blocks):
            line = _in_blocks(blocks, number)
            return None if line is None else place.line + line
    return None


def _in_blocks(blocks: Blocks, number: int) -> int | None:
    """Returns the line of a record within a chunk, by its number within its batch."""
    behind = np.cumsum(blocks["records"], dtype=np.int64)
    at = int(np.searchsorted(behind, number, "right"))
    if at == len(blocks):
        return None
    # A block that holds newlines within records is of one record.
    inside = number - int(behind[at]) + int(blocks["records"][at])
    return int(blocks["line"][at]) + inside


async def unseen(
    snapshot: RunSnapshot, where: Cursor | int | HeldPlace | None
) -> list[tuple[int, int]]:
    """Returns ranges of unseen lines, in order. Raises `Moved`."""
    where = (await settled(snapshot, where)).place
    found: list[tuple[int, int]] = []
    if isinstance(where, Cursor):
        left = await snapshot.elsewhere.left(_unseen_writers(snapshot, where))
        where = of_forks(where, [*snapshot.elsewhere.forks, *left])
    if isinstance(where, Cursor) and where.complete:
        for place in snapshot.places:
            found += await _unseen_in_chunk(snapshot, place, where)
        for stretch in snapshot.stretches:
            found.append(_unseen_in_stretch(snapshot, stretch, where))
        known = _known_line(snapshot, where)
        found = [part for span in found for part in cut(span, 0, known)] if known else found
    else:
        start = 0 if where is None else await line_of(snapshot, where)
        found.append((start, snapshot.lines))
    found = merged(found)
    if found and isinstance(where, Cursor):
        found = await _without_copies(snapshot, found, where)
    return found


def _unseen_writers(snapshot: RunSnapshot, cursor: Cursor) -> set[str]:
    """Returns nodes of which the cursor has not seen all lines, without forks of the register.

    Returns none if the cursor names no node: it cannot have seen a fork's lines under another name.
    """
    if not cursor.positions:
        return set()
    ends = [item for place in snapshot.places for item in place.chunk.writers.items()]
    known = {fork.node for fork in snapshot.elsewhere.forks}
    return {node for node, (_, end) in ends if cursor.seen(node) < end - 1} - known


async def _without_copies(
    snapshot: RunSnapshot, ranges: Sequence[tuple[int, int]], cursor: Cursor
) -> list[tuple[int, int]]:
    """Returns the ranges without lines of which another copy was seen."""
    seen: dict[int, int] = {}
    # A reader that went from node to node has seen more of a batch in one copy than in another.
    for last in cursor.last_records:
        batch = ulids.batch_of(last)
        seen[batch] = max(last - batch + 1, seen.get(batch, 0))
    for copy in snapshot.copies:
        records = min(cursor.seen(copy.node) + 1 - copy.pos, copy.records)
        if records > 0:
            seen[copy.ulid] = max(records, seen.get(copy.ulid, 0))
    found = list(ranges)
    for batch, records in seen.items():
        for low, high in await lines_of_batch(snapshot, batch, records, found):
            found = merged([part for span in found for part in cut(span, low, high)])
    return found


def cut(span: tuple[int, int], low: int, high: int) -> list[tuple[int, int]]:
    """Returns the range without the lines from `low` to before `high`."""
    return [(span[0], min(span[1], low)), (max(span[0], high), span[1])]


async def lines_of_batch(
    snapshot: RunSnapshot, batch: int, records: int, within: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Returns the lines of the first records of a batch that may be in these ranges."""
    found: list[tuple[int, int]] = []
    for stretch in snapshot.stretches:
        if not _meets(within, stretch.first_line, stretch.end_line):
            continue
        for at in np.flatnonzero(of_batch(stretch.rows, batch)).tolist():
            begin = int(stretch.ends[at]) - int(stretch.rows["lines"][at])
            found.append((begin, line_behind(snapshot, stretch, at, records)))
    for place in snapshot.places:
        if not _meets(within, place.line, place.line + place.chunk.lines):
            continue
        blocks = await snapshot.chunks.blocks_of(snapshot.manifest.key, place.chunk, batch)
        left = records
        for count, line, lines in blocks[["records", "line", "lines"]].tolist():
            if left > 0:
                part = lines if left >= count else (left if count == lines else 0)
                found.append((place.line + line, place.line + line + part))
            left -= count
    return found


def _meets(ranges: Sequence[tuple[int, int]], low: int, high: int) -> bool:
    return any(start < high and low < end for start, end in ranges)


def of_forks(cursor: Cursor, forks: Sequence[Fork]) -> Cursor:
    """Returns the cursor with the names that forks gave to lines seen before they forked.

    A node that continues a copy of another's folder has that node's name until it detects the copy.
    Lines that were read from it meanwhile are known by the journal file, which only the copy has.
    Of a file that both are known to have, lines were seen under both names.
    """
    for fork in forks:
        for parent in fork.parents:
            seen = cursor.positions.get(parent)
            end = next((e for f, _, e in fork.files if seen and f == seen.file), None)
            if seen is None or end is None:
                continue
            positions = dict(cursor.positions)
            pos = min(seen.pos, end - 1)
            if pos >= fork.base and pos > cursor.seen(fork.node):
                positions[fork.node] = Position(seen.file, pos)
            # Beyond the end, the original continued in a file that was copied meanwhile.
            if seen.pos < end and seen.file not in fork.shared:
                del positions[parent]
                if fork.base:
                    positions[parent] = Position("", min(seen.pos, fork.base - 1))
            cursor = replace(cursor, positions=positions)
    return cursor


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the ranges without empty ones, with neighbours joined."""
    found: list[tuple[int, int]] = []
    for low, high in ranges:
        if found and found[-1][1] == low < high:
            found[-1] = found[-1][0], high
        elif low < high:
            found.append((low, high))
    return found


def _raise(seen: dict[str, int], positions: Mapping[str, int]) -> None:
    for node, pos in positions.items():
        seen[node] = max(seen.get(node, -1), pos)


async def _seen_in_chunk(
    snapshot: RunSnapshot, place: ChunkPlace, line: int, seen: dict[str, int]
) -> None:
    """Raises `seen` by the lines before `line` of the chunk."""
    key, chunk = snapshot.manifest.key, place.chunk
    directory = await snapshot.chunks.directory(key, chunk)
    number = directory.piece_of_line(line - 1)
    for piece, node, _, end in directory.ranges:
        if piece < number:
            _raise(seen, {node: end - 1})
    blocks, writers = await snapshot.chunks.piece(key, chunk, number)
    count = int(np.searchsorted(blocks["line"], line - 1, "right"))
    for which, pos, records in blocks[["writer", "pos", "records"]][: count - 1].tolist():
        _raise(seen, {writers[which]: pos + records - 1})
    last = blocks[count - 1]
    lines = line - int(last["line"])
    whole = last["records"] != last["lines"]
    records = int(last["records"]) if whole else lines
    _raise(seen, {writers[int(last["writer"])]: int(last["pos"]) + records - 1})


def last_seen(snapshot: RunSnapshot, stretch: UnflushedRows, line: int) -> int:
    """Returns the position of the last record before `line`."""
    at = int(np.searchsorted(stretch.ends, line, "left"))
    row, index = stretch.rows[at], int(stretch.indexes[at])
    seen = line - (int(stretch.ends[at]) - int(row["lines"]))
    records = records_through(stretch.batches, index, snapshot.line_indexes, seen)
    return int(row["pos"]) + records - 1


async def _unseen_in_chunk(
    snapshot: RunSnapshot, place: ChunkPlace, cursor: Cursor
) -> list[tuple[int, int]]:
    key, chunk = snapshot.manifest.key, place.chunk
    whole = _unseen_of_ranges(chunk.writers.items(), cursor, 0, chunk.lines)
    if whole is not None:
        return [(place.line + low, place.line + high) for low, high in whole]
    found: list[tuple[int, int]] = []
    directory = await snapshot.chunks.directory(key, chunk)
    ranges: dict[int, list[tuple[str, tuple[int, int]]]] = {}
    for piece, node, low, end in directory.ranges:
        ranges.setdefault(piece, []).append((node, (low, end)))
    for number, entry in enumerate(directory.entries):
        line = int(entry["line"])
        part = _unseen_of_ranges(ranges.get(number, ()), cursor, line, line + int(entry["lines"]))
        if part is None:
            part = _unseen_in_piece(await snapshot.chunks.piece(key, chunk, number), cursor)
        found += part
    return merged([(place.line + low, place.line + high) for low, high in found])


def _unseen_of_ranges(
    ranges: Iterable[tuple[str, tuple[int, int]]], cursor: Cursor, low: int, high: int
) -> list[tuple[int, int]] | None:
    """Returns all of the lines or none, if the writers' ranges decide it."""
    pairs = [(span, cursor.seen(node)) for node, span in ranges]
    if all(end - 1 <= seen for (_, end), seen in pairs):
        return []
    if all(first > seen for (first, _), seen in pairs):
        return [(low, high)]
    return None


def _unseen_in_piece(piece: Piece, cursor: Cursor) -> list[tuple[int, int]]:
    blocks, writers = piece
    names = ["writer", "pos", "records", "line", "lines"]
    found = []
    for writer, pos, records, line, lines in blocks[names].tolist():
        seen = cursor.seen(writers[writer]) + 1 - pos
        if seen < records:
            # Fewer records than the block has: each is a line, or it would be a block of its own.
            found.append((line + (max(seen, 0) if records == lines else 0), line + lines))
    return merged(found)


def _unseen_in_stretch(
    snapshot: RunSnapshot, stretch: UnflushedRows, cursor: Cursor
) -> tuple[int, int]:
    seen = cursor.seen(stretch.batches.node)
    if seen < int(stretch.rows["pos"][0]):
        return stretch.first_line, stretch.end_line
    return _in_stretch(snapshot, stretch, seen), stretch.end_line


async def _line_after(snapshot: RunSnapshot, node: str, seen: int) -> int:
    for stretch in reversed(snapshot.stretches):
        if stretch.batches.node == node and int(stretch.rows["pos"][0]) <= seen:
            return _in_stretch(snapshot, stretch, seen)
    for place in reversed(snapshot.places):
        span = place.chunk.writers.get(node)
        if span is not None and span[0] <= seen:
            return await _in_chunk(snapshot, place, node, seen)
    return 0


def _in_stretch(snapshot: RunSnapshot, stretch: UnflushedRows, seen: int) -> int:
    """Returns the line after the record at position `seen`, or after the last one before it."""
    at = int(np.searchsorted(stretch.rows["pos"], seen, "right")) - 1
    return line_behind(snapshot, stretch, at, seen + 1 - int(stretch.rows["pos"][at]))


def line_behind(snapshot: RunSnapshot, stretch: UnflushedRows, at: int, records: int) -> int:
    """Returns the line after the first `records` records of the row, or after all its records."""
    begin = int(stretch.ends[at]) - int(stretch.rows["lines"][at])
    index = int(stretch.indexes[at])
    return begin + lines_through(stretch.batches, index, snapshot.line_indexes, records)


async def _in_chunk(snapshot: RunSnapshot, place: ChunkPlace, node: str, seen: int) -> int:
    key, chunk = snapshot.manifest.key, place.chunk
    directory = await snapshot.chunks.directory(key, chunk)
    holding = [piece for piece, name, low, _ in directory.ranges if name == node and low <= seen]
    piece = await snapshot.chunks.piece(key, chunk, max(holding))
    return place.line + _in_piece(piece, node, seen)


def _in_piece(piece: Piece, node: str, seen: int) -> int:
    blocks, writers = piece
    ours = np.flatnonzero((blocks["writer"] == writers.index(node)) & (blocks["pos"] <= seen))
    block = blocks[ours[-1]]
    records = seen + 1 - int(block["pos"])
    if records >= int(block["records"]):
        return int(block["line"]) + int(block["lines"])
    # Fewer records than the block has: each is a line, or it would be a block of its own.
    return int(block["line"]) + (records if block["records"] == block["lines"] else 0)


# --- Pages --------------------------------------------------------------------------------------


MAX_PAGE_BYTES = 16 << 20


class NoLines(NotFound):
    """The run has no lines; the `silent` nodes did not answer whether they have some."""

    def __init__(self, key: RunKey, silent: tuple[str, ...]) -> None:
        super().__init__(
            f"no run {key.run!r} of {key.fqn!r}",
            hint="Its first batch makes a run; look at the list of the pipeline's runs.",
        )
        self.silent = silent


@dataclass(frozen=True, slots=True)
class LinePage:
    """Whole lines, each with its newline; totals are of the run as it is now.

    `after` is None if no line follows for now, `before` if no line comes before. `resume` is the
    place of lines that come later, if some may; it is None if `after` is not. `missing` of the
    requested lines did not fit: they follow `after`. Line numbers count from 0: the first line's,
    and that of the record around which the page was requested. `silent` are nodes that did not
    answer which lines they have beyond the stored ones. `held`: the store did not answer, and
    lines, numbers and totals are of the lines that nodes hold. `again`: the store answers, and the
    page begins before lines that the reader was given meanwhile.
    """

    text: bytes
    lines: int
    after: str | None
    before: str | None
    total_lines: int
    total_bytes: int
    state: str
    missing: int
    first_line: int
    record_line: int | None = None
    silent: tuple[str, ...] = ()
    held: bool = False
    resume: str | None = None
    again: bool = False

    @property
    def streaming(self) -> bool:
        """Returns true if more lines may come."""
        return self.state in ("open", "closing", "unknown")


@dataclass(frozen=True, slots=True)
class WantedPage:
    """At most `limit` lines, from one of these places on; without any, from the beginning.

    After `after`, before `before`, the last `tail`, or around the record with the ULID `around`.
    """

    limit: int
    after: Cursor | int | HeldPlace | None = None
    before: Cursor | int | HeldPlace | None = None
    tail: int | None = None
    around: int | None = None

    @staticmethod
    def parsed(
        limit: int,
        *,
        after: str | None = None,
        before: str | None = None,
        tail: int | None = None,
        around: int | None = None,
    ) -> WantedPage:
        """Parses places as clients pass them back. Raises `InvalidCursor`."""
        first = None if after is None else parse_token(after)
        last = None if before is None else parse_token(before)
        return WantedPage(limit, first, last, tail, around)


class FoundLines(Protocol):
    """Lines that were read: from line `start`, up to line `end`."""

    @property
    def text(self) -> bytes: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class TextLines(NamedTuple):
    """Whole lines as text."""

    text: bytes
    start: int
    end: int


Found = TypeVar("Found", bound=FoundLines)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The lines of a page if they all fit.

    `line` is the line of the record in the middle. `seen` is the cursor that the page follows.
    `again`: the page lies before lines that the reader was given.
    """

    start: int
    end: int
    line: int | None = None
    seen: Cursor | None = None
    again: bool = False


async def read_page(
    snapshot: RunSnapshot, wanted: WantedPage, read: Callable[[int, int], Awaitable[Found]]
) -> tuple[Found, LinePage]:
    """Reads a page with `read`, which returns the lines between two numbers.

    A page around a record begins with it if the lines before it leave no room for it. Raises
    `NotFound`, `InvalidCursor`, `Moved`.
    """
    must_exist(snapshot)
    place = await _bounds(snapshot, wanted)
    found = await read(place.start, place.end)
    if place.line is not None and found.end <= place.line:
        end = min(place.line + wanted.limit, snapshot.lines)
        place = replace(place, start=place.line, end=end)
        found = await read(place.start, place.end)
    return found, await _page(snapshot, place, found, wanted)


def must_exist(snapshot: RunSnapshot) -> None:
    """Raises `NoLines` if the run has none."""
    if not snapshot.exists:
        key = snapshot.manifest.key
        raise NoLines(key, snapshot.elsewhere.silent)


def no_record(snapshot: RunSnapshot, ulid: int) -> NotFound | StoreUnavailable:
    """Returns the error for a record that the run lacks, or that may be in a silent store."""
    key = snapshot.manifest.key
    if snapshot.held:
        return StoreUnavailable(
            f"no node holds the record {ulids.encode(ulid)}, and the object store does not answer",
            hint="Try again when it does.",
        )
    return NotFound(
        f"no record {ulids.encode(ulid)} in the run {key.run!r} of {key.fqn!r}",
        hint="It was deleted or has expired, or it is of another run.",
    )


async def _bounds(snapshot: RunSnapshot, wanted: WantedPage) -> _Bounds:
    end, limit = snapshot.lines, wanted.limit
    if wanted.before is not None:
        end = await line_of(snapshot, wanted.before)
        return _Bounds(max(end - limit, 0), end)
    if wanted.tail is not None:
        return _Bounds(max(end - wanted.tail, 0), end)
    if wanted.around is not None:
        return await _around(snapshot, wanted.around, limit)
    return await _behind(snapshot, wanted.after, limit)


async def _around(snapshot: RunSnapshot, ulid: int, limit: int) -> _Bounds:
    """Puts the record in the middle, or nearer to an edge at an end of the run."""
    line = await line_of_record(snapshot, ulid)
    if line is None:
        raise no_record(snapshot, ulid)
    start = max(min(line - limit // 2, snapshot.lines - limit), 0)
    return _Bounds(start, min(start + limit, snapshot.lines), line=line)


async def _behind(
    snapshot: RunSnapshot, where: Cursor | int | HeldPlace | None, limit: int
) -> _Bounds:
    """Returns the first unseen lines, up to a line that was seen."""
    where, again = await settled(snapshot, where)
    ranges = await unseen(snapshot, where)
    start, end = ranges[0] if ranges else (snapshot.lines, snapshot.lines)
    seen = where if isinstance(where, Cursor) else None
    return _Bounds(start, min(start + limit, end), seen=seen, again=again)


async def _token_behind(snapshot: RunSnapshot, seen: Cursor | None, line: int) -> str:
    """Returns the token of a reader that has seen `seen` and everything before `line`."""
    if seen is None or not seen.complete:
        return await token_at(snapshot, line)
    here, after = await cursor_at(snapshot, line), await joined_at(snapshot, seen, line)
    # It may have seen later lines, or lines of nodes that are silent now: no number covers those.
    same = (after.positions, after.line) == (here.positions, here.line)
    return await token_at(snapshot, line) if same else after.encode_numbered(line)


async def _page(
    snapshot: RunSnapshot, place: _Bounds, found: FoundLines, wanted: WantedPage
) -> LinePage:
    end = found.end == snapshot.lines
    behind: str | None = None
    if snapshot.held:
        place_behind = await _held_after(snapshot, found, wanted)
        behind = as_number(place_behind.encode(), found.end)
    elif not end or snapshot.state != "closed":
        behind = await _token_behind(snapshot, place.seen, found.end)
    return LinePage(
        text=found.text,
        lines=found.end - found.start,
        after=None if end else behind,
        before=await token_at(snapshot, found.start) if found.start else None,
        total_lines=snapshot.lines,
        total_bytes=snapshot.size,
        state=snapshot.state,
        # A page of held lines is one piece, because the store may answer before the next.
        missing=0 if snapshot.held else max(place.end - found.end, 0),
        first_line=found.start,
        record_line=place.line,
        silent=silent_of(snapshot),
        held=snapshot.held,
        resume=behind if end else None,
        again=place.again,
    )


async def _held_after(snapshot: RunSnapshot, found: FoundLines, wanted: WantedPage) -> HeldPlace:
    """Returns where to continue; a page without a cursor leaves out the lines before it."""
    seen = await cursor_at(snapshot, found.end)
    if wanted.tail is None and wanted.before is None and wanted.around is None:
        sent = await sum_of(snapshot, [(found.start, found.end)])
        return given(wanted.after, seen, sent)
    return given(None, seen, await sum_of(snapshot, [(0, found.end)]))


def silent_of(snapshot: RunSnapshot) -> tuple[str, ...]:
    """Returns the nodes whose newest lines the run may lack; a closed run has them all."""
    return () if snapshot.state == "closed" else snapshot.elsewhere.silent


# --- Pieces -------------------------------------------------------------------------------------


Placed: TypeAlias = "tuple[int, int, int, int, int, int]"
"""A batch, or whole records from a number in it on: ULID, position, records, lines, that number,
and the lines of the batch before them. Of a record with seen lines it has the remaining lines."""

_FIELDS = ["line", "lines", "pos", "records", "ulid_hi", "ulid_lo", "writer"]
P = TypeVar("P")


class After(NamedTuple, Generic[P]):
    """The piece after a cursor, None at the live end, and whether more follows.

    `state` is the run's; `silent` are nodes that did not answer which lines they have of it.
    `held`: the store did not answer. `again`: the piece begins before lines that were returned
    meanwhile. `settled` is the place before the piece, if the reader was at a `HeldPlace`.
    """

    piece: P | None
    more: bool
    state: str
    silent: tuple[str, ...] = ()
    held: bool = False
    again: bool = False
    settled: Cursor | int | None = None


class Begun(NamedTuple):
    """A batch of which a reader has seen the first `lines`, but not all lines of a record."""

    batch: int
    lines: int


class OneSource(NamedTuple):
    """Batches of one node that follow the place `before`, and their journal file.

    `begun` is the number of lines of the first batch that were already sent.
    """

    before: Cursor
    node: str
    file: str
    batches: Sequence[Placed]
    begun: int = 0


def piece_end(snapshot: RunSnapshot, start: int, end: int) -> int:
    """Returns the end of a piece from `start` on."""
    manifest, alone = snapshot.manifest, snapshot.elsewhere.alone
    fixed = manifest.fixed_lines
    if alone and fixed == manifest.lines:
        return end  # all of it keeps its place
    if start < fixed:
        return min(end, fixed)
    if start < snapshot.chunk_lines:
        return min(end, snapshot.chunk_lines)
    return end if alone else min(end, _stretch_of(snapshot, start).end_line)


def _stretch_of(snapshot: RunSnapshot, line: int) -> UnflushedRows:
    return next(s for s in snapshot.stretches if line < s.end_line)


async def sources_of(
    snapshot: RunSnapshot, before: Cursor | None, start: int, end: int, *, apart: bool = False
) -> list[OneSource]:
    """Returns the sources of the lines of a piece that follows `before`, one node after another.

    Returns None for lines that keep their place, unless they are sent `apart` from those before
    them. Raises `Moved`.
    """
    in_chunks = start < snapshot.chunk_lines
    fixed = start < snapshot.manifest.fixed_lines if in_chunks else snapshot.elsewhere.alone
    if fixed and not apart:
        return []
    if before is None:
        before = await cursor_at(snapshot, start)
    if in_chunks:
        return await _sources_in_chunks(snapshot, before, start, end)
    return [_source_in_stretch(snapshot, before, start, end)]


async def _sources_in_chunks(
    snapshot: RunSnapshot, before: Cursor, start: int, end: int
) -> list[OneSource]:
    placed = await _placed(snapshot, start, end)
    found = []
    for node, group in groupby(placed, key=lambda one: one[0]):
        batches = [batch for _, batch in group]
        _, pos, records, *_ = batches[-1]
        last = place_of(snapshot, node, pos + records - 1)
        found.append(OneSource(before, node, last.file, batches))
        before = before.advanced(node, last)
    return found


async def _placed(snapshot: RunSnapshot, start: int, end: int) -> list[tuple[str, Placed]]:
    """Returns the lines in chunks from `start` to before `end`: each block, and its node.

    In a block of several lines that are no records, it names the last record.
    """
    found: list[tuple[str, Placed]] = []
    while start < end:
        place = place_of_line(snapshot, start)
        key, low, high = snapshot.manifest.key, start - place.line, end - place.line
        number = (await snapshot.chunks.directory(key, place.chunk)).piece_of_line(low)
        blocks, writers = await snapshot.chunks.piece(key, place.chunk, number)
        first = int(np.searchsorted(blocks["line"], low, "right")) - 1
        last = int(np.searchsorted(blocks["line"], high, "left"))
        heads = await heads_of(snapshot, place, blocks, first, last)
        chosen = blocks[_FIELDS][first:last].tolist()
        for (line, lines, pos, records, hi, lo, writer), head in zip(chosen, heads, strict=True):
            batch, number, seen = hi << 64 | lo, pos - head.pos, max(low - line, 0)
            if records == lines:
                left = min(lines, high - line) - seen
                placed = batch, pos + seen, left, left, number + seen, 0
            else:
                last_record, behind = records - 1, line + seen - head.line
                left = lines - seen
                placed = batch, pos + last_record, 1, left, number + last_record, behind
            found.append((writers[writer], placed))
        start = place.line + int(blocks["line"][last - 1] + blocks["lines"][last - 1])
    return found


def _source_in_stretch(snapshot: RunSnapshot, before: Cursor, start: int, end: int) -> OneSource:
    stretch = _stretch_of(snapshot, start)
    low = int(np.searchsorted(stretch.ends, start, "right"))
    high = int(np.searchsorted(stretch.ends, end, "left")) + 1
    rows = stretch.rows[low:high]
    batches = [
        (ulid_of(row), int(row["pos"]), int(row["records"]), int(row["lines"]), 0, 0)
        for row in rows
    ]
    begun = start - (int(stretch.ends[low]) - batches[0][3])
    last = place_of(snapshot, stretch.batches.node, batches[-1][1])
    return OneSource(before, stretch.batches.node, last.file, batches, begun)


async def place_after(
    snapshot: RunSnapshot,
    before: Cursor | None,
    sources: Sequence[OneSource],
    end: int,
    *,
    apart: bool,
) -> Cursor:
    """Returns the place after a piece up to line `end` that follows `before`. Raises `Moved`."""
    if not apart:
        return await joined_at(snapshot, before, end)
    source = sources[-1]
    ulid, pos, records, _, first, _ = source.batches[-1]
    last = pos + records - 1
    if end > snapshot.chunk_lines:
        last = last_seen(snapshot, _stretch_of(snapshot, end - 1), end)
    position = Position(source.file, last)
    return source.before.advanced(source.node, position, (ulid + first + last - pos,))


def after_piece(
    snapshot: RunSnapshot, piece: P | None, ranges: Sequence[tuple[int, int]], end: int
) -> After[P]:
    """Returns the piece up to line `end` with its snapshot's facts; `ranges` are unseen."""
    more = piece is not None and (end < ranges[0][1] or len(ranges) > 1)
    return After(piece, more, snapshot.state, silent_of(snapshot), snapshot.held)


async def read_after(
    snapshot: RunSnapshot,
    where: Cursor | int | HeldPlace | None,
    begun: Begun | None,
    read: Callable[[RunSnapshot, int, int, Cursor | None, bool], Awaitable[tuple[P, int]]],
) -> After[P]:
    """Returns the piece after a place with its snapshot's facts; none at the live end.

    `read` gets first and last line, the place before them, and whether they are the rest of a batch
    that was `begun`. It returns the piece and the line at which it ends.
    """
    cursor, again = await settled(snapshot, where)
    ranges, apart = await resumed(snapshot, await unseen(snapshot, cursor), begun)
    piece, end = None, 0
    if ranges:
        before = cursor if isinstance(cursor, Cursor) and cursor.complete else None
        start, last = ranges[0][0], piece_end(snapshot, *ranges[0])
        piece, end = await read(snapshot, start, last, before, apart)
    return after_piece(snapshot, piece, ranges, end)._replace(again=again, settled=cursor)


async def resumed(
    snapshot: RunSnapshot, ranges: Sequence[tuple[int, int]], begun: Begun | None
) -> tuple[list[tuple[int, int]], bool]:
    """Returns the ranges without seen lines of a batch, and whether its rest comes first."""
    if begun is None:
        return list(ranges), False
    found = await lines_of_batch(snapshot, begun.batch, MAX_LINES, ranges)
    for low, high in merged(sorted(found)):
        left = low + begun.lines, high
        ranges = merged([part for span in ranges for part in cut(span, low, left[0])])
        if any(span[0] <= left[0] < left[1] <= span[1] for span in ranges):
            others = [part for span in ranges for part in cut(span, *left)]
            return [left, *merged(others)], True
    return list(ranges), False
