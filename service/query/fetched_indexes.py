"""Skip indexes of a store on S3: fetched whole, with one request, and kept in memory."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from logstore import keys
from logstore.clock import Clock
from logstore.errors import Damaged, NotFound, TailraceError
from logstore.objects.store import ObjectStore
from logstore.search.needs import Needs, Wanted, wanted
from logstore.table.skip_index import SHARE, SkipIndex, parse
from logstore.table.snapshot import TableFile
from service.query.skip_indexes import ENTRY_BYTES, SkipIndexes

log = logging.getLogger(__name__)
_AT_ONCE: Final = 16
_WAIT_SECONDS: Final = 2.0
_FETCH_SECONDS: Final = 10.0


class _Kept(NamedTuple):
    skips: SkipIndex
    nbytes: int


class FetchedIndexes(SkipIndexes):
    """Those of `store`. Made in their event loop."""

    def __init__(self, store: ObjectStore, clock: Clock, budget: int) -> None:
        super().__init__(clock, budget)
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0
        self._coming: dict[str, asyncio.Task[SkipIndex | None]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def which(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, Wanted]:
        return self._wanted(self._in_thread(files), needs)

    def ahead(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, Wanted]:
        there = self._there(files)
        room, to_fetch = self._budget, list[TableFile]()
        for file in files:
            room -= int(file.size * SHARE) + ENTRY_BYTES
            if room < 0:  # it would displace what the search needs before
                break
            to_fetch.append(file)
        if len(there) < len(to_fetch):
            self._loop.call_soon_threadsafe(lambda: [self._fetched(file) for file in to_fetch])
        return self._wanted(there, needs)

    def close(self) -> None:
        for task in self._coming.values():
            task.cancel()

    def _wanted(self, indexes: Mapping[str, SkipIndex], needs: Needs) -> Mapping[str, Wanted]:
        found: dict[str, Wanted] = {}
        for path, index in indexes.items():
            try:
                found[path] = wanted(needs, index)
            except Damaged as error:
                self._set_aside(path, error)
                self._loop.call_soon_threadsafe(self._drop, path)
        return found

    async def of(self, files: Collection[TableFile]) -> Mapping[str, SkipIndex]:
        """Those that there are, by the file's path; within two seconds."""
        found = self._there(files)
        self._used(found)
        coming = {
            file.path: coming
            for file in files
            if file.path not in found and (coming := self._fetched(file)) is not None
        }
        if coming:
            await asyncio.wait(coming.values(), timeout=_WAIT_SECONDS)
            for path, task in coming.items():
                if task.done() and not task.cancelled() and (index := task.result()) is not None:
                    found[path] = index
        return found

    def _in_thread(self, files: Collection[TableFile]) -> Mapping[str, SkipIndex]:
        """`of`, for a thread. It waits for the event loop only if something is to be fetched."""
        found = self._there(files)
        if len(found) == len(files):
            self._loop.call_soon_threadsafe(self._used, found)
            return found
        return asyncio.run_coroutine_threadsafe(self.of(files), self._loop).result()

    def _there(self, files: Collection[TableFile]) -> dict[str, SkipIndex]:
        return {file.path: kept.skips for file in files if (kept := self._kept.get(file.path))}

    def _used(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path in self._kept:
                self._kept.move_to_end(path)

    def _fetched(self, file: TableFile) -> asyncio.Task[SkipIndex | None] | None:
        """The fetch of an index, which may be under way; None if there is nothing to fetch."""
        if file.path in self._kept or self._is_aside(file.path):
            return None
        task = self._coming.get(file.path)
        if task is None:
            task = self._coming[file.path] = asyncio.ensure_future(self._fetch(file))
            task.add_done_callback(lambda _: self._coming.pop(file.path))
        return task

    async def _fetch(self, file: TableFile) -> SkipIndex | None:
        try:
            async with self._turns, asyncio.timeout(_FETCH_SECONDS):
                _, body = await self._store.get(keys.skip_index(file.path))
            index = parse(body, size=file.size)
        except (NotFound, Damaged) as error:
            self._set_aside(file.path, error)
        except (TailraceError, TimeoutError) as error:
            # The search itself meets the store, and says what it met.
            log.info("the skip index of %s is not read: %s", file.path, error)
        else:
            self._keep(file.path, _Kept(index, len(body) + ENTRY_BYTES))
            return index
        return None

    def _keep(self, path: str, kept: _Kept) -> None:
        if path in self._kept:
            return
        self._kept[path] = kept
        self._bytes += kept.nbytes
        while self._bytes > self._budget:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes

    def _drop(self, path: str) -> None:
        if path in self._kept:
            self._bytes -= self._kept.pop(path).nbytes
