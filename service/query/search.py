"""One search, as a blocking iterator: each record once, in order, cut at the limit.

Tiles of time are worked through from the nearest end. Within a tile DuckDB gives the
matches in order and this drops a record that equals the one before it: copies of a
record (a batch that was sent to two nodes, a segment that is still listed and already
hot) come out side by side, so nothing has to be remembered, and only matches are
compared. If a cut tile turns out to have held copies, it is read on from the last record.

A segment, or a file of the table, that turns out unreadable midway is left out, named in the
report, and the tile is read on from the last record: the rest is still given, and said to be
partial. Where copies of files were read (`scan_copies`), it is first tried without them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from logstore import ulid
from logstore.errors import Damaged
from logstore.search.conditions import patterns
from logstore.search.needs import Wanted, needs_of
from logstore.segments.record_keys import distinct
from logstore.table.snapshot import TableFile
from service.query.cursor import RecordKey
from service.query.deleted import MOST_TERMS, Live, live
from service.query.hot import SCHEMA
from service.query.plain import is_plain, matching
from service.query.prefilter import Prefilter
from service.query.request import QueryRequest
from service.query.scan_copies import ScanCopies, ScanCopy
from service.query.skip_indexes import SkipIndexes
from service.query.slices import slices
from service.query.sql import READABLE, Scans, Statement, literal
from service.query.table_reads import TableReads, table_reads, weights
from service.query.tiles import Tile, Tiles, TileSizes
from service.query.view import View

if TYPE_CHECKING:
    from service.query.database import Database

_GROWTH: Final = 4
_PIECE_ROWS: Final = 8_192
_READ_AHEAD: Final = 4
"""Times as many rows as its limit, that a search for nothing but the nearest records reads."""
_MOST_AHEAD: Final = 64
"""Files that are looked at before a search comes to them."""
_NARROW: Final = 0.1
"""Of a file, that a search in one pipeline or run reads, since files are sorted by them."""

Summary: TypeAlias = Callable[[Statement, Tile, Scans, str], str]
"""Makes a statement that sums a tile up in few rows, of what is scanned and what is not deleted."""


class Search:
    """The records of `request` in `view`. `matches` and `last` follow what was given out.

    `database` gives the one to work in at the moment. It is not asked before it is needed.
    """

    def __init__(
        self,
        request: QueryRequest,
        view: View,
        database: Callable[[], Database],
        sizes: TileSizes,
        indexes: SkipIndexes,
        copies: ScanCopies,
        prefilter: Prefilter,
    ) -> None:
        self._request = request
        self._view = view
        self._database = database
        self._sizes = sizes
        self._indexes = indexes
        self._copies: ScanCopies | None = copies
        self._scanned: dict[str, None] = {}  # paths of files that were read as copies
        self._prefilter = prefilter
        self._planned: tuple[Tile, TableReads] | None = None  # until what is there has changed
        self._looked: TableReads | None = None  # the same, prefiltered
        self._plain = is_plain(request) and len(view.deletions) <= MOST_TERMS
        self._uncopied: list[tuple[TableFile, float]] = []  # what was read of others, in bytes
        self._needs = needs_of(request.condition)
        self._ahead: Sequence[TableFile] = ()  # whose indexes were asked before
        self._told: Mapping[str, Wanted] = {}  # what they said
        self._statement = Statement(request)
        self._in_last_tile = self._given_last = False
        self.matches = 0
        self.bytes = 0
        self.last: RecordKey | None = None

    def check(self) -> None:
        """Raises `InvalidInput` if a regular expression is none. Blocks."""
        for pattern in patterns(self._request.condition):
            self._database().check_regex(pattern)

    @property
    def next(self) -> str | None:
        """Where the next page begins; None if everything was given."""
        if self._request.limit is None or self.matches < self._request.limit or not self.last:
            return None
        return self.last.encode()

    @property
    def finished(self) -> bool:
        """Whether nothing follows what `batches` gave. If not, nobody knows yet."""
        return self._done() or self._given_last

    def batches(self) -> Generator[pa.RecordBatch]:
        """The matches in order. Raises `LimitReached`, `Damaged`, `StoreUnavailable`."""
        first = self._first_budget
        after, budget = self._after, first
        self._look_ahead()
        tiles = self._tiles()
        try:
            while not self._done() and (tile := tiles.take(budget)) is not None:
                before = self.matches
                self._in_last_tile = tiles.empty
                self._note(tile)
                for part in self._slices(tile):
                    yield from self._tile(part, after)
                growth = self._sizes.busy_rows / max(self.matches - before, 1)
                budget = max(int(budget * min(growth, _GROWTH)), first)
                budget = min(budget, self._sizes.largest_bytes)
        finally:
            self._planned = self._looked = None  # one that pauses holds no lines
            self._ask_for_copies()

    @property
    def _after(self) -> RecordKey | None:
        """The record behind which there is something to give."""
        return self.last or self._request.after

    def count(self) -> int:
        """How many records match, whatever the limit; sets `matches`."""
        after = self._request.after
        for batch in self.totals(lambda made, _, scans, live: made.count(scans, after, live)):
            self.matches += batch.column(0)[0].as_py()
        return self.matches

    def totals(self, summary: Summary) -> Generator[pa.RecordBatch]:
        """The rows of the summary, tile by tile. Raises as `batches`."""
        self._look_ahead()
        tiles = self._tiles()
        try:
            while (tile := tiles.take(self._sizes.largest_bytes)) is not None:
                self._note(tile)
                yield from self._totals(tile, summary)
        finally:
            self._ask_for_copies()

    def _tiles(self) -> Tiles:
        request, after = self._request, self._after
        bounds = request.bounds
        if after is not None:
            edge = ulid.decode(after.ulid)
            low = max(bounds.low, 0 if request.descending else edge)
            high = min(bounds.high, edge if request.descending else bounds.high)
            bounds = Tile(low, high)
        if bounds.low > bounds.high:
            return Tiles({}, bounds, descending=request.descending)
        hours = weights(self._view.weights(bounds), self._ahead, self._told)
        return Tiles(hours, bounds, descending=request.descending)

    def _look_ahead(self) -> None:
        """Has indexes and footers of files read, nearest first, if the search reads all tiles."""
        request = self._request
        if self._needs is None or request.limit is not None:
            return
        files = self._view.table_files(request.bounds)
        files.sort(key=lambda file: (file.date, file.hour), reverse=request.descending)
        del files[_MOST_AHEAD:]
        copies = [None if self._copies is None else self._copies.of(file) for file in files]
        paths = [copy.path if copy else file.uri for file, copy in zip(files, copies, strict=True)]
        self._prefilter.ahead(paths)
        self._ahead, self._told = files, self._indexes.ahead(files, self._needs)

    def _note(self, tile: Tile) -> None:
        """Counts what the tile reads."""
        reads = self._reads(tile)
        self.bytes += reads.bytes + self._view.size_beside_table(tile)
        rows = sum(file.rows for file, _ in reads.shares)
        for file, share in reads.shares:
            if file not in reads.copied:
                self._uncopied.append((file, file.size * share * self._part_of(rows)))

    def _part_of(self, rows: int) -> float:
        """About how much a search reads of files with so many rows, besides what indexes say."""
        request = self._request
        if request.limit is not None and request.unconditional:
            return min(_READ_AHEAD * request.limit / max(rows, 1), 1.0)
        return self._narrow

    @property
    def _narrow(self) -> float:
        """About how much of a file is of the pipeline and run that are asked for."""
        request = self._request
        return _NARROW if request.fqn is not None or request.run is not None else 1.0

    def _ask_for_copies(self) -> None:
        """Says what was read of files, at the end, so that no copy is made beside the search."""
        noted, self._uncopied = self._uncopied, []
        if self._copies is not None:
            for file, size in noted:
                self._copies.note_read(file, size)

    @property
    def _first_budget(self) -> int:
        """Bytes of the first tile, of which a search in a pipeline or run reads a part.

        With a limit it may read no more than that tile, and the part is only likely.
        """
        first = self._sizes.first_bytes
        if self._request.limit is not None:
            return first
        return min(int(first / self._narrow), self._sizes.largest_bytes)

    def _done(self) -> bool:
        return self._request.limit is not None and self.matches >= self._request.limit

    def _slices(self, tile: Tile) -> Iterator[Tile]:
        """The tile, in pieces if most of it is not needed."""
        request = self._request
        if request.limit is None or not request.unconditional:
            return iter([tile])
        return slices(
            tile,
            self._view.table_files(tile),
            request.limit - self.matches,
            self._sizes.sliced_rows,
            descending=request.descending,
        )

    def _tile(self, tile: Tile, after: RecordKey | None) -> Iterator[pa.RecordBatch]:
        """The tile's matches, however many statements they take."""
        while not self._done():
            limit = None if self._request.limit is None else self._request.limit - self.matches
            given = 0
            try:
                with closing(self._select(tile, after, limit)) as selected:
                    for batch in selected:
                        given += batch.num_rows
                        fresh = self._fresh(batch)
                        if fresh.num_rows:
                            yield fresh
            except Damaged:
                if not self._without_copies() and not self._leave_out_unreadable(tile):
                    raise
            else:
                if limit is None or given < limit:
                    return
            after = self.last or after

    def _select(
        self, tile: Tile, after: RecordKey | None, limit: int | None
    ) -> Generator[pa.RecordBatch]:
        reads = self._prefiltered(tile)
        sources = self._sources(reads, tile)
        if not sources and reads.empty:
            return _nothing()
        if self._plain and sources.keys() == {"found"} and not reads.parts:
            return self._matching(reads, tile, after, limit)
        live, scans = self._live(tile), _scans(sources, reads)
        statement = self._statement.records(scans, after, limit, live.terms)
        return self._database().run(statement, self._bound(sources, reads, tile, after, live))

    def _matching(
        self, reads: TableReads, tile: Tile, after: RecordKey | None, limit: int | None
    ) -> Generator[pa.RecordBatch]:
        """`_select` for what was found already, without DuckDB."""
        deletions = self._view.deletions
        found = matching(reads.found, self._request, tile, after, deletions)[:limit]
        for start in range(0, found.num_rows, _PIECE_ROWS):
            last = start + _PIECE_ROWS >= found.num_rows
            self._given_last = last and limit is None and self._in_last_tile
            yield found[start : start + _PIECE_ROWS]

    def _totals(self, tile: Tile, summary: Summary) -> list[pa.RecordBatch]:
        while True:
            try:
                return self._totals_of(self._prefiltered(tile), tile, summary)
            except Damaged:
                if not self._without_copies() and not self._leave_out_unreadable(tile):
                    raise

    def _totals_of(self, reads: TableReads, tile: Tile, summary: Summary) -> list[pa.RecordBatch]:
        sources = self._sources(reads, tile)
        if not sources and reads.empty:
            return []
        after, live = self._request.after, self._live(tile)
        statement = summary(self._statement, tile, _scans(sources, reads), live.terms)
        bound = self._bound(sources, reads, tile, after, live)
        return list(self._database().run(statement, bound))

    def _reads(self, tile: Tile) -> TableReads:
        """What the tile needs of the table; planned once, for what it reads and how much it is."""
        if self._planned is None or self._planned[0] != tile:
            self._planned, self._looked = (tile, self._plan(tile)), None
        return self._planned[1]

    def _prefiltered(self, tile: Tile) -> TableReads:
        """The same, once lines with the text were found, so that the rest is read."""
        reads = self._reads(tile)
        if self._looked is None:
            self._looked = self._prefilter(reads, tile)
        return self._looked

    def _plan(self, tile: Tile) -> TableReads:
        files = self._view.table_files(tile)
        told, others = self._told, [file for file in files if file.path not in self._told]
        if self._needs is not None and others:
            told = {**told, **self._indexes.which(others, self._needs)}
        return table_reads(tile, files, told, self._copy_of, self._indexes.maps)

    def _copy_of(self, file: TableFile) -> ScanCopy | None:
        copy = None if self._copies is None else self._copies.of(file)
        if copy is not None:
            self._scanned[file.path] = None
        return copy

    def _sources(self, reads: TableReads, tile: Tile) -> dict[str, Sequence[str]]:
        """What is read whole, by source, as names of files."""
        view = self._view
        sources = dict(reads.files)
        if reads.found:
            sources["found"] = []
        if segments := view.segment_files(tile):
            sources["segments"] = segments
        if view.hot.size(tile):
            sources["hot"] = []
        return sources

    def _live(self, tile: Tile) -> Live:
        """What leaves out deleted records of the tile; the tables it needs are there."""
        found = live(self._view.deletions, tile)
        for name, table in found.tables.items():
            self._database().hold(name, table)
        return found

    def _bound(
        self,
        sources: Mapping[str, Sequence[str]],
        reads: TableReads,
        tile: Tile,
        after: RecordKey | None,
        live: Live,
    ) -> dict[str, Any]:
        if reads.found:
            self._database().hold("found", pa.Table.from_batches(reads.found, SCHEMA))
        if "hot" in sources:
            self._database().feed("hot", SCHEMA, self._view.hot.records(tile))
        files = {name: [literal(n) for n in names] for name, names in sources.items() if names}
        rows: dict[str, Any] = {}
        for n, one in enumerate(reads.ranges):
            rows |= {f"part{n}": literal(one.path), f"first{n}": one.first, f"last{n}": one.last}
        bounded = _scans(sources, reads).bounded
        values = self._statement.parameters(tile, after, bounded=bounded)
        return values | live.parameters | files | rows

    def _without_copies(self) -> bool:
        """Goes on without copies of table files; False if none was read."""
        if self._copies is None or not self._scanned:
            return False
        for path in self._scanned:
            self._copies.forget(path)
        self._copies = self._planned = None
        return True

    def _leave_out_unreadable(self, tile: Tile) -> bool:
        """Finds segments and files of the tile that cannot be read and goes on without them."""
        found, self._planned = False, None
        stored = [file.uri for file in self._view.table_files(tile)]
        for file in [*self._view.segment_files(tile), *stored]:
            try:
                self._database().number(READABLE, {"segments": [literal(file)]})
            except Damaged as error:
                self._view.leave_out(file, str(error))
                found = True
        return found

    def _fresh(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without records that equal the one before them."""
        if batch.num_rows == 0:
            return batch
        again = self.last is not None and RecordKey.of(batch[:1]) == [self.last]
        self.last = RecordKey.last_of(batch)
        fresh = distinct(batch)[1 if again else 0 :]
        self.matches += fresh.num_rows
        return fresh


def _scans(sources: Mapping[str, Sequence[str]], reads: TableReads) -> Scans:
    return Scans(sources, [one.bare for one in reads.ranges], reads.inside)


def _nothing() -> Generator[pa.RecordBatch]:
    yield from ()
