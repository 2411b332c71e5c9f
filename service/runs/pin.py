"""What the texts need of the journal: the hot part of the node at one moment."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from logstore.batch import Batches, RunKey
from logstore.position import Position


class Pin(Protocol):
    """A context manager; files it covers are not deleted while it is held."""

    node: str
    first_pos: int
    """The lowest position that the journal still holds."""
    confirmed_pos: int
    """All lines below stand in confirmed segments."""
    end_pos: int
    """One past the last line that was synced."""

    def batches(
        self, *, run: RunKey | None = None, start: int = 0, end: int | None = None
    ) -> Batches:
        """Batches that begin in [`start`, `end`), of one run or of all."""
        ...

    def position(self, pos: int) -> Position:
        """The position of a line, for cursors."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
