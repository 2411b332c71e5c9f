"""A clock whose time passes when a test says so, and at no other time."""

from __future__ import annotations

import asyncio

NOW_MS = 1_795_255_200_000


class MovedClock:
    """Wall and running time move together, by `advance`; sleeping moves them, too."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return (self._now_ms - NOW_MS) / 1000

    async def sleep(self, seconds: float) -> None:
        self.advance(round(max(seconds, 0.0) * 1000))
        await asyncio.sleep(0)

    def advance(self, ms: int) -> None:
        """So many milliseconds pass."""
        self._now_ms += ms
