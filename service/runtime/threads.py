"""Where blocking work runs: a thread in the service, in place in a simulation.

What is handed over here are segments, chunks and the like: work that can wait. So its
threads stand behind the event loop, which does not wait for a processor because of them.

Who answers goes first: what can wait gets the processor when nobody else wants it. Encoding
and compacting take more of it than answering does, and in long pieces. With fewer cores than
work the kernel would let the event loop wait for them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol, TypeVar

_STEP = 10
_LOWEST = 19
_TRIES = 10
_PAUSE_SECONDS = 0.11


def lower_priority(task: int) -> None:
    """Lowers the priority of a process, which its children inherit, or of one Linux thread.

    `task` is the system's number; one that is gone is left alone.
    """
    with suppress(ProcessLookupError):
        now = os.getpriority(os.PRIO_PROCESS, task)
        os.setpriority(os.PRIO_PROCESS, task, min(now + _STEP, _LOWEST))


async def lower_priority_of_session(leader: int) -> None:
    """The same for a process that was started in a session of its own, and for its children.

    Between sessions Linux shares the processors by the session, and within each by the priorities
    of its processes, which then say nothing to those outside (`sched(7)`, autogroup). So the
    session is given the priority as well. A system without this has no such file, and where it
    cannot be written (`/proc` is mounted read-only) the priority of the processes is all there is.
    """
    lower_priority(leader)
    for _ in range(_TRIES):
        try:
            _write(f"/proc/{leader}/autogroup", str(_STEP))
        except BlockingIOError:  # it takes ten a second, of all programs without privileges
            await asyncio.sleep(_PAUSE_SECONDS)
        except OSError:
            return
        else:
            return


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


T = TypeVar("T")
_THREADS = 6


class Offload(Protocol):
    """Runs a blocking call and gives its result."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """Raises what `work` raises."""
        ...


def _begin() -> None:
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        lower_priority(threading.get_native_id())


def low_priority_threads(number: int, name: str) -> ThreadPoolExecutor:
    """Threads for work that can wait, apart from those of `in_thread`, since it may take long."""
    return ThreadPoolExecutor(number, thread_name_prefix=name, initializer=_begin)


_threads = low_priority_threads(_THREADS, "offload")


async def in_thread(work: Callable[[], T]) -> T:
    """Runs the call in a thread with less priority than the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


async def in_place(work: Callable[[], T]) -> T:
    """Runs the call on the event loop, for simulations, where order must repeat."""
    return work()
