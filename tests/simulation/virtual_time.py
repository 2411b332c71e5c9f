"""An event loop whose time leaps: nobody waits, and every run takes the same course.

    result = simulate(scenario, start_ms=…)            # `scenario(clock)` is a coroutine
    simulate(scenario, start_ms=…, halted=lambda: fs.dead)

When nothing is ready, time moves to the next timer at once. So hours of back-off and
flushing pass in milliseconds, and with blocking work done in place, calls come in the
same order each time. `halted` is asked between any two steps; once it says yes the world
stands still: `Halted` is raised and whatever was under way is thrown away.

Where a step waits for something of the real world (`standing_still`), time does not leap
until that has come: how long it took is nobody's business here.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
_MAX_STEPS_WITHOUT_TIME = 100_000
_OUTSIDE_SECONDS = 120.0


class Halted(Exception):
    """The simulated machine stopped."""


class Stuck(AssertionError):
    """Nothing will ever happen again, or everything happens at one moment for ever."""


class _LeapingSelector(selectors.PollSelector):
    """Instead of waiting it lets the loop's time pass."""

    def __init__(self, halted: Callable[[], bool]) -> None:
        super().__init__()
        self.now = 0.0
        self.halted = halted
        self.outside = 0
        self._steps = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.halted():
            raise Halted
        if self.outside and timeout != 0:
            return self._wait_outside()
        if timeout is None:
            raise Stuck("nothing is ready and no timer runs")
        self._steps = 0 if timeout > 0 else self._steps + 1
        if self._steps > _MAX_STEPS_WITHOUT_TIME:
            raise Stuck(f"{self._steps} steps without time passing")
        self.now += max(timeout, 0.0)
        return []

    def _wait_outside(self) -> list[tuple[selectors.SelectorKey, int]]:
        self._steps = 0
        events = super().select(_OUTSIDE_SECONDS)
        if not events:
            raise Stuck(f"the world outside gave no answer for {_OUTSIDE_SECONDS:.0f} s")
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop over leaping time, in seconds from 0."""

    def __init__(self, halted: Callable[[], bool]) -> None:
        self._leaping = _LeapingSelector(halted)
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Time stands still meanwhile: this step waits for another thread's answer."""
        self._leaping.outside += 1
        try:
            yield
        finally:
            self._leaping.outside -= 1

    def revive(self) -> None:
        """Lets tasks run once more, to be cancelled."""
        self._leaping.halted = lambda: False


class VirtualClock:
    """`tailrace.logstore.clock.Clock` over the loop's time; `start_ms` is the wall time at its
    0."""

    def __init__(self, loop: VirtualLoop, start_ms: int) -> None:
        self._loop = loop
        self.start_ms = start_ms

    def now_ms(self) -> int:
        return self.start_ms + round(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def simulate(
    scenario: Callable[[VirtualClock], Coroutine[Any, Any, T]],
    *,
    start_ms: int,
    halted: Callable[[], bool] = lambda: False,
) -> T:
    """The result of `scenario`. Raises what it raises, and `Halted`."""
    loop = VirtualLoop(halted)
    try:
        return loop.run_until_complete(scenario(VirtualClock(loop, start_ms)))
    finally:
        _end(loop)


def _end(loop: VirtualLoop) -> None:
    """Throws away what is left; nobody hears of errors that come of that."""
    loop.revive()
    loop.set_exception_handler(lambda *_: None)
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left))
    for task in left:
        if not task.cancelled():
            task.exception()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
