"""Lines that wait to be flushed: per run a position, a count of bytes and a time.

A store that is away for hours therefore costs about 200 bytes of memory per run with new lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from logstore.batch import Batches, RunKey
from logstore.errors import NodeNotReady

_START_SECONDS = 5.0


@dataclass(slots=True)
class PendingRun:
    """New lines of a run from position `first` on; times are monotonic seconds."""

    first: int
    bytes: int
    since: float
    not_before: float = 0.0
    failures: int = 0
    flushing: bool = False


@dataclass(frozen=True, slots=True)
class FlushRules:
    """When a run is flushed, and how a run that fails is put off."""

    early_bytes: int
    seconds: float
    first_backoff_seconds: float = 1.0
    max_backoff_seconds: float = 60.0


class Pending:
    """All runs with confirmed lines that are not in their chunks."""

    def __init__(self, rules: FlushRules) -> None:
        self._rules = rules
        self._runs: dict[RunKey, PendingRun] = {}

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def bytes(self) -> int:
        """Bytes of text that wait."""
        return sum([run.bytes for run in self._runs.values()])

    @property
    def failing(self) -> int:
        """Runs whose last flush failed."""
        return sum([run.failures > 0 for run in self._runs.values()])

    @property
    def worst(self) -> int:
        """The most failures in a row of any run."""
        return max([run.failures for run in self._runs.values()], default=0)

    def oldest_seconds(self, now: float) -> float:
        """For how long the run that waits longest has waited; 0 if none does."""
        return max([now - run.since for run in self._runs.values()], default=0.0)

    def waiting(self) -> list[RunKey]:
        """The runs that wait."""
        return list(self._runs)

    def get(self, key: RunKey) -> PendingRun | None:
        """The waiting lines of a run."""
        return self._runs.get(key)

    def add_batches(self, batches: Batches, now: float) -> None:
        """Adds the new lines of a range of the journal, grouped by run."""
        rows = batches.rows
        if len(rows) == 0:
            return
        sizes = np.bincount(rows["run"], weights=rows["size"])
        firsts = np.zeros(len(sizes), np.int64)
        firsts[rows["run"][::-1]] = rows["pos"][::-1]  # of each run the lowest comes last
        for number in np.flatnonzero(sizes).tolist():
            self.add(batches.runs[number], int(firsts[number]), int(sizes[number]), now)

    def add(self, key: RunKey, first: int, size: int, now: float) -> None:
        """Adds new lines of one run."""
        run = self._runs.get(key)
        if run is None:
            self._runs[key] = PendingRun(first, size, now)
        else:
            run.first = min(run.first, first)
            run.bytes += size

    def due(self, now: float) -> list[RunKey]:
        """Runs to flush now, the one that waited longest first."""
        found = [
            (run.since, key)
            for key, run in self._runs.items()
            if not run.flushing
            and run.not_before <= now
            and (run.bytes >= self._rules.early_bytes or now - run.since >= self._rules.seconds)
        ]
        return [key for _, key in sorted(found, key=lambda entry: entry[0])]

    def done(self, key: RunKey, taken: int, end: int, now: float) -> None:
        """Records that a flush brought everything below `end`, `taken` bytes, into the chunks."""
        run = self._runs[key]
        run.flushing = False
        run.bytes -= taken
        if run.bytes <= 0:
            del self._runs[key]
            return
        run.first, run.since, run.failures, run.not_before = max(run.first, end), now, 0, 0.0

    def failed(self, key: RunKey, now: float) -> None:
        """Records that a flush failed; the run waits longer each time."""
        run = self._runs[key]
        run.flushing = False
        pause = self._rules.first_backoff_seconds * 2 ** min(run.failures, 10)
        run.failures += 1
        run.not_before = now + min(pause, self._rules.max_backoff_seconds)

    def is_due(self, key: RunKey, now: float) -> bool:
        """Whether the run waits, and may be flushed now."""
        run = self._runs.get(key)
        return run is not None and not run.flushing and run.not_before <= now

    def low(self, confirmed: int) -> int:
        """All lines below are in chunks; `confirmed` if nothing waits."""
        return min([confirmed, *self._firsts()])

    def _firsts(self) -> Iterator[int]:
        for run in self._runs.values():
            yield run.first


class FlushProgress:
    """How far this node's lines are flushed; all below `confirmed_pos` are in segments."""

    def __init__(self, pending: Pending) -> None:
        self.pending = pending
        self.confirmed_pos = 0
        self._started = asyncio.Event()

    @property
    def flushed_pos(self) -> int:
        """All lines of this node below are in chunks, or left out for good."""
        return self.pending.low(self.confirmed_pos) if self._started.is_set() else 0

    def first_unflushed(self, key: RunKey) -> int:
        """All lines of the run that came to this node below are in chunks, or left out for good."""
        if not self._started.is_set():
            return 0
        waiting = self.pending.get(key)
        return self.confirmed_pos if waiting is None else min(waiting.first, self.confirmed_pos)

    def started(self) -> None:
        """Records that the progress is known."""
        self._started.set()

    @property
    def is_started(self) -> bool:
        """Whether the progress is known."""
        return self._started.is_set()

    async def until_started(self) -> None:
        """Waits until the progress is known. Raises `NodeNotReady`."""
        if self._started.is_set():
            return
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._started.wait()
        except TimeoutError as error:
            raise NodeNotReady("the node has not reached its object store yet") from error
