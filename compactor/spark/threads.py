"""Runs Spark's calls in threads that the end of the process does not wait for.

A job or a start takes minutes, and a process that has to stop may have seconds. Every step may
be interrupted anywhere, so such a call is abandoned; its JVM ends when it finds the pipe
from this process closed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs the call in a thread of its own; returns or raises as it does.

    Cancelling does not end it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def give(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # it is what `call` gave

    def run() -> None:
        result, failure = None, None
        try:
            result = call(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(give, result, failure)

    threading.Thread(target=run, name="spark", daemon=True).start()
    return await future
