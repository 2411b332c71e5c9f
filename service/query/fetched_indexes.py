"""Skip indexes of a store on S3: fetched whole, with one request, and kept in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from logstore.cache import Cache
from logstore.clock import Clock
from logstore.errors import Damaged, NotFound, TailraceError
from logstore.search.needs import Needs, Wanted, wanted
from logstore.table.pages.line_map import LineMap
from logstore.table.skip_index import SHARE, SkipIndex, parse
from logstore.table.snapshot import TableFile
from service.query.skip_indexes import ENTRY_BYTES, LineMaps, ReadIndexes

if TYPE_CHECKING:
    from service.query.bucket import Get

log = logging.getLogger(__name__)
_AT_ONCE: Final = 8
_WAIT_SECONDS: Final = 2.0


class FetchedIndexes(ReadIndexes):
    """Those that `get` gives; `place` gives the address of one by the path of its file."""

    def __init__(self, get: Get, place: Callable[[str], str], clock: Clock, budget: int) -> None:
        super().__init__(clock, budget)
        self._get = get
        self._place = place
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="indexes")
        self._kept = Cache[SkipIndex](budget)
        self._coming: dict[str, Future[SkipIndex | None]] = {}

    def which(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, Wanted]:
        return self._wanted(self.of(files), needs)

    def ahead(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, Wanted]:
        there = self._there(files)
        room = self._budget
        for file in files:
            room -= int(file.size * SHARE) + ENTRY_BYTES
            if room < 0:  # it would displace what the search needs before
                break
            if file.path not in there:
                self._fetched(file)
        return self._wanted(there, needs)

    def maps(self, file: TableFile) -> LineMaps | None:
        index = self._there([file]).get(file.path)
        if index is None:
            return None
        return LineMaps(index.head, file.size, lambda group: self._lines(file.path, index, group))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._changing:
            coming = list(self._coming.values())
        for future in coming:
            if future.cancelled():
                future.set_running_or_notify_cancel()  # else `wait` does not notice it

    def of(self, files: Collection[TableFile]) -> Mapping[str, SkipIndex]:
        """Those that there are, by the file's path; within two seconds. Blocks."""
        found = self._there(files)
        coming = {
            file.path: coming
            for file in files
            if file.path not in found and (coming := self._fetched(file)) is not None
        }
        wait(coming.values(), _WAIT_SECONDS)
        for path, future in coming.items():
            if future.done() and not future.cancelled() and (index := future.result()) is not None:
                found[path] = index
        return found

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

    def _lines(self, path: str, index: SkipIndex, group: int) -> LineMap | None:
        try:
            return index.lines(group)
        except Damaged as error:
            self._set_aside(path, error)
            return None

    def _there(self, files: Collection[TableFile]) -> dict[str, SkipIndex]:
        with self._changing:
            return {file.path: index for file in files if (index := self._kept.get(file.path))}

    def _fetched(self, file: TableFile) -> Future[SkipIndex | None] | None:
        """The fetch of an index, which may be under way; None if there is nothing to fetch."""
        if self._is_aside(file.path):
            return None
        with self._changing:
            if file.path not in self._coming:
                self._coming[file.path] = self._threads.submit(self._fetch, file)
            return self._coming[file.path]

    def _fetch(self, file: TableFile) -> SkipIndex | None:
        try:
            return self._there([file]).get(file.path) or self._parsed(file)
        finally:
            with self._changing:
                del self._coming[file.path]

    def _parsed(self, file: TableFile) -> SkipIndex | None:
        try:
            body = self._get(self._place(file.path), "")
            index = parse(body, size=file.size)
        except (NotFound, Damaged) as error:
            self._set_aside(file.path, error)
        except TailraceError as error:
            # The search itself meets the store, and says what it met.
            log.info("the skip index of %s is not read: %s", file.path, error)
        else:
            with self._changing:
                self._kept.put(file.path, index, len(body) + ENTRY_BYTES)
            return index
        return None
