"""Whether this process stood still: stopped by a signal, out of memory, or on a machine that hung.

A process that stands still hears nothing, and others that wait for its answer give up meanwhile.
What it knew is then old, though none of its own timers has noticed yet. Whoever needs to know asks
`stalls` and compares with what it was before.
"""

from __future__ import annotations

from logstore.clock import Clock

BEAT_SECONDS = 1.0
STALL_SECONDS = 3.0


class Pulse:
    """Counts the times that the loop did not come round for `STALL_SECONDS`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.monotonic()
        self._stalls = 0

    def stalls(self) -> int:
        """How often the process stood still, also if it has gone on only just now."""
        now = self._clock.monotonic()
        if now - self._last > STALL_SECONDS:
            self._stalls += 1
        self._last = now
        return self._stalls

    async def beat(self) -> None:
        """Sleeps until the next beat."""
        await self._clock.sleep(BEAT_SECONDS)
        self.stalls()
