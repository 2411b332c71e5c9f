"""Reads skip indexes of the table's files, local or on S3, for all searches of a node.

An index is optional: if it cannot be read, or does not come in time, its file is read whole. So no
error of an index reaches a search. A missing or damaged index is tried again after a while, since a
compactor makes indexes after its commits.

`IndexFiles` reads indexes in files of this machine: a search reads the few pages of them that it
needs. Pages stay in memory within a budget. All pages that a search will read are announced to the
system before the first page is read, since the disk answers many requests at once.

`FetchedIndexes` fetches indexes of a store on S3 whole, with one request each, and keeps them in
memory.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Final

from tailrace.logstore.cache import BoundedCache, Cache
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import Damaged, NotFound, TailraceError
from tailrace.logstore.filesystem import advise
from tailrace.logstore.search.translate import IndexCondition, Needs, pages_for, wanted
from tailrace.logstore.table.line_map import LineMap
from tailrace.logstore.table.skip_index import (
    PAGE_BYTES,
    SHARE,
    IndexHeader,
    SkipIndex,
    head_bytes,
    parse,
    parse_head,
)
from tailrace.logstore.table.snapshot import TableFile

if TYPE_CHECKING:
    from service.query.duckdb import Get


log = logging.getLogger(__name__)
_AGAIN_SECONDS: Final = 60.0
ENTRY_BYTES: Final = 512
"""Memory overhead of a cached entry."""


@dataclass(frozen=True, slots=True, eq=False)
class LineMaps:
    """The maps of a file's lines, by the number of the row group.

    `head` is the head of its index, and `size` the size of the file. `of` returns a map, None if it
    is missing or cannot be read; it blocks.
    """

    head: IndexHeader
    size: int
    of: Callable[[int], LineMap | None]

    def has(self, group: int) -> bool:
        """Returns true if the row group has a map."""
        return self.head.maps[group][1] > 0

    @property
    def group_bytes(self) -> int:
        """Returns about how many bytes of the file a row group takes."""
        return self.size // max(len(self.head.rows), 1)


class SkipIndexes(ABC):
    """The indexes of a store. Thread-safe."""

    @property
    @abstractmethod
    def damaged(self) -> int:
        """Returns the number of indexes that were found damaged."""

    @abstractmethod
    def which(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, IndexCondition]:
        """Returns the answers of the available indexes, by the file's path. Blocks in a thread."""

    @abstractmethod
    def ahead(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, IndexCondition]:
        """Returns the answers available at once for files that a search will reach, in this order.

        Missing indexes are fetched. Blocks in a thread, but does not wait for a fetch.
        """

    @abstractmethod
    def maps(self, file: TableFile) -> LineMaps | None:
        """Returns the maps of a file, if its index was read."""

    @abstractmethod
    def close(self) -> None:
        """Cancels fetches in progress; their waiters continue without them."""


