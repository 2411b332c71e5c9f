"""Passes and their listeners, which are called while a pass runs and at its end.

A listener never delays a pass or breaks it off. If it cannot report at the end of a pass (a file
cannot be written, a gateway does not answer), this is an alarm of that pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Protocol

from compactor.metrics import STOPPED
from compactor.report import PassReport
from tailrace.logstore.clock import Clock, rfc3339
from tailrace.logstore.errors import TailraceError


class Listener(Protocol):
    """Reports passes."""

    @property
    def every_seconds(self) -> float | None:
        """The interval in seconds in which `look` is called; None to call only `over`."""
        ...

    async def look(self, report: PassReport) -> None:
        """Reports a pass that is running. Raises `Unavailable` if it could not."""
        ...

    async def over(self, report: PassReport) -> None:
        """Reports a pass that is over. Raises `Unavailable` if it could not."""
        ...


class Passes:
    """Makes the report of each pass. `alarmed` says whether any had an alarm."""

    def __init__(self, clock: Clock, listeners: Sequence[Listener] = ()) -> None:
        """The last listener also gets the failures of the earlier ones."""
        self._clock = clock
        self._listeners = listeners
        self.alarmed = False

    @asynccontextmanager
    async def next(self) -> AsyncIterator[PassReport]:
        """The report of a pass that takes as long as the block. Raises what the block raises."""
        clock = self._clock
        report, start = PassReport(began=rfc3339(clock.now_ms())), clock.monotonic()
        try:
            async with self._looking(report):
                yield report
        except TailraceError as error:
            report.error = str(error)
            raise
        except BaseException as error:
            report.error = STOPPED if _was_stopped(error) else f"{type(error).__name__}: {error}"
            raise
        finally:
            report.phase, report.batch = "", None
            report.took_seconds = round(clock.monotonic() - start, 3)
            await self._over(report)
            self.alarmed = self.alarmed or bool(report.alarms)

    @asynccontextmanager
    async def _looking(self, report: PassReport) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for listener in self._listeners:
                if listener.every_seconds is not None:
                    looking = self._look(listener, listener.every_seconds, report)
                    stack.push_async_callback(_ended, asyncio.create_task(looking))
            yield

    async def _look(self, listener: Listener, every: float, report: PassReport) -> None:
        while True:
            # The next call makes up for a failure now, or it is an alarm at the end.
            with suppress(TailraceError):
                await listener.look(report)
            await self._clock.sleep(every)

    async def _over(self, report: PassReport) -> None:
        for listener in self._listeners:
            try:
                await listener.over(report)
            except TailraceError as error:
                report.alarm(str(error))


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _was_stopped(error: BaseException) -> bool:
    return isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
