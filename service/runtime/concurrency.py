"""Signals of changes, calls that simultaneous callers share, and turns of many ready tasks.

A thousand readers of a run that connect at once ask the store the same question:

    answer = await calls.call(("size", key), lambda: reader.size(key))

`SharedCalls` gives each caller the answer of a call that begins after its request, so no answer is
older than its request. Of one question there is at most one call in progress and one that waits for
its end; all callers that ask meanwhile share the waiting one.

The event loop runs all ready tasks before it looks at connections again. A request that makes a
thousand tasks would so hold it for the sum of their work; with `LoopTurns` they take turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class ChangeSignal:
    """Wakes all tasks that wait for the next change. A task takes `next` before it looks."""

    def __init__(self) -> None:
        self.next = asyncio.Event()

    def notify(self) -> None:
        """Wakes those that wait."""
        changed, self.next = self.next, asyncio.Event()
        changed.set()


class SharedCalls:
    """Calls in progress and waiting calls, by question."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, asyncio.Task[Any]] = {}
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self.begun = 0
        """How many calls there were."""

    async def call(self, question: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """Returns the answer of a call that begins after this request, shared by all waiters."""
        task = self._waiting.get(question)
        if task is None:
            before = self._running.get(question)
            task = asyncio.create_task(self._run(question, ask, before))
            task.add_done_callback(_heard)
            self._waiting[question] = task
        # A cancelled caller does not cancel the call for the others.
        return await asyncio.shield(task)

    async def _run(
        self, question: Hashable, ask: Callable[[], Awaitable[T]], before: asyncio.Task[Any] | None
    ) -> T:
        if before is not None:
            await asyncio.wait([before])
        own = self._running[question] = self._waiting.pop(question)
        self.begun += 1
        try:
            return await ask()
        finally:
            if self._running.get(question) is own:
                del self._running[question]


def _heard(task: asyncio.Task[Any]) -> None:
    """Retrieves an error without a waiting caller, so that the loop does not report it."""
    if not task.cancelled():
        task.exception()


class LoopTurns:
    """Lets at most `most` of the tasks that `take` a turn go on between two looks at connections.

    They go on in the order in which they asked.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most
        self._renews = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Returns when it is the caller's turn."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] | None = None
        if self._left and not self._waiting:
            self._left -= 1
        else:
            turn = loop.create_future()
            self._waiting.append(turn)
        if not self._renews:
            self._renews = True
            loop.call_soon(self._renew, loop)
        if turn is not None:
            await turn

    def _renew(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = self._most
        while self._left and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._left -= 1
        self._renews = self._left < self._most
        if self._renews:
            loop.call_soon(self._renew, loop)
