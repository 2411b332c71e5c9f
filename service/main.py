"""`tailrace serve`: the node, its HTTP API, and the compactor, from start to stop.

A stop has an order: the node refuses new batches (503, so clients use other nodes) while the API
still answers, brings its lines into the store, ends live streams, and only then the API closes. A
second signal ends the process at once; the journal has everything that was acknowledged. So does a
deadline, if threads wait for a hanging store (`service.runtime.process`). A start does not wait for
the store either: its checks of the store continue while the service listens.

The problems that `/health/ready` reports are also logged, for an operator who reads only the log:
once when a problem begins, and once when it is over.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import uvloop

from service.access.access import following_rules
from service.compaction import CompactionChild, job_command, job_environment
from service.http.admin import open_leases
from service.http.authorization import AccessControl
from service.http.internal import answering_nodes, node_socket
from service.http.server import Sharing, address, bound_socket, serving
from service.metrics.workers import WorkerPlace
from service.node import Node
from service.runtime.health import StoreCheck, by_name
from service.runtime.process import (
    MARGIN_SECONDS,
    RestartPolicy,
    StopDeadline,
    log_but_lost_writes,
    raise_limit,
)
from service.settings import Settings
from service.wiring import (
    Machine,
    internal,
    make_access_control,
    make_app,
    make_engine,
    make_live,
    make_node,
    make_queue,
    make_sources,
    make_store_check,
)
from service.workers import LINES_LEFT, WorkerProcesses, left_behind
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey, ulid_of
from tailrace.logstore.clock import Clock, SystemClock
from tailrace.logstore.errors import InvalidInput, TailraceError
from tailrace.logstore.filesystem import apply_umask, close_to_others
from tailrace.logstore.java import why_no_spark
from tailrace.logstore.objects.config import open_store
from tailrace.logstore.process import give_back_freed_memory
from tailrace.logstore.progress import log_to

log = logging.getLogger(__name__)

# The node has stopped by then: only clients that do not read still have requests.
_LAST_REPLIES_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_RUNS_NAMED = 20
_WORKERS_RESTART = RestartPolicy(longest_pause_seconds=30.0)
Serving: TypeAlias = Callable[..., Coroutine[Any, Any, int]]


def serve(settings: Settings) -> int:
    """Runs until SIGTERM or SIGINT. Returns the exit status. Raises errors of the start."""
    prepare(settings)
    workers = settings.server.workers > 1 or left_behind(settings, 1)
    serving = run_workers if workers else partial(run, deadline=StopDeadline(LINES_LEFT))
    work = _until_signalled(settings, serving)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def prepare(settings: Settings) -> None:
    """Prepares a process before it serves: its log, permissions, memory and limits.

    Raises `InvalidInput` for a data folder that cannot be one.
    """
    _check_folder(settings.data)
    log_to(sys.stderr, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # this module logs starts and stops
    apply_umask(settings.umask)
    close_to_others(os.path.join(settings.data, "journal"))
    gc.freeze()  # loaded objects stay: collections, which delay all work, skip them
    give_back_freed_memory()
    raise_limit()


def _check_folder(data: str) -> None:
    path = Path(data).absolute()
    there = next(place for place in (path, *path.parents) if place.exists())
    if not there.is_dir():
        raise InvalidInput(
            f"the data folder {data} cannot be made: {there} is a file",
            hint="Choose another folder with --data.",
        )
    if not os.access(there, os.W_OK):
        raise InvalidInput(
            f"nothing can be written into {there}: its disk is read-only, or it is another user's",
            hint="Mount the disk for writing, or choose another folder with --data.",
        )


async def _until_signalled(settings: Settings, serving: Serving) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if settings.access.rules:  # a parent of workers, which read the file themselves
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
    return await serving(settings, stop, on_listening=_announce)


def _announce(url: str) -> None:
    log.info("listening on %s; the live page is there", url)


async def run_workers(
    settings: Settings, stop: asyncio.Event, *, on_listening: Callable[[str], None]
) -> int:
    """Serves by several processes until `stop`, as `run` does by one."""
    workers = WorkerProcesses(settings, SystemClock(), _WORKERS_RESTART)
    return await workers.run(stop, on_listening=on_listening)


async def run(
    settings: Settings,
    stop: asyncio.Event,
    *,
    on_listening: Callable[[str], None],
    bound: socket.socket | None = None,
    place: WorkerPlace | None = None,
    sharing: Sharing | None = None,
    deadline: StopDeadline | None = None,
) -> int:
    """Serves until `stop`. Returns 0, `LINES_LEFT`, or 1 if the node failed.

    Without a `bound` socket it binds the address of the settings. `place` is its number among
    several workers, and `sharing` the state that it shares with them. With a `deadline` the process
    ends soon after `server.stop_seconds`.

    Raises `FolderLocked`, `Unavailable`, and `InvalidInput` for a store that refuses what the
    service needs.
    """
    machine = _machine()
    async with AsyncExitStack() as stack:
        control = make_access_control(settings, machine)
        node, check, asked, bound = await _begin(stack, settings, machine, bound)
        _log_torn(node)
        sources = make_sources(settings, node)
        engine = make_engine(settings, machine, node, sources)
        stack.callback(engine.close)
        live = make_live(engine, sources, node)
        stack.push_async_callback(live.close)
        queue = make_queue(settings, node)
        opening_leases = open_leases(settings.source_coordination, node.environment)
        leases = await stack.enter_async_context(opening_leases)
        child = _compactor(settings, machine)
        app = make_app(
            settings, machine, node, lambda: engine, live, queue, leases, child, place, control
        )
        machine.problems.append(queue.problems)
        problems = [node.lasting_problems]
        if control is not None:
            problems.append(control.problems)
            await stack.enter_async_context(_following(settings, control, machine))
        http = await stack.enter_async_context(
            serving(
                app,
                bound,
                stop_seconds=_LAST_REPLIES_SECONDS,
                secured=place is None,
                sharing=sharing,
            )
        )
        await stack.enter_async_context(_answering(settings, node, asked, control))
        compacting = asyncio.create_task(child.run(), name="compaction")
        stack.callback(compacting.cancel)
        watch = ProblemLog(lambda: [p for each in problems for p in each()], machine.clock)
        await stack.enter_async_context(_beside(watch.run(), "problems"))
        await stack.enter_async_context(_beside(_look_at_store(check, machine, node), "store"))
        await stack.enter_async_context(_beside(queue.run(), "queue"))
        # Parts stop in the reverse order of their start; the API answers meanwhile.
        stack.push_async_callback(_stop_both, node, compacting)
        stack.callback(queue.stop)
        on_listening(address(bound, "https" if settings.server.tls_certificate else "http"))
        _log_places(settings, compacting=child.starts_any)
        status = await _until_over(stop, http, [node.failed, check.refused])
        if deadline is not None:
            deadline.begin(settings.server.stop_seconds + MARGIN_SECONDS)
    status = status or _left_behind(settings, node)
    if deadline is not None:
        deadline.stopped(status)
    return status


class _StartedNode(NamedTuple):
    """A started node, the check of its store, and the sockets for other nodes and for clients."""

    node: Node
    check: StoreCheck
    asked: socket.socket | None
    bound: socket.socket


async def _begin(
    stack: AsyncExitStack, settings: Settings, machine: Machine, bound: socket.socket | None
) -> _StartedNode:
    """Opens the store and starts the node. Raises as `run`."""
    opening = open_store(settings, machine.clock, machine.entropy, machine.fs)
    store = await stack.enter_async_context(opening)
    check = make_store_check(settings, machine, store)
    stack.callback(check.close)
    await check.first()
    bound = bound or bound_socket(settings.server.host, settings.server.port)
    stack.callback(bound.close)
    asked = node_socket(settings.nodes)
    node = make_node(settings, machine, store, check, _asked_at(asked, bound))
    stack.callback(node.environment.answers.close)
    await node.start()
    return _StartedNode(node, check, asked, bound)


async def _stop_both(node: Node, compacting: asyncio.Task[None]) -> None:
    """Stops the node, and the compactor meanwhile."""
    compacting.cancel()
    await asyncio.gather(node.stop(), asyncio.wait({compacting}))
    if not compacting.cancelled():
        compacting.result()


def _machine() -> Machine:
    """Makes the machine, and sets the loop's handler of errors that no task awaits."""
    asyncio.get_running_loop().set_exception_handler(log_but_lost_writes)
    return Machine()


