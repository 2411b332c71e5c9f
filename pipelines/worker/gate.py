"""So many workers of a process read and give at once: what they need for it is bounded.

A turn of a worker needs some copies of what it reads and gives. If all took turns at once, a
process of many pipelines would need that many times as much, for nothing: it has few processors.
A turn counts for `seconds`, since an appender that is slow or hangs must hold up nobody. While the
process computes it counts for some times that: on a machine with other work each turn takes
longer, and none of them hangs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

TURNS: Final = 2
_SECONDS: Final = 0.5
_LONGEST: Final = 4  # times `seconds`
_COMPUTING: Final = 0.1  # of a processor: what an overloaded machine leaves


class Gate:
    """Lets `turns` through at once, each for `seconds`, or some times that while it computes.

    `spent` gives the seconds of processors that the process has used.
    """

    def __init__(
        self,
        turns: int = TURNS,
        *,
        seconds: float = _SECONDS,
        spent: Callable[[], float] = time.process_time,
    ) -> None:
        self.free = turns
        self._turns = asyncio.Semaphore(turns)
        self._seconds = seconds
        self._spent = spent

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn, which ends with the block or after its time."""
        await self._turns.acquire()
        self.free -= 1
        turn = _Turn(self._end, self._seconds, self._spent)
        try:
            yield
        finally:
            turn.end()

    def _end(self) -> None:
        self.free += 1
        self._turns.release()


class _Turn:
    """One that was let through; calls `ended` once."""

    def __init__(
        self, ended: Callable[[], None], seconds: float, spent: Callable[[], float]
    ) -> None:
        self._ended: Callable[[], None] | None = ended
        self._seconds = seconds
        self._spent = spent
        self._before = spent()
        self._looks = 0
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def end(self) -> None:
        """With its block, if its time was not over before."""
        self._timer.cancel()
        if self._ended is not None:
            self._ended()
            self._ended = None

    def _look(self) -> None:
        self._looks += 1
        before, self._before = self._before, self._spent()
        computes = self._before - before >= _COMPUTING * self._seconds
        if computes and self._looks < _LONGEST:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)
        else:
            self.end()
