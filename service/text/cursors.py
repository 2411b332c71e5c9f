"""Between cursors and line numbers of a snapshot.

A bare line number is given out for places inside the chunks only, whose order never
changes. Beyond them a cursor names the last position seen of the writers, and is found
again wherever that line stands by then. What the text holds up to the last position that
a cursor has seen, of any writer, is seen: this node's parents come before it.
"""

from __future__ import annotations

import numpy as np

from logstore.errors import InvalidCursor
from logstore.position import Cursor, Position
from service.text.chunks import Piece
from service.text.lines import place_of_line
from service.text.snapshot import Place, Snapshot, Stretch, line_ends


def parse_token(token: str) -> Cursor | int:
    """What a client passed back: a line number or a cursor. Raises `InvalidCursor`."""
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
    """What a client passes back to go on at `line`."""
    if line <= snapshot.chunk_lines:
        return str(line)
    return (await cursor_at(snapshot, line)).encode()


async def cursor_at(snapshot: Snapshot, line: int) -> Cursor:
    """A cursor that has seen everything before `line`. Raises `Moved`."""
    if line <= 0:
        return Cursor()
    if line > snapshot.chunk_lines:
        return _cursor_in_stretch(snapshot, line)
    place = place_of_line(snapshot, line - 1)
    low = line - 1 - place.line
    key, chunk = snapshot.manifest.key, place.chunk
    number = (await snapshot.chunks.directory(key, chunk)).piece_of_line(low)
    blocks, writers = await snapshot.chunks.piece(key, chunk, number)
    block = blocks[int(np.searchsorted(blocks["line"], low, "right")) - 1]
    seen = low + 1 - int(block["line"])
    records = seen if block["records"] == block["lines"] else int(block["records"])
    pos = int(block["pos"]) + records - 1
    return _cursor(snapshot, writers[int(block["writer"])], pos)


def _cursor(snapshot: Snapshot, node: str, pos: int) -> Cursor:
    if node == snapshot.pin.node:
        return Cursor({node: snapshot.pin.position(pos)})
    return Cursor({node: Position("", pos)})


def _cursor_in_stretch(snapshot: Snapshot, line: int) -> Cursor:
    stretch = next(s for s in snapshot.stretches if line <= s.end_line)
    at = int(np.searchsorted(stretch.ends, line, "left"))
    row = stretch.rows[at]
    seen = line - (int(stretch.ends[at]) - int(row["lines"]))
    whole = int(row["records"]) == int(row["lines"])
    records = seen if whole else int(row["records"])
    return _cursor(snapshot, stretch.batches.node, int(row["pos"]) + records - 1)


async def _line_after(snapshot: Snapshot, node: str, seen: int) -> int:
    for stretch in reversed(snapshot.stretches):
        if stretch.batches.node == node and int(stretch.rows["pos"][0]) <= seen:
            return _in_stretch(stretch, seen)
    for place in reversed(snapshot.places):
        span = place.chunk.writers.get(node)
        if span is not None and span[0] <= seen:
            return await _in_chunk(snapshot, place, node, seen)
    return 0


def _in_stretch(stretch: Stretch, seen: int) -> int:
    at = int(np.searchsorted(stretch.rows["pos"], seen, "right")) - 1
    row = stretch.rows[at]
    begin = int(stretch.ends[at]) - int(row["lines"])
    records = seen + 1 - int(row["pos"])
    if records >= int(row["records"]):
        return int(stretch.ends[at])
    if int(row["records"]) == int(row["lines"]):
        return begin + records
    index = int(stretch.indexes[at])
    meta = stretch.batches.meta(index)
    if meta is None:
        return begin
    text = stretch.batches.text(stretch.indexes[at : at + 1])
    return begin + len(line_ends(text[: meta.ends[records - 1]]))


async def _in_chunk(snapshot: Snapshot, place: Place, node: str, seen: int) -> int:
    key, chunk = snapshot.manifest.key, place.chunk
    directory = await snapshot.chunks.directory(key, chunk)
    holding = [piece for piece, name, low, _ in directory.spans if name == node and low <= seen]
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