def _left_behind(settings: Settings, node: Node) -> int:
    """The exit status: whether a stopped node has lines that only its disk has."""
    if node.only_reads:
        return 0
    left = _lines_left(node)
    if not left:
        return 0
    named = ", ".join([f"{key.fqn}/{key.run}" for key in list(left)[:_RUNS_NAMED]])
    others = len(left) - _RUNS_NAMED
    log.error(
        "%d lines are only in the journal: keep %s, and the next start on it stores them. They"
        " are of %s",
        sum(left.values()),
        _journal_of(settings),
        named if others <= 0 else f"{named}, and {others} other runs",
    )
    return LINES_LEFT


def _lines_left(node: Node) -> dict[RunKey, int]:
    """The number of lines in no segment by run, without deleted ones, oldest run first."""
    left: dict[RunKey, int] = {}
    with node.pin() as pin:
        batches = pin.batches(start=node.writer.journal.state.confirmed.end)
        numbers, first = np.unique(batches.rows["run"], return_index=True)
        for number in numbers[np.argsort(first)].tolist():
            key, rows = batches.runs[number], batches.rows[batches.rows["run"] == number]
            horizon = node.run_logs.deletions.horizon(key)
            if horizon:
                last = [ulid_of(row) + int(row["records"]) - 1 for row in rows]
                count = sum(
                    min(max(ulid - horizon, 0), int(records))
                    for ulid, records in zip(last, rows["records"], strict=True)
                )
            else:
                count = int(rows["records"].sum())
            if count:
                left[key] = count
    return left


