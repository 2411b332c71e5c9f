"""Many searches at once: slots, a queue, time limits, and cancelling.

A search works in a thread, a piece at a time, and is stopped from the event loop: when
its time is over, when its client goes away, or when its client takes nothing for too
long. Stopping interrupts DuckDB; memory, spill files, the journal's pin and the slot
are given back once its thread has come to rest.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import pyarrow as pa

from logstore import keys, ulid
from logstore.clock import Clock
from logstore.errors import LimitReached, TailraceError, Unavailable
from service.query.limits import QueryLimits
from service.query.request import QueryRequest
from service.query.search import Search
from service.query.view import Sources, View, open_view

if TYPE_CHECKING:
    from service.query.bucket import Bucket
    from service.query.database import Database

_NUDGE_SECONDS: Final = 0.05
_SHOWN: Final = 20

T = TypeVar("T")


class QueryEngine:
    """Runs searches over `sources`; `scratch` is a folder of its own for spilling.

    `bucket` says how DuckDB reads the store if it is on S3.
    """

    def __init__(
        self,
        sources: Sources,
        *,
        clock: Clock,
        scratch: str,
        limits: QueryLimits | None = None,
        bucket: Bucket | None = None,
    ) -> None:
        self.limits = limits or QueryLimits()
        self.clock = clock
        self.running = 0
        self.waiting = 0
        self.refused = 0
        self.stopped = 0
        self._sources = sources
        self._bucket = bucket
        self._scratch = scratch
        self._numbers = itertools.count()
        self._slots = asyncio.Semaphore(self.limits.concurrent)
        self._threads = ThreadPoolExecutor(self.limits.concurrent, thread_name_prefix="query")
        # What a killed process spilled is of no use to anybody.
        shutil.rmtree(scratch, ignore_errors=True)
        os.makedirs(scratch, exist_ok=True)

    async def open(self, request: QueryRequest) -> RunningSearch:
        """Starts a search; close it. Waits for a slot if all are taken.

        Raises `InvalidInput` (a regular expression), `Unavailable` (the queue is full),
        `StoreUnavailable`.
        """
        await self._enter()
        try:
            view = await open_view(self._sources, request)
            running = RunningSearch(self, request, view, self._database())
        except BaseException:
            self.leave()
            raise
        try:
            await running.start()
        except BaseException:
            await running.close()
            raise
        return running

    async def may_hold(self, request: QueryRequest) -> bool:
        """False only if no segment and no file of the table has what is asked for.

        Without a slot and without a database: footers and the table's log tell. Raises
        `StoreUnavailable`.
        """
        view = await open_view(self._sources, request)
        view.release()
        report = view.report
        return bool(report.segments or report.files) or not report.complete

    def close(self) -> None:
        """Lets the threads go; searches that still run fail."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _enter(self) -> None:
        if self._slots.locked() and self.waiting >= self.limits.waiting:
            self.refused += 1
            raise Unavailable(
                f"{self.running} searches run and {self.waiting} wait",
                hint="Try again in a moment, or narrow the searches that run.",
            )
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1

    def leave(self) -> None:
        """Gives a slot back."""
        self.running -= 1
        self._slots.release()

    def _database(self) -> Callable[[], Database]:
        folders = [self._sources.store.uri(keys.SEGMENTS.rstrip("/")), self._sources.table.uri]
        spill = str(Path(self._scratch) / str(next(self._numbers)))

        def opened() -> Database:
            # Here, in the search's thread: a node that nobody searches does without DuckDB.
            from service.query.database import Database

            return Database(self.limits, folders, spill, self._bucket)

        return opened

    async def in_thread(self, call: Callable[[], T]) -> T:
        """`call` in one of the searches' threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


class RunningSearch:
    """A search under way. Not for several tasks at once."""

    def __init__(
        self,
        engine: QueryEngine,
        request: QueryRequest,
        view: View,
        database: Callable[[], Database],
    ) -> None:
        self.request = request
        self.report = view.report
        self._engine = engine
        self._view = view
        self._make_database = database
        self._database: Database | None = None
        self._search: Search | None = None
        self._records: Generator[pa.RecordBatch] | None = None
        self._work: asyncio.Future[Any] | None = None
        self._left_seconds = engine.limits.max_seconds
        self._closing: asyncio.Task[None] | None = None
        self._stopped: TailraceError | None = None

    async def start(self) -> None:
        """Makes the database and checks what only it can check. Raises `InvalidInput`."""
        await self._step(self._prepare)

    async def batches(self) -> AsyncGenerator[pa.RecordBatch]:
        """The matches in order. Raises `LimitReached`, `Damaged`, `StoreUnavailable`."""
        self._records = records = self._running().batches()
        while (batch := await self._step(lambda: next(records, None))) is not None:
            impatient = asyncio.ensure_future(self._let_go())
            try:
                yield batch
            finally:
                impatient.cancel()

    async def count(self) -> int:
        """How many records match, whatever the limit. Raises as `batches`."""
        return await self._step(self._running().count)

    def stats(self) -> dict[str, Any]:
        """What was searched and found so far; authoritative once all was taken."""
        report, search = self.report, self._running()
        return {
            "complete": report.complete,
            "matches": search.matches,
            "next": search.next,
            "nodes": len(report.nodes),
            "segments": report.segments,
            "files": report.files,
            "bytes": search.bytes,
            "set_aside": report.aside[:_SHOWN],
            "missing": report.missing[:_SHOWN],
            "unreadable": list(report.unreadable)[:_SHOWN],
            "from": ulid.encode(self.request.low),
            "to": ulid.encode(self.request.high),
        }

    async def close(self) -> None:
        """Stops it if need be, and gives back all that it holds. May be repeated."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _prepare(self) -> None:
        limits = self._engine.limits
        self._database = self._make_database()
        self._search = Search(self.request, self._view, self._database, limits)

    def _clear(self) -> None:
        if self._records is not None:
            self._records.close()
        if self._database is not None:
            self._database.close()

    def _running(self) -> Search:
        assert self._search is not None, "start() comes first"
        return self._search

    async def _step(self, call: Callable[[], T]) -> T:
        """One piece of work in a thread, within what is left of the time."""
        if self._stopped is not None:
            raise self._stopped
        clock = self._engine.clock
        began = clock.monotonic()
        self._work = work = asyncio.ensure_future(self._engine.in_thread(call))
        alarm = asyncio.ensure_future(self._time_out(work))
        try:
            return await asyncio.shield(work)
        finally:
            alarm.cancel()
            self._left_seconds -= clock.monotonic() - began

    async def _time_out(self, work: asyncio.Future[Any]) -> None:
        await self._engine.clock.sleep(self._left_seconds)
        await self._stop(
            work,
            LimitReached(
                f"the search was stopped after {self._engine.limits.max_seconds:g} s of work",
                hint="Narrow the time, name an fqn or run, or set a limit.",
            ),
        )

    async def _let_go(self) -> None:
        """Ends a search whose client takes nothing: it holds a slot and journal files."""
        seconds = self._engine.limits.stall_seconds
        await self._engine.clock.sleep(seconds)
        self._stopped = LimitReached(f"nothing was taken of the result for {seconds:g} s")
        self._closing = asyncio.ensure_future(self._close())

    async def _stop(self, work: asyncio.Future[Any], reason: TailraceError) -> None:
        """Interrupts until the thread has come to rest."""
        self._stopped = self._stopped or reason
        self._engine.stopped += 1
        while not work.done():
            if self._database is not None:
                self._database.interrupt(reason)
            await asyncio.wait({work}, timeout=_NUDGE_SECONDS)

    async def _close(self) -> None:
        work = self._work
        if work is not None:
            if not work.done():
                await self._stop(work, LimitReached("the search was cancelled"))
            work.cancelled() or work.exception()  # looked at, so that asyncio does not warn
        self._stopped = self._stopped or LimitReached("the search is closed")
        try:
            await self._engine.in_thread(self._clear)
        finally:
            self._view.release()
            self._engine.leave()
