"""Reads the rules of access again when their file changes, and at SIGHUP."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from logstore.clock import Clock
from service.access.access import Access
from service.access.audit import AuditLog

log = logging.getLogger(__name__)


class RulesWatch:
    """Reads the rules again when their file changes."""

    def __init__(self, access: Access, audit: AuditLog, clock: Clock, seconds: float) -> None:
        self._access = access
        self._audit = audit
        self._clock = clock
        self._seconds = seconds
        self._seen = _state(access.path)
        self.signalled = asyncio.Event()

    async def run(self) -> None:
        """Looks at intervals and when `signalled`, until it is cancelled."""
        while True:
            waiting = asyncio.ensure_future(self.signalled.wait())
            sleeping = asyncio.ensure_future(self._clock.sleep(self._seconds))
            try:
                await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
                sleeping.cancel()
            await self.look(at_once=self.signalled.is_set())

    async def look(self, *, at_once: bool = False) -> None:
        """Reads the rules if their file changed, or `at_once`."""
        self.signalled.clear()
        seen = await asyncio.to_thread(_state, self._access.path)
        if seen == self._seen and not at_once:
            return
        self._seen = seen
        if self._access.reload():
            log.info("the rules of access %s are in use", self._access.path)
            self._audit.note("rules", what="loaded")
        else:
            self._audit.note("rules", what="refused")


@asynccontextmanager
async def following_rules(
    access: Access, audit: AuditLog, clock: Clock, seconds: float
) -> AsyncIterator[RulesWatch]:
    """Reads the rules again while the block runs, also at SIGHUP; then closes the audit log."""
    watch = RulesWatch(access, audit, clock, seconds)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, watch.signalled.set)
    task = asyncio.create_task(watch.run(), name="rules of access")
    try:
        yield watch
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await audit.close()


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
