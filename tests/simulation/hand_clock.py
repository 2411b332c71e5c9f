"""A clock for tests that move time by hand."""

from __future__ import annotations

import asyncio

NOW_MS = 1_795_255_200_000


class HandClock:
    """A clock that stands still until `advance`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return self._now

    @property
    def sleeping(self) -> int:
        """How many sleep."""
        return sum(not woken.done() for _, woken in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now + seconds, woken))
        await woken

    async def advance(self, seconds: float) -> None:
        await self._settle()
        self._now += seconds
        for due, woken in self._sleepers:
            if due <= self._now and not woken.done():
                woken.set_result(None)
        await self._settle()

    @staticmethod
    async def _settle() -> None:
        """Who is about to sleep, or was woken, gets to it."""
        for _ in range(20):
            await asyncio.sleep(0)
