"""The flusher: brings confirmed lines into their runs' chunks, in the background.

    confirmed(segment) ──► pending (per run: position, bytes, since)
                              │  5 MiB, 2 minutes, or a close
                              ▼
                    at most `parallel` flushes at once ──► watermark

Eight runs whose new text is small share a place: they wait for the store, and need no memory.

A run that fails waits for its back-off without occupying one of the `parallel` places, and
delays no other run. It does hold back the watermark, so that no line is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

import numpy as np

from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.errors import (
    Damaged,
    NotFound,
    OutcomeUnknown,
    TailraceError,
    Unavailable,
)
from logstore.objects.store import ObjectStore
from logstore.runs.manifest import INLINE_BYTES, Manifest
from logstore.runs.watermark import raise_watermark, read_watermark
from service.runs.backlog import Backlog, StoredSegment
from service.runs.events import RunEvents
from service.runs.flush import RunFlush
from service.runs.locks import RunLocks
from service.runs.pending import FlushProgress, Pending
from service.runs.pin import Pin
from service.runtime.heartbeat import Heartbeat
from service.runtime.ongoing import Ongoing

_LOOK_SECONDS = 0.5
_UNKNOWN_BYTES_PER_ROW = 100
_SHARES = 8  # of a place: a small run takes one, any other all of them


class Flusher:
    """The flusher of one node; publishes the manifest after each flush to `events`."""

    def __init__(
        self,
        node: str,
        parents: list[str],
        store: ObjectStore,
        clock: Clock,
        progress: FlushProgress,
        *,
        parallel: int,
        watermark_seconds: float,
        pin: Callable[[], Pin],
        backlog: Backlog,
        run_flush: RunFlush,
        locks: RunLocks,
        fresh_id: Callable[[], str],
        events: RunEvents,
    ) -> None:
        self._node = node
        self._parents = parents
        self._store = store
        self._clock = clock
        self._parallel = parallel
        self._watermark_seconds = watermark_seconds
        self._pin = pin
        self._backlog = backlog
        self._run_flush = run_flush
        self._locks = locks
        self._fresh_id = fresh_id
        self._events = events
        self._progress = progress
        self._pending = progress.pending
        self._wake = asyncio.Event()
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._trying: dict[RunKey, int] = {}
        self._due: deque[RunKey] = deque()
        self._look_due = float("-inf")
        self._mark_due = 0.0
        self._barriers: dict[RunKey, int] = {}
        self.heartbeat = Heartbeat(clock)
        self.ongoing = Ongoing(clock, "the flush of a run into the store does not end")
        self.flushes = 0
        self.failures = 0
        self.last_error: str | None = None

    @property
    def pending(self) -> Pending:
        """The runs with lines that wait to be flushed."""
        return self._pending

    def lacks(self, key: RunKey, end: int) -> bool:
        """Whether some of the run's lines below `end` are in no chunk yet; it has lines there."""
        return end > self._progress.confirmed_pos or self._pending.get(key) is not None

    def follows(self, key: RunKey, pos: int) -> bool:
        """Whether this node has lines of the run at or above `pos`, synced."""
        with self._pin() as pin:
            return len(pin.batches(run=key, start=pos).rows) > 0

    def holds(self, key: RunKey) -> bool:
        """Whether this node has lines of the run that are in no chunk yet."""
        if self._pending.get(key) is not None:
            return True
        return self.follows(key, self._progress.confirmed_pos)

    def lacking(self) -> list[tuple[RunKey, int]]:
        """Runs with lines here that are in no chunk yet, and one past the last of those lines."""
        with self._pin() as pin:
            batches = pin.batches(start=self._progress.confirmed_pos)
            ends = np.zeros(len(batches.runs), np.int64)
            ends[batches.rows["run"]] = batches.rows["pos"] + 1  # of each run the last one stays
        found = dict.fromkeys(self._pending.waiting(), 0)
        found |= {batches.runs[n]: int(ends[n]) for n in np.flatnonzero(ends).tolist()}
        return list(found.items())

    # --- what comes in -------------------------------------------------------------

    async def start(self) -> None:
        """Finds out from store and journal what waits. Raises `StoreUnavailable`."""
        mark = await read_watermark(self._store, self._node)
        segments = await self._backlog.find(self._node)
        parents = []
        for parent in self._parents:
            parents += await self._backlog.find(parent)
        self._backlog.inherited = []
        now = self._clock.monotonic()
        with self._pin() as pin:
            known = {segment.seq: segment for segment in self._backlog.own}
            self._backlog.own = [
                known.get(s.seq, s) for s in segments if s.end <= pin.confirmed_pos
            ]
            start = max(mark.pos, pin.first_pos)
            self._pending.add_batches(pin.batches(start=start, end=pin.confirmed_pos), now)
            self._progress.confirmed_pos = max(self._progress.confirmed_pos, pin.confirmed_pos)
            released = [s for s in self._backlog.own if s.first < pin.first_pos]
        for segment in released:
            await self._add_segment(segment, now)
        await self.inherit(parents)
        self._progress.started()

    async def inherit(self, segments: list[StoredSegment]) -> None:
        """Flushes segments of another node too. Raises `StoreUnavailable`."""
        await self._backlog.inherit(segments)
        for segment in segments:
            await self._add_segment(segment, self._clock.monotonic())
        self._look()

    async def _add_segment(self, segment: StoredSegment, now: float) -> None:
        for run in await self._backlog.runs_of(segment):
            # Lines of other nodes hold back no position of this one.
            first = run.first if segment.node == self._node else self._progress.confirmed_pos
            self._pending.add(run.key, first, run.rows * _UNKNOWN_BYTES_PER_ROW, now)

    def confirmed(self, seq: int, first: int, end: int) -> None:
        """A segment of this node is in the store."""
        if end <= self._progress.confirmed_pos:
            return
        self._backlog.own.append(StoredSegment(self._node, seq, first, end))
        with self._pin() as pin:
            start = max(self._progress.confirmed_pos, first)
            batches = pin.batches(start=start, end=end)
            self._pending.add_batches(batches, self._clock.monotonic())
        self._progress.confirmed_pos = end
        self._look()

    def hold_at(self, key: RunKey, pos: int) -> None:
        """Until `let_go`, no chunk of the run holds lines from both sides of `pos`."""
        self._barriers[key] = pos

    def let_go(self, key: RunKey) -> None:
        """Ends `hold_at`."""
        self._barriers.pop(key, None)

    # --- what goes out -------------------------------------------------------------

    async def run(self) -> None:
        """Flushes runs that are due, until stopped."""
        while not self._stopping:
            self.heartbeat.turn()
            self._begin_due()
            await self.raise_marks()
            self._wake.clear()
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                self._look()

    def _look(self) -> None:
        """Has all runs that wait looked at again, which the end of a flush alone does not."""
        self._look_due = float("-inf")
        self._wake.set()

    def _begin_due(self) -> None:
        now = self._clock.monotonic()
        if now >= self._look_due:
            self._due = deque(self._pending.due(now))
            self._look_due = now + _LOOK_SECONDS
        free = self._parallel * _SHARES - sum(self._trying.values())
        while self._due and (shares := self._shares(self._due[0])) <= free:
            key = self._due.popleft()
            # One that is being closed or deleted waits for that without holding a place.
            due = key not in self._trying and self._pending.is_due(key, now)
            if due and not self._locks.held(key):
                self._begin(key, shares)
                free -= shares

    def _begin(self, key: RunKey, shares: int) -> None:
        self._trying[key] = shares
        task = asyncio.get_running_loop().create_task(self._try(key))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _shares(self, key: RunKey) -> int:
        waiting = self._pending.get(key)
        return 1 if waiting is None or waiting.bytes <= INLINE_BYTES else _SHARES

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()

    async def _try(self, key: RunKey) -> None:
        # Counted in `flush`; the run waits its back-off.
        try:
            with contextlib.suppress(TailraceError):
                await self.flush(key)
        finally:
            del self._trying[key]

    async def flush(self, key: RunKey, *, end: int | None = None) -> Manifest | None:
        """Flushes everything confirmed of the run, below `end` if given. Raises `TailraceError`."""
        await self._progress.until_started()
        async with self._locks.of(key):
            confirmed = self._progress.confirmed_pos
            limit = confirmed if end is None else min(end, confirmed)
            waiting = self._pending.get(key)
            if waiting is None:
                return None
            waiting.flushing, taken = True, waiting.bytes
            inherited = [s for s in self._backlog.inherited if key in s.waiting]
            try:
                with self.ongoing.piece():
                    manifest = await self._flush_through(key, limit)
            except BaseException as error:
                self._failed(key, error)
                raise
            for segment in inherited:
                segment.waiting.discard(key)
            if limit < self._progress.confirmed_pos and end is not None:
                taken = 0 if self._news_above(key, limit) else taken
            self._pending.done(key, taken, limit, self._clock.monotonic())
            self.flushes += 1
            self.heartbeat.success()
            self.last_error = None
        try:
            await self._events.flushed(manifest)
        except TailraceError as error:  # merging and publishing come again with the next flush
            self.last_error = f"{key.fqn}/{key.run}: after the flush: {error}"
        return manifest

    async def _flush_through(self, key: RunKey, limit: int) -> Manifest:
        """Flushes in two chunks if a close lies between."""
        with self._pin() as pin:
            low = self._progress.first_unflushed(key)
            barrier = self._barriers.get(key)
            if barrier is not None and barrier < limit:
                await self._run_flush.flush(key, pin, low, barrier)
            return await self._run_flush.flush(key, pin, low, limit)

    def _news_above(self, key: RunKey, limit: int) -> bool:
        """Whether there may be more lines; True if the journal has released some of them."""
        with self._pin() as pin:
            if pin.first_pos > limit:
                return True
            return len(pin.batches(run=key, start=limit, end=self._progress.confirmed_pos).rows) > 0

    def _failed(self, key: RunKey, error: BaseException) -> None:
        self._pending.failed(key, self._clock.monotonic())
        if isinstance(error, Exception):
            self.failures += 1
            self.last_error = f"{key.fqn}/{key.run}: {error}"

    async def drain(self) -> None:
        """Flushes everything confirmed, once. Raises the first `TailraceError` after trying all."""
        failures: list[TailraceError] = []
        waiting = iter(self._pending.waiting())
        places = asyncio.Semaphore(self._parallel)

        async def work() -> None:
            for key in waiting:
                small = self._shares(key) == 1
                try:
                    async with contextlib.nullcontext() if small else places:
                        await self.flush(key)
                except TailraceError as error:
                    failures.append(error)

        await asyncio.gather(*[work() for _ in range(self._parallel * _SHARES)])
        await self.raise_marks(force=True)
        if failures:
            raise failures[0]

    async def stop(self) -> None:
        """Ends running flushes; the next start repeats them."""
        self._stopping = True
        self._wake.set()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- watermarks ----------------------------------------------------------------

    async def raise_marks(self, *, force: bool = False) -> None:
        """Raises the watermarks in the store, every `mark_seconds`."""
        now = self._clock.monotonic()
        if now < self._mark_due and not force:
            return
        low = self._progress.flushed_pos
        done = [segment for segment in self._backlog.own if segment.end <= low]
        try:
            if done:
                await self._raise(done[-1])
                self._backlog.own = [s for s in self._backlog.own if s.end > done[-1].end]
            for segment in self._backlog.done():
                await self._raise(segment)
                self._backlog.drop(segment)
        except (Unavailable, OutcomeUnknown, NotFound, Damaged) as error:
            # A damaged one is taken again (`service/shipping/watermarks.py`), and raised then.
            self.last_error = f"the watermark: {error}"
            if force:
                raise
        self._mark_due = now + self._watermark_seconds

    async def _raise(self, segment: StoredSegment) -> None:
        await raise_watermark(
            self._store,
            segment.node,
            fresh_id=self._fresh_id,
            seq=segment.seq,
            pos=segment.end,
        )
