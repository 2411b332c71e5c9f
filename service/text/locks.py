"""One lock per run, made when it is wanted and forgotten when nobody wants it.

It saves this process from racing with itself. Exactness comes from the swap of the
manifest, since other processes do not see it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from logstore.batch import RunKey


class RunLocks:
    """Locks by run."""

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
