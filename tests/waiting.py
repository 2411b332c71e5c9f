"""Waiting for what a process or another thread does, with a limit that only a fault reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE_SECONDS = 120


async def until(holds: Callable[[], bool]) -> None:
    """Waits until it holds. Raises `TimeoutError`."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await asyncio.sleep(0.01)
