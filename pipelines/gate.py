"""So many workers of a process read and give at once: what they need for it is bounded.

A turn of a worker needs some copies of what it reads and gives. If all took turns at once, a
process of many pipelines would need that many times as much, for nothing: it has few processors.
A turn counts for `seconds` at most, since an appender that is slow or hangs must hold up nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

TURNS: Final = 2
_SECONDS: Final = 0.5


class Gate:
    """Lets `turns` through at once, each for `seconds` at most."""

    def __init__(self, turns: int = TURNS, *, seconds: float = _SECONDS) -> None:
        self.free = turns
        self._turns = asyncio.Semaphore(turns)
        self._seconds = seconds

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn, which ends with the block or after its time."""
        await self._turns.acquire()
        self.free -= 1
        over = False

        def end() -> None:
            nonlocal over
            if not over:
                over = True
                self.free += 1
                self._turns.release()

        timer = asyncio.get_running_loop().call_later(self._seconds, end)
        try:
            yield
        finally:
            timer.cancel()
            end()
