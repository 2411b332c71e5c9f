"""Translates between cursors, or ids of records, and line numbers of a snapshot.

A client gets a bare line number only for places inside the chunks, whose order never changes.
Beyond them a cursor has the last position seen of every writer, and each line is found again
wherever it is by then. Lines of a lost node may enter the log before lines that a reader has
seen already; that reader gets them afterwards (`unseen`). A cursor of the live end may not
name every writer. Everything in the log up to the last position that it has seen, of any
writer, then counts as seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from logstore import ulid as ulids
from logstore.batch import of_batch
from logstore.errors import InvalidCursor
from logstore.position import Cursor, Position
from logstore.runs.blocks import Blocks
from service.runs.chunks import Piece
from service.runs.large_batch import lines_through, records_through
from service.runs.snapshot import Place, Snapshot, Stretch


def parse_token(token: str) -> Cursor | int:
    """Parses what a client passed back: a line number or a cursor. Raises `InvalidCursor`."""
    if token.isascii() and token.isdigit() and len(token) < 19:
        return int(token)
    return Cursor.decode(token)


async def line_of(snapshot: Snapshot, where: Cursor | int) -> int:
    """The number of the first line that was not seen. Raises `Moved`."""
    if isinstance(where, int):
        if where < 0:
            raise InvalidCursor(f"not a line number: {where}", field="after")
        return min(where, snapshot.lines)
    found = [await _line_after(snapshot, n, p.pos) for n, p in where.positions.items()]
    return max(found, default=0)


async def token_at(snapshot: Snapshot, line: int) -> str:
    """The token with which a client continues at `line`."""
    if line <= snapshot.chunk_lines:
        return str(line)
    return (await cursor_at(snapshot, line)).encode()


async def cursor_at(snapshot: Snapshot, line: int) -> Cursor:
    """A cursor that has seen everything before `line`, and nothing else. Raises `Moved`."""
    seen: dict[str, int] = {}
    for place in snapshot.places:
        if place.line + place.chunk.lines <= line:
            _raise(seen, {node: end - 1 for node, (_, end) in place.chunk.writers.items()})
        elif place.line < line:
            await _seen_in_chunk(snapshot, place, line - place.line, seen)
    for stretch in snapshot.stretches:
        if stretch.first_line < line:
            last = _last_seen(snapshot, stretch, min(line, stretch.end_line))
            _raise(seen, {stretch.batches.node: last})
    own = snapshot.pin.node
    positions = {
        node: snapshot.pin.position(pos) if node == own else Position("", pos)
        for node, pos in seen.items()
    }
    return Cursor(positions, complete=True)


async def line_of_record(snapshot: Snapshot, ulid: int) -> int | None:
    """The number of the record's first line, None if the run does not hold it. Raises `Moved`."""
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
    """The line of a record within a chunk, by its number within its batch."""
    behind = np.cumsum(blocks["records"], dtype=np.int64)
    at = int(np.searchsorted(behind, number, "right"))
    if at == len(blocks):
        return None
    # A block that holds newlines within records is of one record.
    inside = number - int(behind[at]) + int(blocks["records"][at])
    return int(blocks["line"][at]) + inside


async def unseen(snapshot: Snapshot, where: Cursor | int | None) -> list[tuple[int, int]]:
    """Ranges of lines that were not seen, in order. Raises `Moved`."""
    found: list[tuple[int, int]] = []
    if isinstance(where, Cursor) and where.complete:
        for place in snapshot.places:
            found += await _unseen_in_chunk(snapshot, place, where)
        for stretch in snapshot.stretches:
            found.append(_unseen_in_stretch(snapshot, stretch, where))
    else:
        start = 0 if where is None else await line_of(snapshot, where)
        found.append((start, snapshot.lines))
    return _merged(found)


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges without empty ones, with neighbours joined."""
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


async def _seen_in_chunk(snapshot: Snapshot, place: Place, line: int, seen: dict[str, int]) -> None:
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


def _last_seen(snapshot: Snapshot, stretch: Stretch, line: int) -> int:
    """The position of the last record before `line`."""
    at = int(np.searchsorted(stretch.ends, line, "left"))
    row, index = stretch.rows[at], int(stretch.indexes[at])
    seen = line - (int(stretch.ends[at]) - int(row["lines"]))
    records = records_through(stretch.batches, index, snapshot.line_indexes, seen)
    return int(row["pos"]) + records - 1


async def _unseen_in_chunk(
    snapshot: Snapshot, place: Place, cursor: Cursor
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
    return _merged([(place.line + low, place.line + high) for low, high in found])


def _unseen_of_ranges(
    ranges: Iterable[tuple[str, tuple[int, int]]], cursor: Cursor, low: int, high: int
) -> list[tuple[int, int]] | None:
    """All of the lines or none, if the writers' ranges decide it."""
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
    return _merged(found)


def _unseen_in_stretch(snapshot: Snapshot, stretch: Stretch, cursor: Cursor) -> tuple[int, int]:
    seen = cursor.seen(stretch.batches.node)
    if seen < int(stretch.rows["pos"][0]):
        return stretch.first_line, stretch.end_line
    return _in_stretch(snapshot, stretch, seen), stretch.end_line


async def _line_after(snapshot: Snapshot, node: str, seen: int) -> int:
    for stretch in reversed(snapshot.stretches):
        if stretch.batches.node == node and int(stretch.rows["pos"][0]) <= seen:
            return _in_stretch(snapshot, stretch, seen)
    for place in reversed(snapshot.places):
        span = place.chunk.writers.get(node)
        if span is not None and span[0] <= seen:
            return await _in_chunk(snapshot, place, node, seen)
    return 0


def _in_stretch(snapshot: Snapshot, stretch: Stretch, seen: int) -> int:
    """The line behind the record at position `seen`, or behind the last one before it."""
    at = int(np.searchsorted(stretch.rows["pos"], seen, "right")) - 1
    return line_behind(snapshot, stretch, at, seen + 1 - int(stretch.rows["pos"][at]))


def line_behind(snapshot: Snapshot, stretch: Stretch, at: int, records: int) -> int:
    """The line behind the first `records` records of the row, or behind all that it has."""
    begin = int(stretch.ends[at]) - int(stretch.rows["lines"][at])
    index = int(stretch.indexes[at])
    return begin + lines_through(stretch.batches, index, snapshot.line_indexes, records)


async def _in_chunk(snapshot: Snapshot, place: Place, node: str, seen: int) -> int:
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
