"""Many searches at once: slots, a queue, time limits, and cancelling.

A search works in a thread, a piece at a time, and is stopped from the event loop: when its time is
over, when its client goes away, or when its client takes nothing for too long. Stopping interrupts
DuckDB, or ends the process of a search by regular expression; memory, spill files, the journal's
pin and the slot are given back once its thread has come to rest.

A slot is for work. A search whose client does not read pauses as soon as another one waits: it
gives back slot, database and memory, keeps its view, and when its client reads on it waits for a
slot and goes on behind the last record. So unread results hold up nobody; those that pause are
bounded, and the one that is unread for longest ends first.
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
from service.query.conditions import patterns
from service.query.pool import DatabasePool
from service.query.request import QueryRequest
from service.query.search import Search
from service.query.settings import QuerySettings
from service.query.skip_indexes import SkipIndexes
from service.query.tiles import TileSizes
from service.query.view import Look, Sources, View, open_view

if TYPE_CHECKING:
    from service.query.bucket import Bucket
    from service.query.database import Database
    from service.query.locked import LockedDatabase

_NUDGE_SECONDS: Final = 0.05
# A client that takes nothing for so long makes room for others.
_UNREAD_SECONDS: Final = 0.1
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
        settings: QuerySettings,
        bucket: Bucket | None = None,
        tile_sizes: TileSizes | None = None,
    ) -> None:
        self.settings = settings
        self.tile_sizes = tile_sizes or TileSizes()
        self.clock = clock
        self.running = self.waiting = self.refused = self.stopped = 0
        self._sources = sources
        self._bucket = bucket
        self.indexes = SkipIndexes(sources.store, clock, settings.index_bytes)
        self._scratch = scratch
        self._numbers = itertools.count()
        self.databases = DatabasePool(
            self._open_database,
            lambda: None if bucket is None else bucket.key(),
            clock,
            most=settings.max_concurrent,
            idle_seconds=settings.idle_seconds,
        )
        self._slots = asyncio.Semaphore(self.settings.max_concurrent)
        self._unread: dict[RunningSearch, None] = {}
        self._paused: dict[RunningSearch, None] = {}
        self._threads = ThreadPoolExecutor(self.settings.max_concurrent, thread_name_prefix="query")
        # What a killed process spilled is of no use to anybody.
        shutil.rmtree(scratch, ignore_errors=True)
        os.makedirs(scratch, mode=0o700, exist_ok=True)

    async def open(self, request: QueryRequest, look: Look = open_view) -> RunningSearch:
        """Starts a search; close it. Waits for a slot if all are taken.

        Raises `InvalidInput` (a regular expression), `Unavailable` (the queue is full),
        `StoreUnavailable`.
        """
        if self._slots.locked() and self.waiting >= self.settings.max_waiting:
            self.refused += 1
            raise Unavailable(
                f"{self.running} searches run and {self.waiting} wait",
                hint="Try again in a moment, or narrow the searches that run.",
            )
        await self.enter()
        try:
            view = await look(self._sources, request)
            running = RunningSearch(self, request, view, self._database(request))
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
        """Lets the threads and databases go; searches that still run fail."""
        self.databases.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def enter(self) -> None:
        """Waits for a slot and takes it. Searches that nobody reads make room."""
        self.waiting += 1
        try:
            self._make_room()
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1

    def unread(self, search: RunningSearch) -> None:
        """Its client has taken nothing for a while."""
        self._unread[search] = None
        self._make_room()

    def read(self, search: RunningSearch) -> None:
        """Its client reads again, or it is over."""
        self._unread.pop(search, None)
        self._paused.pop(search, None)

    def _make_room(self) -> None:
        """As many pause as wait; too many that do: the first of them ends."""
        free = self.settings.max_concurrent - self.running
        moving = sum(search.moving for search in self._paused)
        while self._unread and self.waiting > free + moving:
            search = next(iter(self._unread))
            del self._unread[search]
            self._paused[search] = None
            search.pause()
            moving += 1
        while len(self._paused) > max(self.settings.max_waiting, self.settings.max_concurrent):
            search = next(iter(self._paused))
            del self._paused[search]
            search.let_go()

    def leave(self) -> None:
        """Gives a slot back."""
        self.databases.watch()
        self.running -= 1
        self._slots.release()

    def _database(self, request: QueryRequest) -> Callable[[], Database]:
        return lambda: self.databases.take(separate=bool(patterns(request.condition)))

    def _open_database(self, separate: bool) -> LockedDatabase:
        # Here, in the search's thread: a node that nobody searches does without DuckDB.
        from service.query.locked import LockedDatabase, in_this_process
        from service.query.process import ProcessConnection

        folders = [self._sources.store.uri(keys.SEGMENTS.rstrip("/")), self._sources.table.uri]
        spill = str(Path(self._scratch) / str(next(self._numbers)))
        connect = ProcessConnection if separate else in_this_process
        return LockedDatabase(self.settings, folders, spill, self._bucket, connect)

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
        self._left_seconds = engine.settings.time_limit_seconds
        self._closing: asyncio.Task[None] | None = None
        self._stopped: TailraceError | None = None
        self._entered = True
        self._moving: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Makes the database and checks what only it can check. Raises `InvalidInput`."""
        await self._step(self._prepare)

    @property
    def moving(self) -> bool:
        """Whether it is paused, and has not given back everything yet."""
        return self._moving is not None and not self._moving.done()

    async def batches(self) -> AsyncGenerator[pa.RecordBatch]:
        """The matches in order. Raises `LimitReached`, `Damaged`, `StoreUnavailable`."""
        while (batch := await self._next()) is not None:
            waiting = asyncio.ensure_future(self._wait_for_client())
            try:
                yield batch
            finally:
                waiting.cancel()
                self._engine.read(self)
        # There is nothing more to find: what is left is the client's, who may take his time.
        await asyncio.shield(self.pause())

    async def _next(self) -> pa.RecordBatch | None:
        if self._moving is not None:
            await self._return()
        if self._records is None:
            self._records = self._running().batches()
        records = self._records
        return await self._step(lambda: next(records, None))

    def pause(self) -> asyncio.Future[None]:
        """Gives back slot and database, between two batches; the next one is waited for."""
        self._moving = asyncio.ensure_future(self._pause())
        return self._moving

    async def _pause(self) -> None:
        try:
            await self._engine.in_thread(self._clear)
        finally:
            self._leave()

    async def _return(self) -> None:
        """A slot and a database again, where it was."""
        if self._moving is not None:
            await asyncio.shield(self._moving)
        if self._stopped is not None:
            raise self._stopped
        await self._engine.enter()
        self._entered, self._moving = True, None
        await self._step(self._resume)

    def _leave(self) -> None:
        if self._entered:
            self._entered = False
            self._engine.leave()

    async def count(self) -> int:
        """How many records match, whatever the limit. Raises as `batches`."""
        return await self.totals(Search.count)

    async def totals(self, work: Callable[[Search], T]) -> T:
        """What `work` makes of all matches, in the search's thread. Raises as `batches`."""
        found = await self._step(lambda: work(self._running()))
        await asyncio.shield(self.pause())
        return found

    def stats(self) -> dict[str, Any]:
        """What was searched and found so far; authoritative once all was taken."""
        report, search = self.report, self._running()
        return {
            "complete": report.complete,
            "matches": search.matches,
            "next": search.next,
            **report.counts(),
            "bytes": search.bytes,
            "set_aside": report.quarantined[:_SHOWN],
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
        self._database = self._make_database()
        sizes, indexes = self._engine.tile_sizes, self._engine.indexes
        self._search = Search(self.request, self._view, self._database, sizes, indexes.in_thread)

    def _resume(self) -> None:
        self._database = self._make_database()
        self._running().go_on(self._database)

    def _clear(self) -> None:
        records, self._records = self._records, None
        if records is not None:
            records.close()
        database, self._database = self._database, None
        if database is not None:
            database.close()

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
        seconds = self._engine.settings.time_limit_seconds
        await self._engine.clock.sleep(self._left_seconds)
        await self._stop(
            work,
            LimitReached(
                f"the search was stopped after {seconds:g} s of work",
                hint="Narrow the time, name an fqn or run, or set a limit.",
            ),
        )

    async def _wait_for_client(self) -> None:
        seconds, clock = self._engine.settings.stall_seconds, self._engine.clock
        end = clock.monotonic() + seconds
        await clock.sleep(min(_UNREAD_SECONDS, seconds))
        self._engine.unread(self)
        if (left := end - clock.monotonic()) > 0:
            await clock.sleep(left)
        self.let_go()

    def let_go(self) -> None:
        """Ends a search whose client takes nothing: it holds journal files, and maybe a slot."""
        seconds = self._engine.settings.stall_seconds
        self._stopped = LimitReached(
            f"nothing was taken of the result for up to {seconds:g} s",
            hint="Read on without pauses, or ask for less with `limit` and go on with `after`.",
        )
        self._closing = self._closing or asyncio.ensure_future(self._close())

    async def _stop(self, work: asyncio.Future[Any], reason: TailraceError) -> None:
        """Interrupts until the thread has come to rest."""
        self._stopped = self._stopped or reason
        self._engine.stopped += 1
        while not work.done():
            if self._database is not None:
                self._database.interrupt(reason)
            await asyncio.wait({work}, timeout=_NUDGE_SECONDS)

    async def _close(self) -> None:
        if self._moving is not None:
            await asyncio.wait({self._moving})
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
            self._leave()
            self._engine.read(self)
