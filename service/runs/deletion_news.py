"""Tells other nodes of deletions until each has heard, or has lost its lease.

A node that lost its lease reads the deletions from the store before it shows a line again. Until
all others know, the journal has the deletion as unfinished, so the next start tells them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from logstore.clock import Clock
from logstore.errors import TailraceError
from service.runs.elsewhere import OtherNodes, Told

_FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0
_UNKNOWN = "the register of nodes"


class DeletionNews:
    """The deletions of one node of which others are to hear; `done` finishes one."""

    def __init__(
        self,
        others: OtherNodes,
        clock: Clock,
        gone: Callable[[str], Awaitable[bool]],
        done: Callable[[str, str | None, int], None],
    ) -> None:
        self._others = others
        self._clock = clock
        self._gone = gone
        self._done = done
        self._untold: dict[tuple[str, str | None], tuple[int, tuple[str, ...]]] = {}
        self._task: asyncio.Task[None] | None = None

    def silent(self, fqn: str, run: str | None) -> tuple[str, ...]:
        """The nodes that have not heard of the newest deletion of a run, or of a pipeline."""
        return self._untold.get((fqn, run), (0, ()))[1]

    async def tell(self, fqn: str, run: str | None, t: int) -> None:
        """Tells all nodes once; those that are silent are told later."""
        told = await self._tell(fqn, run, t)
        if not told.silent:
            self._heard(fqn, run, t)
            return
        self._untold[fqn, run] = (max(t, self._untold.get((fqn, run), (0, ()))[0]), told.silent)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._go_on())

    def stop(self) -> None:
        """Ends telling; the next start goes on."""
        if self._task is not None:
            self._task.cancel()

    async def _tell(self, fqn: str, run: str | None, t: int) -> Told:
        if not self._others:
            return Told()
        try:
            return await self._others.deleted(fqn, run, t)
        except TailraceError:
            return Told((_UNKNOWN,))

    async def _go_on(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while self._untold:
            await self._clock.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)
            for (fqn, run), (t, _) in list(self._untold.items()):
                told = await self._tell(fqn, run, t)
                silent = [node for node in told.silent if not await self._is_gone(node)]
                if self._untold.get((fqn, run), (0, ()))[0] != t:
                    continue  # deleted again meanwhile
                if silent:
                    self._untold[fqn, run] = (t, tuple(silent))
                else:
                    self._heard(fqn, run, t)

    async def _is_gone(self, node: str) -> bool:
        try:
            return node != _UNKNOWN and await self._gone(node)
        except TailraceError:
            return False

    def _heard(self, fqn: str, run: str | None, t: int) -> None:
        if self._untold.get((fqn, run), (0, ()))[0] <= t:
            self._untold.pop((fqn, run), None)
        self._done(fqn, run, t)
