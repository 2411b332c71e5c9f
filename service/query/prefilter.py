"""Finds the lines of the table that have a text, before DuckDB sees them.

A search for a word needs few lines of most files. Here only the messages of a row group are read,
all of its bytes are searched for the text at once, and only where it is are other columns read, of
its lines alone. In a copy without compression messages are searched as they lie on the disk, so
that a row group without the text, or with many, is not decoded at all.

What is found are candidates, a superset of the matches: the search's whole condition is applied
to them as to anything else. Row groups that are not looked at here, since it would not pay, are
left to DuckDB: those on S3, those of very long lines, compressed ones and few of a file unless the
skip index leaves out most of it, and all that follow once it has turned out that the text is in
many lines, or in most row groups.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pyarrow as pa

from logstore.errors import Damaged
from logstore.search.needs import sure_texts
from service.query.footers import MESSAGE, Footer, Footers, Group
from service.query.hot import SCHEMA
from service.query.request import QueryRequest
from service.query.table_reads import Part, TableReads
from service.query.text_rows import TooMany, candidate_rows, occurrences
from service.query.tiles import Tile

_AT_ONCE: Final = 4  # row groups; two threads that decompress, and two that wait for the disk
_FEW: Final = 4
"""So few row groups are looked at without other threads."""
_MOST_DECODED: Final = 1
"""Of copies, so many row groups that have the text: DuckDB reads one in less time, but takes longer
to begin."""
_TRIED: Final = 3
"""So many row groups tell whether the text is in most."""
_MANY: Final = 8
"""Of a file of which the skip index leaves out little, fewer row groups are not looked at."""
_MOST_SHARE: Final = 32  # one row of so many may hold the text
_FEWEST_ROWS: Final = 256  # that may hold it in any case
_LONGEST_TEXT: Final = 16 << 20  # of a row group: some are in memory at a time
_MOST_FOUND: Final = 32 << 20  # bytes of candidates of a tile
_PIECE_ROWS: Final = 8_192  # that are decoded at a time
_NAMES: Final = [name for name in SCHEMA.names if name != MESSAGE]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Work:
    """A row group to look at."""

    part: Part
    footer: Footer
    group: Group


@dataclass
class _Seen:
    """What came of the row groups of a tile."""

    found: list[pa.RecordBatch] = field(default_factory=list)
    left: list[_Work] = field(default_factory=list)
    bytes: int = 0

    def add(self, work: _Work, batch: pa.RecordBatch | None) -> None:
        """The candidates of a row group; None: it was given up."""
        if batch is None:
            self.left.append(work)
            return
        if batch.num_rows:
            self.found.append(batch)
            self.bytes += batch.nbytes


class Prefilter:
    """For one search. `check` raises once the search is to stop."""

    def __init__(
        self, request: QueryRequest, footers: Footers, threads: Executor, check: Callable[[], None]
    ) -> None:
        self._request = request
        self._footers = footers
        self._threads = threads
        self._check = check
        texts = sure_texts(request.condition)
        self._texts = [text.encode("utf-8", "surrogatepass") for text in texts]
        self._given_up = not texts

    def __call__(self, reads: TableReads, tile: Tile) -> TableReads:
        """The same reads with what was found in place of what was looked at. Raises `Damaged`."""
        local = [part for part in reads.parts if not part.path.startswith("s3://")]
        if self._given_up or not local:
            return reads
        seen = _Seen()
        try:
            work = self._planned(local, None if reads.inside else tile, seen)
            planned = Counter(one.part for one in (*work, *seen.left))
            self._decode(self._candidates, [w for w in work if w.group.span is None], seen)
            found = self._with_text([w for w in work if w.group.span is not None], seen)
            self._decode(self._few_candidates, found, seen)
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            raise Damaged(f"what is stored cannot be read: {error}") from error
        remote = [part for part in reads.parts if part not in local]
        return reads.prefiltered([*remote, *_parts(seen.left, planned)], seen.found)

    def _planned(self, parts: Sequence[Part], tile: Tile | None, seen: _Seen) -> list[_Work]:
        """Row groups to be looked at; the others that may hold something are left."""
        work: list[_Work] = []
        for part in parts:
            footer = self._footers.of(part.path)
            groups = [
                group
                for group in footer.groups
                if part.meets(group.first, group.end)
                and footer.may_hold(group, self._request, tile)
            ]
            many = len(groups) >= _MANY
            for group in groups:
                pays = part.rare or (many and group.span is not None)
                chosen = work if pays and group.text_bytes <= _LONGEST_TEXT else seen.left
                chosen.append(_Work(part, footer, group))
        return work

    def _with_text(self, work: Sequence[_Work], seen: _Seen) -> list[_Work]:
        """Those that have few of the texts in their bytes, if they are few: else they are left."""
        waiting, found = deque(work), []
        for number, (one, has) in enumerate(self._each(self._has_few, waiting), 1):
            if has is None:
                seen.left.append(one)
            elif has:
                found.append(one)
            if has is None or _are_most(len(found), number):
                self._give_up(waiting, seen)
        if len(found) <= _MOST_DECODED and not self._given_up:
            return found
        seen.left += found
        return []

    def _decode(
        self, look: Callable[[_Work], pa.RecordBatch | None], work: Sequence[_Work], seen: _Seen
    ) -> None:
        waiting, before = deque(work), len(seen.found)
        for number, (one, batch) in enumerate(self._each(look, waiting), 1):
            seen.add(one, batch)
            many = _are_most(len(seen.found) - before, number) or seen.bytes > _MOST_FOUND
            if batch is None or many:
                self._give_up(waiting, seen)

    def _give_up(self, waiting: deque[_Work], seen: _Seen) -> None:
        """The rest of the search is DuckDB's."""
        self._given_up = True
        seen.left += waiting
        waiting.clear()

    def _each(self, look: Callable[[_Work], T], waiting: deque[_Work]) -> Iterator[tuple[_Work, T]]:
        """What `look` gives for each that waits, in turn; several at once if they are many."""
        at_once = _AT_ONCE if len(waiting) > _FEW else 0
        running: deque[tuple[_Work, Future[T]]] = deque()
        try:
            while waiting or running:
                self._check()
                while waiting and len(running) < at_once:
                    one = waiting.popleft()
                    running.append((one, self._threads.submit(look, one)))
                if running:
                    one, future = running.popleft()
                    yield one, future.result()
                else:
                    one = waiting.popleft()
                    yield one, look(one)
        finally:
            for _, future in running:
                future.cancel()

    def _has_few(self, work: _Work) -> bool | None:
        """Whether a text is in the bytes of the row group; None: often, or it was given up."""
        if self._given_up:
            return None
        assert work.group.span is not None, "only of files without compression"
        try:
            return occurrences(work.footer.path, work.group.span, self._texts, _FEWEST_ROWS) > 0
        except TooMany:
            return None

    def _candidates(self, work: _Work) -> pa.RecordBatch | None:
        """The lines of the row group that may match, None if they are many."""
        if self._given_up:
            return None
        group = work.group
        most = max((group.end - group.first) // _MOST_SHARE, _FEWEST_ROWS)
        try:
            rows, messages = self._messages(work, most)
        except TooMany:
            return None
        return _batch(_others(work), messages, rows) if rows else _NOTHING

    def _few_candidates(self, work: _Work) -> pa.RecordBatch | None:
        """The same where the text is known to be: another thread reads the other columns.

        Not for one of these threads, which could all wait for another.
        """
        others = self._threads.submit(_others, work)
        try:
            rows, messages = self._messages(work, _FEWEST_ROWS)
        except TooMany:
            return None
        return _batch(others.result(), messages, rows)

    def _messages(self, work: _Work, most: int) -> tuple[list[int], pa.ChunkedArray]:
        """The candidates' rows in the row group, and their messages. Raises `TooMany`.

        They are decoded some at a time: for larger buffers the system would have to make room.
        """
        rows, found, first = list[int](), list[pa.Array](), 0
        with work.footer.open() as file:
            for piece in file.iter_batches(
                _PIECE_ROWS, row_groups=[work.group.number], columns=[MESSAGE], use_threads=False
            ):
                column = piece.column(0)
                here = candidate_rows(pa.chunked_array([column]), self._texts, most - len(rows))
                if here:
                    found.append(column.take(pa.array(here)))
                    rows += [first + row for row in here]
                first += len(column)
        return rows, pa.chunked_array(found, pa.string())


def _are_most(found: int, looked: int) -> bool:
    """Whether so many row groups have a text that it is likely to be in all."""
    return looked >= _TRIED and 2 * found > looked


def _others(work: _Work) -> pa.Table:
    names = [name for name in _NAMES if name in work.footer.names]
    with work.footer.open() as file:
        return file.read_row_group(work.group.number, columns=names, use_threads=False)


_NOTHING: Final = pa.RecordBatch.from_pylist([], SCHEMA)


def _batch(others: pa.Table, messages: pa.ChunkedArray, rows: Sequence[int]) -> pa.RecordBatch:
    """These rows, as a search gives them."""
    chosen = pa.array(rows, pa.int64())
    table = others.take(chosen).append_column(MESSAGE, messages).combine_chunks()
    columns = [
        table.column(one.name).combine_chunks().cast(one.type)
        if one.name in table.schema.names
        else pa.nulls(len(rows), one.type)
        for one in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _parts(left: Sequence[_Work], planned: Mapping[Part, int]) -> list[Part]:
    """What is left for DuckDB: parts as they were, or some of their `planned` row groups."""
    groups: dict[Part, list[Group]] = {}
    for one in left:
        groups.setdefault(one.part, []).append(one.group)
    return [
        part if len(found) == planned[part] else part._replace(bounds=_bounds(found))
        for part, found in groups.items()
    ]


def _bounds(groups: Sequence[Group]) -> tuple[tuple[int, int], ...]:
    """First and last rows, of neighbours together."""
    bounds: list[tuple[int, int]] = []
    for group in sorted(groups, key=lambda g: g.first):
        first = group.first
        if bounds and bounds[-1][1] + 1 == first:
            first = bounds.pop()[0]
        bounds.append((first, group.end - 1))
    return tuple(bounds)
