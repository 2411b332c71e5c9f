"""Pieces of a run, and ids for the lines in them whose order may still change.

A line keeps its place once it is in `logs.txt`, or was flushed where there are no other nodes
(`Manifest.fixed`). Ids there count lines. Elsewhere the order may change: of lines beyond the
chunks each node shows its own first, and a close sorts the chunks of several nodes. Ids there name
records (`sources_of`), and lines of one node are in the order of their positions. A piece has lines
of one kind, and beyond the chunks lines of one node (`piece_end`).

`After` is a piece with what else its snapshot says, so that a live reader needs no second one.

A reader of lines may leave within a record of several lines, and go on when the order has changed.
What is left of its batch then comes first (`resumed`), so that no other id is needed within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from logstore.batch import ulid_of
from logstore.position import Cursor, Position
from logstore.ulid import MAX_LINES
from service.runs.cursors import (
    cursor_at,
    cut,
    joined_at,
    last_seen,
    lines_of_batch,
    merged,
    place_of,
)
from service.runs.lines import place_of_line
from service.runs.pages import silent_of
from service.runs.part_lines import heads_of
from service.runs.snapshot import Snapshot, Stretch

Placed: TypeAlias = "tuple[int, int, int, int, int, int]"
"""Of a batch, or of whole records from a number in it on: ULID, position, records, lines, that
number, and the lines of the batch before them. Of a record of which lines were seen, those left."""

_FIELDS = ["line", "lines", "pos", "records", "ulid_hi", "ulid_lo", "writer"]
P = TypeVar("P")


class After(NamedTuple, Generic[P]):
    """What a snapshot has after a cursor: a piece, None at the hot end, and whether more follows.

    `state` is the run's; `silent` are nodes that did not say which lines they have of it. `held`:
    the store did not answer. `again`: the piece begins before lines that were given meanwhile.
    """

    piece: P | None
    more: bool
    state: str
    silent: tuple[str, ...] = ()
    held: bool = False
    again: bool = False


class Begun(NamedTuple):
    """A batch of which a reader has seen the first `lines`, but not all lines of a record."""

    batch: int
    lines: int


class OneSource(NamedTuple):
    """Batches of one node that follow the place `before`, and their journal file.

    Of the first batch, `begun` lines come before.
    """

    before: Cursor
    node: str
    file: str
    batches: Sequence[Placed]
    begun: int = 0


def piece_end(snapshot: Snapshot, start: int, end: int) -> int:
    """The end of a piece from `start` on."""
    manifest, alone = snapshot.manifest, snapshot.elsewhere.alone
    fixed = manifest.fixed_lines
    if alone and fixed == manifest.lines:
        return end  # all of it keeps its place
    if start < fixed:
        return min(end, fixed)
    if start < snapshot.chunk_lines:
        return min(end, snapshot.chunk_lines)
    return end if alone else min(end, _stretch_of(snapshot, start).end_line)


def _stretch_of(snapshot: Snapshot, line: int) -> Stretch:
    return next(s for s in snapshot.stretches if line < s.end_line)


async def sources_of(
    snapshot: Snapshot, before: Cursor | None, start: int, end: int, *, apart: bool = False
) -> list[OneSource]:
    """Where the lines of a piece are that follows `before`, one node after another.

    None for lines that keep their place, unless they are given `apart` from those before them.
    Raises `Moved`.
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
    snapshot: Snapshot, before: Cursor, start: int, end: int
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


async def _placed(snapshot: Snapshot, start: int, end: int) -> list[tuple[str, Placed]]:
    """The lines in chunks from `start` to before `end`: a block each, and the node that it is of.

    Of a block of several lines that are no records, the last record is named.
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


def _source_in_stretch(snapshot: Snapshot, before: Cursor, start: int, end: int) -> OneSource:
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
    snapshot: Snapshot,
    before: Cursor | None,
    sources: Sequence[OneSource],
    end: int,
    *,
    apart: bool,
) -> Cursor:
    """The place behind a piece up to line `end` that follows `before`. Raises `Moved`."""
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
    snapshot: Snapshot, piece: P | None, ranges: Sequence[tuple[int, int]], end: int
) -> After[P]:
    """What the snapshot says with a piece up to line `end`; `ranges` are the unseen ones."""
    more = piece is not None and (end < ranges[0][1] or len(ranges) > 1)
    return After(piece, more, snapshot.state, silent_of(snapshot), snapshot.held)


async def resumed(
    snapshot: Snapshot, ranges: Sequence[tuple[int, int]], begun: Begun | None
) -> tuple[list[tuple[int, int]], bool]:
    """The ranges without the lines of a batch that were seen, and whether its rest comes first."""
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
