"""Runs many searches at once: slots, a queue, time limits, pauses, and idle databases.

A search works in a thread, a piece at a time. The event loop stops it when its time is over, when
its client disconnects, or when its client takes nothing for too long. To stop a search is to
interrupt DuckDB, or to end the process of a search by regular expression. Memory, spill files, the
journal's pin and the slot are given back once its thread has stopped.

A slot is for work. A search whose client does not read pauses as soon as another search waits: it
gives back slot, database and memory, and keeps its snapshot. When its client reads on, it waits
for a slot and continues after the last record. So unread results delay nobody. The number of paused
searches is bounded; the one that is unread for longest ends first.

While a batch is encoded and sent, the search looks for the next one. If the search must pause
meanwhile, it gives up a batch that is not found yet and looks for it again when it continues.

A reader of one run asks for times, levels and attributes of its records. That is no search: it has
places and threads of its own (`open_details`), so busy searches make no run unreadable.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Generator, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

import pyarrow as pa

from service.query.file_cache import FileCache
from service.query.footers import Footers
from service.query.page_checks import PageChecks
from service.query.request import QueryRequest, TimeRangeSizes
from service.query.scan_copies import ScanCopies
from service.query.search import Search
from service.query.skip_indexes import FetchedIndexes, IndexFiles, NearestIndexes, SkipIndexes
from service.query.sources import (
    STORE,
    OpenSnapshot,
    SearchSnapshot,
    SearchSources,
    open_snapshot,
)
from service.query.table_search import Nearer, TableSearch
from service.query.text_scan import PageFetcher, Prefilter
from service.query.unflushed import JournalRecords
from service.runtime.health import Ongoing
from service.settings import QuerySettings
from tailrace.logstore import keys, ulid
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import LimitReached, NotFound, TailraceError, Unavailable
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.search.conditions import patterns

if TYPE_CHECKING:
    from service.query.duckdb import Database, Get, LockedDatabase, SearchedBucket
    from service.query.duckdb_process import Check


# --- One search ---------------------------------------------------------------------------------


_NUDGE_SECONDS: Final = 0.05
# A client that takes nothing for this many seconds makes room for others.
_UNREAD_SECONDS: Final = 0.1
_SHOWN: Final = 20

T = TypeVar("T")


class _StandsAside(TailraceError):
    """The search pauses before it has found the next batch."""


class _SearchStep(NamedTuple):
    """The result of a step: a batch, or None if no other follows; whether it is the last one."""

    batch: pa.RecordBatch | None
    last: bool


class RunningSearch:
    """A running search, for one task at a time.

    Once it has `ended`, it keeps only what `batches` returned.
    """

    def __init__(
        self,
        engine: QueryEngine,
        request: QueryRequest,
        snapshot: SearchSnapshot,
        database: Callable[[Check], Database],
        *,
        details: bool = False,
    ) -> None:
        """With `details` it takes a place among readers of records and no slot of searches."""
        self._details = details
        self.request = request
        self.report = snapshot.report
        self.ended = False
        self._engine = engine
        self._snapshot = snapshot
        self._make_database = database
        self._database: Database | None = None
        prefilter = engine.prefilter(request, self._check)
        table = TableSearch(request, snapshot, engine.indexes, engine.nearer, prefilter)
        self._search = Search(
            request, snapshot, table, self._working, engine.time_range_sizes, engine.checks
        )
        self._records: Generator[pa.RecordBatch] | None = None
        self._work: asyncio.Future[Any] | None = None
        self._following: asyncio.Future[_SearchStep] | None = (
            None  # the step after the last batch that was returned
        )
        self._left_seconds = engine.settings.time_limit_seconds
        self._closing: asyncio.Task[None] | None = None
        self._stopped: TailraceError | None = None
        self._entered = True
        self._moving: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Checks what only a database can check. Raises `InvalidInput`."""
        if patterns(self.request.condition):
            await self._step(self._search.check)

    @property
    def moving(self) -> bool:
        """Returns true if it is paused and has not given back everything yet."""
        return self._moving is not None and not self._moving.done()

    async def batches(self) -> AsyncGenerator[pa.RecordBatch]:
        """Yields the matches in order. Raises `LimitReached`, `Damaged`, `StoreUnavailable`."""
        while (batch := await self._next()) is not None:
            waiting = asyncio.ensure_future(self._wait_for_client())
            try:
                yield batch
            finally:
                waiting.cancel()
                self._engine.read(self)
        # The search is done; only the client's reading remains.
        await asyncio.shield(self.pause())

    async def _next(self) -> pa.RecordBatch | None:
        if self.ended:
            return None
        if self._stopped is not None:
            raise self._stopped
        following, self._following = self._following, None
        try:
            found = await (following or self._found())
        except _StandsAside:
            found = await self._found()
        self.ended = found.last
        if not self.ended and self._moving is None:
            # Start the next step at once: the consumer may not wait before it encodes this batch.
            work = self._begin(self._taken)
            self._following = asyncio.ensure_future(self._ended(work))
        return found.batch

    async def _found(self) -> _SearchStep:
        if self._moving is not None:
            await self._return()
        return await self._step(self._taken)

    def _taken(self) -> _SearchStep:
        """Returns the next batch; if it is known to be the last one, the search ends as well.

        So the end, and the stats that the client gets with it, need no further step in the thread.
        """
        if self._records is None:
            self._records = self._search.batches()
        batch = next(self._records, None)
        last = batch is None or self._search.finished
        if last:
            # A pause may reach the search here. It keeps the found batch, which has no other owner.
            with suppress(_StandsAside):
                following = next(self._records, None)
                assert following is None, "something follows the last batch"
            self._records = None
        return _SearchStep(batch, last)

    def pause(self) -> asyncio.Future[None]:
        """Gives back slot and database between two batches; waits until the next batch is found.

        May be repeated: a search that ends may be pausing already.
        """
        if self._moving is None:
            self._moving = asyncio.ensure_future(self._pause())
        return self._moving

    async def _pause(self) -> None:
        try:
            if self._following is not None and self._work is not None:
                await self._interrupt(self._work, _StandsAside("the search pauses"))
            await self._give_back()
        finally:
            self._leave()

    async def _return(self) -> None:
        """Takes a slot and a database again and continues at the same place."""
        if self._moving is not None:
            await asyncio.shield(self._moving)
        if self._stopped is not None:
            raise self._stopped
        await self._engine.enter(details=self._details)
        self._entered, self._moving = True, None

    def _leave(self) -> None:
        if self._entered:
            self._entered = False
            self._engine.leave(details=self._details)

    async def count(self) -> int:
        """Counts the matching records, whatever the limit. Raises the errors of `batches`."""
        return await self.totals(Search.count)

    async def totals(self, work: Callable[[Search], T]) -> T:
        """Runs `work` on all matches in the search's thread. Raises the errors of `batches`."""
        found = await self._step(lambda: work(self._search))
        await asyncio.shield(self.pause())
        return found

    def stats(self) -> dict[str, Any]:
        """Returns what was searched and found so far; final once all batches were taken."""
        report, search = self.report, self._search
        return {
            "complete": report.complete,
            **({"store": "silent"} if STORE in report.missing else {}),
            "matches": search.matches,
            "next": search.next,
            **report.counts(),
            "bytes": search.bytes,
            "set_aside": report.quarantined[:_SHOWN],
            "missing": report.missing[:_SHOWN],
            "unreadable": list(report.unreadable)[:_SHOWN],
            "by": self.request.time,
            "from": ulid.encode(self.request.low),
            "to": ulid.encode(self.request.high),
        }

    async def close(self) -> None:
        """Stops it if needed and gives back all that it holds. May be repeated."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _working(self) -> Database:
        """Returns the database that it works in. Called in its thread."""
        self._check()
        if self._database is None:
            self._database = self._make_database(self._check)
        return self._database

    def _check(self) -> None:
        if self._stopped is not None:
            raise self._stopped
        if self._moving is not None:
            raise _StandsAside("the search pauses")

    async def _give_back(self) -> None:
        """Ends its work and gives back its database, if it has one."""
        if self._records is not None or self._database is not None:
            await self._engine.in_thread(self._clear, details=self._details)

    def _clear(self) -> None:
        records, self._records = self._records, None
        if records is not None:
            records.close()
        database, self._database = self._database, None
        if database is not None:
            database.close()

    async def _step(self, call: Callable[[], T]) -> T:
        """Runs one piece of work in a thread, within the remaining time."""
        return await self._ended(self._begin(call))

    def _begin(self, call: Callable[[], T]) -> asyncio.Future[T]:
        if self._stopped is not None:
            raise self._stopped
        self._work = work = self._engine.in_thread(call, details=self._details)
        return work

    async def _ended(self, work: asyncio.Future[T]) -> T:
        clock = self._engine.clock
        began = clock.monotonic()
        alarm = asyncio.ensure_future(self._time_out(work))
        try:
            return await asyncio.shield(work)
        finally:
            alarm.cancel()
            self._left_seconds -= clock.monotonic() - began

    async def _time_out(self, work: asyncio.Future[Any]) -> None:
        seconds = self._engine.settings.time_limit_seconds
        await self._engine.clock.sleep(self._left_seconds)
        self._stopped = self._stopped or LimitReached(
            f"the search was stopped after {seconds:g} s of work",
            hint="Narrow the time, name an fqn or run, or set a limit.",
        )
        self._engine.stopped += 1
        await self._interrupt(work, self._stopped)

    async def _wait_for_client(self) -> None:
        seconds, clock = self._engine.settings.stall_seconds, self._engine.clock
        end = clock.monotonic() + seconds
        await clock.sleep(min(_UNREAD_SECONDS, seconds))
        if not self._details:
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

    async def _interrupt(self, work: asyncio.Future[Any], reason: TailraceError) -> None:
        """Interrupts until the thread has stopped."""
        while not work.done():
            if self._database is not None:
                self._database.interrupt(reason)
            await asyncio.wait({work}, timeout=_NUDGE_SECONDS)

    async def _close(self) -> None:
        self._stopped = self._stopped or LimitReached("the search is closed")
        if self._moving is not None:
            await asyncio.wait({self._moving})
        if self._work is not None and not self._work.done():
            self._engine.stopped += self._following is None  # otherwise nobody waited for it
            await self._interrupt(self._work, self._stopped)
        for ended in filter(None, (self._work, self._following)):
            await asyncio.wait({ended})
            ended.cancelled() or ended.exception()  # retrieved, so that asyncio does not warn
        try:
            await self._give_back()
        finally:
            self._snapshot.release()
            self._leave()
            self._engine.read(self)


# --- Idle databases -----------------------------------------------------------------------------


_MOST_PROCESSES: Final = 2


@dataclass(frozen=True, slots=True)
class _Idle:
    locked: LockedDatabase
    key: Hashable
    since: float


class DatabasePool:
    """Keeps open databases: a search takes one and gives it back.

    To open and lock a database takes 12 ms, and one in a process of its own 170 ms. The pool keeps
    at most as many as searches may run at once, and fewer of those with a process, which take 90 MB
    each. It closes a database that is idle for a while.

    A database is reused only if every statement finished, nothing interrupted it, and its spill
    folder is empty. It is used only with the keys of the store with which it was opened. The pool
    returns the most recently used database first, so that surplus ones become idle.

    `open_database` opens one; its arguments are whether the database has a process, and the check
    for waiting. `key` returns the keys with which it would open one now.
    """

    def __init__(
        self,
        open_database: Callable[[bool, Check | None], LockedDatabase],
        key: Callable[[], Hashable],
        clock: Clock,
        *,
        most: int,
        idle_seconds: float,
    ) -> None:
        self._open_database = open_database
        self._key = key
        self._clock = clock
        self._most = {False: most, True: min(most, _MOST_PROCESSES)}
        self._idle_seconds = idle_seconds
        self._idle: dict[bool, list[_Idle]] = {False: [], True: []}
        self._changing = Lock()
        self._closed = False
        self._watching: asyncio.Task[None] | None = None

    def take(self, *, separate: bool, check: Check | None = None) -> Database:
        """Returns a database for a search, to be closed; `separate` is one with a process. Blocks.

        `check` is called while a process is waited for; if it raises, the process ends. Raises
        `Unavailable`, `StoreUnavailable`, and the errors of `check`.
        """
        # Imported in the search's thread: a node without searches runs without DuckDB.
        from service.query.duckdb import Database
        from service.query.duckdb_process import ProcessEnded

        key = self._key()

        def give_back(locked: LockedDatabase, clean: bool) -> None:
            self._give_back(locked, key, separate=separate, keep=clean and not locked.spilled)

        while (idle := self._taken(separate)) is not None:
            if idle.key == key:
                try:
                    return Database(idle.locked, give_back, check)
                except ProcessEnded:  # the kernel or somebody killed it
                    pass
                except BaseException:
                    idle.locked.close()
                    raise
            idle.locked.close()
        try:
            locked = self._open_database(separate, check)
            try:
                return Database(locked, give_back, check)
            except BaseException:
                locked.close()
                raise
        except ProcessEnded as error:
            raise Unavailable(
                f"the process of a search could not be used: {error}", hint="Retry the search."
            ) from error

    def open_one(self) -> None:
        """Opens a database without a process unless one is idle.

        Blocks; raises the errors of `take`.

        An idle database stays in the pool, so that closing the pool finds it.
        """
        if self._closed:
            return
        key = self._key()
        with self._changing:
            there = any(one.key == key for one in self._idle[False])
        if not there:
            self.take(separate=False).close()

    def watch(self) -> None:
        """Closes idle databases after the idle timeout. Call it when a database was given back."""
        if self._any_idle() and (self._watching is None or self._watching.done()):
            self._watching = asyncio.ensure_future(self._watch())

    def close(self) -> None:
        """Closes all idle databases, and from now on each one that is given back."""
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
        self._close_idle(before=float("inf"))

    async def _watch(self) -> None:
        while self._any_idle():
            await self._clock.sleep(self._idle_seconds)
            before = self._clock.monotonic() - self._idle_seconds
            await asyncio.to_thread(self._close_idle, before)

    def _any_idle(self) -> bool:
        return any(self._idle.values())

    def _taken(self, separate: bool) -> _Idle | None:
        with self._changing:
            idle = self._idle[separate]
            return idle.pop() if idle else None

    def _give_back(
        self, locked: LockedDatabase, key: Hashable, *, separate: bool, keep: bool
    ) -> None:
        with self._changing:
            idle = self._idle[separate]
            keep = keep and not self._closed and len(idle) < self._most[separate]
            if keep and self._idle_seconds > 0:
                idle.append(_Idle(locked, key, self._clock.monotonic()))
                return
        locked.close()

    def _close_idle(self, before: float) -> None:
        with self._changing:
            old = [one for idle in self._idle.values() for one in idle if one.since <= before]
            for idle in self._idle.values():
                idle[:] = [one for one in idle if one.since > before]
        for one in old:
            one.locked.close()


_DETAILS: Final = 2  # readers of records at once
_OVERDUE_SECONDS: Final = 60.0
"""Seconds after its time limit until a search is interrupted for sure."""


class QueryEngine:
    """Runs searches over `sources`; `scratch` is a folder of its own for spilling.

    `bucket` says how DuckDB reads the store if it is on S3; `cache` keeps files of the store.
    """

    def __init__(
        self,
        sources: SearchSources,
        *,
        clock: Clock,
        scratch: str,
        cache: str,
        settings: QuerySettings,
        bucket: SearchedBucket | None = None,
        time_range_sizes: TimeRangeSizes | None = None,
    ) -> None:
        self.settings = settings
        self.time_range_sizes = time_range_sizes or TimeRangeSizes()
        self.clock = clock
        self.running = self.waiting = self.refused = self.stopped = 0
        self.ongoing = Ongoing(
            clock,
            "a search does not end at its time limit",
            most_seconds=settings.time_limit_seconds + _OVERDUE_SECONDS,
        )
        self._sources = sources
        self._bucket = bucket
        self._quiet = Event()
        self._quiet.set()
        self.copies = ScanCopies(
            sources.store,
            lambda: frozenset(sources.table.newest().files.paths()),
            clock,
            f"{scratch}/copies",
            self._quiet,
            most_bytes=settings.copies_budget,
        )
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
        self._detail_places = asyncio.Semaphore(_DETAILS)
        self._detail_threads = ThreadPoolExecutor(_DETAILS, thread_name_prefix="details")
        self._scanning = ThreadPoolExecutor(settings.threads + 1, thread_name_prefix="scan")
        get = None if bucket is None else bucket.reader()
        self.files = FileCache(
            get or _no_bucket,
            _place(sources.store),
            sources.table.newest,
            clock,
            cache,
            self._quiet,
            most_bytes=settings.file_cache_bytes if get else 0,
        )
        self.nearer = Nearer(self.files, self.copies)
        self.indexes = self._open_indexes(get)
        self._fetcher = None if get is None else PageFetcher(get)
        self._warming: asyncio.Task[None] | None = None
        self._footers = Footers(None if self._fetcher is None else self._fetcher.footer)
        self.checks = PageChecks(self._footers, self._scanning)
        # Nobody needs the spill files of a killed process.
        shutil.rmtree(scratch, ignore_errors=True)
        os.makedirs(scratch, mode=0o700, exist_ok=True)

    async def open(
        self, request: QueryRequest, opening: OpenSnapshot = open_snapshot
    ) -> RunningSearch:
        """Starts a search, which the caller closes. Waits for a slot if all are taken.

        Raises `InvalidInput` (a regular expression), `Unavailable` (the queue is full),
        `StoreUnavailable`.
        """
        if self._slots.locked() and self.waiting >= self.settings.max_waiting:
            self.refused += 1
            raise Unavailable(
                f"{self.running} searches run and {self.waiting} wait",
                hint="Try again in a moment, or narrow the searches that run.",
            )
        return await self._begin(request, opening, details=False)

    async def open_details(self, request: QueryRequest) -> RunningSearch:
        """Starts a search for records of one known run, which the caller closes. Needs no slot.

        Raises `StoreUnavailable`.
        """
        return await self._begin(request, open_snapshot, details=True)

    def journal_records(self, request: QueryRequest) -> Iterator[pa.RecordBatch]:
        """Yields records in this node's journal, without a database or the store. Blocks."""
        pin = self._sources.pin()
        try:
            unflushed = JournalRecords(
                pin, self._sources.encode, request.bounds, request.fqn, request.run
            )
            yield from unflushed.records(request.bounds)
        finally:
            pin.release()

    async def _begin(
        self, request: QueryRequest, opening: OpenSnapshot, *, details: bool
    ) -> RunningSearch:
        await self.enter(details=details)
        try:
            snapshot = await opening(self._sources, request)
            try:
                database = self._database(request)
                running = RunningSearch(self, request, snapshot, database, details=details)
            except BaseException:
                snapshot.release()
                raise
        except BaseException:
            self.leave(details=details)
            raise
        try:
            await running.start()
        except BaseException:
            await running.close()
            raise
        return running

    async def may_hold(self, request: QueryRequest) -> bool:
        """Returns false only if no segment and no file of the table has a match.

        It reads footers and the table's log, and needs neither a slot nor a database. Raises
        `StoreUnavailable`.
        """
        snapshot = await open_snapshot(self._sources, request)
        snapshot.release()
        report = snapshot.report
        return bool(report.segments or report.files) or not report.read_all

    def copied(self) -> list[str]:
        """Returns the paths of the table files that have a copy on this machine."""
        return [*self.copies.paths(), *self.files.paths()]

    def close(self) -> None:
        """Ends the threads and databases; searches that still run fail."""
        if self._warming is not None:
            self._warming.cancel()
        self.indexes.close()
        self.databases.close()
        self.copies.close()
        self.files.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._detail_threads.shutdown(wait=False, cancel_futures=True)
        self._scanning.shutdown(wait=False, cancel_futures=True)
        if self._fetcher is not None:
            self._fetcher.close()

    async def enter(self, *, details: bool = False) -> None:
        """Waits for a slot and takes it. Searches with unread results make room."""
        if details:
            await self._detail_places.acquire()
            return
        self.waiting += 1
        try:
            self._make_room()
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        self._quiet.clear()

    def unread(self, search: RunningSearch) -> None:
        """Notes that the search's client has taken nothing for a while."""
        self._unread[search] = None
        self._make_room()

    def read(self, search: RunningSearch) -> None:
        """Notes that the search's client reads again, or that the search is over."""
        self._unread.pop(search, None)
        self._paused.pop(search, None)

    def _make_room(self) -> None:
        """Pauses as many searches as wait; if too many are paused, ends the first of them."""
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

    def leave(self, *, details: bool = False) -> None:
        """Gives a slot back."""
        self.databases.watch()
        if details:
            self._detail_places.release()
            return
        self.running -= 1
        if not self.running:
            self._quiet.set()
        self._slots.release()
        self.files.note_search()
        if self._warming is None:  # not before the first one ends, which needs the disk itself
            self._warming = asyncio.ensure_future(self._warm_up())

    async def _warm_up(self) -> None:
        """Prepares the things for which the next search would wait."""
        with suppress(TailraceError):  # the next search meets the error and reports it
            await asyncio.to_thread(self.databases.open_one)
        self.databases.watch()

    def prefilter(self, request: QueryRequest, check: Callable[[], None]) -> Prefilter:
        """Returns the prefilter of a search; `check` raises once the search must stop."""
        return Prefilter(request, self._footers, self.checks, self._fetcher, self._scanning, check)

    def _database(self, request: QueryRequest) -> Callable[[Check], Database]:
        separate = bool(patterns(request.condition))
        return lambda check: self.databases.take(separate=separate, check=check)

    def _open_indexes(self, get: Get | None) -> SkipIndexes:
        store, budget = self._sources.store, self.settings.index_budget
        if get is None:
            return IndexFiles(_place(store), self.clock, budget)
        if not self.settings.file_cache_bytes:
            return FetchedIndexes(get, _place(store), self.clock, budget)
        here = IndexFiles(self.files.index_place, self.clock, budget // 2)
        elsewhere = FetchedIndexes(get, _place(store), self.clock, budget // 2)
        return NearestIndexes(here, elsewhere, self.files.has_index)

    def _open_database(self, separate: bool, check: Check | None) -> LockedDatabase:
        # Imported in the search's thread: a node without searches runs without DuckDB.
        from service.query.duckdb import LockedDatabase, in_this_process
        from service.query.duckdb_process import ProcessConnection

        segments = self._sources.store.uri(keys.SEGMENTS.rstrip("/"))
        folders = [segments, self._sources.table.uri, self.copies.folder, self.files.folder]
        spill = str(Path(self._scratch) / str(next(self._numbers)))
        in_another = partial(ProcessConnection, check=check)
        connect = in_another if separate else in_this_process
        return LockedDatabase(self.settings, folders, spill, self._bucket, connect)

    def in_thread(self, call: Callable[[], T], *, details: bool = False) -> asyncio.Future[T]:
        """Starts `call` in one of the searches' threads."""
        threads = self._detail_threads if details else self._threads
        work = asyncio.get_running_loop().run_in_executor(threads, call)
        self.ongoing.follow(work)
        return work


def _place(store: ObjectStore) -> Callable[[str], str]:
    """Returns a function from a file's path in the table to the place of its skip index."""
    return lambda path: store.uri(keys.skip_index(path))


def _no_bucket(uri: str, _: str) -> bytes:
    raise NotFound(f"{uri} is on no bucket")
