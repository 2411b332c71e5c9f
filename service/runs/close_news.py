"""Asks other nodes to close a run for their lines, until each has heard or has lost its lease.

Each node closes a run up to its own last line; the run is closed when all have. A node that lost
its lease, or that an operator let go, has nobody who closes for it: another one flushes what it
brought into the store, and then its lines count as closed (`service/runs/close.py`). Until all
others know, the journal has the close as unfinished, so the next start asks them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.errors import TailraceError
from service.runs.elsewhere import OtherNodes, Told

_FIRST_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 30.0
_UNKNOWN = "the register of nodes"


class CloseNews:
    """The closes of one node of which others are to hear; `told` is called when they have."""

    def __init__(
        self,
        others: OtherNodes,
        clock: Clock,
        is_over: Callable[[str], Awaitable[bool]],
        told: Callable[[RunKey, int], Awaitable[bool]],
    ) -> None:
        """`told` gives whether the run is closed as a whole.

        `is_over` says of a node that it is lost, and what it brought into the store is in the runs.
        """
        self._others = others
        self._clock = clock
        self._is_over = is_over
        self._told = told
        self._tasks: dict[RunKey, asyncio.Task[str]] = {}
        self._settled: set[str] = set()
        """Nodes that were let go and have nothing that is in no run: they write no more."""
        self._ending: set[asyncio.Task[None]] = set()

    def telling(self, key: RunKey) -> bool:
        """Whether there is somebody who has not heard."""
        return key in self._tasks

    def tell(self, key: RunKey, pos: int) -> asyncio.Task[str]:
        """Asks all nodes, and silent ones again; a later close takes the place of an earlier."""
        earlier = self._tasks.pop(key, None)
        if earlier is not None:
            earlier.cancel()
        task = asyncio.get_running_loop().create_task(self._tell(key, pos))
        if self._others:
            self._tasks[key] = task
        return task

    def ended(self, key: RunKey) -> None:
        """Tells the others, behind this call, that the run is closed as a whole."""
        if self._others:
            task = asyncio.get_running_loop().create_task(self._others.ended(key))
            self._ending.add(task)
            task.add_done_callback(self._said)

    def stop(self) -> None:
        """Ends asking; the next start goes on."""
        for task in (*self._tasks.values(), *self._ending):
            task.cancel()

    def _said(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # who did not hear looks by itself

    async def _tell(self, key: RunKey, pos: int) -> str:
        if not self._others:
            return "closed"
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                told = await self._others.close(key)
            except TailraceError:
                told = Told((_UNKNOWN,))
            waiting = [node for node in told.silent if not await self._is_lost(node)]
            if not waiting and await self._all_settled(told.let_go):
                break
            await self._clock.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)
        self._tasks.pop(key, None)
        try:
            if await self._told(key, pos):
                self.ended(key)
        except TailraceError:
            return "closing"  # the manifest could not be read: streams look by themselves
        return "closing" if told.working else "closed"

    async def _all_settled(self, let_go: Sequence[str]) -> bool:
        self._settled.intersection_update(let_go)  # one that is back may write again
        for node in let_go:
            if node not in self._settled and await self._is_lost(node):
                self._settled.add(node)
        return self._settled.issuperset(let_go)

    async def _is_lost(self, node: str) -> bool:
        try:
            return node != _UNKNOWN and await self._is_over(node)
        except TailraceError:
            return False
