"""Many searches at once: slots, a queue, time limits, and cancelling.

A search works in a thread, a piece at a time, and is stopped from the event loop: when its time is
over, when its client goes away, or when its client takes nothing for too long. Stopping interrupts
DuckDB, or ends the process of a search by regular expression; memory, spill files, the journal's
pin and the slot are given back once its thread has come to rest.

A slot is for work. A search whose client does not read pauses as soon as another one waits: it
gives back slot, database and memory, keeps its view, and when its client reads on it waits for a
slot and goes on behind the last record. So unread results hold up nobody; those that pause are
bounded, and the one that is unread for longest ends first.

A reader of one run asks for times, levels and attributes of its records. That is no search: it has
places and threads of its own (`open_details`), so busy searches make no run unreadable.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final, TypeVar

from logstore import keys
from logstore.clock import Clock
from logstore.errors import NotFound, TailraceError, Unavailable
from logstore.objects.store import ObjectStore
from logstore.search.conditions import patterns
from service.query.fetched_indexes import FetchedIndexes
from service.query.fetched_pages import PageFetcher
from service.query.file_cache import FileCache
from service.query.footers import Footers
from service.query.hot import HotRecords
from service.query.index_files import IndexFiles
from service.query.nearest import Nearer
from service.query.page_checks import PageChecks
from service.query.pool import DatabasePool
from service.query.prefault import prefault
from service.query.prefilter import Prefilter
from service.query.request import QueryRequest
from service.query.running import RunningSearch
from service.query.scan_copies import ScanCopies
from service.query.settings import QuerySettings
from service.query.skip_indexes import NearestIndexes, SkipIndexes
from service.query.tiles import TileSizes
from service.query.view import Look, Sources, open_view
from service.runtime.ongoing import Ongoing

if TYPE_CHECKING:
    import pyarrow as pa

    from service.query.bucket import Bucket, Get
    from service.query.database import Database
    from service.query.locked import LockedDatabase
    from service.query.process import Check

T = TypeVar("T")
_DETAILS: Final = 2  # readers of records at once
_OVERDUE_SECONDS: Final = 60.0
"""So long after its time limit a search is interrupted for sure."""


class QueryEngine:
    """Runs searches over `sources`; `scratch` is a folder of its own for spilling.

    `bucket` says how DuckDB reads the store if it is on S3; files of it are kept in `cache`.
    """

    def __init__(
        self,
        sources: Sources,
        *,
        clock: Clock,
        scratch: str,
        cache: str,
        settings: QuerySettings,
        bucket: Bucket | None = None,
        tile_sizes: TileSizes | None = None,
    ) -> None:
        self.settings = settings
        self.tile_sizes = tile_sizes or TileSizes()
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
        return await self._begin(request, look, details=False)

    async def open_details(self, request: QueryRequest) -> RunningSearch:
        """Looks for records of one run that the caller knows; close it. Needs no slot.

        Raises `StoreUnavailable`.
        """
        return await self._begin(request, open_view, details=True)

    def hot_records(self, request: QueryRequest) -> Iterator[pa.RecordBatch]:
        """The records in this node's journal, without a database and without the store. Blocks."""
        pin = self._sources.pin()
        try:
            hot = HotRecords(pin, self._sources.encode, request.bounds, request.fqn, request.run)
            yield from hot.records(request.bounds)
        finally:
            pin.release()

    async def _begin(self, request: QueryRequest, look: Look, *, details: bool) -> RunningSearch:
        await self.enter(details=details)
        try:
            view = await look(self._sources, request)
            try:
                database = self._database(request)
                running = RunningSearch(self, request, view, database, details=details)
            except BaseException:
                view.release()
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
        """False only if no segment and no file of the table has what is asked for.

        Without a slot and without a database: footers and the table's log tell. Raises
        `StoreUnavailable`.
        """
        view = await open_view(self._sources, request)
        view.release()
        report = view.report
        return bool(report.segments or report.files) or not report.read_all

    def copied(self) -> list[str]:
        """Paths of the table files of which this machine has a copy."""
        return [*self.copies.paths(), *self.files.paths()]

    def close(self) -> None:
        """Lets the threads and databases go; searches that still run fail."""
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
        """Waits for a slot and takes it. Searches that nobody reads make room."""
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
        """Does what else the next search would wait for."""
        await asyncio.to_thread(prefault)
        with suppress(TailraceError):  # the next search meets it, and says so
            await asyncio.to_thread(self.databases.open_one)
        self.databases.watch()

    def prefilter(self, request: QueryRequest, check: Callable[[], None]) -> Prefilter:
        """That of a search; `check` raises once it is to stop."""
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
        # Here, in the search's thread: a node that nobody searches does without DuckDB.
        from service.query.locked import LockedDatabase, in_this_process
        from service.query.process import ProcessConnection

        segments = self._sources.store.uri(keys.SEGMENTS.rstrip("/"))
        folders = [segments, self._sources.table.uri, self.copies.folder, self.files.folder]
        spill = str(Path(self._scratch) / str(next(self._numbers)))
        in_another = partial(ProcessConnection, check=check)
        connect = in_another if separate else in_this_process
        return LockedDatabase(self.settings, folders, spill, self._bucket, connect)

    def in_thread(self, call: Callable[[], T], *, details: bool = False) -> asyncio.Future[T]:
        """`call` in one of the searches' threads, from now on."""
        threads = self._detail_threads if details else self._threads
        work = asyncio.get_running_loop().run_in_executor(threads, call)
        self.ongoing.follow(work)
        return work


def _place(store: ObjectStore) -> Callable[[str], str]:
    """Where the skip index of a file is, by its path in the table."""
    return lambda path: store.uri(keys.skip_index(path))


def _no_bucket(uri: str, _: str) -> bytes:
    raise NotFound(f"{uri} is on no bucket")
