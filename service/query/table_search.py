"""Plans and runs the table's part of one search: reads of files, and lines found before DuckDB.

A time range is planned once, by the skip indexes and the copies of its files. If a search reads all
ranges, it scans for lines of the next range while it orders and returns the present ones.

In place of the table's files in the store, a search reads files of the cache and copies of files.
If one of them cannot be read, the search continues with the store itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from service.query.file_cache import FileCache
from service.query.request import QueryRequest, UlidRange, Weight
from service.query.scan_copies import ScanCopies, ScanCopy
from service.query.skip_indexes import SkipIndexes
from service.query.sources import SearchSnapshot
from service.query.table_reads import TableReads, table_reads, weights
from service.query.text_scan import Looking, Prefilter
from tailrace.logstore.errors import Damaged
from tailrace.logstore.objects.store import is_remote
from tailrace.logstore.search.translate import IndexCondition, needs_of
from tailrace.logstore.table.snapshot import TableFile


@dataclass(frozen=True, slots=True)
class Nearer:
    """The local files and copies of a node, for all searches."""

    cache: FileCache
    copies: ScanCopies


class NearestFiles:
    """The local files and copies of one search, in its thread."""

    def __init__(self, nearer: Nearer) -> None:
        self._nearer = nearer
        self._in_use = True
        self._cached: dict[str, None] = {}  # paths of files that were read from the cache
        self._scanned: dict[str, None] = {}
        self._read: list[tuple[TableFile, float]] = []  # with the number of bytes that were read

    def files(self, files: Iterable[TableFile]) -> list[TableFile]:
        """Returns the files; cached files get the address of their local copy."""
        if not self._in_use:
            return list(files)
        found = list[TableFile]()
        for file in files:
            found.append(self._nearer.cache.nearest(file))
            if found[-1] is not file:
                self._cached[file.path] = None
        return found

    def damage_of(self, path: str) -> str | None:
        """Returns how the file is damaged in the store, if the cache found damage."""
        return self._nearer.cache.damaged.get(path)

    def copy_of(self, file: TableFile) -> ScanCopy | None:
        """Returns the copy of a file, if it has one."""
        copy = self._nearer.copies.of(file) if self._in_use else None
        if copy is not None:
            self._scanned[file.path] = None
        return copy

    def give_up(self, read: Collection[str]) -> bool:
        """Reads the store itself from now on; returns false if nothing else was read before.

        One of the files with these paths cannot be read in its local place, so all of them are read
        in the store.
        """
        if not self._in_use or not (self._cached or self._scanned):
            return False
        self._in_use = False
        for path in self._cached.keys() & read:
            self._nearer.cache.forget(path)
        for path in self._scanned.keys() & read:
            self._nearer.copies.forget(path)
        return True

    def note_read(self, file: TableFile, size: float) -> None:
        """Notes the bytes that were read of a file without a copy."""
        self._read.append((file, size))

    def ask(self) -> None:
        """Asks for local copies of the files that were read: at the end, not during the search."""
        read, self._read = self._read, []
        for file, size in read if self._in_use else ():
            self._nearer.copies.note_read(file, size)
            if is_remote(file.uri):
                self._nearer.cache.note_read(file, size)


_READ_AHEAD: Final = 4
"""A search for only the nearest records reads this many times as many rows as its limit."""
_MOST_AHEAD: Final = 64
"""Files whose indexes and footers are read before a search reaches them."""
_NARROW: Final = 0.1
"""Share of a file that a search in one pipeline or run reads: files are sorted by them."""


@dataclass
class _Plan:
    """The reads of a range in the table; the scan for lines, and its result."""

    time_range: UlidRange
    reads: TableReads
    looking: Looking | None = None
    found: TableReads | None = None


class TableSearch:
    """The table's part of one search, in its thread."""

    def __init__(
        self,
        request: QueryRequest,
        snapshot: SearchSnapshot,
        indexes: SkipIndexes,
        nearer: Nearer,
        prefilter: Prefilter,
    ) -> None:
        self._request = request
        self._snapshot = snapshot
        self._indexes = indexes
        self._nearest = NearestFiles(nearer)
        self._prefilter = prefilter
        self._needs = needs_of(request.condition)
        self._ahead: Sequence[TableFile] = ()  # files whose indexes were asked before
        self._answers: Mapping[str, IndexCondition] = {}  # the answers of these indexes
        self._plan: _Plan | None = None
        self._next: _Plan | None = None

    @property
    def narrow(self) -> float:
        """Returns about which share of a file belongs to the requested pipeline and run."""
        return _NARROW if self._in_part else 1.0

    @property
    def _in_part(self) -> bool:
        """Returns true if the search is in one pipeline or run."""
        return self._request.fqn is not None or self._request.run is not None

    def look_ahead(self) -> None:
        """Reads indexes and footers ahead, nearest first, if the search reads all ranges."""
        request = self._request
        if self._needs is None or request.limit is not None:
            return
        files = self._files(request.bounds)
        files.sort(key=lambda file: (file.date, file.hour), reverse=request.descending)
        del files[_MOST_AHEAD:]
        copies = map(self._nearest.copy_of, files)
        self._prefilter.ahead(
            [
                copy.path if copy else file.uri
                for file, copy in zip(files, copies, strict=True)
                if copy or self._in_part  # otherwise line maps may make the footer unnecessary
            ]
        )
        self._ahead, self._answers = files, self._indexes.ahead(files, self._needs)

    def weights(self, bounds: UlidRange) -> Mapping[int, Weight]:
        """Returns the bytes to read by hour, as far as they are known."""
        return weights(self._snapshot.weights(bounds), self._ahead, self._answers)

    def reads(self, time_range: UlidRange) -> TableReads:
        """Returns the reads of the range; plans them once, for the reads and their size."""
        return self._planned(time_range).reads

    def prefiltered(self, time_range: UlidRange) -> TableReads:
        """Returns the same after the scan for the text, so that only the rest is read."""
        plan = self._planned(time_range)
        if plan.found is None:
            looking = plan.looking or self._prefilter.begin(plan.reads, time_range)
            plan.found, plan.looking = looking.finish(), None
        return plan.found

    def check(self, time_range: UlidRange) -> None:
        """Raises `Damaged` if a file of the range is known to be damaged in the store."""
        for file in self._snapshot.table_files(time_range):
            self.check_known(file)

    def check_known(self, file: TableFile) -> None:
        """Raises `Damaged` if this file is known to be damaged in the store."""
        damage = self._nearest.damage_of(file.path)
        if damage is not None:
            raise Damaged(damage)

    def check_parts(self, reads: TableReads, time_range: UlidRange) -> None:
        """Checks the files on this machine that DuckDB will read. Raises `Damaged`."""
        self._prefilter.check_parts(reads, time_range)

    def begin(self, time_range: UlidRange) -> None:
        """Begins the scan of the next range, if nothing has to be waited for."""
        if self._needs is None:
            return
        files = self._files(time_range)
        answers = {**self._answers, **self._indexes.ahead(self._unanswered(files), self._needs)}
        if any(file.path not in answers for file in files):
            return
        plan = self._next = _Plan(time_range, self._reads_of(time_range, files, answers))
        if not self._prefilter.is_ready(plan.reads):
            return
        with suppress(Damaged):  # the search meets it again in this range and reports it
            plan.looking = self._prefilter.begin(plan.reads, time_range)

    def forget(self) -> None:
        """Drops the plans: the sources have changed, or a pause must not hold lines."""
        for plan in (self._plan, self._next):
            if plan is not None and plan.looking is not None:
                plan.looking.cancel()
        self._plan = self._next = None

    def without_copies(self) -> bool:
        """Continues with the files of the store itself; false if nothing else was read."""
        shares = () if self._plan is None else self._plan.reads.shares
        given_up = self._nearest.give_up({file.path for file, _ in shares})
        if given_up:
            self.forget()
        return given_up

    def note(self, time_range: UlidRange) -> int:
        """Counts the bytes that the range reads and returns their number."""
        reads = self.reads(time_range)
        rows = sum(file.rows for file, _ in reads.shares)
        for file, share in reads.shares:
            if file not in reads.copied:
                self._nearest.note_read(file, file.size * share * self._part_of(rows))
        return reads.bytes

    def ask_for_copies(self) -> None:
        """Notes which files were read, at the end, so that no copy is made during the search."""
        self._nearest.ask()

    def _planned(self, time_range: UlidRange) -> _Plan:
        if self._plan is None or self._plan.time_range != time_range:
            if self._next is not None and self._next.time_range == time_range:
                self._plan, self._next = self._next, None
            else:
                self._plan = self._new_plan(time_range)
        return self._plan

    def _new_plan(self, time_range: UlidRange) -> _Plan:
        files, answers = self._files(time_range), self._answers
        if self._needs is not None and (others := self._unanswered(files)):
            answers = {**answers, **self._indexes.which(others, self._needs)}
        return _Plan(time_range, self._reads_of(time_range, files, answers))

    def _unanswered(self, files: Sequence[TableFile]) -> Sequence[TableFile]:
        return [file for file in files if file.path not in self._answers]

    def _reads_of(
        self,
        time_range: UlidRange,
        files: Sequence[TableFile],
        answers: Mapping[str, IndexCondition],
    ) -> TableReads:
        return table_reads(time_range, files, answers, self._nearest.copy_of, self._indexes.maps)

    def _files(self, time_range: UlidRange) -> list[TableFile]:
        return self._nearest.files(self._snapshot.table_files(time_range))

    def _part_of(self, rows: int) -> float:
        """Returns about which share of a file with so many rows is read, apart from indexes."""
        request = self._request
        if request.limit is not None and request.unconditional:
            return min(_READ_AHEAD * request.limit / max(rows, 1), 1.0)
        return self.narrow
