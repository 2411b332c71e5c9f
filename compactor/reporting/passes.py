"""Passes, told to whoever is to hear of them: each as it goes on, and at its end.

A listener never holds a pass up or breaks it off. What it could not tell at the end of a
pass (a file that cannot be written, a gateway that does not answer) is an alarm of that pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Protocol

from compactor.report import Report, rfc3339
from compactor.reporting.metrics import STOPPED
from logstore.clock import Clock
from logstore.errors import TailraceError


class Listener(Protocol):
    """Hears of passes."""

    @property
    def every_seconds(self) -> float | None:
        """How often it wants to look; None: it wants to hear of the end only."""
        ...

    async def look(self, report: Report) -> None:
        """The pass goes on. Raises `Unavailable` if that could not be told."""
        ...

    async def over(self, report: Report) -> None:
        """The pass is over, as `report` says. Raises `Unavailable` if it could not be told."""
        ...


class Passes:
    """Makes the report of each pass. `alarmed`: whether any of them had an alarm."""

    def __init__(self, clock: Clock, listeners: Sequence[Listener] = ()) -> None:
        """The last listener hears of what the ones before it could not tell."""
        self._clock = clock
        self._listeners = listeners
        self.alarmed = False

    @asynccontextmanager
    async def next(self) -> AsyncIterator[Report]:
        """The report of a pass that takes as long as the block. What the block raises goes on."""
        clock = self._clock
        report, start = Report(began=rfc3339(clock.now_ms())), clock.monotonic()
        try:
            async with self._looking(report):
                yield report
        except TailraceError as error:
            report.error = str(error)
            raise
        except BaseException as error:
            report.error = STOPPED if _told_to_stop(error) else f"{type(error).__name__}: {error}"
            raise
        finally:
            report.phase, report.batch = "", None
            report.took_seconds = round(clock.monotonic() - start, 3)
            await self._over(report)
            self.alarmed = self.alarmed or bool(report.alarms)

    @asynccontextmanager
    async def _looking(self, report: Report) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for listener in self._listeners:
                if listener.every_seconds is not None:
                    looking = self._look(listener, listener.every_seconds, report)
                    stack.push_async_callback(_ended, asyncio.create_task(looking))
            yield

    async def _look(self, listener: Listener, every: float, report: Report) -> None:
        while True:
            # What cannot be told now is told the next time, or is an alarm at the end.
            with suppress(TailraceError):
                await listener.look(report)
            await self._clock.sleep(every)

    async def _over(self, report: Report) -> None:
        for listener in self._listeners:
            try:
                await listener.over(report)
            except TailraceError as error:
                report.alarm(str(error))


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _told_to_stop(error: BaseException) -> bool:
    return isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
