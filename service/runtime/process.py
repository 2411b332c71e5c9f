"""What the node asks of its process: descriptors that suffice.

A process that has used up its descriptors can neither write a journal file nor reach the
store. So the limit is raised at the start as far as the system lets it, and connections
get only a part of it: the rest is for the journal, the store and searches.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import aiohttp

from tailrace.logstore.filesystem import ENOUGH, open_files

_MOST_KEPT = 1024


def raise_limit() -> int:
    """Raises the process's limit of open files, and gives it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return open_files()


def for_connections(files: int) -> int:
    """How many of `files` connections may have: all but half, or but 1,024 if half is more."""
    return max(1, files - min(files // 2, _MOST_KEPT))


# Where blocking work runs: a thread in the service, in place in a simulation.
#
# What is handed over here are segments, chunks and the like: work that can wait. So its threads
# stand behind the event loop, which does not wait for a processor because of them.
#
# Who answers goes first: what can wait gets the processor when nobody else wants it. Encoding and
# compacting take more of it than answering does, and in long pieces. With fewer cores than work
# the kernel would let the event loop wait for them.


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


# The loop's handler of errors that nobody awaits: logs all, but for one that is told elsewhere.
#
# aiohttp writes a request in a task of its own. If the connection was lost just before, both the
# request, which its caller hears of, and that task fail; the task's error is awaited by nobody.


def log_but_lost_writes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs as the loop does by itself, without the second telling of a lost connection."""
    written_by = context.get("future")
    error = context.get("exception")
    if isinstance(error, aiohttp.ClientConnectionResetError) and isinstance(
        written_by, asyncio.Task
    ):
        return
    loop.default_exception_handler(context)


# The end of a stop that takes too long.
#
# A thread that waits for a store which hangs cannot be ended, and Python waits for it at its
# exit. Once a stop has begun, the process therefore ends at its deadline, whatever hangs: the
# journal has everything that was acknowledged, and the next start goes on from there.


log = logging.getLogger(__name__)

MARGIN_SECONDS: Final = 10.0
"""What a stop may take beyond `server.stop_seconds`: for replies, leases and child processes."""
_EXIT_SECONDS: Final = 3.0


class StopDeadline:
    """The deadline of one process; `status` is its exit status if it is ended."""

    def __init__(self, status: int) -> None:
        self.status = status
        self._until = 0.0
        self._sooner = threading.Event()
        self._watching: threading.Thread | None = None

    def begin(self, seconds: float) -> None:
        """Ends the process in so many seconds, unless it has ended by itself."""
        self._until = time.monotonic() + seconds
        if self._watching is None:
            watching = threading.Thread(target=self._watch, name="stop deadline", daemon=True)
            self._watching = watching
            watching.start()

    def stopped(self, status: int) -> None:
        """All parts have stopped: only threads can still hold the process up."""
        self.status = status
        self._until = min(self._until, time.monotonic() + _EXIT_SECONDS)
        self._sooner.set()

    def _watch(self) -> None:
        while (left := self._until - time.monotonic()) > 0:
            self._sooner.wait(left)
            self._sooner.clear()
        waiting = sorted({t.name for t in threading.enumerate() if not t.daemon})
        log.error("the stop is over, and threads still wait: %s", ", ".join(waiting))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(self.status)
