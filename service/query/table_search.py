"""The table's part of a search: what its tiles read of files, and lines that were found there.

A tile is planned once, by the skip indexes and the copies of its files. A search that reads all
tiles has the lines of the next one looked for while it orders and gives those that it has.
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
from service.query.sources import View
from service.query.table_reads import TableReads, table_reads, weights
from service.query.text_scan import Looking, Prefilter
from tailrace.logstore.errors import Damaged
from tailrace.logstore.objects.store import is_remote
from tailrace.logstore.search.translate import IndexCondition, needs_of
from tailrace.logstore.table.snapshot import TableFile

# What one search reads in place of the table's files: those of the cache, and copies to scan.
#
# If something there cannot be read, the search goes on with the store itself.


@dataclass(frozen=True, slots=True)
class Nearer:
    """What a node has beside the store, for all searches."""

    cache: FileCache
    copies: ScanCopies


class NearestFiles:
    """Of one search, in its thread."""

    def __init__(self, nearer: Nearer) -> None:
        self._nearer = nearer
        self._in_use = True
        self._cached: dict[str, None] = {}  # paths of files that were read there
        self._scanned: dict[str, None] = {}
        self._read: list[tuple[TableFile, float]] = []  # and how many bytes of it

    def files(self, files: Iterable[TableFile]) -> list[TableFile]:
        """The files, with addresses of the cache where they are in it."""
        if not self._in_use:
            return list(files)
        found = list[TableFile]()
        for file in files:
            found.append(self._nearer.cache.nearest(file))
            if found[-1] is not file:
                self._cached[file.path] = None
        return found

    def damage_of(self, path: str) -> str | None:
        """How the file is damaged in the store, if the cache found that out."""
        return self._nearer.cache.damaged.get(path)

    def copy_of(self, file: TableFile) -> ScanCopy | None:
        """The copy of a file, if there is one."""
        copy = self._nearer.copies.of(file) if self._in_use else None
        if copy is not None:
            self._scanned[file.path] = None
        return copy

    def give_up(self, read: Collection[str]) -> bool:
        """From now on the store itself is read; False if nothing else was read before.

        One of the files with these paths cannot be read where it was read: all of them go there.
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
        """So many bytes were read of a file that has no copy."""
        self._read.append((file, size))

    def ask(self) -> None:
        """Asks for what was read to be nearer the next time: at the end, not beside the search."""
        read, self._read = self._read, []
        for file, size in read if self._in_use else ():
            self._nearer.copies.note_read(file, size)
            if is_remote(file.uri):
                self._nearer.cache.note_read(file, size)


_READ_AHEAD: Final = 4
"""Times as many rows as its limit, that a search for nothing but the nearest records reads."""
_MOST_AHEAD: Final = 64
"""Files that are looked at before a search comes to them."""
_NARROW: Final = 0.1
"""Of a file, that a search in one pipeline or run reads, since files are sorted by them."""


@dataclass
class _Plan:
    """What a tile needs of the table; lines that are looked for, and what came of it."""

    tile: UlidRange
    reads: TableReads
    looking: Looking | None = None
    found: TableReads | None = None


