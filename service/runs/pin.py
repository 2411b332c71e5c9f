"""What run logs need of the journal: its hot part at one moment, and records of requests."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from logstore.batch import Batches, RunKey
from logstore.position import Position


class Pin(Protocol):
    """The hot part at one moment: a context manager that keeps its files from being deleted."""

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


class Recorded(Protocol):
    """Closes and deletions of this node that are not carried out yet."""

    @property
    def closes(self) -> Mapping[RunKey, int]:
        """The position that ends each run."""
        ...

    @property
    def tombstones(self) -> Mapping[tuple[str, str | None], int]:
        """The ULID through which lines are deleted, by pipeline and run (None for all its runs)."""
        ...


class RunJournal(Protocol):
    """The journal, as run logs see it: they record a request before they answer it."""

    @property
    def state(self) -> Recorded: ...

    def pin(self) -> Pin:
        """Pins the hot part as it is now."""
        ...

    async def record_close(self, key: RunKey) -> int:
        """Records a close, giving the position that ends the run. Raises `JournalFailed`."""
        ...

    def finish_close(self, key: RunKey, pos: int) -> None:
        """Records that the close is carried out."""
        ...

    async def record_tombstone(self, fqn: str, run: str | None, t: int) -> None:
        """Records a deletion. Raises `JournalFailed`."""
        ...

    def finish_deletion(self, fqn: str, run: str | None, t: int) -> None:
        """Records that the deletion is carried out."""
        ...
