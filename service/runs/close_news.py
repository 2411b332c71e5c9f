"""Asks other nodes to close a run for their lines, until each has done so or has lost its lease.

Each node closes a run up to its own last line; the run is closed when all have. A node that lost
its lease, or that an operator let go, has nobody who closes for it: another one flushes what it
brought into the store, and then its lines count as closed (`service/runs/close.py`). Until all
others know, the journal has the close as unfinished, so the next start asks them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.errors import TailraceError
from logstore.runs.manifest import Manifest
from service.runs.elsewhere import OtherNodes, Told
from service.runs.selection import in_range

_FIRST_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 30.0
_UNKNOWN = "the register of nodes"


class CloseOutcome(NamedTuple):
    """The state of a close that all nodes know; `over`: no line of the run is left anywhere."""

    state: str
    over: bool


class CloseNews:
    """The closes of one node of which others are to hear; `told` is called when they have."""

    def __init__(
        self,
        others: OtherNodes,
        clock: Clock,
        is_over: Callable[[str, RunKey | None], Awaitable[bool]],
        told: Callable[[RunKey, int, Sequence[str]], Awaitable[CloseOutcome]],
    ) -> None:
        """`told` finishes the close; it gets the nodes that answered and ask nobody themselves.

        `is_over` says of a node that it is lost, and what it brought into the store is in the runs,
        or in the run of the key.
        """
        self._others = others
        self._clock = clock
        self._is_over = is_over
        self._told = told
        self._tasks: dict[RunKey, asyncio.Task[str]] = {}
        self._closes: dict[RunKey, int] = {}
        """The positions of the closes that are asked about."""
        self._settled: set[str] = set()
        """Nodes that were let go and have nothing that is in no run: they write no more."""
        self._ending: set[asyncio.Task[None]] = set()
        self._finishing: dict[RunKey, asyncio.Task[str]] = {}
        """Those whose own close all nodes know, and that may wait for another node's."""

    @property
    def alone(self) -> bool:
        """Whether this node has no way to others."""
        return not self._others

    def telling(self, key: RunKey) -> bool:
        """Whether there is somebody who has not heard."""
        return key in self._tasks

    def tell(self, key: RunKey, pos: int) -> asyncio.Task[str]:
        """Asks all nodes, and silent ones again; a later close takes the place of an earlier.

        One that is asking already goes on, so that a client that closes again and again does not
        hold it up; it asks once more for the later close.
        """
        asking = self._tasks.get(key)
        if self._others:
            self._closes[key] = max(self._closes.get(key, 0), pos)
        if asking is not None:
            return asking
        earlier = self._finishing.pop(key, None)
        if earlier is not None:
            earlier.cancel()
        task = asyncio.get_running_loop().create_task(self._tell(key))
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
        for task in (*self._tasks.values(), *self._ending, *self._finishing.values()):
            task.cancel()

    async def nobody_holds(self, key: RunKey, manifest: Manifest) -> bool:
        """Whether no other node has lines of the run that its manifest lacks.

        False as well while a node does not answer and is not lost. Raises `Unavailable`.
        """
        found = await self._others.lines(key)
        for source in found.sources:
            if len(in_range(source, key, manifest.dealt_with(source.node))):
                return False
        return not [node for node in found.silent if not await self._is_lost(node, key)]

    def _said(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # who did not hear looks by itself

    async def _tell(self, key: RunKey) -> str:
        if not self._others:
            return "closed"
        pos = -1
        idle: tuple[str, ...] = ()
        while pos < self._closes[key]:
            pos = self._closes[key]
            idle = await self._ask_all(key)
        del self._closes[key]
        task = self._finishing[key] = self._tasks.pop(key)
        pause = _FIRST_PAUSE_SECONDS
        try:
            while (outcome := await self._told(key, pos, idle)).state != "closed":
                # Another node closes it as well, and still asks; all are asked again, since some
                # may have got lines between the two closes.
                await self._clock.sleep(pause)
                pause = min(pause * 2, _MAX_PAUSE_SECONDS)
                idle = await self._ask_all(key)
        except TailraceError:
            return "closing"  # the manifest could not be read: streams look by themselves
        finally:
            if self._finishing.get(key) is task:
                del self._finishing[key]
        if outcome.over:
            self.ended(key)
        return outcome.state

    async def _ask_all(self, key: RunKey) -> tuple[str, ...]:
        """Returns once each node has closed the run for its lines, or is lost.

        Gives those that answered and do not ask others themselves.
        """
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                told = await self._others.close(key)
            except TailraceError:
                told = Told((_UNKNOWN,))
            waiting = [node for node in told.silent if not await self._is_lost(node, key)]
            if not waiting and not told.working and await self._all_settled(told.let_go):
                return told.idle
            await self._clock.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    async def _all_settled(self, let_go: Sequence[str]) -> bool:
        self._settled.intersection_update(let_go)  # one that is back may write again
        for node in let_go:
            if node not in self._settled and await self._is_lost(node):
                self._settled.add(node)
        return self._settled.issuperset(let_go)

    async def _is_lost(self, node: str, key: RunKey | None = None) -> bool:
        try:
            return node != _UNKNOWN and await self._is_over(node, key)
        except TailraceError:
            return False