class ReadIndexes(SkipIndexes):
    """The indexes of one place, of which at most `budget` bytes stay in memory."""

    def __init__(self, clock: Clock, budget: int) -> None:
        self._damaged = 0
        self._clock = clock
        self._skipped: BoundedCache[str, float] = BoundedCache(budget // ENTRY_BYTES)
        self._changing = Lock()

    @property
    def damaged(self) -> int:
        return self._damaged

    def _is_skipped(self, path: str) -> bool:
        """Returns true if the index was missing or damaged a moment ago."""
        since = self._clock.monotonic() - _AGAIN_SECONDS
        noted = self._skipped.peek(path)
        return noted is not None and noted > since

    def _skip_for_now(self, path: str, error: Exception) -> None:
        """Notes an index that is missing or damaged."""
        with self._changing:
            if self._is_skipped(path):  # another thread noted it at the same time
                return
            if isinstance(error, Damaged):
                self._damaged += 1
                log.warning("%s is read whole: %s", path, error)
            self._skipped.put(path, self._clock.monotonic())


class NearestIndexes(SkipIndexes):
    """Uses the local index if `is_here` returns true and it can be read.

    Otherwise the remote one.
    """

    def __init__(
        self, here: SkipIndexes, elsewhere: SkipIndexes, is_here: Callable[[TableFile], bool]
    ) -> None:
        self._here = here
        self._elsewhere = elsewhere
        self._is_here = is_here

    @property
    def damaged(self) -> int:
        return self._here.damaged + self._elsewhere.damaged

    def which(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, IndexCondition]:
        found = self._near(files, needs)
        far = [file for file in files if file.path not in found]
        return {**found, **self._elsewhere.which(far, needs)} if far else found

    def ahead(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, IndexCondition]:
        found = self._near(files, needs)
        far = [file for file in files if file.path not in found]
        return {**found, **self._elsewhere.ahead(far, needs)} if far else found

    def maps(self, file: TableFile) -> LineMaps | None:
        found = self._here.maps(file) if self._is_here(file) else None
        return self._elsewhere.maps(file) if found is None else found

    def close(self) -> None:
        self._here.close()
        self._elsewhere.close()

    def _near(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, IndexCondition]:
        return self._here.which([file for file in files if self._is_here(file)], needs)


# --- Indexes in local files ---------------------------------------------------------------------


_FILES_AT_ONCE: Final = 64  # files that are open
_PAGE_ENTRY_BYTES: Final = 128  # overhead of a page in memory


class _Unread(Exception):
    """A page that is needed is not in memory."""


@dataclass
class _ReadIndex:
    """The parts of an index that were read, by place.

    They stay valid whatever happens to the index: the table's file is never written again.
    """

    head: IndexHeader
    pages: dict[int, bytes] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        pages = sum(map(len, self.pages.values())) + len(self.pages) * _PAGE_ENTRY_BYTES
        return ENTRY_BYTES + self.head.nbytes + pages

    @property
    def index(self) -> SkipIndex:
        return SkipIndex(self.head, self._read, sure=True)

    def _read(self, at: int, _: int) -> bytes:
        page = self.pages.get(at)
        if page is None:
            raise _Unread
        return page


class _OpenIndex:
    """An index in an open file. `known` are the parts that were read."""

    def __init__(self, number: int, size: int) -> None:
        self._number = number
        start = os.pread(number, PAGE_BYTES, 0)
        if head_bytes(start) > len(start):  # cut off at the file's end if it claims too much
            start = os.pread(number, min(head_bytes(start), os.fstat(number).st_size), 0)
        self.known = _ReadIndex(parse_head(start, size=size))
        self.index = SkipIndex(self.known.head, self._read)

    def announce(self, needs: Needs) -> None:
        for at, size in pages_for(needs, self.index):
            advise(self._number, at, size, "WILLNEED")

    def _read(self, at: int, size: int) -> bytes:
        page = self.known.pages[at] = os.pread(self._number, size, at)
        return page


class IndexFiles(ReadIndexes):
    """The indexes of a local store; `place` returns the path of one by the table file's path."""

    def __init__(self, place: Callable[[str], str], clock: Clock, budget: int) -> None:
        super().__init__(clock, budget)
        self._place = place
        self._known = Cache[_ReadIndex](budget)

    def which(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, IndexCondition]:
        found: dict[str, IndexCondition] = {}
        unread = list[TableFile]()
        for file in files:
            try:
                found[file.path] = wanted(needs, self._index(file))
            except _Unread:
                unread.append(file)
        for first in range(0, len(unread), _FILES_AT_ONCE):
            with self._announced(unread[first : first + _FILES_AT_ONCE], needs) as opened:
                for path, one in opened.items():
                    with self._excused(path):
                        found[path] = wanted(needs, one.index)
                        self._keep(path, one.known)
        return found

    def ahead(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, IndexCondition]:
        return self.which(files, needs)

    def maps(self, file: TableFile) -> LineMaps | None:
        with self._changing:
            known = self._known.get(file.path)
        if known is None:
            return None
        head = known.head
        return LineMaps(head, file.size, lambda group: self._lines(file.path, head, group))

    def close(self) -> None:
        """Does nothing: no fetch is in progress."""

    def _lines(self, path: str, head: IndexHeader, group: int) -> LineMap | None:
        with self._excused(path), _open(self._place(path)) as number:
            return SkipIndex(head, lambda at, size: os.pread(number, size, at)).lines(group)
        return None  # type: ignore[unreachable]  # `_excused` suppressed an error

    def _index(self, file: TableFile) -> SkipIndex:
        """Returns the index as far as it was read. Raises `_Unread` if nothing was."""
        with self._changing:
            known = self._known.get(file.path)
        if known is None:
            raise _Unread
        return known.index

    @contextmanager
    def _announced(
        self, files: Sequence[TableFile], needs: Needs
    ) -> Iterator[Mapping[str, _OpenIndex]]:
        """Returns the available indexes by the file's path; the system has begun to read them."""
        found: dict[str, _OpenIndex] = {}
        with ExitStack() as opened:
            for file in files:
                with self._excused(file.path):
                    if not self._is_skipped(file.path):
                        number = opened.enter_context(_open(self._place(file.path)))
                        one = _OpenIndex(number, file.size)
                        one.announce(needs)
                        found[file.path] = one
            yield found

    def _keep(self, path: str, read: _ReadIndex) -> None:
        with self._changing:
            before = self._known.get(path)
            if before is not None and before.head.digest == read.head.digest:
                read.pages |= before.pages
            self._known.drop(path)
            self._known.put(path, read, read.nbytes)

    @contextmanager
    def _excused(self, path: str) -> Iterator[None]:
        """Continues without an index that is missing or cannot be read."""
        try:
            yield
        except FileNotFoundError:
            pass  # another try costs nothing
        except OSError as error:
            self._skip_for_now(path, Damaged(f"its skip index cannot be read: {error}"))
        except Damaged as error:
            self._skip_for_now(path, error)


@contextmanager
def _open(path: str) -> Iterator[int]:
    number = os.open(path, os.O_RDONLY)
    try:
        yield number
    finally:
        os.close(number)


# --- Indexes on S3 ------------------------------------------------------------------------------


_FETCHES_AT_ONCE: Final = 8
_WAIT_SECONDS: Final = 2.0


class FetchedIndexes(ReadIndexes):
    """Indexes that `get` fetches; `place` returns the address of one by the path of its file."""

    def __init__(self, get: Get, place: Callable[[str], str], clock: Clock, budget: int) -> None:
        super().__init__(clock, budget)
        self._get = get
        self._place = place
        self._budget = budget
        self._threads = ThreadPoolExecutor(_FETCHES_AT_ONCE, thread_name_prefix="indexes")
        self._kept = Cache[SkipIndex](budget)
        self._coming: dict[str, Future[SkipIndex | None]] = {}

    def which(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, IndexCondition]:
        return self._wanted(self.of(files), needs)

    def ahead(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, IndexCondition]:
        there = self._there(files)
        room = self._budget
        for file in files:
            room -= int(file.size * SHARE) + ENTRY_BYTES
            if room < 0:  # it would displace indexes that the search needs before
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
                future.set_running_or_notify_cancel()  # otherwise `wait` does not notice it

    def of(self, files: Collection[TableFile]) -> Mapping[str, SkipIndex]:
        """Returns the available indexes, by the file's path; within two seconds. Blocks."""
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

    def _wanted(
        self, indexes: Mapping[str, SkipIndex], needs: Needs
    ) -> Mapping[str, IndexCondition]:
        found: dict[str, IndexCondition] = {}
        for path, index in indexes.items():
            try:
                found[path] = wanted(needs, index)
            except Damaged as error:
                self._skip_for_now(path, error)
                with self._changing:
                    self._kept.drop(path)
        return found

    def _lines(self, path: str, index: SkipIndex, group: int) -> LineMap | None:
        try:
            return index.lines(group)
        except Damaged as error:
            self._skip_for_now(path, error)
            return None

    def _there(self, files: Collection[TableFile]) -> dict[str, SkipIndex]:
        with self._changing:
            return {file.path: index for file in files if (index := self._kept.get(file.path))}

    def _fetched(self, file: TableFile) -> Future[SkipIndex | None] | None:
        """Returns the fetch of an index, which may be in progress.

        None if nothing can be fetched.
        """
        if self._is_skipped(file.path):
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
            self._skip_for_now(file.path, error)
        except TailraceError as error:
            # The search itself uses the store and reports its error.
            log.info("the skip index of %s is not read: %s", file.path, error)
        else:
            with self._changing:
                self._kept.put(file.path, index, len(body) + ENTRY_BYTES)
            return index
        return None
