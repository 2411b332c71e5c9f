"""What is new of a watched run: the batches that were synced within a few milliseconds.

A tick is framed once for each form in which readers want it, and shared by all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from logstore.position import MOST_NEWEST, Cursor, Position
from logstore.ulid import batch_of


class Published(Protocol):
    """A batch that is synced; `pos` is its first record's, `meta` as the journal keeps it."""

    @property
    def ulid(self) -> int: ...
    @property
    def pos(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def lines(self) -> int: ...
    @property
    def text(self) -> bytes: ...
    @property
    def meta(self) -> bytes: ...
    @property
    def connector(self) -> str | None: ...


class Tick:
    """Batches of a run published within one interval; `frames` caches them for readers."""

    __slots__ = ("batches", "frames", "last", "node", "size")

    def __init__(self, node: str, batches: Sequence[Published], last: Position) -> None:
        self.node = node
        self.batches = batches
        self.last = last
        self.size = sum([len(batch.text) + len(batch.meta) for batch in batches])
        self.frames: dict[Hashable, Any] = {}

    @property
    def first_pos(self) -> int:
        """The position of its first record."""
        return self.batches[0].pos

    @property
    def newest(self) -> tuple[int, ...]:
        """The ULIDs of the last records of its newest batches, for cursors."""
        return tuple([b.ulid + b.records - 1 for b in self.batches[-MOST_NEWEST:]])

    def may_repeat(self, cursor: Cursor) -> bool:
        """Whether a reader with this cursor may have seen a batch of it, as another node's copy.

        A node knows its own batches again, so what was seen of it alone is not repeated.
        """
        if not cursor.positions.keys() - {self.node}:
            return False
        highest = batch_of(max(cursor.last_records, default=0))
        return any(batch.ulid <= highest for batch in self.batches)

    @property
    def text(self) -> bytes:
        """The lines of all batches."""
        return b"".join([batch.text for batch in self.batches])
