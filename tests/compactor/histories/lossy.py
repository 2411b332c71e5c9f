"""A table whose commits go wrong: answers are lost, attempts come late, the program dies.

`LossyTable` is the table of one driver. Its time is the story's: see `dated.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from logstore.clock import SystemClock
from logstore.table.snapshot import Snapshot
from logstore.table.table import Table
from tests.compactor.histories.dated import HOUR_MS, MovedClock
from tests.faulty_store import Crash

_KEPT: Final = "interval 2 days"
"""How long the log tells of removed files, by the machine's clock."""


class Loss(Enum):
    """What becomes of an attempt to commit."""

    LOST = "done, but the answer was lost"
    REFUSED = "not done, and nobody knows"
    LATE = "seems not done, and is done just before the next attempt"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"


@dataclass
class Losses:
    """Which attempt goes wrong, counted from 1."""

    planned: dict[int, Loss] = field(default_factory=dict)
    attempts: int = 0
    late: Callable[[], None] | None = None

    def commit(self, attempt: Callable[[], None]) -> None:
        """Makes the attempt, or not."""
        if self.late is not None:
            late, self.late = self.late, None
            _ignored(late)
        self.attempts += 1
        loss = self.planned.get(self.attempts)
        if loss is Loss.CRASH_BEFORE:
            raise Crash("before the commit")
        if loss is Loss.LATE:
            self.late = attempt
        if loss in (Loss.LATE, Loss.REFUSED):
            raise CommitFailedError("no answer")
        attempt()
        if loss is Loss.CRASH_AFTER:
            raise Crash("after the commit")
        if loss is Loss.LOST:
            raise CommitFailedError("no answer")


def _ignored(attempt: Callable[[], None]) -> None:
    """Nobody hears what became of it."""
    try:
        attempt()
    except CommitFailedError:
        return


@dataclass(frozen=True)
class LossyTable(Table):
    """`Table` with losses, dated by a clock; `made` says when each version came to be."""

    clock: MovedClock = field(default_factory=MovedClock)
    losses: Losses = field(default_factory=Losses)
    made: list[int] = field(default_factory=list)

    def create(self) -> Snapshot:
        found = super().create()
        first = Path(self.uri) / "_delta_log" / f"{0:020d}.json"
        text = first.read_text()
        if _KEPT in text:  # else checkpoints would forget files that were removed a moment ago
            first.write_text(text.replace(_KEPT, "interval 1000 days"))
            return self.snapshot()
        return found

    def snapshot(self) -> Snapshot:
        return self._lossy(super().snapshot())

    def snapshot_at(self, now_ms: int) -> Snapshot:
        self.note()
        version = bisect_right(self.made, now_ms) - 1
        if version < 0:
            return Snapshot(self.uri)
        return Snapshot(self.uri, version, DeltaTable(self.uri, version=version))

    def orphans(self, hours: int) -> list[str]:
        ahead = SystemClock().now_ms() - self.clock.ms
        return super().orphans(hours + -(-ahead // HOUR_MS))

    def note(self) -> None:
        """Versions that came to be since the last look did so now."""
        newest = super().snapshot().version
        self.made.extend([self.clock.ms] * (newest + 1 - len(self.made)))

    def _lossy(self, snapshot: Snapshot) -> Snapshot:
        if snapshot.delta is None:
            return snapshot
        lossy: Any = _LossyDelta(snapshot.delta, self)
        return Snapshot(self.uri, snapshot.version, lossy)


class _LossyDelta:
    """delta-rs's table, but for its commits."""

    def __init__(self, delta: DeltaTable, table: LossyTable) -> None:
        self._delta = delta
        self._table = table

    def create_write_transaction(self, *args: Any, **kwargs: Any) -> None:
        def attempt() -> None:
            self._table.note()
            self._delta.create_write_transaction(*args, **kwargs)
            self._table.note()

        self._table.losses.commit(attempt)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delta, name)
