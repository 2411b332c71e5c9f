"""Pieces of a run of which each has lines of one node, where nodes differ in the order of lines.

Of lines beyond the chunks each node shows its own first. A piece that a reader may leave in the
middle, and go on with at another node, therefore has lines of one node only (`within_one`).

`After` is a piece with what else its snapshot says, so that a live reader needs no second one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from logstore.batch import ulid_of
from service.runs.pages import silent_of
from service.runs.snapshot import Snapshot, Stretch

Placed: TypeAlias = "tuple[int, int, int, int, int]"
"""ULID, position, records and lines of a batch, or of whole records from a number in it on."""


P = TypeVar("P")


class After(NamedTuple, Generic[P]):
    """What a snapshot has after a cursor: a piece, None at the hot end, and whether more follows.

    `state` is the run's; `silent` are nodes that did not say which lines they have of it.
    """

    piece: P | None
    more: bool
    state: str
    silent: tuple[str, ...] = ()


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
    return After(piece, more, snapshot.state, silent_of(snapshot))
