"""One search that is followed: what waits, and its newest pieces for its readers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from logstore.errors import TailraceError
from service.query.live.cursor import StreamCursor
from service.query.live.reorder import Matches, Reorder
from service.query.request import QueryRequest

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """How often is looked, and how much is held: for each search, in bytes.

    If more than `behind_bytes` of text came since the last look, readers read it from storage.
    """

    look_seconds: float = 0.2
    ring_bytes: int = 2 * _MIB
    waiting_bytes: int = 8 * _MIB
    behind_bytes: int = 64 * _MIB
    most_searches: int = 32


class Taken(NamedTuple):
    """Pieces for a reader, the number of the next one, and whether it must read storage."""

    pieces: list[Matches]
    next_piece: int
    behind: bool


class Followed:
    """A search that somebody follows: what waits, and the ring of the newest pieces."""

    def __init__(self, request: QueryRequest, window_ms: int, limits: LiveLimits) -> None:
        self.request = request
        self.window_ms = window_ms
        self.readers = 0
        self.failure: TailraceError | None = None
        self.reorder: Reorder | None = None
        self.ready = False
        self._limits = limits
        self._pieces: deque[Matches] = deque()
        self._first = 0
        self._bytes = 0

    @property
    def mark(self) -> int:
        """The number of the next piece."""
        return self._first + len(self._pieces)

    def begin(self, cursor: StreamCursor) -> None:
        """Goes on at this cursor: readers before it read storage."""
        self.reorder = Reorder(cursor, self._limits.waiting_bytes)
        self.ready = False
        self._first = self.mark + 1
        self._pieces.clear()
        self._bytes = 0

    def keep(self, pieces: list[Matches]) -> None:
        """Adds pieces to the ring; the oldest ones make room."""
        for piece in pieces:
            self._pieces.append(piece)
            self._bytes += piece.size
        while self._bytes > self._limits.ring_bytes and self._pieces:
            self._bytes -= self._pieces.popleft().size
            self._first += 1

    def take(self, next_piece: int) -> Taken:
        """The pieces from this number on."""
        if next_piece < self._first:
            return Taken([], next_piece, behind=True)
        found = list(self._pieces)[next_piece - self._first :]
        return Taken(found, self.mark, behind=False)

    def check(self) -> None:
        """Raises why it cannot go on, if so."""
        if self.failure is not None:
            raise self.failure
