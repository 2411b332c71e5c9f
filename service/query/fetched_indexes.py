"""Skip indexes of a store on S3: fetched whole, with one request, and kept in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from logstore import keys
from logstore.clock import Clock
from logstore.errors import Damaged, NotFound, TailraceError
from logstore.objects.store import ObjectStore
from logstore.search.needs import Needs, Wanted, wanted
from logstore.table.skip_index import SHARE, SkipIndex, parse
from logstore.table.snapshot import TableFile
from service.query.skip_indexes import ENTRY_BYTES, SkipIndexes
from service.runtime.cache import Cache

log = logging.getLogger(__name__)
_AT_ONCE: Final = 16
_WAIT_SECONDS: Final = 2.0
_FETCH_SECONDS: Final = 10.0


class FetchedIndexes(SkipIndexes):
    """Those of `store`. Made in their event loop."""

    def __init__(self, store: ObjectStore, clock: Clock, budget: int) -> None:
        super().__init__(clock, budget)
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._kept = Cache[SkipIndex](budget)
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
            if file.path not in there:
                to_fetch.append(file)
        if to_fetch:
            self._loop.call_soon_threadsafe(lambda: [self._fetched(file) for file in to_fetch])
        return self._wanted(there, needs)

    def maps(self, file: TableFile) -> None:
        """None: messages of files on S3 are DuckDB's."""

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
                with self._changing:
                    self._kept.drop(path)
        return found

    async def of(self, files: Collection[TableFile]) -> Mapping[str, SkipIndex]:
        """Those that there are, by the file's path; within two seconds."""
        found = self._there(files)
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
            return found
        return asyncio.run_coroutine_threadsafe(self.of(files), self._loop).result()

    def _there(self, files: Collection[TableFile]) -> dict[str, SkipIndex]:
        with self._changing:
            return {file.path: index for file in files if (index := self._kept.get(file.path))}

    def _fetched(self, file: TableFile) -> asyncio.Task[SkipIndex | None] | None:
        """The fetch of an index, which may be under way; None if there is nothing to fetch."""
        if self._there([file]) or self._is_aside(file.path):
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
            with self._changing:
                self._kept.put(file.path, index, len(body) + ENTRY_BYTES)
            return index
        return None
