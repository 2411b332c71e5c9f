"""One lock per run, made on demand and dropped when nobody holds it.

The lock keeps this process from racing with itself. Other processes do not see it: exactness
comes from the swap of the manifest.

`OncePerRun` is work on a run for which every caller waits, and which never runs twice at once.
It continues when its callers go away, because the next one may be as impatient. It remembers
for a while that there was nothing to do.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.errors import NodeNotReady

_REMEMBERED = 10_000


class OncePerRun:
    """Runs `work` for a run once at a time; `work` returns whether it did anything."""

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
        self._nothing: OrderedDict[RunKey, float] = OrderedDict()

    def idle(self, key: RunKey) -> bool:
        """Whether it is known that there is nothing to do."""
        return self._nothing.get(key, float("-inf")) > self._clock.monotonic()

    async def do(self, key: RunKey) -> bool:
        """The result of the work. Raises what it raises, and `NodeNotReady` if it is stopped."""
        if self.idle(key):
            return False
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._work(key))
            self._under_way[key] = task
            task.add_done_callback(lambda ended: self._ended(key, ended))
        # Whoever waits was not cancelled: as a cancellation it would end its connection unsaid.
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
        self._nothing[key] = self._clock.monotonic() + self._seconds
        self._nothing.move_to_end(key)
        if len(self._nothing) > _REMEMBERED:
            self._nothing.popitem(last=False)


class RunLocks:
    """One lock for each run that somebody works on."""

    def __init__(self) -> None:
        self._locks: dict[RunKey, tuple[asyncio.Lock, int]] = {}

    def held(self, key: RunKey) -> bool:
        """Whether somebody holds the run's lock now."""
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
