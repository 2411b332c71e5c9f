"""The runs that are being written: which of their batches are known, in memory or in the store.

A run's state is small and can be rebuilt from the journal and the store. It is therefore
kept for the runs used last and dropped for others.

An append may have to know whether the run's chunks hold its batch (`StoreLookup`). A store that
does not answer stops no append: a caller waits `_PATIENCE_SECONDS` for the answer and then
continues without it. While one look-up is overdue, and for `_PAUSE_SECONDS` after it became so, no
other is started. A store that hangs thus costs a wait now and then, and not one for every batch.

Invariants:

- A late answer still counts: a run is `complete` once the store has answered, even if no caller
  waits any more.
- A run that was dropped meanwhile (`ActiveRuns`) is another object by then, so a late
  answer claims nothing about batches that arrived in between.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

from logstore.batch import RunKey
from logstore.errors import ChunkLost, Unavailable
from service.ingest.batch import KnownBatch

_KNOWN_BATCHES = 512


class ActiveRun:
    """`last` is the highest ULID of a line that is known; `complete` says that it covers
    the journal and the store, so that a higher id is certainly new."""

    __slots__ = ("batches", "complete", "last")

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self.complete = False
        self.batches: OrderedDict[int, KnownBatch] = OrderedDict()

    def known(self, ulid: int) -> KnownBatch | None:
        """A client's batch that is stored or being stored; refused ones are dropped."""
        batch = self.batches.get(ulid)
        if batch is not None and batch.refused:
            del self.batches[ulid]
            return None
        return batch

    def remember(self, ulid: int, batch: KnownBatch) -> None:
        """Keeps a client's batch for the retries that may follow it."""
        self.batches[ulid] = batch
        if len(self.batches) > _KNOWN_BATCHES:
            # Older ones are found in the journal and the chunks; `complete` stays true,
            # because `last` is not forgotten.
            self.batches.popitem(last=False)


class ActiveRuns:
    """The runs used last, at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._runs: OrderedDict[RunKey, ActiveRun] = OrderedDict()

    def get(self, key: RunKey) -> ActiveRun:
        """The run's state, a new one if it is not in memory."""
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = ActiveRun()
            if len(self._runs) > self._limit:
                self._runs.popitem(last=False)
        else:
            self._runs.move_to_end(key)
        return run

    def peek(self, key: RunKey) -> ActiveRun | None:
        """The run's state, if it is in memory."""
        return self._runs.get(key)

    def last_ulid(self, key: RunKey) -> int:
        """The highest ULID of a line of the run that is known in memory, 0 if none is."""
        run = self._runs.get(key)
        return 0 if run is None else run.last

    def __len__(self) -> int:
        return len(self._runs)


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
