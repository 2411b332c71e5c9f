"""Finds the lines of the table that have a text, before DuckDB sees them.

A search for a word needs few lines of most files. Here only the messages of a row group are read,
all of its bytes are searched for the text at once, and only of lines that have it is more read. By
a map of the row group that is done in its pages (`mapped_lines`); in a copy without compression as
it lies on the disk (`copy_rows`), so nothing is decoded.

What is found are candidates, a superset of the matches: the search's whole condition is applied
to them as to anything else. Row groups that are not looked at here, since it would not pay, are
left to DuckDB: those on S3, those of very long lines, compressed ones without a map unless the skip
index leaves out most of their file, and all that follow once the text is in many lines.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import local
from typing import Final, TypeAlias

import pyarrow as pa

from logstore.errors import Damaged
from logstore.objects.store import is_remote
from logstore.search.needs import needed_texts, sure_texts
from logstore.table.pages.line_map import LineMap
from logstore.table.pages.reader import Scratch
from service.query.decoded_rows import NOTHING, attributes_of, decoded, records_of
from service.query.footers import ATTRIBUTES, Footer, Footers, Group
from service.query.found_rows import Found, batch_of
from service.query.mapped_lines import announce, lines_with
from service.query.request import QueryRequest
from service.query.table_reads import Part, TableReads
from service.query.text_rows import TooMany, places
from service.query.tiles import Tile

_AT_ONCE: Final = 2  # row groups of copies
_DECODED_AT_ONCE: Final = 12  # more than threads, none of which then waits for the slowest
_ANNOUNCED_AT_ONCE: Final = 2  # row groups: the disk is slower if it has many to read
_FEW: Final = 4
"""So few row groups are looked at without other threads."""
_QUICK_BYTES: Final = 1 << 20
_MOST_PLACES: Final = 128  # in a row group of a copy: each is read with two calls of the system
_LONGEST_TEXT: Final = 16 << 20  # of a row group: some are in memory at a time
_MOST_FOUND: Final = 32 << 20  # bytes of candidates of a tile
_BATCH_LINES: Final = 4_096  # candidates that become a batch together
_MOST_ANNOUNCED: Final = 64 << 20  # bytes of a tile: they wait in the page cache


@dataclass(frozen=True, slots=True)
class _Work:
    """A row group to look at."""

    part: Part
    footer: Footer
    group: Group


_Candidates: TypeAlias = pa.RecordBatch | Found
"""Lines of a row group that may match."""


@dataclass
class _Seen:
    """What came of the row groups of a tile."""

    left: list[_Work] = field(default_factory=list)
    bytes: int = 0
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _rows: list[Found] = field(default_factory=list)
    _lines: int = 0  # of `_rows`

    def add(self, work: _Work, found: _Candidates | None) -> None:
        """The candidates of a row group; None: it was given up."""
        if found is None:
            self.left.append(work)
        elif isinstance(found, Found):
            self._rows.append(found)
            self._lines += len(found.numbers)
            self.bytes += found.nbytes
            if self._lines >= _BATCH_LINES:  # while other threads look through what follows
                self._make_batch()
        elif found.num_rows:
            self._batches.append(found)
            self.bytes += found.nbytes

    def found(self) -> list[pa.RecordBatch]:
        """All candidates."""
        self._make_batch()
        return self._batches

    def _make_batch(self) -> None:
        if self._rows:
            self._batches.append(batch_of(self._rows))
            self._rows, self._lines = [], 0


class Prefilter:
    """For one search. `check` raises once the search is to stop."""

    def __init__(
        self, request: QueryRequest, footers: Footers, threads: Executor, check: Callable[[], None]
    ) -> None:
        self._request = request
        self._footers = footers
        self._threads = threads
        self.check = check
        names = {"fqn": request.fqn, "run_id": request.run}
        self._names = {name: value for name, value in names.items() if value is not None}
        self._texts = _encoded(sure_texts(request.condition))
        self._needed = [_encoded(texts) for texts in needed_texts(request.condition)]
        self.given_up = not self._texts  # the rest of the search is DuckDB's
        self._scratches = local()
        self._quick = True  # little was looked through of the last row group of a copy

    def begin(self, reads: TableReads, tile: Tile) -> Looking:
        """Begins to look for lines in what the tile reads. Raises `Damaged`."""
        here = [part for part in reads.parts if not (self.given_up or is_remote(part.path))]
        others, seen = [part for part in reads.parts if part not in here], _Seen()
        with _as_damage():
            work = self._planned(here, None if reads.inside else tile, seen)
        return Looking(self, reads.prefiltered(others, []), work, seen)

    def ahead(self, paths: Sequence[str]) -> None:
        """Has the footers of these files read, in order, before the search comes to them."""
        for path in paths:
            if self._texts and not is_remote(path) and not self._footers.has(path):
                self._threads.submit(self._read_footer, path)

    def _read_footer(self, path: str) -> None:
        with suppress(OSError, pa.ArrowException):  # the search itself meets it, and says so
            self._footers.of(path)

    def _planned(self, parts: Sequence[Part], tile: Tile | None, seen: _Seen) -> list[_Work]:
        """Row groups to be looked at; the others that may hold something are left."""
        work, room = list[_Work](), _MOST_ANNOUNCED
        # All of them first: behind what is announced they would wait for the disk.
        footers = [self._footers.of(part.path) for part in parts]
        for part, footer in zip(parts, footers, strict=True):
            groups = [
                group
                for group in footer.groups
                if part.meets(group.first, group.end)
                and footer.may_hold(group, self._request, tile)
            ]
            if part.rows is None and room > 0:
                # With maps several threads read a page each: what is announced delays them.
                unmapped = [group for group in groups if not part.mapped(group.number)]
                room -= footer.announce(unmapped, room)
            for group in groups:
                pays = part.pays(group.number) and group.text_bytes <= _LONGEST_TEXT
                (work if pays else seen.left).append(_Work(part, footer, group))
        return work

    def announce(self, work: _Work) -> Future[LineMap | None] | None:
        """Has its map read, and its pages announced, if it needs a part of them.

        Where all of them are read, the system reads ahead by itself.
        """
        if not self._names or not work.part.mapped(work.group.number):
            return None
        return self._threads.submit(self._announced, work)

    def submit(
        self, work: _Work, lines: Future[LineMap | None] | None
    ) -> Future[_Candidates | None]:
        """`candidates`, in another thread."""
        return self._threads.submit(self.candidates, work, lines)

    def in_turn(self, work: _Work) -> bool:
        """Whether to look at it is likely to take less time than another thread costs.

        In one pipeline or run, little of a row group says nothing about the next one.
        """
        return not self._names and self._quick and work.part.rows is not None

    def candidates(
        self, work: _Work, lines: Future[LineMap | None] | None = None
    ) -> _Candidates | None:
        """The lines of the row group that may match, None if they are many.

        `lines` is its map, if it was announced.
        """
        if self.given_up:
            return None
        try:
            if work.part.rows is not None:
                return self._where_they_lie(work)
            if work.part.mapped(work.group.number):
                return self._mapped(work, self._lines(work) if lines is None else lines.result())
            return self._decoded(work)
        except TooMany:
            return None

    def _announced(self, work: _Work) -> LineMap | None:
        lines = self._lines(work)
        if lines is not None:
            announce(work.footer.path, lines, self._names)
        return lines

    def _lines(self, work: _Work) -> LineMap | None:
        maps = work.part.maps
        return None if maps is None else maps.of(work.group.number)

    def _mapped(self, work: _Work, lines: LineMap | None) -> _Candidates | None:
        if lines is None:
            return self._decoded(work) if work.part.rare else None
        scratch = getattr(self._scratches, "of", None)
        if scratch is None:
            scratch = self._scratches.of = Scratch()
        rows = lines_with(work.footer.path, lines, self._names, self._texts, scratch)
        return self._whole(work, rows) if rows.numbers else NOTHING

    def _where_they_lie(self, work: _Work) -> _Candidates:
        reader, request = work.part.rows, self._request
        assert reader is not None
        found, path, texts = list[int](), work.footer.path, self._texts
        spans = reader.spans(work.group.number, request.fqn, request.run, self._needed)
        self._quick = sum([size for _, size in spans]) <= _QUICK_BYTES
        for span in spans:
            found += places(path, span, texts, _MOST_PLACES - len(found))
        if not found:
            return NOTHING
        return self._whole(work, reader.at(work.group.number, found))

    def _whole(self, work: _Work, rows: Found) -> _Candidates:
        """These lines with their attributes."""
        if work.part.bare:
            return rows
        attributes = attributes_of(work.footer, work.group, rows.numbers)
        table = pa.Table.from_batches([batch_of([rows])]).drop_columns([ATTRIBUTES])
        return records_of(table.append_column(ATTRIBUTES, attributes))

    def _decoded(self, work: _Work) -> pa.RecordBatch:
        return decoded(work.footer, work.group, self._texts, bare=work.part.bare)


class Looking:
    """The lines of a tile that are looked for, in some row groups at once by other threads.

    `reads` are those of the tile without what is looked at.
    """

    def __init__(
        self, prefilter: Prefilter, reads: TableReads, work: Sequence[_Work], seen: _Seen
    ) -> None:
        self._prefilter = prefilter
        self._reads = reads
        self._seen = seen
        self._planned = Counter(one.part for one in (*work, *seen.left))  # row groups
        self._waiting = deque(work)
        self._announced: deque[tuple[_Work, Future[LineMap | None] | None]] = deque()
        self._running: deque[tuple[_Work, Future[_Candidates | None]]] = deque()
        decoded = any(one.part.rows is None for one in work)
        self._at_once = 0 if len(work) <= _FEW else _DECODED_AT_ONCE if decoded else _AT_ONCE
        self._submit()

    def finish(self) -> TableReads:
        """The tile's reads, with what was found and what has to be read. Raises `Damaged`."""
        try:
            with _as_damage():
                self._look()
        finally:
            self.cancel()
        left = _parts(self._seen.left, self._planned)
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
                self._seen.left += (work for work, _ in self._announced)
                self._seen.left += self._waiting
                self._announced.clear()
                self._waiting.clear()

    def _each(self) -> Iterator[tuple[_Work, _Candidates | None]]:
        """The candidates of each row group, in turn."""
        while self._waiting or self._running:
            self._prefilter.check()
            self._submit()
            if self._running:
                one, future = self._running.popleft()
                yield one, future.result()
            else:
                one = self._waiting.popleft()
                yield one, self._prefilter.candidates(one)

    def _submit(self) -> None:
        """Has others begun, if each takes long enough."""
        while (
            self._waiting
            and len(self._running) < self._at_once
            and not self._prefilter.in_turn(self._waiting[0])
        ):
            one = self._waiting.popleft()
            lines = self._prefilter.announce(one)
            self._announced.append((one, lines))
            if lines is None or len(self._announced) > _ANNOUNCED_AT_ONCE:
                self._start()
        while self._announced and not self._waiting:
            self._start()

    def _start(self) -> None:
        one, lines = self._announced.popleft()
        self._running.append((one, self._prefilter.submit(one, lines)))


@contextmanager
def _as_damage() -> Iterator[None]:
    try:
        yield
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise Damaged(f"what is stored cannot be read: {error}") from error


def _encoded(texts: Sequence[str]) -> list[bytes]:
    return [text.encode("utf-8", "surrogatepass") for text in texts]


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
