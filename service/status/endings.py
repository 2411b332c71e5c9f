"""Whether a run has ended by what its client says: a terminal pipelineStatus.

OpenMetadata's client reports the end of a run before it ships the last lines. So a
stream of such a run goes on for a grace after the report, and after each line in it.

All readers of a run share one look at the store every `look_seconds`. A look that fails
says nothing: the run is not taken for ended.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.errors import TailraceError
from logstore.runs.report import Report
from service.runs.outcomes import TERMINAL

_REMEMBERED = 10_000


def is_terminal(report: Report | None) -> bool:
    """Whether a status says that its run is over."""
    return report is not None and report.said.state in TERMINAL


class _Known(NamedTuple):
    """When it was looked at, and when a terminal status was stored, if there is one."""

    seen: float
    ended_ms: int | None


class Endings:
    """The ends of the runs that somebody watches.

    A stream goes on for `grace_seconds` after a terminal status; the store is asked again after
    `look_seconds`.
    """

    def __init__(
        self,
        look: Callable[[RunKey], Awaitable[Report | None]],
        clock: Clock,
        *,
        grace_seconds: float,
        look_seconds: float = 10.0,
    ) -> None:
        self._look = look
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._look_seconds = look_seconds
        self._known: OrderedDict[RunKey, _Known] = OrderedDict()
        self._looking: dict[RunKey, asyncio.Task[None]] = {}
        self.failures = 0

    async def seconds_left(self, key: RunKey) -> float | None:
        """Seconds left of an ended run's grace, 0 when it is over; None for an open run."""
        known = self._known.get(key)
        if known is None or self._clock.monotonic() - known.seen >= self._look_seconds:
            await self._ask(key)
            known = self._known.get(key)
        if known is None or known.ended_ms is None:
            return None
        since = (self._clock.now_ms() - known.ended_ms) / 1000
        return min(max(self._grace_seconds - since, 0.0), self._grace_seconds)

    def note(self, key: RunKey, report: Report | None) -> None:
        """Takes note of what was just stored, or removed."""
        ended = report.stored_ms if report is not None and is_terminal(report) else None
        self._note(key, ended)

    def _note(self, key: RunKey, ended_ms: int | None) -> None:
        self._known[key] = _Known(self._clock.monotonic(), ended_ms)
        self._known.move_to_end(key)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    async def _ask(self, key: RunKey) -> None:
        """One look for all who ask at the same time."""
        task = self._looking.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask_store(key))
            self._looking[key] = task
            task.add_done_callback(lambda _: self._looking.pop(key, None))
        await asyncio.shield(task)

    async def _ask_store(self, key: RunKey) -> None:
        before = self._known.get(key)
        try:
            report = await self._look(key)
        except TailraceError:
            self.failures += 1
            self._note(key, None if before is None else before.ended_ms)
            return
        if self._known.get(key) is before:  # else something newer was stored meanwhile
            self.note(key, report)