class TableSearch:
    """For one search, in its thread."""

    def __init__(
        self,
        request: QueryRequest,
        view: View,
        indexes: SkipIndexes,
        nearer: Nearer,
        prefilter: Prefilter,
    ) -> None:
        self._request = request
        self._view = view
        self._indexes = indexes
        self._nearest = NearestFiles(nearer)
        self._prefilter = prefilter
        self._needs = needs_of(request.condition)
        self._ahead: Sequence[TableFile] = ()  # whose indexes were asked before
        self._told: Mapping[str, IndexCondition] = {}  # what they said
        self._plan: _Plan | None = None
        self._next: _Plan | None = None

    @property
    def narrow(self) -> float:
        """About how much of a file is of the pipeline and run that are asked for."""
        return _NARROW if self._in_part else 1.0

    @property
    def _in_part(self) -> bool:
        """Whether it is in one pipeline or run."""
        return self._request.fqn is not None or self._request.run is not None

    def look_ahead(self) -> None:
        """Has indexes and footers of files read, nearest first, if the search reads all tiles."""
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
                if copy or self._in_part  # else maps may do without
            ]
        )
        self._ahead, self._told = files, self._indexes.ahead(files, self._needs)

    def weights(self, bounds: UlidRange) -> Mapping[int, Weight]:
        """What is read by hour, as far as it is known."""
        return weights(self._view.weights(bounds), self._ahead, self._told)

    def reads(self, tile: UlidRange) -> TableReads:
        """What the tile needs; planned once, for what it reads and how much it is."""
        return self._planned(tile).reads

    def prefiltered(self, tile: UlidRange) -> TableReads:
        """The same, once lines with the text were found, so that the rest is read."""
        plan = self._planned(tile)
        if plan.found is None:
            looking = plan.looking or self._prefilter.begin(plan.reads, tile)
            plan.found, plan.looking = looking.finish(), None
        return plan.found

    def check(self, tile: UlidRange) -> None:
        """Raises `Damaged` if a file of the tile is known to be damaged in the store."""
        for file in self._view.table_files(tile):
            self.check_known(file)

    def check_known(self, file: TableFile) -> None:
        """The same, of one file."""
        damage = self._nearest.damage_of(file.path)
        if damage is not None:
            raise Damaged(damage)

    def check_parts(self, reads: TableReads, tile: UlidRange) -> None:
        """Checks what DuckDB is to read, if it is on this machine. Raises `Damaged`."""
        self._prefilter.check_parts(reads, tile)

    def begin(self, tile: UlidRange) -> None:
        """Has lines of the tile looked for that comes next, if nothing has to be waited for."""
        if self._needs is None:
            return
        files = self._files(tile)
        told = {**self._told, **self._indexes.ahead(self._untold(files), self._needs)}
        if any(file.path not in told for file in files):
            return
        plan = self._next = _Plan(tile, self._reads_of(tile, files, told))
        if not self._prefilter.is_ready(plan.reads):
            return
        with suppress(Damaged):  # it is met again, and told, once the search comes to the tile
            plan.looking = self._prefilter.begin(plan.reads, tile)

    def forget(self) -> None:
        """Drops what was planned: what is there has changed, or a pause is to hold no lines."""
        for plan in (self._plan, self._next):
            if plan is not None and plan.looking is not None:
                plan.looking.cancel()
        self._plan = self._next = None

    def without_copies(self) -> bool:
        """Goes on with the files of the store itself; False if nothing else was read."""
        shares = () if self._plan is None else self._plan.reads.shares
        given_up = self._nearest.give_up({file.path for file, _ in shares})
        if given_up:
            self.forget()
        return given_up

    def note(self, tile: UlidRange) -> int:
        """Counts what the tile reads, and says how many bytes that are."""
        reads = self.reads(tile)
        rows = sum(file.rows for file, _ in reads.shares)
        for file, share in reads.shares:
            if file not in reads.copied:
                self._nearest.note_read(file, file.size * share * self._part_of(rows))
        return reads.bytes

    def ask_for_copies(self) -> None:
        """Says what was read of files, at the end, so that no copy is made beside the search."""
        self._nearest.ask()

    def _planned(self, tile: UlidRange) -> _Plan:
        if self._plan is None or self._plan.tile != tile:
            if self._next is not None and self._next.tile == tile:
                self._plan, self._next = self._next, None
            else:
                self._plan = self._new_plan(tile)
        return self._plan

    def _new_plan(self, tile: UlidRange) -> _Plan:
        files, told = self._files(tile), self._told
        if self._needs is not None and (others := self._untold(files)):
            told = {**told, **self._indexes.which(others, self._needs)}
        return _Plan(tile, self._reads_of(tile, files, told))

    def _untold(self, files: Sequence[TableFile]) -> Sequence[TableFile]:
        return [file for file in files if file.path not in self._told]

    def _reads_of(
        self, tile: UlidRange, files: Sequence[TableFile], told: Mapping[str, IndexCondition]
    ) -> TableReads:
        return table_reads(tile, files, told, self._nearest.copy_of, self._indexes.maps)

    def _files(self, tile: UlidRange) -> list[TableFile]:
        return self._nearest.files(self._view.table_files(tile))

    def _part_of(self, rows: int) -> float:
        """About how much a search reads of files with so many rows, besides what indexes say."""
        request = self._request
        if request.limit is not None and request.unconditional:
            return min(_READ_AHEAD * request.limit / max(rows, 1), 1.0)
        return self.narrow
