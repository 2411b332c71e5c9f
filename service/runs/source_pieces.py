"""Pieces of a run of which each has lines of one node, where nodes differ in the order of lines.

Of lines beyond the chunks each node shows its own first. A piece that a reader may leave in the
middle, and go on with at another node, therefore has lines of one node only (`within_one`).

`After` is a piece with what else its snapshot says, so that a live reader needs no second one.

A reader of lines may leave within a record of several lines, and go on at another node. What is
left of its batch is then first there too (`resumed`): no other node's lines come within a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from logstore.batch import ulid_of
from logstore.position import Cursor
from logstore.ulid import MAX_LINES
from service.runs.cursors import cut, last_seen, lines_of_batch, merged, place_of
from service.runs.pages import silent_of
from service.runs.snapshot import Snapshot, Stretch

Placed: TypeAlias = "tuple[int, int, int, int, int]"
"""ULID, position, records and lines of a batch, or of whole records from a number in it on."""


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
    """Batches of one node, and their journal file; of the first, `begun` lines come before."""

    node: str
    file: str
    batches: Sequence[Placed]
    begun: int = 0


def within_one(snapshot: Snapshot, start: int, end: int) -> tuple[int, Stretch | None]:
    """The end of a piece from `start` on, and whose lines they are; None for those in chunks."""
    if snapshot.elsewhere.alone or end <= snapshot.chunk_lines:
        return end, None
    if start < snapshot.chunk_lines:
        return snapshot.chunk_lines, None
    stretch = next(s for s in snapshot.stretches if start < s.end_line)
    return min(end, stretch.end_line), stretch


def source_of(
    snapshot: Snapshot, stretch: Stretch | None, start: int, end: int
) -> OneSource | None:
    """The batches with the lines from `start` to before `end` of a stretch."""
    if stretch is None:
        return None
    low = int(np.searchsorted(stretch.ends, start, "right"))
    high = int(np.searchsorted(stretch.ends, end, "left")) + 1
    rows = stretch.rows[low:high]
    batches = [
        (ulid_of(row), int(row["pos"]), int(row["records"]), int(row["lines"]), 0) for row in rows
    ]
    begun = start - (int(stretch.ends[low]) - batches[0][3])
    node, pos = stretch.batches.node, batches[-1][1]
    if node == snapshot.pin.node:
        return OneSource(node, snapshot.pin.position(pos).file, batches, begun)
    place = snapshot.elsewhere.positions(node, pos)
    return OneSource(node, "" if place is None else place.file, batches, begun)


def after_piece(
    snapshot: Snapshot, piece: P | None, ranges: Sequence[tuple[int, int]], end: int
) -> After[P]:
    """What the snapshot says with a piece up to line `end`; `ranges` are the unseen ones."""
    more = piece is not None and (end < ranges[0][1] or len(ranges) > 1)
    return After(piece, more, snapshot.state, silent_of(snapshot), snapshot.held)


async def resumed(
    snapshot: Snapshot, ranges: Sequence[tuple[int, int]], begun: Begun
) -> tuple[list[tuple[int, int]], Stretch | None]:
    """The ranges without the lines of the batch that were seen.

    What is left of it is the first range if nodes differ in the order; it is in the given stretch.
    """
    for low, high in await lines_of_batch(snapshot, begun.batch, MAX_LINES, ranges):
        seen, left = (low, low + begun.lines), (low + begun.lines, high)
        ranges = merged([part for span in ranges for part in cut(span, *seen)])
        stretches = [] if snapshot.elsewhere.alone else snapshot.stretches
        for stretch in stretches:
            there = stretch.first_line <= low < stretch.end_line
            if there and any(span[0] <= left[0] < left[1] <= span[1] for span in ranges):
                others = [part for span in ranges for part in cut(span, *left)]
                return [left, *merged(others)], stretch
    return list(ranges), None


def seen_of(snapshot: Snapshot, stretch: Stretch, line: int) -> Cursor:
    """A cursor that has seen the stretch before `line`, and nothing of other nodes."""
    node, pos = stretch.batches.node, last_seen(snapshot, stretch, line)
    at = int(np.searchsorted(stretch.ends, line, "left"))
    last = ulid_of(stretch.rows[at]) + pos - int(stretch.rows["pos"][at])
    return Cursor({node: place_of(snapshot, node, pos)}, {node: (last,)})
