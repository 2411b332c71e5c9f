"""Clock and randomness as parameters: nothing outside this module asks the machine for either.

A test passes a clock that it sets and `random.Random(seed)`, so a simulation repeats itself.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime
from typing import Protocol

_RUNNING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Wall time, elapsed time and waiting."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC. May step backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment. Never steps backwards."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Returns after `seconds`, or at once if they are zero or less."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        # Counts the time that the machine was suspended: leases run out meanwhile.
        return time.clock_gettime(_RUNNING)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Entropy(Protocol):
    """A source of random bits; `random.Random(seed)` is one."""

    def getrandbits(self, k: int, /) -> int:
        """A number of `k` random bits."""
        ...


def system_entropy() -> Entropy:
    """A generator seeded from the operating system."""
    return random.Random()  # noqa: S311 -- ids must be unlikely to meet, not secret


def rfc3339(ms: int) -> str:
    """Milliseconds since the epoch as UTC, as in `2026-11-21T12:00:00.000Z`."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
