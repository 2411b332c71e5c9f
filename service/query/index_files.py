"""Skip indexes in files of this machine: a search reads the few pages of them that it needs.

Pages that were read are kept within a budget. All that a search will read is announced to the
system before the first page is read, since the disk answers many requests at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from logstore.cache import Cache
from logstore.clock import Clock
from logstore.errors import Damaged
from logstore.search.needs import Needs, Wanted, pages_for, wanted
from logstore.table.pages.line_map import LineMap
from logstore.table.skip_index import PAGE_BYTES, Head, SkipIndex, head_bytes, parse_head
from logstore.table.snapshot import TableFile
from service.query.skip_indexes import ENTRY_BYTES, LineMaps, ReadIndexes

_AT_ONCE: Final = 64  # files that are open
_PAGE_ENTRY_BYTES: Final = 128  # what a page takes beside its bytes


class _Unread(Exception):
    """A page that is needed is not in memory."""


@dataclass
class _Known:
    """What was read of an index, by place.

    It stays right whatever becomes of the index: the table's file is never written again.
    """

    head: Head
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


class _Open:
    """An index in an open file. `known` is what was read of it."""

    def __init__(self, number: int, size: int) -> None:
        self._number = number
        start = os.pread(number, PAGE_BYTES, 0)
        if head_bytes(start) > len(start):  # cut off at the end of the file, if it says too much
            start = os.pread(number, min(head_bytes(start), os.fstat(number).st_size), 0)
        self.known = _Known(parse_head(start, size=size))
        self.index = SkipIndex(self.known.head, self._read)

    def announce(self, needs: Needs) -> None:
        for at, size in pages_for(needs, self.index):
            os.posix_fadvise(self._number, at, size, os.POSIX_FADV_WILLNEED)

    def _read(self, at: int, size: int) -> bytes:
        page = self.known.pages[at] = os.pread(self._number, size, at)
        return page


class IndexFiles(ReadIndexes):
    """Those of a local store, of which `place` gives a path by the table file's path."""

    def __init__(self, place: Callable[[str], str], clock: Clock, budget: int) -> None:
        super().__init__(clock, budget)
        self._place = place
        self._known = Cache[_Known](budget)

    def which(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, Wanted]:
        found: dict[str, Wanted] = {}
        unread = list[TableFile]()
        for file in files:
            try:
                found[file.path] = wanted(needs, self._index(file))
            except _Unread:
                unread.append(file)
        for first in range(0, len(unread), _AT_ONCE):
            with self._announced(unread[first : first + _AT_ONCE], needs) as opened:
                for path, one in opened.items():
                    with self._excused(path):
                        found[path] = wanted(needs, one.index)
                        self._keep(path, one.known)
        return found

    def ahead(self, files: Sequence[TableFile], needs: Needs) -> Mapping[str, Wanted]:
        return self.which(files, needs)

    def maps(self, file: TableFile) -> LineMaps | None:
        with self._changing:
            known = self._known.get(file.path)
        if known is None:
            return None
        head = known.head
        return LineMaps(head, file.size, lambda group: self._lines(file.path, head, group))

    def close(self) -> None:
        """Nothing is under way."""

    def _lines(self, path: str, head: Head, group: int) -> LineMap | None:
        with self._excused(path), _open(self._place(path)) as number:
            return SkipIndex(head, lambda at, size: os.pread(number, size, at)).lines(group)
        return None  # type: ignore[unreachable]  # it was excused

    def _index(self, file: TableFile) -> SkipIndex:
        """The index as far as it was read. Raises `_Unread` if nothing was."""
        with self._changing:
            known = self._known.get(file.path)
        if known is None:
            raise _Unread
        return known.index

    @contextmanager
    def _announced(self, files: Sequence[TableFile], needs: Needs) -> Iterator[Mapping[str, _Open]]:
        """The indexes that there are, by the file's path; the system has begun to read them."""
        found: dict[str, _Open] = {}
        with ExitStack() as opened:
            for file in files:
                with self._excused(file.path):
                    if not self._is_aside(file.path):
                        number = opened.enter_context(_open(self._place(file.path)))
                        one = _Open(number, file.size)
                        one.announce(needs)
                        found[file.path] = one
            yield found

    def _keep(self, path: str, read: _Known) -> None:
        with self._changing:
            before = self._known.get(path)
            if before is not None and before.head.digest == read.head.digest:
                read.pages |= before.pages
            self._known.drop(path)
            self._known.put(path, read, read.nbytes)

    @contextmanager
    def _excused(self, path: str) -> Iterator[None]:
        """Goes on without an index that is missing, or does not read."""
        try:
            yield
        except FileNotFoundError:
            pass  # to look again costs nothing
        except OSError as error:
            self._set_aside(path, Damaged(f"its skip index cannot be read: {error}"))
        except Damaged as error:
            self._set_aside(path, error)


@contextmanager
def _open(path: str) -> Iterator[int]:
    number = os.open(path, os.O_RDONLY)
    try:
        yield number
    finally:
        os.close(number)
