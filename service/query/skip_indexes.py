"""Skip indexes of the table's files, in memory within a budget, for all searches of a node.

An index is optional: what cannot be read, or does not come in time, leaves its file to be read
whole. So none of its errors reaches a search. A file without one is asked for again after a
while, since a compactor makes indexes behind its commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from logstore import keys
from logstore.clock import Clock
from logstore.errors import Damaged, NotFound, TailraceError
from logstore.objects.store import ObjectStore
from logstore.table.skip_index import SHARE, SkipIndex, parse
from logstore.table.snapshot import TableFile

log = logging.getLogger(__name__)
_AT_ONCE: Final = 16
_WAIT_SECONDS: Final = 2.0
_FETCH_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 60.0
_ENTRY_BYTES: Final = 512  # what an entry takes beside its index


class SkipIndexes:
    """The indexes of a store, at most `budget` bytes of them. Made in their event loop."""

    def __init__(self, store: ObjectStore, clock: Clock, budget: int) -> None:
        self.damaged = 0
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._clock = clock
        self._budget = budget
        self._kept: OrderedDict[str, SkipIndex] = OrderedDict()
        self._bytes = 0
        self._missing: OrderedDict[str, float] = OrderedDict()
        self._coming: dict[str, asyncio.Task[SkipIndex | None]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def of(self, files: Collection[TableFile]) -> Mapping[str, SkipIndex]:
        """Those that there are, by the file's path; within two seconds."""
        asked = {file.path: self._kept.get(file.path) for file in files}
        self._used(asked)
        coming = {
            file.path: coming
            for file in files
            if asked[file.path] is None and (coming := self._fetched(file)) is not None
        }
        if coming:
            await asyncio.wait(coming.values(), timeout=_WAIT_SECONDS)
            done = {path: task for path, task in coming.items() if task.done()}
            asked |= {path: task.result() for path, task in done.items() if not task.cancelled()}
        return {path: index for path, index in asked.items() if index is not None}

    def in_thread(self, files: Collection[TableFile]) -> Mapping[str, SkipIndex]:
        """`of`, for a thread. It waits for the event loop only if something is to be fetched."""
        kept = {file.path: index for file in files if (index := self._kept.get(file.path))}
        if len(kept) == len(files):
            self._loop.call_soon_threadsafe(self._used, kept)
            return kept
        return asyncio.run_coroutine_threadsafe(self.of(files), self._loop).result()

    def ahead(self, files: Sequence[TableFile]) -> None:
        """Says in a thread that a search will come to these files: fetches begin, in order."""
        room, wanted = self._budget, list[TableFile]()
        for file in files:
            room -= int(file.size * SHARE) + _ENTRY_BYTES
            if room < 0:  # it would displace what the search needs before
                break
            wanted.append(file)
        self._loop.call_soon_threadsafe(lambda: [self._fetched(file) for file in wanted])

    def close(self) -> None:
        """Ends fetches; what waits for them goes on without."""
        for task in self._coming.values():
            task.cancel()

    def _used(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path in self._kept:
                self._kept.move_to_end(path)

    def _fetched(self, file: TableFile) -> asyncio.Task[SkipIndex | None] | None:
        """The fetch of an index, which may be under way; None if there is nothing to fetch."""
        since = self._clock.monotonic() - _AGAIN_SECONDS
        if file.path in self._kept or self._missing.get(file.path, since) > since:
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
            if isinstance(error, Damaged):
                self.damaged += 1
                log.warning("%s is read whole: %s", file.path, error)
            self._note_missing(file.path)
        except (TailraceError, TimeoutError) as error:
            # The search itself meets the store, and says what it met.
            log.info("the skip index of %s is not read: %s", file.path, error)
        else:
            self._keep(file.path, index)
            return index
        return None

    def _keep(self, path: str, index: SkipIndex) -> None:
        if path in self._kept:
            return
        self._kept[path] = index
        self._bytes += index.nbytes + _ENTRY_BYTES
        while self._bytes > self._budget:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.nbytes + _ENTRY_BYTES

    def _note_missing(self, path: str) -> None:
        self._missing[path] = self._clock.monotonic()
        self._missing.move_to_end(path)
        if len(self._missing) * _ENTRY_BYTES > self._budget:
            self._missing.popitem(last=False)