def _journal_of(settings: Settings) -> str:
    return os.path.abspath(os.path.join(settings.data, "journal"))


def _log_places(settings: Settings, *, compacting: bool) -> None:
    if settings.server.role == "query":
        log.info("this node only reads; runs and table are in %s", settings.store_place)
    else:
        where = (_journal_of(settings), settings.store_place)
        log.info("the journal is in %s, runs and table are in %s", *where)
    if compacting:
        log.info("a compactor makes the table, every %g s", settings.compaction.every_seconds)


def _log_torn(node: Node) -> None:
    """Logs torn tails: they were never acknowledged, but a failing disk looks the same."""
    for tail in () if node.only_reads else node.writer.recovered.torn:
        log.info(
            "%s: %d bytes at %d cannot be read and were moved into aside/: an interrupted write,"
            " or damage",
            *(tail.file, tail.size, tail.offset),
        )


async def _look_at_store(check: StoreCheck, machine: Machine, node: Node) -> None:
    """Checks the store until it has answered, and reads damaged state objects again."""
    async with asyncio.TaskGroup() as group:
        group.create_task(check.run())
        group.create_task(machine.state.run(node.store, machine.clock))


def _compactor(settings: Settings, machine: Machine) -> CompactionChild:
    """The compactor as a child process, not started, or the reason for its absence."""
    off = why_no_spark() if settings.compaction.enabled else "compaction.enabled is false"
    if settings.server.role == "query":
        off = "server.role is query"
    return CompactionChild(
        job_command(settings), machine.clock, off=off, environment=job_environment(settings)
    )


def _following(
    settings: Settings, control: AccessControl, machine: Machine
) -> AbstractAsyncContextManager[object]:
    seconds = settings.access.reload_seconds
    return following_rules(control.access, control.audit, machine.clock, seconds)


def _asked_at(asked: socket.socket | None, bound: socket.socket) -> str:
    """The URL for other nodes, unless the settings have another one."""
    return address(bound) if asked is None else address(asked, "https")


@asynccontextmanager
async def _answering(
    settings: Settings, node: Node, asked: socket.socket | None, control: AccessControl | None
) -> AsyncIterator[None]:
    """Answers other nodes at their own address while the block runs, if it is configured."""
    if asked is None:
        yield
        return

    def fresh_id() -> str:
        return ulids.fresh_text(node.environment.clock, node.environment.entropy)

    (router,) = internal(settings, node, None, control)
    async with answering_nodes(router, asked, settings.nodes, fresh_id):
        yield


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Runs the work while the block runs, and no longer."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _until_over(
    stop: asyncio.Event, http: asyncio.Task[None], failures: Sequence[asyncio.Future[BaseException]]
) -> int:
    stopped = asyncio.ensure_future(stop.wait())
    ends: set[asyncio.Future[Any]] = {stopped, http, *failures}
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    for failed in failures:
        if failed.done():
            error = failed.result()
            hint = error.hint if isinstance(error, TailraceError) else ""
            log.error("the node cannot go on: %s. %s", error, hint, exc_info=error)
            return 1
    return 0


class ProblemLog:
    """Logs a problem as a warning when it begins, and as information when it is over."""

    def __init__(self, problems: Callable[[], Iterable[str]], clock: Clock) -> None:
        self._problems = problems
        self._clock = clock
        self._logged: dict[str, str] = {}

    async def run(self) -> None:
        """Compares the problems once a second, until cancelled."""
        while True:
            self.look()
            await self._clock.sleep(_LOOK_SECONDS)

    def look(self) -> None:
        """Logs new problems, and problems that are over."""
        now = by_name(self._problems())
        for name in sorted(now.keys() - self._logged.keys()):
            log.warning("%s", now[name])
        for name in sorted(self._logged.keys() - now.keys()):
            log.info("over: %s", self._logged[name])
        self._logged = now
