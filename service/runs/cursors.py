"""Translates between cursors, or ids of records, and line numbers of a snapshot.

A client gets a bare line number only for lines that have their final place: those of `logs.txt`,
and those that a node flushed that has no other nodes (`Manifest.fixed`). Beyond them it gets a
cursor, as a decimal number. A cursor has the last position seen of every writer, and each line is
found again wherever it is by then. Lines of another node may enter the log before lines that a
reader has seen already; that reader gets them afterwards (`unseen`).

A close may sort lines by ULID so that those of a node are not in order of their positions. Within
such a part a cursor has a line number as well (`Manifest.by_ulid`).

A batch that a client sent to several nodes is in the log once, and was seen if any of its copies
was: a copy that this node can see by its position, any other by the newest ULIDs in the cursor.

While the store is silent a snapshot has only lines that nodes hold. A place in it is a `HeldPlace`,
which `settled` turns into a place in the whole log once the store answers.

A cursor of an earlier version (`c1.`) may not name every writer. Everything in the log up to the
last position that it has seen, of any writer, then counts as seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from logstore import ulid as ulids
from logstore.batch import of_batch, ulid_of
from logstore.errors import InvalidCursor
from logstore.position import MOST_NEWEST, Cursor, Position, without_number
from logstore.runs.blocks import Blocks
from service.runs.chunks import Piece
from service.runs.elsewhere import Fork
from service.runs.held_place import PREFIX, HeldPlace
from service.runs.large_batch import lines_through, records_through
from service.runs.snapshot import Place, Snapshot, Stretch

_NOWHERE = Position("", 0)


def parse_token(token: str) -> Cursor | int | HeldPlace:
    """Parses what a client passed back: a line number or a cursor. Raises `InvalidCursor`."""
    if token.isascii() and token.isdigit() and len(token) < 19:
        return int(token)
    token = without_number(token)
    return HeldPlace.decode(token) if token.startswith(PREFIX) else Cursor.decode(token)


async def settled(
    snapshot: Snapshot, where: Cursor | int | HeldPlace | None
) -> Cursor | int | None:
    """The place in this snapshot, of all lines or of those that nodes hold. Raises `Moved`."""
    held = where if isinstance(where, HeldPlace) else None
    before = where.before if isinstance(where, HeldPlace) else where
    if snapshot.held:
        known = _without_number(snapshot, before)
        return known if held is None else _as_cursor(known).joined(held.seen)
    if held is None:
        return before
    base = await resolved(snapshot, before)
    behind = base.joined(held.seen)
    skipped = await _unseen_lines(snapshot, base) - await _unseen_lines(snapshot, behind)
    return behind if skipped == held.lines else before


def _without_number(snapshot: Snapshot, where: Cursor | int | None) -> Cursor | int | None:
    """The place without a line number, which nobody knows while the store is silent.

    Line numbers are of chunks: whoever has one is given nothing again that is in them.
    """
    assert snapshot.flushed is not None
    if isinstance(where, Cursor) and where.line:
        return replace(where, line=0).joined(snapshot.flushed)
    return snapshot.flushed if isinstance(where, int) and where else where


def _as_cursor(where: Cursor | int | None) -> Cursor:
    return where if isinstance(where, Cursor) else Cursor()


async def _unseen_lines(snapshot: Snapshot, where: Cursor) -> int:
    return sum([end - start for start, end in await unseen(snapshot, where)])


async def line_of(snapshot: Snapshot, where: Cursor | int | HeldPlace) -> int:
    """The number of the first line that was not seen. Raises `Moved`."""
    where = await settled(snapshot, where) or 0
    if isinstance(where, int):
        if where < 0:
            raise InvalidCursor(f"not a line number: {where}", field="after")
        return min(where, snapshot.lines)
    found = [await _line_after(snapshot, n, p.pos) for n, p in where.positions.items()]
    return max(found, default=0) if not where.line else max(_known_line(snapshot, where), *found, 0)


def _known_line(snapshot: Snapshot, where: Cursor) -> int:
    """The line before which all were seen; 0 if it is a place of another log, now deleted."""
    return where.line if where.line <= snapshot.manifest.fixed_lines else 0


async def token_at(snapshot: Snapshot, line: int) -> str:
    """The token with which a client continues at `line`."""
    if line <= snapshot.manifest.fixed_lines:
        return str(line)
    return (await cursor_at(snapshot, line)).encode_numbered(line)


async def resolved(snapshot: Snapshot, where: Cursor | int | HeldPlace | None) -> Cursor:
    """The same place as a cursor that names every writer. Raises `Moved`."""
    where = await settled(snapshot, where)
    if isinstance(where, Cursor) and where.complete:
        return where
    return await cursor_at(snapshot, 0 if where is None else await line_of(snapshot, where))


async def cursor_at(snapshot: Snapshot, line: int) -> Cursor:
    """A cursor that has seen everything before `line`, and nothing else. Raises `Moved`."""
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


async def joined_at(snapshot: Snapshot, cursor: Cursor | None, line: int) -> Cursor:
    """What a reader has seen that has seen `cursor`, and everything before `line`."""
    here = await cursor_at(snapshot, line)
    if cursor is None or not cursor.complete:
        return here
    after = cursor.joined(here)
    # Behind such a part positions say it all.
    return replace(after, line=0) if line >= snapshot.manifest.fixed_lines else after


def place_of(snapshot: Snapshot, node: str, pos: int) -> Position:
    """The place of a record of a node, for cursors."""
    if node == snapshot.pin.node:
        return snapshot.pin.position(pos)
    return snapshot.elsewhere.positions(node, pos) or Position("", pos)


def _newest(snapshot: Snapshot, line: int) -> Mapping[str, tuple[int, ...]]:
    """Of each node's newest batches beyond the chunks and before `line` the last records."""
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


