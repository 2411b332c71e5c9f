"""Signals of changes, and calls that simultaneous callers share.

A thousand readers of a run that connect at once ask the store the same question:

    answer = await calls.call(("size", key), lambda: reader.size(key))

`SharedCalls` gives each caller the answer of a call that begins after its request, so no answer is
older than its request. Of one question there is at most one call in progress and one that waits for
its end; all callers that ask meanwhile share the waiting one.
"""

from __future__ import annotations

import asyncio
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
