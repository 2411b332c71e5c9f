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
    """Of one loop. A loop that has not begun counts as of the moment this was made."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._sleep = clock.sleep
        self._turned = self._succeeded = clock.monotonic()
        self._resting = False

    def turn(self) -> None:
        """The loop has come round, or goes on with a long piece of work."""
        self._turned = self._now()
        self._resting = False

    def rest(self) -> None:
        """The loop waits for work, however long that takes: not a sign of death."""
        self._resting = True

    async def pause(self, seconds: float, stopping: Callable[[], bool]) -> None:
        """Lets the time pass until the next round, alive, and ends early when stopping."""
        due = self._now() + seconds
        while not stopping() and self._now() < due:
            self.turn()
            await self._sleep(_LOOK_SECONDS)

    def success(self) -> None:
        """Done once, by the loop or by somebody in its place: says nothing of the loop."""
        self._succeeded = self._now()

    @property
    def age_seconds(self) -> float:
        """Since the last turn; 0 while it rests."""
        return 0.0 if self._resting else self._now() - self._turned

    @property
    def success_age_seconds(self) -> float:
        """Since the last success, or since it was made if there was none."""
        return self._now() - self._succeeded
