"""Runs one search as a blocking iterator: each record once, in order, cut at the limit.

The search works through ranges of time, the nearest first. Within a range DuckDB returns the
matches in order, and the search drops a record that equals the one before it. Copies of a record (a
batch that was sent to two nodes, a listed segment whose records the pinned journal holds, too) come
out side by side, so the search remembers nothing and compares only matches. If a range with a limit
turns out to have held copies, the search reads on in it after the last record.

If a segment or a file of the table turns out unreadable midway, the search leaves it out, names it
in the report, and reads the range on from the last record: the result is partial. If copies of
files were read (`scan_copies`), the search first tries again without them. If the store does not
answer, the search continues without the store.

A search for texts and names among few lines that are in memory needs no DuckDB. A statement over a
handful of lines takes DuckDB some 4 ms to plan, many times the work itself. `matching` evaluates
such a search on Arrow's columns: it compares texts and names byte by byte as DuckDB does, and both
order strings by their bytes. It supports no other conditions (regular expressions, numbers, JSON,
`NOT`, another case).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial, reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from service.query.page_checks import PageChecks
from service.query.request import (
    QueryRequest,
    RecordKey,
    TimeRanges,
    TimeRangeSizes,
    UlidRange,
    slices,
)
from service.query.sources import MOST_TERMS, Deletion, Live, SearchSnapshot, live
from service.query.sql import READABLE, Scans, Statement, files_of, literal
from service.query.table_reads import TableReads
from service.query.table_search import TableSearch
from tailrace.logstore import ulid
from tailrace.logstore.errors import Damaged, StoreUnavailable
from tailrace.logstore.search.conditions import (
    MESSAGE,
    All,
    AnyOf,
    Column,
    Condition,
    Contains,
    Is,
    patterns,
)
from tailrace.logstore.segments.file_format import KEY_COLUMNS, distinct
from tailrace.logstore.table.schema import RECORD_SCHEMA
from tailrace.logstore.table.snapshot import TableFile

if TYPE_CHECKING:
    from service.query.duckdb import Database


# --- Searches without DuckDB --------------------------------------------------------------------


_NAMES: Final = (MESSAGE, Column("fqn"), Column("run_id"))
"""Columns of text that every record has."""


def is_plain(request: QueryRequest) -> bool:
    """Returns true if `matching` can answer the request."""
    return request.value is None and _is_plain(request.condition)


def _is_plain(condition: Condition | None) -> bool:
    match condition:
        case All(parts) | AnyOf(parts):
            return bool(parts) and all(map(_is_plain, parts))
        case Contains(_, field, False) | Is(_, field, False):
            return field in _NAMES
    return condition is None


def matching(
    records: Sequence[pa.RecordBatch],
    request: QueryRequest,
    time_range: UlidRange,
    after: RecordKey | None,
    deletions: Sequence[Deletion],
) -> pa.RecordBatch:
    """Returns the matching records after `after`, in order, not cut at the limit."""
    rows = pa.concat_batches(records)
    terms = [*_asked(rows, request, time_range), *_live(rows, deletions)]
    if after is not None:
        terms.append(_behind(rows, after, descending=request.descending))
    kept = reduce(pc.and_, terms)
    if not pc.all(kept).as_py():
        rows = rows.filter(kept)
    if rows.num_rows > 1:
        direction = "descending" if request.descending else "ascending"
        rows = rows.sort_by([(name, direction) for name in KEY_COLUMNS])
    return rows


def _asked(rows: pa.RecordBatch, request: QueryRequest, time_range: UlidRange) -> list[pa.Array]:
    ids = rows.column("ulid")
    terms = [
        pc.greater_equal(ids, ulid.encode(time_range.low)),
        pc.less_equal(ids, ulid.encode(time_range.high)),
    ]
    if request.fqn is not None:
        terms.append(pc.equal(rows.column("fqn"), request.fqn))
    if request.run is not None:
        terms.append(pc.equal(rows.column("run_id"), request.run))
    if request.levels:
        levels = pa.array(request.levels, pa.string())
        terms.append(pc.is_in(rows.column("level"), value_set=levels))
    if request.condition is not None:
        terms.append(_term(rows, request.condition))
    return terms


def _term(rows: pa.RecordBatch, condition: Condition) -> pa.Array:
    match condition:
        case All(parts):
            return reduce(pc.and_, [_term(rows, part) for part in parts])
        case AnyOf(parts):
            return reduce(pc.or_, [_term(rows, part) for part in parts])
        case Contains(text, field) if isinstance(field, Column):
            return pc.match_substring(rows.column(field.name), text)
        case Is(text, field) if isinstance(field, Column):
            return pc.equal(rows.column(field.name), text)
    raise AssertionError(f"is_plain comes first: {condition}")


def _live(rows: pa.RecordBatch, deletions: Sequence[Deletion]) -> list[pa.Array]:
    """Returns for each deletion the records that it leaves."""
    terms = []
    for fqn, run, until in deletions:
        gone = pc.and_(
            pc.equal(rows.column("fqn"), fqn),
            pc.less_equal(rows.column("ulid"), ulid.encode(until)),
        )
        if run is not None:
            gone = pc.and_(gone, pc.equal(rows.column("run_id"), run))
        terms.append(pc.invert(gone))
    return terms


def _behind(rows: pa.RecordBatch, after: RecordKey, *, descending: bool) -> pa.Array:
    """Returns true for records whose key comes after this one, in the order of the search."""
    comes = pc.less if descending else pc.greater
    term = None
    for name, value in zip(reversed(KEY_COLUMNS), reversed(after), strict=True):
        column = rows.column(name)
        here = comes(column, value)
        term = here if term is None else pc.or_(here, pc.and_(pc.equal(column, value), term))
    return term


_GROWTH: Final = 4
_PIECE_ROWS: Final = 8_192

Summary: TypeAlias = Callable[[Statement, UlidRange, Scans, str], str]
"""Builds a statement that sums up a range in few rows, from scans and undeleted records."""


class Search:
    """The records of `request` in `snapshot`. `matches` and `last` follow the returned records.

    `database` returns the database to work in. It is called only when a database is needed.
    """

    def __init__(
        self,
        request: QueryRequest,
        snapshot: SearchSnapshot,
        table: TableSearch,
        database: Callable[[], Database],
        sizes: TimeRangeSizes,
        checks: PageChecks,
    ) -> None:
        self._checks = checks
        self._request = request
        self._snapshot = snapshot
        self._table = table
        self._database = database
        self._sizes = sizes
        self._plain = is_plain(request) and len(snapshot.deletions) <= MOST_TERMS
        self._statement = Statement(request)
        self._left = TimeRanges({}, request.bounds, descending=request.descending)
        self._budget = 0  # bytes of the last range
        self._begun: UlidRange | None = None  # the next range, once the scan for its lines began
        self._in_last_range = self._given_last = False
        self.matches = 0
        self.bytes = 0
        self.last: RecordKey | None = None
        self.skip_range: Callable[[UlidRange], bool] = lambda _: False
        """Returns true for a range that is not to be read; asked before each of them."""

    def check(self) -> None:
        """Raises `InvalidInput` if a regular expression is invalid. Blocks."""
        for pattern in patterns(self._request.condition):
            self._database().check_regex(pattern)

    @property
    def next(self) -> str | None:
        """Returns the cursor of the next page; None if all records were returned."""
        if self._request.limit is None or self.matches < self._request.limit or not self.last:
            return None
        return self.last.encode()

    @property
    def finished(self) -> bool:
        """Returns true if no record follows those of `batches`. False: it is not known yet."""
        return self._done() or self._given_last

    def batches(self) -> Generator[pa.RecordBatch]:
        """Yields the matches in order. Raises `LimitReached`, `Damaged`, `StoreUnavailable`."""
        after = self._after
        self._table.look_ahead()
        self._left, self._budget = self._time_ranges(), self._first_budget
        time_range = self._left.take(self._budget)
        try:
            while time_range is not None and not self._done():
                if self.skip_range(time_range):
                    time_range = self._next(0)
                    continue
                before = self.matches
                self._in_last_range = self._left.empty
                self._note(time_range)
                for part in self._slices(time_range):
                    yield from self._time_range(part, after)
                time_range = self._next(self.matches - before)
        finally:
            self._begun = None
            self._table.forget()
            self._table.ask_for_copies()

    def _next(self, matches: int) -> UlidRange | None:
        """Returns the range after one with so many matches, or the range whose scan began."""
        begun, self._begun = self._begun, None
        if begun is not None:
            return begun
        growth = self._sizes.busy_rows / max(matches, 1)
        self._budget = max(int(self._budget * min(growth, _GROWTH)), self._first_budget)
        self._budget = min(self._budget, self._sizes.largest_bytes)
        return self._left.take(self._budget)

    def _begin_next(self, reads: TableReads) -> None:
        """Begins the scan of the next range, if that range is needed in any case."""
        if self._request.limit is None and self._begun is None:
            self._begun = self._next(sum(batch.num_rows for batch in reads.found))
            if self._begun is not None:
                self._table.begin(self._begun)

    @property
    def _after(self) -> RecordKey | None:
        """Returns the record after which the results continue."""
        return self.last or self._request.after

    def count(self) -> int:
        """Counts the matching records, whatever the limit; sets `matches`."""
        after = self._request.after
        for batch in self.totals(lambda made, _, scans, live: made.count(scans, after, live)):
            self.matches += batch.column(0)[0].as_py()
        return self.matches

    def totals(self, summary: Summary, *, growing: bool = False) -> Generator[pa.RecordBatch]:
        """Yields the rows of the summary, range by range. Raises the errors of `batches`.

        The ranges are as large as they may be, or begin small and are `growing`.
        """
        self._table.look_ahead()
        time_ranges, largest = self._time_ranges(), self._sizes.largest_bytes
        budget = self._sizes.first_bytes if growing else largest
        try:
            while (time_range := time_ranges.take(min(budget, largest))) is not None:
                budget *= _GROWTH
                if not self.skip_range(time_range):
                    self._note(time_range)
                    yield from self._totals(time_range, summary)
        finally:
            self._table.ask_for_copies()

    def own_times(self, time_range: UlidRange) -> tuple[int, int] | None:
        """Returns bounds of the own times of a range's records, in microseconds; None: unknown."""
        if self._snapshot.unflushed.size(time_range) or self._snapshot.segment_files(time_range):
            return None
        times = [file.times for file in self._snapshot.table_files(time_range)]
        known = [pair for pair in times if pair is not None]
        if not known or len(known) < len(times):
            return None
        return min(low for low, _ in known), max(high for _, high in known)

    def _time_ranges(self) -> TimeRanges:
        request, after = self._request, self._after
        bounds = request.bounds
        if after is not None:
            edge = ulid.decode(after.ulid)
            low = max(bounds.low, 0 if request.descending else edge)
            high = min(bounds.high, edge if request.descending else bounds.high)
            bounds = UlidRange(low, high)
        if bounds.low > bounds.high:
            return TimeRanges({}, bounds, descending=request.descending)
        return TimeRanges(self._table.weights(bounds), bounds, descending=request.descending)

    @property
    def _first_budget(self) -> int:
        """Returns the bytes of the first range; a search in a pipeline or run reads a part of them.

        With a limit the search may read no more than that range, and the size of the part is only
        likely.
        """
        first = self._sizes.first_bytes
        if self._request.limit is not None:
            return first
        return min(int(first / self._table.narrow), self._sizes.largest_bytes)

    def _note(self, time_range: UlidRange) -> None:
        """Counts the bytes that the range reads."""
        self.bytes += self._table.note(time_range) + self._snapshot.size_beside_table(time_range)

    def _done(self) -> bool:
        return self._request.limit is not None and self.matches >= self._request.limit

    def _slices(self, time_range: UlidRange) -> Iterator[UlidRange]:
        """Yields the range, in pieces if most of it is not needed."""
        request = self._request
        if request.limit is None or not request.unconditional:
            return iter([time_range])
        return slices(
            time_range,
            self._snapshot.table_files(time_range),
            request.limit - self.matches,
            self._sizes.sliced_rows,
            descending=request.descending,
        )

    def _time_range(
        self, time_range: UlidRange, after: RecordKey | None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the range's matches, with as many statements as needed."""
        while not self._done():
            limit = None if self._request.limit is None else self._request.limit - self.matches
            given = 0
            try:
                with closing(self._select(time_range, after, limit)) as selected:
                    for batch in selected:
                        given += batch.num_rows
                        fresh = self._fresh(batch)
                        if fresh.num_rows:
                            yield fresh
            except (Damaged, StoreUnavailable) as error:
                if not self._can_go_on(error, time_range):
                    raise
            else:
                if limit is None or given < limit:
                    return
            after = self.last or after

    def _select(
        self, time_range: UlidRange, after: RecordKey | None, limit: int | None
    ) -> Generator[pa.RecordBatch]:
        reads = self._checked_reads(time_range)
        self._begin_next(reads)
        sources = self._sources(reads, time_range)
        if not sources and reads.empty:
            return _nothing()
        if self._plain and sources.keys() == {"found"} and not reads.parts:
            return self._matching(reads, time_range, after, limit)
        live, scans = self._live(time_range), _scans(sources, reads)
        statement = self._statement.records(scans, after, limit, live.terms)
        return self._database().run(statement, self._bound(sources, reads, time_range, after, live))

    def _checked_reads(self, time_range: UlidRange) -> TableReads:
        """Checks all that the range reads, then returns its reads of the table.

        Raises `Damaged`.
        """
        self._table.check(time_range)
        for segment in chain(*self._snapshot.segment_files(time_range).values()):
            self._checks.check_segment(segment)
        reads = self._table.prefiltered(time_range)
        self._table.check_parts(reads, time_range)
        return reads

    def _matching(
        self, reads: TableReads, time_range: UlidRange, after: RecordKey | None, limit: int | None
    ) -> Generator[pa.RecordBatch]:
        """Does the work of `_select` on lines that the scan found, without DuckDB."""
        deletions = self._snapshot.deletions
        found = matching(reads.found, self._request, time_range, after, deletions)[:limit]
        for start in range(0, found.num_rows, _PIECE_ROWS):
            last = start + _PIECE_ROWS >= found.num_rows
            self._given_last = last and limit is None and self._in_last_range
            yield found[start : start + _PIECE_ROWS]

    def _totals(self, time_range: UlidRange, summary: Summary) -> list[pa.RecordBatch]:
        while True:
            try:
                return self._totals_of(self._checked_reads(time_range), time_range, summary)
            except (Damaged, StoreUnavailable) as error:
                if not self._can_go_on(error, time_range):
                    raise

    def _totals_of(
        self, reads: TableReads, time_range: UlidRange, summary: Summary
    ) -> list[pa.RecordBatch]:
        sources = self._sources(reads, time_range)
        if not sources and reads.empty:
            return []
        after, live = self._request.after, self._live(time_range)
        statement = summary(self._statement, time_range, _scans(sources, reads), live.terms)
        bound = self._bound(sources, reads, time_range, after, live)
        return list(self._database().run(statement, bound))

    def _sources(self, reads: TableReads, time_range: UlidRange) -> dict[str, Sequence[str]]:
        """Returns the names of files that are read whole, by source."""
        snapshot = self._snapshot
        sources = dict(reads.files)
        if reads.found:
            sources["found"] = []
        sources |= snapshot.segment_files(time_range)
        if snapshot.unflushed.size(time_range):
            sources["journal"] = []
        return sources

    def _live(self, time_range: UlidRange) -> Live:
        """Returns the condition on deletions of the range, and registers the tables it needs."""
        found = live(self._snapshot.deletions, time_range)
        for name, table in found.tables.items():
            self._database().hold(name, table)
        return found

    def _bound(
        self,
        sources: Mapping[str, Sequence[str]],
        reads: TableReads,
        time_range: UlidRange,
        after: RecordKey | None,
        live: Live,
    ) -> dict[str, Any]:
        if reads.found:
            self._database().hold("found", pa.Table.from_batches(reads.found, RECORD_SCHEMA))
        if "journal" in sources:
            self._database().feed(
                "journal", RECORD_SCHEMA, self._snapshot.unflushed.records(time_range)
            )
        files = {
            files_of(source): [literal(name) for name in names]
            for source, names in sources.items()
            if names
        }
        rows: dict[str, Any] = {}
        for n, one in enumerate(reads.ranges):
            rows |= {f"part{n}": literal(one.path), f"first{n}": one.first, f"last{n}": one.last}
        bounded = _scans(sources, reads).bounded
        values = self._statement.parameters(time_range, after, bounded=bounded)
        return values | live.parameters | files | rows

    def _can_go_on(self, error: Damaged | StoreUnavailable, time_range: UlidRange) -> bool:
        """Leaves out what cannot be read. Returns false if nothing was left out."""
        if isinstance(error, StoreUnavailable):
            return self._leave_out_store()
        return self._table.without_copies() or self._leave_out_unreadable(time_range)

    def _leave_out_store(self) -> bool:
        self._table.forget()
        return self._snapshot.leave_out_store()

    def _leave_out_unreadable(self, time_range: UlidRange) -> bool:
        """Finds unreadable segments and files of the range and continues without them."""
        found = False
        self._table.forget()
        for segment in chain(*self._snapshot.segment_files(time_range).values()):
            found |= self._is_left_out(segment, partial(self._checks.check_segment, segment))
        for file in self._snapshot.table_files(time_range):
            found |= self._is_left_out(file.uri, partial(self._check_file, file))
        return found

    def _check_file(self, file: TableFile) -> None:
        self._table.check_known(file)
        self._checks.check_file(file.uri)

    def _is_left_out(self, uri: str, check: Callable[[], None]) -> bool:
        """Returns true if the file or segment at `uri` is unreadable; leaves it out then."""
        try:
            check()
            self._database().number(READABLE, {"files": [literal(uri)]})
        except Damaged as error:
            self._snapshot.leave_out(uri, str(error))
            return True
        return False

    def _fresh(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the batch without records that equal the one before them."""
        if batch.num_rows == 0:
            return batch
        again = self.last is not None and RecordKey.of(batch[:1]) == [self.last]
        self.last = RecordKey.last_of(batch)
        fresh = distinct(batch)[1 if again else 0 :]
        self.matches += fresh.num_rows
        return fresh


def _scans(sources: Mapping[str, Sequence[str]], reads: TableReads) -> Scans:
    return Scans(sources, [one.source for one in reads.ranges], reads.inside, reads.coloured)


def _nothing() -> Generator[pa.RecordBatch]:
    yield from ()