async def unseen(
    snapshot: Snapshot, where: Cursor | int | HeldPlace | None
) -> list[tuple[int, int]]:
    """Ranges of lines that were not seen, in order. Raises `Moved`."""
    where = await settled(snapshot, where)
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


def _unseen_writers(snapshot: Snapshot, cursor: Cursor) -> set[str]:
    """Nodes that wrote more than the cursor has seen of them; no forks of the register.

    None for a cursor that names no node, under whose name it could have seen what a fork has.
    """
    if not cursor.positions:
        return set()
    ends = [item for place in snapshot.places for item in place.chunk.writers.items()]
    known = {fork.node for fork in snapshot.elsewhere.forks}
    return {node for node, (_, end) in ends if cursor.seen(node) < end - 1} - known


async def _without_copies(
    snapshot: Snapshot, ranges: Sequence[tuple[int, int]], cursor: Cursor
) -> list[tuple[int, int]]:
    """The ranges without lines of which another copy was seen."""
    seen = {ulids.batch_of(last): last - ulids.batch_of(last) + 1 for last in cursor.last_records}
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
    """What is left of the range without the lines from `low` to before `high`."""
    return [(span[0], min(span[1], low)), (max(span[0], high), span[1])]


async def lines_of_batch(
    snapshot: Snapshot, batch: int, records: int, within: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The lines of the first records of a batch, where they may be in these ranges."""
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
    """The cursor in the names that forks gave to lines that a reader saw before they forked.

    A node that continues a copy of another's folder has that one's name until it finds out. What
    was read from it meanwhile is known by the journal file, which is the copy's alone. Of a file
    that both are known to have, lines were seen under both names.
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
            # Beyond the end, the original went on in a file that was copied meanwhile.
            if seen.pos < end and seen.file not in fork.shared:
                del positions[parent]
                if fork.base:
                    positions[parent] = Position("", min(seen.pos, fork.base - 1))
            cursor = replace(cursor, positions=positions)
    return cursor


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
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


def last_seen(snapshot: Snapshot, stretch: Stretch, line: int) -> int:
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
    return merged([(place.line + low, place.line + high) for low, high in found])


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
    return merged(found)


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
