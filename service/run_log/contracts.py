"""Defines what the parts of run logs share: the journal's interface, events, locks, progress.

`RunJournal` and `UnflushedPin` are what run logs need of the journal: its unflushed part at one
moment, and records of requests. `RunEvents` notifies parts of each other. `RunLocks` and
`OncePerRun` order the work on a run in this process. `PendingRuns` and `FlushProgress` say which
lines wait to be flushed: for each run a position, a count of bytes and a time. So a store that is
unavailable for hours costs about 200 bytes of memory per run with new lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from tailrace.logstore.batch import Batches, RunKey
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import NodeNotReady
from tailrace.logstore.position import Position
from tailrace.logstore.retry import doubled
from tailrace.logstore.runs.manifest import Manifest


class UnflushedPin(Protocol):
    """The unflushed part at one moment: a context manager that keeps its files from deletion."""

    node: str
    first_pos: int
    """The lowest position that the journal still holds."""
    confirmed_pos: int
    """All lines below are in confirmed segments."""
    end_pos: int
    """One past the last line that was synced."""

    def batches(
        self, *, run: RunKey | None = None, start: int = 0, end: int | None = None
    ) -> Batches:
        """Returns batches that begin in [`start`, `end`), of one run or of all."""
        ...

    def position(self, pos: int) -> Position:
        """Returns the position of a line, for cursors."""
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
        """Returns the position that ends each run."""
        ...

    @property
    def tombstones(self) -> Mapping[tuple[str, str | None], int]:
        """Returns the ULID up to which lines are deleted, by pipeline and run (None: all runs)."""
        ...


class RunJournal(Protocol):
    """The journal, as run logs see it: they record a request before they answer it."""

    @property
    def state(self) -> Recorded: ...

    def pin(self) -> UnflushedPin:
        """Pins the unflushed part as it is now."""
        ...

    async def record_close(self, key: RunKey) -> int:
        """Records a close; returns the position that ends the run. Raises `JournalFailed`."""
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


# --- Events -------------------------------------------------------------------------------------


class RunEvents:
    """Calls the subscribers of an event in order; their errors reach the publisher.

    Each part is made after the parts that it uses. A part that must be notified by an earlier one
    subscribes here, so that no part holds one that is made later.
    """

    def __init__(self) -> None:
        self._flushed: list[Callable[[Manifest], Awaitable[None]]] = []
        self._ended: list[Callable[[RunKey], None]] = []
        self._deleted: list[Callable[[RunKey], None]] = []
        self._inherited: list[Callable[[], None]] = []

    def on_flushed(self, callback: Callable[[Manifest], Awaitable[None]]) -> None:
        """Subscribes to flushes."""
        self._flushed.append(callback)

    def on_ended(self, *callback: Callable[[RunKey], None]) -> None:
        """Subscribes to ends of runs."""
        self._ended += callback

    def on_deleted(self, *callback: Callable[[RunKey], None]) -> None:
        """Subscribes to deletions of runs."""
        self._deleted += callback

    def on_inherited(self, *callback: Callable[[], None]) -> None:
        """Subscribes to takeovers of lost nodes' lines."""
        self._inherited += callback

    async def flushed(self, manifest: Manifest) -> None:
        """Publishes that a flush has swapped in this manifest."""
        for callback in self._flushed:
            await callback(manifest)

    def ended(self, key: RunKey) -> None:
        """Publishes that the run was closed, so that no line follows."""
        for callback in self._ended:
            callback(key)

    def deleted(self, key: RunKey) -> None:
        """Publishes that the run was deleted, so that subscribers drop it."""
        for callback in self._deleted:
            callback(key)

    def inherited(self) -> None:
        """Publishes that lines of a lost node, of any runs, can be read here now."""
        for callback in self._inherited:
            callback()


# --- Locks --------------------------------------------------------------------------------------


_REMEMBERED = 10_000


