"""Signs of life of a loop: how long ago it last turned, and last did what it is for.

A loop that hangs in one call never fails, counts no error and looks idle; only the age of
its last turn gives it away. Ages are of the monotonic clock, so that neither a step of
this node's clock nor another clock at the reader's makes a loop look dead.
"""

from __future__ import annotations

from collections.abc import Callable

from logstore.clock import Clock

_LOOK_SECONDS = 1.0


class Heartbeat:
    """The signs of life of one loop. Until its first turn, ages count from when this was made."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._sleep = clock.sleep
        self._turned = self._succeeded = clock.monotonic()
        self._resting = False

    def turn(self) -> None:
        """Records that the loop has come round, or continues a long piece of work."""
        self._turned = self._now()
        self._resting = False

    def rest(self) -> None:
        """Records that the loop waits for work, which may take any time."""
        self._resting = True

    async def pause(self, seconds: float, stopping: Callable[[], bool]) -> None:
        """Sleeps until the next round with signs of life, and ends early when stopping."""
        due = self._now() + seconds
        while not stopping() and self._now() < due:
            self.turn()
            await self._sleep(_LOOK_SECONDS)

    def success(self) -> None:
        """Records that the work was done once, by the loop or by somebody in its place."""
        self._succeeded = self._now()

    @property
    def age_seconds(self) -> float:
        """Seconds since the last turn; 0 while the loop rests."""
        return 0.0 if self._resting else self._now() - self._turned

    @property
    def success_age_seconds(self) -> float:
        """Seconds since the last success, or since this was made if there was none."""
        return self._now() - self._succeeded
