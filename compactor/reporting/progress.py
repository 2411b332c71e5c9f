"""The progress bar: one line on a terminal that is drawn over again and again.

    merge  [=========...........]  46%  1.1 GB of 2.4 GB  14 MB/s  0:01:32 left  tasks 3/8

The share is of the bytes that waited when the pass last looked and of those it has ingested,
with the batch under way by its Spark tasks. A phase of which no share is known has its time
instead. The line is cleared before anything else is written (`clear`). The cursor stays at its
start: what others write, Java and Spark above all, begins there and not behind the bar.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Final, TextIO, TypeAlias

from compactor.report import Lag, Report, duration_text
from logstore.clock import Clock
from logstore.progress import size

Tasks: TypeAlias = Callable[[], Awaitable[tuple[int, int] | None]]
"""Of the job under way: tasks done, and all that are known; None if there is none."""

_SHORTEST, _LONGEST = 6, 40
_CLEAR: Final = "\r\x1b[2K"


class Progress:
    """Draws on a terminal."""

    every_seconds = 0.2

    def __init__(self, clock: Clock, out: TextIO, tasks: Tasks) -> None:
        self._clock = clock
        self._out = out
        self._tasks = tasks
        self._drawn = False
        self._lag: Lag | None = None
        self._all = 0
        self._phase, self._since = "", 0.0
        self._started = 0.0

    async def look(self, report: Report) -> None:
        """Draws how it stands."""
        now = self._clock.monotonic()
        if report.phase != self._phase:
            self._phase, self._since = report.phase, now
        if report.lag is not self._lag and report.lag is not None:
            if self._lag is None:
                self._started = now
            self._lag = report.lag
            self._all = report.segment_bytes + report.lag.bytes
        wide = _columns(self._out) - 1
        line = self._line(report, await self._tasks(), now, wide)
        self._out.write(f"{_CLEAR}{line[:wide]}\r")
        self._out.flush()
        self._drawn = True

    async def over(self, report: Report) -> None:  # noqa: ARG002 - the shape is Listener's
        """Clears the line; the summary has the rest."""
        self.clear()
        self._lag, self._all, self._phase = None, 0, ""

    def clear(self) -> None:
        """Erases the line, if there is one."""
        if self._drawn:
            self._out.write(_CLEAR)
            self._out.flush()
            self._drawn = False

    def _line(self, report: Report, tasks: tuple[int, int] | None, now: float, wide: int) -> str:
        phase, done = report.phase or "plan", self._done(report, tasks)
        counted = "" if tasks is None else f"  tasks {tasks[0]}/{tasks[1]}"
        if not 0 < done <= self._all:
            return f"{phase}  {duration_text(now - self._since)}{counted}"
        share, spent = done / self._all, max(now - self._started, 1e-3)
        rest = (
            f" {share:4.0%}  {size(done)} of {size(self._all)}  {size(done / spent)}/s"
            f"  {duration_text(spent / share - spent)} left{counted}"
        )
        width = min(max(wide - len(phase) - len(rest) - 4, _SHORTEST), _LONGEST)
        full = round(width * share)
        return f"{phase}  [{'=' * full}{'.' * (width - full)}]{rest}"

    def _done(self, report: Report, tasks: tuple[int, int] | None) -> float:
        if report.batch is None or report.phase != "merge" or not tasks or not tasks[1]:
            return report.segment_bytes
        return report.segment_bytes + report.batch.bytes * tasks[0] / tasks[1]


def _columns(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except OSError:
        return 80
