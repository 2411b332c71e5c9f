"""One notification for all waiting consumers, so that a thousand of them ask the store once.

It comes at an interval while a consumer waits, and at once when there is news.
"""

from __future__ import annotations

import asyncio

from logstore.clock import Clock


class Notifier:
    """The notifier of one node, which wakes consumers that wait for segments."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._next: asyncio.Future[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self.waiting = 0

    async def wait(self, seconds: float) -> None:
        """Returns with the next notification, or after `seconds`."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._timer = asyncio.ensure_future(self._time(self._next))
        self.waiting += 1
        try:
            await asyncio.wait({self._next}, timeout=seconds)
        finally:
            self.waiting -= 1

    def notify(self) -> None:
        """Wakes all waiting consumers."""
        waiting, self._next = self._next, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if waiting is not None:
            waiting.set_result(None)

    async def _time(self, current: asyncio.Future[None]) -> None:
        await self._clock.sleep(self._seconds)
        self._timer = None
        if self._next is current:
            self.notify()
