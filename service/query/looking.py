"""The lines of a tile that are looked for, in some row groups at once by other threads.

Before its turn a row group is announced: what it needs is read or fetched meanwhile. Row groups on
S3 are announced some at a time, and nobody looks through them before their pages are there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, NamedTuple

from service.query.fetched_pages import FETCHED_BYTES
from service.query.footers import as_damage
from service.query.mapped_lines import Pages
from service.query.row_groups import Candidates, RowGroup, Seen, parts_of
from service.query.table_reads import TableReads

if TYPE_CHECKING:
    from service.query.prefilter import Prefilter

_AT_ONCE: Final = 2  # row groups of copies
_DECODED_AT_ONCE: Final = 12  # more than threads, none of which then waits for the slowest
_ANNOUNCED_AT_ONCE: Final = 2  # row groups: the disk is slower if it has many to read
_FETCHED_AHEAD: Final = 24 << 20  # bytes, of what others do not look through yet
_FEW: Final = 4
"""So few row groups are looked at without other threads."""
_MOST_FOUND: Final = 32 << 20  # bytes of candidates of a tile


class _Announced(NamedTuple):
    """Row groups, and what is read for them before their turn."""

    groups: Sequence[RowGroup]
    pages: Future[Pages] | None


class Looking:
    """`reads` are those of the tile without what is looked at."""

    def __init__(
        self, prefilter: Prefilter, reads: TableReads, groups: Sequence[RowGroup], seen: Seen
    ) -> None:
        self._prefilter = prefilter
        self._reads = reads
        self._seen = seen
        self._planned = Counter(one.part for one in (*groups, *seen.left))  # row groups
        self._waiting = deque(groups)
        self._announced: deque[_Announced] = deque()
        self._running: deque[tuple[RowGroup, Future[Candidates | None]]] = deque()
        self._fetched = any(one.part.remote for one in groups)
        decoded = any(one.part.rows is None for one in groups)
        few = len(groups) <= _FEW and not self._fetched
        self._at_once = 0 if few else _DECODED_AT_ONCE if decoded else _AT_ONCE
        self._submit()

    def finish(self) -> TableReads:
        """The tile's reads, with what was found and what has to be read.

        Raises `Damaged`, `StoreUnavailable`.
        """
        try:
            with as_damage():
                self._look()
        finally:
            self.cancel()
        left = parts_of(self._seen.left, self._planned)
        return self._reads.prefiltered([*self._reads.parts, *left], self._seen.found())

    def cancel(self) -> None:
        """Looks for no more."""
        for _, future in (*self._running, *self._announced):
            if future is not None:
                future.cancel()

    def _look(self) -> None:
        for one, found in self._each():
            self._seen.add(one, found)
            if found is None or self._seen.bytes > _MOST_FOUND:
                self._prefilter.given_up = True
                for groups, pages in self._announced:
                    self._seen.left += groups
                    if pages is not None:
                        pages.cancel()
                self._seen.left += self._waiting
                self._announced.clear()
                self._waiting.clear()

    def _each(self) -> Iterator[tuple[RowGroup, Candidates | None]]:
        """The candidates of each row group, in turn."""
        while self._waiting or self._announced or self._running:
            self._prefilter.check()
            self._submit()
            if self._running:
                one, found = self._running.popleft()
                yield one, found.result()
            elif self._announced and self._announced[0].pages is not None:
                self._prefilter.wait_for(self._announced[0].pages)
            else:
                one = self._waiting.popleft()
                yield one, self._prefilter.candidates(one)

    def _submit(self) -> None:
        """Has others begun, if each takes long enough."""
        while (
            self._waiting
            and len(self._running) < self._at_once
            and self._has_room()
            and not self._prefilter.in_turn(self._waiting[0])
        ):
            groups = self._next()
            self._announced.append(_Announced(groups, self._prefilter.announce(groups)))
            self._start()
        self._start()

    def _has_room(self) -> bool:
        """Whether one more may be announced."""
        if not self._fetched:
            return len(self._announced) <= _ANNOUNCED_AT_ONCE
        return (
            sum(one.groups[0].part.group_bytes * len(one.groups) for one in self._announced)
            < _FETCHED_AHEAD
        )

    def _next(self) -> Sequence[RowGroup]:
        """The next row group; on S3 with those behind it that come with one request."""
        first = self._waiting.popleft()
        groups = [first]
        if first.part.remote:
            most = max(FETCHED_BYTES // max(first.part.group_bytes, 1), 1)
            while self._waiting and len(groups) < most and self._waiting[0].follows(groups[-1]):
                groups.append(self._waiting.popleft())
        return groups

    def _start(self) -> None:
        """Has others look at what is announced, if it is time."""
        while self._announced and self._is_time():
            groups, pages = self._announced.popleft()
            self._running += ((one, self._prefilter.submit(one, pages)) for one in groups)

    def _is_time(self) -> bool:
        groups, pages = self._announced[0]
        if pages is None:
            return True
        if groups[0].part.remote:
            return pages.done()
        return not self._waiting or len(self._announced) > _ANNOUNCED_AT_ONCE
