"""A step of a start that is tried until the store allows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from service.runtime.health import HealthProblem
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import OutcomeUnknown, Unavailable, with_hint

_RETRY_SECONDS = 1.0


async def insist(
    step: Callable[[], Awaitable[None]], clock: Clock, told: Callable[[str | None], None], what: str
) -> None:
    """Returns when `step` was possible; `told` hears the reason why not, and None at the end."""
    while True:
        try:
            await step()
        except (Unavailable, OutcomeUnknown) as error:
            told(HealthProblem(what, f"{what}: {with_hint(error)}"))
            await clock.sleep(_RETRY_SECONDS)
        else:
            told(None)
            return


# One call for all who ask the same at the same time.
#
#   answer = await calls.call(("size", key), lambda: reader.size(key))
#
# A thousand readers of a run that connect at once ask the same of the store. Each gets the answer
# of a call that begins after it asked, so nobody is told what was true before: of one question
# there are at most a call in progress and one that waits for its end, which everybody joins who
# asks meanwhile.


T = TypeVar("T")


class SharedCalls:
    """Calls by what they ask."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, asyncio.Task[Any]] = {}
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self.begun = 0
        """How many calls there were."""

    async def call(self, question: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of a call that begins after this one, for all who wait for it."""
        task = self._waiting.get(question)
        if task is None:
            before = self._running.get(question)
            task = asyncio.create_task(self._run(question, ask, before))
            task.add_done_callback(_heard)
            self._waiting[question] = task
        # Somebody who leaves does not take the answer away from the others.
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
    """An error that nobody waits for any more is no fault of the loop."""
    if not task.cancelled():
        task.exception()
