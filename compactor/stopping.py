"""Stopping when told to: by a signal, or by the end of the `spark-submit` that started this.

The work is cancelled, gives its leases back, and what Spark was doing is left undone. A signal
to `spark-submit` ends its JVM and does not reach this process, which would go on without a
Spark. But its input is a pipe from that JVM, so the end of that is a signal as well.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from compactor.spark.conf import submitted


def run_until_told(work: Coroutine[Any, Any, None]) -> bool:
    """Runs the work; whether it came to its end. Raises what it raises."""
    try:
        asyncio.run(_until_told(work))
    except asyncio.CancelledError:
        return False
    return True


async def _until_told(work: Coroutine[Any, Any, None]) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.create_task(work)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    if submitted():
        _at_the_end_of_input(loop, task.cancel)
    await task


def _at_the_end_of_input(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    def read() -> None:
        with suppress(OSError):
            while os.read(sys.stdin.fileno(), 4096):
                pass
        with suppress(RuntimeError):  # the loop is closed: there is nothing to stop
            loop.call_soon_threadsafe(call)

    threading.Thread(target=read, name="input", daemon=True).start()
