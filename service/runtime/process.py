"""The process of a node: open files, priorities, error handler, child processes, stop deadline.

**Open files.** A process that has used up its descriptors can neither write a journal file nor
reach the store. So the limit is raised at the start as far as the system allows, and connections
get only a part of it: the rest is for the journal, the store and searches.

**Priorities.** Blocking work runs in a thread in the service, and in place in a simulation
(`Offload`). It is work that can wait: segments, chunks and the like. Its threads have less priority
than the event loop, so that requests are answered first. Encoding and compacting take more of the
processor than answering does, and in long pieces. With fewer cores than work the kernel would make
the event loop wait for them.

**Error handler** (`log_but_lost_writes`). It logs all errors that no task awaits, except one that
is reported elsewhere. aiohttp writes a request in a task of its own. If the connection was lost
just before, both the request, whose caller gets the error, and that task fail; the error of the
task is not awaited.

**Child processes.** Each kind has its own protocol; all start and stop in the same way. A child
has a process group of its own, so a terminal's Ctrl-C reaches only the service. It does not outlive
the service: its standard input ends, or the kernel ends it.

**Stop deadline** (`StopDeadline`). A thread that waits for a hanging store cannot be ended, and
Python waits for it at its exit. Once a stop has begun, the process therefore ends at its deadline,
whatever hangs: the journal has everything that was acknowledged, and the next start continues from
it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from tailrace.logstore.filesystem import ENOUGH, open_files
from tailrace.logstore.retry import Backoff

_MOST_KEPT = 1024


def raise_limit() -> int:
    """Raises the process's limit of open files. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return open_files()


def for_connections(files: int) -> int:
    """The share of connections in `files`: all but half, or all but 1,024 if half is more."""
    return max(1, files - min(files // 2, _MOST_KEPT))


_STEP = 10
_LOWEST = 19
_TRIES = 10
_PAUSE_SECONDS = 0.11


def lower_priority(task: int) -> None:
    """Lowers the priority of a process, which its children inherit, or of one Linux thread.

    `task` is the system's number; a task that has ended is ignored.
    """
    with suppress(ProcessLookupError):
        now = os.getpriority(os.PRIO_PROCESS, task)
        os.setpriority(os.PRIO_PROCESS, task, min(now + _STEP, _LOWEST))


async def lower_priority_of_session(leader: int) -> None:
    """Lowers the priority of a process that leads its own session, and of its children.

    Linux shares the processors between sessions, and within each by the priorities of its
    processes, which have no effect outside of it (`sched(7)`, autogroup). So the session gets the
    priority as well. A system without autogroups has no such file. If the file cannot be written
    (`/proc` is mounted read-only), only the priorities of the processes count.
    """
    lower_priority(leader)
    for _ in range(_TRIES):
        try:
            _write(f"/proc/{leader}/autogroup", str(_STEP))
        except BlockingIOError:  # the kernel accepts ten a second from all unprivileged programs
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
    """Runs a blocking call and returns its result."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """Raises the errors of `work`."""
        ...


def _begin() -> None:
    if sys.platform == "linux":  # on other systems a thread has no priority of its own
        lower_priority(threading.get_native_id())


def low_priority_threads(number: int, name: str) -> ThreadPoolExecutor:
    """Threads for long work that can wait, separate from those of `in_thread`."""
    return ThreadPoolExecutor(number, thread_name_prefix=name, initializer=_begin)


_threads = low_priority_threads(_THREADS, "offload")


async def in_thread(work: Callable[[], T]) -> T:
    """Runs the call in a thread with less priority than the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


async def in_place(work: Callable[[], T]) -> T:
    """Runs the call on the event loop, for simulations, which must be repeatable."""
    return work()


def log_but_lost_writes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs like the loop's own handler, except the second report of a lost connection."""
    written_by = context.get("future")
    error = context.get("exception")
    if isinstance(error, ConnectionResetError) and isinstance(written_by, asyncio.Task):
        from aiohttp import ClientConnectionResetError  # a node without peers does not load it

        if isinstance(error, ClientConnectionResetError):
            return
    loop.default_exception_handler(context)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The pauses between a child's end and the next start, and the longest wait for its stop."""

    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 300.0
    healthy_seconds: float = 60.0
    """A child that lived so long begins again with the first pause."""
    stop_seconds: float = 10.0

    def backoff(self) -> Backoff:
        """The pauses of a child."""
        return Backoff(self.first_pause_seconds, self.longest_pause_seconds)


def module_command(module: str) -> list[str]:
    """Returns the command that runs a module of this installation, in any working directory."""
    return [sys.executable, "-P", "-m", module]


def start_with_socket(module: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts a module whose standard input is the other end of the socket. Raises `OSError`."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            child = subprocess.Popen(
                module_command(module),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                process_group=0,  # it keeps our session, and so its share of the processors
            )
    except OSError:
        ours.close()
        raise
    return child, ours


async def start_session(command: Sequence[str], **options: Any) -> asyncio.subprocess.Process:
    """Starts a command of low priority, in a session that ends with us. Raises `OSError`."""
    setpriv = shutil.which("setpriv")
    dying_with_us = [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []
    leader = await asyncio.create_subprocess_exec(
        *dying_with_us, *command, stdin=subprocess.DEVNULL, start_new_session=True, **options
    )
    try:
        await lower_priority_of_session(leader.pid)
    except BaseException:
        await stop_session(leader, 0)
        raise
    return leader


async def stop_session(leader: asyncio.subprocess.Process, patience_seconds: float) -> bool:
    """Asks a child to stop; after its end or the patience, kills what is left of its session.

    Returns true if it stopped by itself. A caller that is cancelled leaves nothing alive.
    """
    with suppress(ProcessLookupError):
        leader.terminate()
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(leader.wait(), patience_seconds)
        return leader.returncode is not None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        await leader.wait()


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
        """Ends the process in `seconds`, unless it has ended by itself."""
        self._until = time.monotonic() + seconds
        if self._watching is None:
            watching = threading.Thread(target=self._watch, name="stop deadline", daemon=True)
            self._watching = watching
            watching.start()

    def stopped(self, status: int) -> None:
        """Records that all parts have stopped; only threads can still delay the end."""
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
