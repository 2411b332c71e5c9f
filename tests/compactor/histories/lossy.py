"""A table whose commits go wrong: answers are lost, attempts come late, the program dies.

`LossyTable` is the table of one driver. Its time is the scenario's: see `dated.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.table.log import LocalLogFolder, Log, LogFile, Look
from tailrace.logstore.table.snapshot import EMPTY, TableSnapshot
from tailrace.logstore.table.table import LOG, Table
from tests.compactor.histories.dated import HOUR_MS, MovedClock
from tests.simulation.faulty_store import Crash

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
    """Which attempt goes wrong, counted from 1. Before and after each it is others' `turn`."""

    planned: dict[int, Loss] = field(default_factory=dict)
    attempts: int = 0
    late: Callable[[], None] | None = None
    turn: Callable[[], None] = lambda: None
    dead: bool = False

    def commit(self, attempt: Callable[[], None]) -> None:
        """Makes the attempt, or not."""
        if self.dead:
            raise Crash("it is dead already")
        self.turn()
        self.arrive()
        self.attempts += 1
        loss = self.planned.get(self.attempts)
        if loss is Loss.CRASH_BEFORE:
            self._die("before the commit")
        if loss is Loss.LATE:
            self.late = attempt
        if loss in (Loss.LATE, Loss.REFUSED):
            raise CommitFailedError("no answer")
        attempt()
        self.turn()
        if loss is Loss.CRASH_AFTER:
            self._die("after the commit")
        if loss is Loss.LOST:
            raise CommitFailedError("no answer")

    def arrive(self) -> None:
        """What was late is there now. Nobody hears what became of it."""
        late, self.late = self.late, None
        if late is not None:
            with suppress(CommitFailedError):
                late()

    def _die(self, where: str) -> None:
        self.dead = True
        raise Crash(where)


@dataclass
class Versions:
    """What is known of a table's versions, which never change: when each came to be.

    The newest is opened once and not by everybody who looks: half of a scenario's time went there.
    """

    uri: str
    made: list[int] = field(default_factory=list)
    said: dict[int, Mapping[str, int] | None] = field(default_factory=dict)
    _opened: TableSnapshot | None = None

    def newest(self) -> TableSnapshot:
        """As `Table.snapshot`."""
        version = self.number()
        if self._opened is None or self._opened.version != version:
            self._opened = Table(self.uri).snapshot()
        return self._opened

    def forget(self) -> None:
        """The newest is to be opened anew."""
        self._opened = None

    def number(self) -> int:
        """Of the newest."""
        log = os.path.join(self.uri, "_delta_log")
        names = os.listdir(log) if os.path.isdir(log) else []
        return max((int(n[:20]) for n in names if n[20:] == ".json"), default=EMPTY)

    def at(self, version: int) -> TableSnapshot:
        """That one."""
        if version == EMPTY:
            return TableSnapshot(self.uri)
        log = _RememberingLog(LocalLogFolder(os.path.join(self.uri, LOG)), self.said)
        return TableSnapshot(self.uri, version, DeltaTable(self.uri, version=version), log)

    def note(self, now_ms: int) -> None:
        """Those that came to be since the last look did so now."""
        self.made.extend([now_ms] * (self.number() + 1 - len(self.made)))


@dataclass(frozen=True)
class _DatedLog:
    """The log's folder, in which each version is as old as it is in the scenario."""

    inner: LocalLogFolder
    made: Sequence[int]

    def list(self, start: str) -> Iterator[LogFile]:
        for file in self.inner.list(start):
            number = file.name[:20]
            if number.isdigit():
                yield file._replace(modified_ms=self.made[int(number)])

    def get(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        return self.inner.get(name, offset, size)

    def look(self, version: int) -> Look:
        return self.inner.look(version)


@dataclass(frozen=True)
class _RememberingLog(Log):
    """What it has said of a version it says again at once."""

    said: dict[int, Mapping[str, int] | None]

    def transactions(self, version: int) -> Mapping[str, int] | None:
        if version not in self.said:
            self.said[version] = Log(self.folder).transactions(version)
        return self.said[version]


@dataclass(frozen=True)
class LossyTable(Table):
    """`Table` with losses, dated by a clock."""

    clock: MovedClock = field(default_factory=MovedClock)
    losses: Losses = field(default_factory=Losses)
    versions: Versions = field(default_factory=lambda: Versions(""))

    def create(self) -> TableSnapshot:
        found = super().create()
        first = Path(self.uri) / "_delta_log" / f"{0:020d}.json"
        text = first.read_text()
        if _KEPT in text:  # else checkpoints would forget files that were removed a moment ago
            first.write_text(text.replace(_KEPT, "interval 1000 days"))
            self.versions.forget()
            return self.snapshot()
        return found

    def snapshot(self) -> TableSnapshot:
        return self._lossy(self.versions.newest())

    @property
    def log(self) -> Log:
        self.note()
        folder = LocalLogFolder(os.path.join(self.uri, LOG))
        return _RememberingLog(_DatedLog(folder, self.versions.made), self.versions.said)

    def orphans(self, hours: int) -> list[str]:
        ahead = SystemClock().now_ms() - self.clock.ms
        return super().orphans(hours + -(-ahead // HOUR_MS))

    def note(self) -> None:
        self.versions.note(self.clock.ms)

    def _lossy(self, snapshot: TableSnapshot) -> TableSnapshot:
        if snapshot.delta is None:
            return snapshot
        lossy: Any = _LossyDelta(snapshot.delta, self)
        return TableSnapshot(self.uri, snapshot.version, lossy, self.log)


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
