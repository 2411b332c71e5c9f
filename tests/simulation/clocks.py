"""The clocks of tests: one that a test moves, and clocks that are wrong by some time.

Other clocks of tests do more than tell the time, and stay with what they do:

- `virtual_time.VirtualClock` is the time of an event loop that leaps;
- `hand_clock.HandClock` holds sleepers until the test wakes them;
- clocks of the compactor's histories, of frozen processes and of slow servers wrap one of these.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from tailrace.logstore.clock import Clock, SystemClock

NOW_MS = 1_795_255_200_000


@dataclass
class ManualClock:
    """Stands still until a test moves it or somebody sleeps on it; `ms` may be set."""

    ms: int = NOW_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000

    async def sleep(self, seconds: float) -> None:
        self.ms += math.ceil(max(seconds, 0.0) * 1000)
        await asyncio.sleep(0)

    def advance(self, ms: int) -> None:
        """Moves wall time and running time."""
        self.ms += ms

    def pass_seconds(self, seconds: float) -> None:
        """As `advance`."""
        self.ms += round(seconds * 1000)


@dataclass
class ShiftedClock(SystemClock):
    """The machine's clock, whose wall time is wrong by `shift_ms`; that may be changed."""

    shift_ms: int = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms


@dataclass
class MachineClock:
    """The clock of one machine beside the true one: wall time is wrong, running time is its own."""

    true: Clock
    wrong_ms: int
    since_seconds: float = 0.0

    def now_ms(self) -> int:
        return self.true.now_ms() + self.wrong_ms

    def monotonic(self) -> float:
        return self.true.monotonic() + self.since_seconds

    async def sleep(self, seconds: float) -> None:
        await self.true.sleep(seconds)
