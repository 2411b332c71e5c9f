"""A thread of its own for each appender, so that one that hangs holds up itself alone.

The thread is a daemon: a process that is told to stop ends although an appender hangs. What that
appender had not synced comes again, as after a crash.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class OwnThread:
    """Makes blocking calls one after another."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """What the call gives; raises what it raises."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def tell(done: Callable[[], None]) -> None:
            if not outcome.done():  # the caller may have been cancelled
                done()

        def work() -> None:
            try:
                result = call(*arguments)
            except BaseException as error:  # noqa: BLE001 -- it is raised where it is waited for
                failure = error
                loop.call_soon_threadsafe(tell, lambda: outcome.set_exception(failure))
            else:
                loop.call_soon_threadsafe(tell, lambda: outcome.set_result(result))

        self._calls.put(work)
        return await outcome

    def close(self) -> None:
        """Ends the thread behind the calls that were made."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except RuntimeError:  # the loop is closed: nobody waits any more
                return