class OncePerRun:
    """Runs `work` for a run once at a time; `work` returns true if it did anything.

    Every caller waits for the same work. It continues when its callers are cancelled, because the
    next caller may be as impatient. It remembers for a while that nothing was to be done.
    """

    def __init__(
        self,
        clock: Clock,
        work: Callable[[RunKey], Coroutine[Any, Any, bool]],
        *,
        remembered_seconds: float,
    ) -> None:
        self._clock = clock
        self._work = work
        self._seconds = remembered_seconds
        self._under_way: dict[RunKey, asyncio.Task[bool]] = {}
        self._nothing: BoundedCache[RunKey, float] = BoundedCache(_REMEMBERED)

    def idle(self, key: RunKey) -> bool:
        """Returns true if a recent call found nothing to do."""
        until = self._nothing.peek(key)
        return until is not None and until > self._clock.monotonic()

    async def do(self, key: RunKey) -> bool:
        """Returns the result of the work.

        Raises its errors, and `NodeNotReady` if it is stopped.
        """
        if self.idle(key):
            return False
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._work(key))
            self._under_way[key] = task
            task.add_done_callback(lambda ended: self._ended(key, ended))
        # The caller was not cancelled: a cancellation would end its connection without a reply.
        await asyncio.wait((task,))
        if task.cancelled():
            raise NodeNotReady("the node stops, or goes on under another name", hint="Ask again.")
        return task.result()

    def stop(self) -> None:
        """Ends running work; the next call begins again."""
        for task in list(self._under_way.values()):
            task.cancel()

    def _ended(self, key: RunKey, task: asyncio.Task[bool]) -> None:
        del self._under_way[key]
        if task.cancelled() or task.exception() is not None or task.result():
            return
        self._nothing.put(key, self._clock.monotonic() + self._seconds)


class RunLocks:
    """One lock for each run that is in use, made on demand and dropped when nobody holds it.

    The lock keeps this process from racing with itself. Other processes do not see it: exactness
    comes from the swap of the manifest.
    """

    def __init__(self) -> None:
        self._locks: dict[RunKey, tuple[asyncio.Lock, int]] = {}

    def held(self, key: RunKey) -> bool:
        """Returns true if the run's lock is held now."""
        return key in self._locks

    @asynccontextmanager
    async def of(self, key: RunKey) -> AsyncIterator[None]:
        """Holds the run's lock."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = lock, users - 1


# --- Lines that wait to be flushed --------------------------------------------------------------


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
    """When a run is flushed, and how a run that fails is delayed."""

    early_bytes: int
    seconds: float
    first_backoff_seconds: float = 1.0
    max_backoff_seconds: float = 60.0


class PendingRuns:
    """All runs with confirmed lines that are not in their chunks."""

    def __init__(self, rules: FlushRules) -> None:
        self._rules = rules
        self._runs: dict[RunKey, PendingRun] = {}

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def bytes(self) -> int:
        """Returns the bytes of text that wait."""
        return sum([run.bytes for run in self._runs.values()])

    @property
    def failing(self) -> int:
        """Returns the number of runs whose last flush failed."""
        return sum([run.failures > 0 for run in self._runs.values()])

    @property
    def worst(self) -> int:
        """Returns the most failures in a row of any run."""
        return max([run.failures for run in self._runs.values()], default=0)

    def oldest_seconds(self, now: float) -> float:
        """Returns how long the longest waiting run has waited; 0 if none waits."""
        return max([now - run.since for run in self._runs.values()], default=0.0)

    def waiting(self) -> list[RunKey]:
        """Returns the runs that wait."""
        return list(self._runs)

    def get(self, key: RunKey) -> PendingRun | None:
        """Returns the waiting lines of a run."""
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
        """Returns runs to flush now, the one that waited longest first."""
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
        rules = self._rules
        pause = doubled(rules.first_backoff_seconds, run.failures, rules.max_backoff_seconds)
        run.failures += 1
        run.not_before = now + pause

    def is_due(self, key: RunKey, now: float) -> bool:
        """Returns true if the run waits, and may be flushed now."""
        run = self._runs.get(key)
        return run is not None and not run.flushing and run.not_before <= now

    def low(self, confirmed: int) -> int:
        """Returns the position below which all lines are in chunks; `confirmed` if none waits."""
        return min([confirmed, *self._firsts()])

    def _firsts(self) -> Iterator[int]:
        for run in self._runs.values():
            yield run.first


class FlushProgress:
    """The progress of this node's flushes; all lines below `confirmed_pos` are in segments."""

    def __init__(self, pending: PendingRuns) -> None:
        self.pending = pending
        self.confirmed_pos = 0
        self._started = asyncio.Event()

    @property
    def flushed_pos(self) -> int:
        """Returns the position below which all lines of this node are in chunks or left out."""
        return self.pending.low(self.confirmed_pos) if self._started.is_set() else 0

    def first_unflushed(self, key: RunKey) -> int:
        """Returns the position below which the run's lines here are in chunks, or left out."""
        if not self._started.is_set():
            return 0
        waiting = self.pending.get(key)
        return self.confirmed_pos if waiting is None else min(waiting.first, self.confirmed_pos)

    def started(self) -> None:
        """Records that the progress is known."""
        self._started.set()

    @property
    def is_started(self) -> bool:
        """Returns true if the progress is known."""
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
