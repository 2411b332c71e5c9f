"""Looks up a run's batches in the store, and stops waiting after a while.

An append may have to know whether the run's chunks hold its batch. A store that does not
answer stops no append: a caller waits `_PATIENCE_SECONDS` for the answer and then continues
without it. While one look-up is overdue, and for `_PAUSE_SECONDS` after it became so, no other
is started. A store that hangs thus costs a wait now and then, and not one for every batch.

Invariants:

- A late answer still counts: a run is `complete` once the store has answered, even if no caller
  waits any more.
- A run that was dropped meanwhile (`ActiveRuns`) is another object by then, so a late
  answer claims nothing about batches that arrived in between.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from logstore.batch import RunKey
from logstore.errors import ChunkLost, Unavailable
from service.ingest.active_runs import ActiveRun
from service.ingest.batch import KnownBatch

_PATIENCE_SECONDS = 2.0
_PAUSE_SECONDS = 10.0
# Past this a question counts as lost, and the store is asked anew.
_LOST_SECONDS = 60.0


class Stored(Protocol):
    """The run's chunks, as the source of known batches."""

    async def find_batch(self, key: RunKey, ulid: int) -> tuple[int, int] | None:
        """The digest and record count of a batch in the chunks. Raises `Unavailable`."""
        ...

    async def last_ulid(self, key: RunKey) -> int:
        """The highest ULID in the chunks, 0 if there are none. Raises `Unavailable`."""
        ...


class StoreLookup:
    """Looks batches up in `stored`, inside the running loop."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._loop = asyncio.get_running_loop()
        self._asking: set[asyncio.Task[KnownBatch | None]] = set()
        self._overdue: set[asyncio.Task[KnownBatch | None]] = set()
        self._paused_until = 0.0
        self.given_up = 0

    async def find(self, key: RunKey, run: ActiveRun, ulid: int) -> KnownBatch | None:
        """The batch in the run's chunks; None if it is not there, or no answer comes in time.

        `run.last` covers the journal already; afterwards `run` is complete if the store answered.
        """
        if self._overdue or self._loop.time() < self._paused_until:
            return None
        task = self._loop.create_task(self._ask(key, run, ulid), name="look-up")
        self._asking.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait([task], timeout=_PATIENCE_SECONDS)
        if task.done():
            return None if task.cancelled() else task.result()
        self.given_up += 1
        self._paused_until = self._loop.time() + _PAUSE_SECONDS
        self._overdue.add(task)
        return None

    def stop(self) -> None:
        """Stops look-ups: callers that wait for an answer continue without it."""
        for task in list(self._asking):
            task.cancel()

    def _ended(self, task: asyncio.Task[KnownBatch | None]) -> None:
        self._asking.discard(task)
        self._overdue.discard(task)
        if not task.cancelled():
            task.exception()  # of a late answer: whoever asks next is told the same

    async def _ask(self, key: RunKey, run: ActiveRun, ulid: int) -> KnownBatch | None:
        try:
            async with asyncio.timeout(_LOST_SECONDS):
                if not run.complete:
                    run.last = max(run.last, await self._stored.last_ulid(key))
                    run.complete = True
                if ulid > run.last:
                    return None
                stored = await self._stored.find_batch(key, ulid)
        except (Unavailable, ChunkLost, TimeoutError):
            return None
        return None if stored is None else KnownBatch(*stored, end=0)
