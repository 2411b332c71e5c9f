"""Finds the lines of the table that have a text, before DuckDB reads them.

A search for a word needs few lines of most files. The prefilter reads only the messages of a row
group, searches all of its bytes for the text at once, and reads more columns only of the lines that
have it. Three readers do this:

- With a line map of the row group (`tailrace.logstore.table.line_map`), it decompresses and
  searches its pages. The other columns of a line are in the map, or are taken out of their page.
- In a copy without compression it reads the bytes on the disk (`scan_copies`) and decodes nothing.
- Otherwise it decodes all messages of the row group.

The results are candidates, a superset of the matches: the search applies its whole condition to
them. Row groups are left to DuckDB if the prefilter would not pay: those of very long lines;
compressed ones without a map, unless they are on this machine and the skip index leaves out most of
their file; and all later ones once many lines have the text.

Pages on S3: a request costs the same for a page and for some megabytes, and a server reads more
than it is asked for. So one request fetches the pages of several row groups, some requests before
the search reaches them. Footers are fetched in the same way.

Threads: other threads scan some row groups of a time range at once. Before its turn a row group is
announced, so that its pages are read or fetched meanwhile. Row groups on S3 are announced some at a
time, and no thread scans them before their pages have arrived.
"""

from __future__ import annotations

import ctypes
import os
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from threading import local
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from service.query.footers import (
    ATTRIBUTES,
    MESSAGE,
    FooterRowGroup,
    Footers,
    MatchedLines,
    TableFileFooter,
    as_damage,
    batch_of,
)
from service.query.page_checks import PageChecks
from service.query.request import QueryRequest, UlidRange
from service.query.skip_indexes import LineMaps
from service.query.table_reads import (
    Candidates,
    Seen,
    TablePart,
    TableReads,
    TableRowGroup,
    mapped_groups,
    parts_of,
)
from tailrace.logstore.errors import Damaged, NotFound, TailraceError
from tailrace.logstore.filesystem import advise
from tailrace.logstore.objects.store import is_remote
from tailrace.logstore.parquet import footer_bytes, footer_of
from tailrace.logstore.search.translate import needed_texts, sure_texts
from tailrace.logstore.table.line_map import GroupReader, LineMap, MessagePage, Read, Scratch
from tailrace.logstore.table.schema import RECORD_SCHEMA

if TYPE_CHECKING:
    from service.query.duckdb import Get


# --- Texts in bytes -----------------------------------------------------------------------------
#
# The strings of a column are contiguous, so the C library finds a text in them at the speed of
# memory and lets other threads run meanwhile. A hit may span the end of a string: such a row is a
# candidate like others, which only the search's condition decides on.


_memmem: Final = ctypes.CDLL(None).memmem
_memmem.restype = ctypes.c_void_p
_memmem.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)

_PIECE_BYTES: Final = 1 << 19


class TooMany(Exception):
    """More rows hold the text than are worth reading one by one."""


def places(
    path: str, span: tuple[int, int], texts: Sequence[bytes], most: int, piece: int = _PIECE_BYTES
) -> list[int]:
    """Finds texts in `span[1]` bytes of a file from `span[0]` on; returns positions in no order.

    It searches a piece at a time, which stays in the processor's cache. Raises `TooMany` as soon as
    more than `most` are found, `OSError` if the file has fewer bytes.
    """
    at, end = span[0], span[0] + span[1]
    kept_most = max(map(len, texts)) - 1
    held = bytearray(kept_most + min(piece, span[1]))
    address = ctypes.addressof((ctypes.c_char * len(held)).from_buffer(held))
    view = memoryview(held)
    found, kept = list[int](), 0
    with open(path, "rb", buffering=0) as file:
        file.seek(at)
        while at < end:
            size = file.readinto(view[kept : kept + min(piece, end - at)])
            if not size:
                raise OSError(f"{path} is cut off")
            first, at, size = at - kept, at + size, kept + size
            for text in texts:
                here = places_in_memory(address, size, text, seen=kept, most=most - len(found))
                found += [first + place for place in here]
            moved = min(kept_most, size)
            view[:moved] = view[size - moved : size]
            kept = moved
    return found


def places_in_memory(address: int, size: int, text: bytes, *, seen: int, most: int) -> list[int]:
    """Finds the text in `size` bytes at an address, without hits that end in the first `seen`.

    Raises `TooMany`.
    """
    found, at = list[int](), max(seen - len(text) + 1, 0)
    while place := _memmem(address + at, size - at, text, len(text)):
        found.append(place - address)
        if len(found) > most:
            raise TooMany
        at = found[-1] + 1  # the next message may begin within
    return found


def candidate_rows(column: pa.ChunkedArray, texts: Sequence[bytes], most: int) -> list[int]:
    """Returns the numbers of all rows that hold one of the texts, in order. Raises `TooMany`."""
    found: set[int] = set()
    for text in texts:
        first = 0
        for chunk in column.chunks:
            found.update([first + row for row in _rows_with_text(chunk, text, most)])
            first += len(chunk)
    if len(found) > most:
        raise TooMany
    return sorted(found)


def _rows_with_text(column: pa.StringArray, text: bytes, most: int) -> Iterator[int]:
    _, offsets, data = column.buffers()
    if data is None or len(column) == 0:
        return
    bounds = memoryview(offsets).cast("i")[column.offset : column.offset + len(column) + 1]
    at, end, row, number = bounds[0], bounds[-1], 0, 0
    while place := _memmem(data.address + at, end - at, text, len(text)):
        row = bisect_right(bounds, place - data.address, row) - 1
        yield row
        number += 1
        if number > most:
            raise TooMany
        at = bounds[row + 1]  # each row is returned once


# --- Lines that Parquet's reader decodes --------------------------------------------------------
#
# Messages are decoded first; of the other columns only pieces that hold a candidate.


_MOST_SHARE: Final = 32  # one row of this many may hold the text
_FEWEST_ROWS: Final = 256  # this many rows may hold it in any case
_PIECE_ROWS: Final = 2_048  # rows of messages that are decoded at a time
_OTHER_ROWS: Final = 8_192  # the same of other columns: a piece costs a call for each column
_NAMES: Final = [name for name in RECORD_SCHEMA.names if name != MESSAGE]

NOTHING: Final = pa.RecordBatch.from_pylist([], RECORD_SCHEMA)
"""No lines."""


def decoded(
    footer: TableFileFooter, group: FooterRowGroup, texts: Sequence[bytes], *, bare: bool
) -> pa.RecordBatch:
    """Returns the lines that may have a text; `bare`: none has attributes. Raises `TooMany`."""
    most = max((group.end - group.first) // _MOST_SHARE, _FEWEST_ROWS)
    rows, messages = _messages(footer, group, texts, most)
    if not rows:
        return NOTHING
    names = [name for name in _NAMES if name != ATTRIBUTES or not bare]
    others = _decoded_rows(footer, group, names, rows)
    return records_of(others.append_column(MESSAGE, messages))


def attributes_of(
    footer: TableFileFooter, group: FooterRowGroup, rows: Sequence[int]
) -> pa.ChunkedArray:
    """Returns the attributes of some rows of the row group."""
    with footer.open() as file:
        read = file.read_row_group(group.number, columns=[ATTRIBUTES], use_threads=False)
    return read.column(0).take(pa.array(rows))


def records_of(rows: pa.Table) -> pa.RecordBatch:
    """Returns these rows in the form of a search's results."""
    rows = rows.combine_chunks()
    columns = [
        rows.column(one.name).combine_chunks().cast(one.type)
        if one.name in rows.schema.names
        else pa.nulls(rows.num_rows, one.type)
        for one in RECORD_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def _messages(
    footer: TableFileFooter, group: FooterRowGroup, texts: Sequence[bytes], most: int
) -> tuple[list[int], pa.ChunkedArray]:
    """Returns the candidates' rows in the row group, and their messages. Raises `TooMany`.

    Messages are decoded in pieces: for larger buffers the system would have to allocate memory.
    """
    rows, found, first = list[int](), list[pa.Array](), 0
    with footer.open() as file:
        for piece in file.iter_batches(
            _PIECE_ROWS, row_groups=[group.number], columns=[MESSAGE], use_threads=False
        ):
            column = piece.column(0)
            here = candidate_rows(pa.chunked_array([column]), texts, most - len(rows))
            if here:
                found.append(column.take(pa.array(here)))
                rows += [first + row for row in here]
            first += len(column)
    return rows, pa.chunked_array(found, pa.string())


def _decoded_rows(
    footer: TableFileFooter, group: FooterRowGroup, names: Sequence[str], rows: Sequence[int]
) -> pa.Table:
    """Decodes these columns of some rows of the row group, in order, up to the last of them."""
    found, first = list[pa.RecordBatch](), 0
    with footer.open() as file:
        for piece in file.iter_batches(
            _OTHER_ROWS, row_groups=[group.number], columns=names, use_threads=False
        ):
            end = first + piece.num_rows
            here = rows[bisect_left(rows, first) : bisect_left(rows, end)]
            if here:
                found.append(piece.take(pa.array([row - first for row in here])))
            first = end
            if rows[-1] < end:
                break
    return pa.Table.from_batches(found)


# --- Lines that a line map finds ----------------------------------------------------------------
#
# Parquet's readers would decode all messages to find a few, and all values of each other column up
# to the last candidate.


_MOST_LINES: Final = 512  # of a row group: each costs a few calls of Python


@dataclass(frozen=True, slots=True)
class MapPages:
    """Maps of row groups of a file, by number; None for a map that cannot be read.

    `read` returns bytes of their pages, if they are not in a file of this machine.
    """

    maps: Mapping[int, LineMap | None]
    read: Read | None = None


def lines_with(
    read: Read, lines: LineMap, wanted: Mapping[str, str], texts: Sequence[bytes], scratch: Scratch
) -> MatchedLines:
    """Returns the lines of a row group that have one of the texts and the wanted names.

    `wanted` has names by column, `fqn` or `run_id`. Raises `TooMany`, `Damaged`, `OSError`.
    """
    first, behind = lines.span(wanted)
    rows, messages = list[int](), list[bytes]()
    reader = GroupReader(lines, read, scratch)
    for page in reader.message_pages(first, behind):
        here, found = page.at(_places(page, texts, _MOST_LINES - len(rows)))
        rows += here
        messages += found
    records = reader.lines(rows)
    names = {number: name for number, name in enumerate(lines.names) if name is not None}
    return MatchedLines(names, rows, records, messages)


@contextmanager
def reading(path: str, *, exactly: bool) -> Iterator[Read]:
    """Yields a function that reads a file of this machine. Raises `OSError`.

    `exactly`: the system must not read ahead.
    """
    with open(path, "rb", buffering=0) as file:
        number = file.fileno()
        if exactly:
            _read_no_more(number)
        yield lambda at, size: os.pread(number, size, at)


def announce(path: str, lines: LineMap, wanted: Mapping[str, str]) -> None:
    """Asks the system to read the messages that `lines_with` will search. Raises `OSError`."""
    pages = [page for _, page, _ in lines.message_pages(*lines.span(wanted))]
    if pages:
        with open(path, "rb", buffering=0) as file:
            number, begin, last = file.fileno(), pages[0].at, pages[-1]
            _read_no_more(number)
            size = last.at + last.stored - begin
            advise(number, begin, size, "WILLNEED")


def _read_no_more(number: int) -> None:
    """Asks the system to read only the requested bytes of a file, not up to 8 MiB after them."""
    advise(number, 0, 0, "RANDOM")


def _places(page: MessagePage, texts: Sequence[bytes], most: int) -> list[int]:
    """Returns the positions of texts in the page."""
    found, size = list[int](), page.end - page.begin
    for text in texts:
        here = places_in_memory(page.address + page.begin, size, text, seen=0, most=most)
        found += [page.begin + place for place in here]
    return found


# --- Pages on S3 --------------------------------------------------------------------------------


FETCHED_BYTES: Final = 8 << 20
"""Bytes of row groups in one request."""
_MOST_BYTES: Final = 32 << 20  # more bytes mean long lines, which are left to DuckDB
_PAGES_AT_ONCE: Final = 8
_TAIL_BYTES: Final = 128 << 10  # a row group takes one KB of a footer


class PageFetcher:
    """Fetches pages and footers for the searches of one node."""

    def __init__(self, get: Get) -> None:
        self.threads = ThreadPoolExecutor(_PAGES_AT_ONCE, thread_name_prefix="fetch")
        self._get = get

    def pages(
        self, uri: str, maps: LineMaps, groups: Sequence[int], wanted: Mapping[str, str]
    ) -> Future[MapPages]:
        """Fetches messages and times of these row groups, of lines with the `wanted` names.

        Raises `Damaged`, `StoreUnavailable`.
        """
        return self.threads.submit(self._pages, uri, maps, groups, wanted)

    def footer(self, uri: str) -> pq.FileMetaData:
        """Returns the footer of a file. Raises `Damaged`, `StoreUnavailable`. Blocks."""
        tail = self._got(uri, f"bytes=-{_TAIL_BYTES}")
        size = footer_bytes(tail)
        if not size:
            raise Damaged(f"{uri} is not a Parquet file")
        if size > len(tail):
            tail = self._got(uri, f"bytes=-{size}")
        return footer_of(tail)

    def close(self) -> None:
        """Cancels fetches that have not begun."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    def _pages(
        self, uri: str, maps: LineMaps, groups: Sequence[int], wanted: Mapping[str, str]
    ) -> MapPages:
        found = {group: maps.of(group) for group in groups}
        extents = [extent for one in found.values() if one and (extent := one.extent(wanted))]
        if not extents:
            return MapPages(found, _nothing)
        begin, end = min(begin for begin, _ in extents), max(end for _, end in extents)
        if end - begin > _MOST_BYTES:
            return MapPages(dict.fromkeys(groups))
        body = memoryview(self._got(uri, f"bytes={begin}-{end - 1}"))
        return MapPages(found, lambda at, size: body[at - begin : at - begin + size])

    def _got(self, uri: str, range_: str) -> bytes:
        try:
            return self._get(uri, range_)
        except NotFound as error:
            raise Damaged(f"{uri} is gone") from error


def _nothing(_at: int, _size: int) -> bytes:
    return b""


# --- The scan of a time range -------------------------------------------------------------------


_GROUPS_AT_ONCE: Final = 2  # row groups of copies
_DECODED_AT_ONCE: Final = 12  # more than threads, so that no thread waits for the slowest
_ANNOUNCED_AT_ONCE: Final = 2  # row groups: the disk is slower with many requests
_FETCHED_AHEAD: Final = 24 << 20  # bytes of row groups that no thread scans yet
_FEW: Final = 4
"""Up to this many row groups are scanned without other threads."""
_MOST_FOUND: Final = 32 << 20  # bytes of candidates of a time range


class _Announced(NamedTuple):
    """Row groups, and the reads that were begun for them before their turn."""

    groups: Sequence[TableRowGroup]
    pages: Future[MapPages] | None


class Looking:
    """A scan of a time range; `reads` are the range's reads without the scanned row groups."""

    def __init__(
        self, prefilter: Prefilter, reads: TableReads, groups: Sequence[TableRowGroup], seen: Seen
    ) -> None:
        self._prefilter = prefilter
        self._reads = reads
        self._seen = seen
        self._planned = Counter(one.part for one in (*groups, *seen.left))  # row groups
        self._waiting = deque(groups)
        self._announced: deque[_Announced] = deque()
        self._running: deque[tuple[TableRowGroup, Future[Candidates | None]]] = deque()
        self._fetched = any(one.part.remote for one in groups)
        decoded = any(one.part.rows is None for one in groups)
        few = len(groups) <= _FEW and not self._fetched
        self._at_once = 0 if few else _DECODED_AT_ONCE if decoded else _GROUPS_AT_ONCE
        self._submit()

    def finish(self) -> TableReads:
        """Returns the range's reads, with the found lines and the parts that DuckDB has to read.

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
        """Stops the scan."""
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

    def _each(self) -> Iterator[tuple[TableRowGroup, Candidates | None]]:
        """Yields the candidates of each row group, in turn."""
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
        """Submits row groups to the thread pool if each is large enough to be worth it."""
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
        """Returns true if one more row group may be announced."""
        if not self._fetched:
            return len(self._announced) <= _ANNOUNCED_AT_ONCE
        return (
            sum(one.groups[0].part.group_bytes * len(one.groups) for one in self._announced)
            < _FETCHED_AHEAD
        )

    def _next(self) -> Sequence[TableRowGroup]:
        """Returns the next row group; on S3 with the later ones that the same request fetches."""
        first = self._waiting.popleft()
        groups = [first]
        if first.part.remote:
            most = max(FETCHED_BYTES // max(first.part.group_bytes, 1), 1)
            while self._waiting and len(groups) < most and self._waiting[0].follows(groups[-1]):
                groups.append(self._waiting.popleft())
        return groups

    def _start(self) -> None:
        """Submits announced row groups to other threads, if it is time."""
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


_CHECKED_SECONDS: Final = 0.1
_QUICK_BYTES: Final = 1 << 20
_MOST_PLACES: Final = 128  # in a row group of a copy: each is read with two calls of the system
_LONGEST_TEXT: Final = 16 << 20  # bytes of a row group: some are in memory at a time
_MOST_ANNOUNCED: Final = 64 << 20  # bytes of a range: they wait in the page cache


class Prefilter:
    """Finds candidates for one search.

    `check` raises once the search must stop; `fetcher` is for files on S3.
    """

    def __init__(
        self,
        request: QueryRequest,
        footers: Footers,
        checks: PageChecks,
        fetcher: PageFetcher | None,
        threads: Executor,
        check: Callable[[], None],
    ) -> None:
        self._request = request
        self._footers = footers
        self._checks = checks
        self._fetcher = fetcher
        self._threads = threads
        self.check = check
        names = {"fqn": request.fqn, "run_id": request.run}
        self._names = {name: value for name, value in names.items() if value is not None}
        self._texts = _encoded(sure_texts(request.condition))
        self._needed = [_encoded(texts) for texts in needed_texts(request.condition)]
        self.given_up = not self._texts  # DuckDB does the rest of the search
        self._scratches = local()
        self._quick = True  # the last row group of a copy needed little scanning

    def begin(self, reads: TableReads, time_range: UlidRange) -> Looking:
        """Begins the scan of the range's reads. Raises `Damaged`, `StoreUnavailable`."""
        here, seen = self._here(reads), Seen()
        others = [part for part in reads.parts if part not in here]
        with as_damage():
            work = self._planned(here, None if reads.inside else time_range, seen)
        return Looking(self, reads.prefiltered(others, []), work, seen)

    def is_ready(self, reads: TableReads) -> bool:
        """Returns true if `begin` need not wait for a footer of a file on S3."""
        remote = [part for part in self._here(reads) if part.remote]
        known = self._known(remote, bounded=not reads.inside)
        return all(part in known or self._footers.has(part.path) for part in remote)

    def ahead(self, paths: Sequence[str]) -> None:
        """Reads the footers of these files, in order, before the search reaches them."""
        for path in paths:
            if not self._texts or self._footers.has(path):
                continue
            if not is_remote(path):
                self._threads.submit(self._read_footer, path)
            elif self._fetcher is not None:
                self._fetcher.threads.submit(self._read_footer, path)

    def _read_footer(self, path: str) -> None:
        # The search itself meets the error and reports it.
        with suppress(OSError, pa.ArrowException, TailraceError):
            self._footers.of(path)

    def _here(self, reads: TableReads) -> list[TablePart]:
        """Returns the parts that are not left to DuckDB."""
        if self.given_up:
            return []
        fetched = self._fetcher is not None
        return [
            part for part in reads.parts if not part.remote or (fetched and part.maps is not None)
        ]

    def _known(
        self, parts: Sequence[TablePart], *, bounded: bool
    ) -> dict[TablePart, list[TableRowGroup]]:
        """Returns the row groups of fully mapped parts; `bounded`: some may be out of range."""
        if bounded or self._names:
            return {}
        return {part: groups for part in parts if (groups := mapped_groups(part)) is not None}

    def _footers_of(self, parts: Sequence[TablePart]) -> dict[TablePart, TableFileFooter]:
        """Returns the footers of the parts' files; those on S3 are fetched at the same time."""
        coming = dict[TablePart, Future[TableFileFooter]]()
        for part in parts:
            if self._fetcher is not None and part.remote and not self._footers.has(part.path):
                coming[part] = self._fetcher.threads.submit(self._footers.of, part.path)
        for future in coming.values():
            self.wait_for(future)
        return {
            part: coming[part].result() if part in coming else self._footers.of(part.path)
            for part in parts
        }

    def wait_for(self, fetched: Future[Any]) -> None:
        """Waits for a fetch. A server may be slow, so the search can be stopped meanwhile."""
        while not fetched.done():
            wait([fetched], _CHECKED_SECONDS)
            self.check()

    def _planned(
        self, parts: Sequence[TablePart], time_range: UlidRange | None, seen: Seen
    ) -> list[TableRowGroup]:
        """Returns the row groups to scan; the others that may hold matches are left."""
        work, room = list[TableRowGroup](), _MOST_ANNOUNCED
        known = self._known(parts, bounded=time_range is not None)
        # All footers first: after announced pages they would wait for the disk.
        footers = self._footers_of([part for part in parts if part not in known])
        for part in parts:
            groups = known[part] if part in known else self._groups(part, footers[part], time_range)
            if part in footers and part.rows is None and not part.remote and room > 0:
                # With maps, threads read a page each, and announced pages would delay them.
                unmapped = [one.group for one in groups if not one.mapped]
                room -= footers[part].announce(unmapped, room)
            for one in groups:
                pays = part.pays(one.number) and one.group.text_bytes <= _LONGEST_TEXT
                (work if pays else seen.left).append(one)
        return work

    def _groups(
        self, part: TablePart, footer: TableFileFooter, time_range: UlidRange | None
    ) -> list[TableRowGroup]:
        """Returns the part's row groups that may have lines of the pipeline and run, in range."""
        return [
            TableRowGroup(part, group, footer)
            for group in footer.groups
            if part.meets(group.first, group.end)
            and footer.may_hold(group, self._request, time_range)
        ]

    def check_parts(self, reads: TableReads, time_range: UlidRange) -> None:
        """Checks the files on this machine that are left to DuckDB. Raises `Damaged`."""
        bounds = None if reads.inside else time_range
        for part in reads.parts:

            def groups(part: TablePart = part) -> list[int]:
                footer = self._footers.of(part.path)
                return [one.number for one in self._groups(part, footer, bounds)]

            with as_damage():
                self._checks.check_groups(part.path, groups, self.check)

    def announce(self, groups: Sequence[TableRowGroup]) -> Future[MapPages] | None:
        """Begins to fetch pages of neighbouring row groups, if they are on S3.

        For one row group on this machine, it reads the map and announces the pages to the system if
        a part of them is needed: if all pages are needed, the system reads ahead by itself.
        """
        first = groups[0]
        if first.part.remote:
            assert self._fetcher is not None
            assert first.part.maps is not None
            numbers = [one.number for one in groups]
            return self._fetcher.pages(first.part.path, first.part.maps, numbers, self._names)
        if not self._names or not first.mapped:
            return None
        return self._threads.submit(self._announced, first)

    def submit(
        self, one: TableRowGroup, pages: Future[MapPages] | None
    ) -> Future[Candidates | None]:
        """Runs `candidates` in another thread."""
        return self._threads.submit(self.candidates, one, pages)

    def in_turn(self, one: TableRowGroup) -> bool:
        """Returns true if the scan is likely to take less time than a hand-over to another thread.

        In one pipeline or run, a small part of a row group says nothing about the next row group.
        """
        return not self._names and self._quick and one.part.rows is not None

    def candidates(
        self, one: TableRowGroup, pages: Future[MapPages] | None = None
    ) -> Candidates | None:
        """Returns the lines of the row group that may match, None if they are many.

        `pages` has its map, if it was announced.
        """
        if self.given_up:
            return None
        if not one.part.remote:
            self._checks.check_group(one.part.path, one.number)
        try:
            if one.part.rows is not None:
                return self._where_they_lie(one)
            if one.mapped:
                return self._mapped(one, self._pages(one) if pages is None else pages.result())
            return self._decoded(one)
        except TooMany:
            return None

    def _announced(self, one: TableRowGroup) -> MapPages:
        pages = self._pages(one)
        lines = pages.maps[one.number]
        if lines is not None:
            announce(one.part.path, lines, self._names)
        return pages

    def _pages(self, one: TableRowGroup) -> MapPages:
        """Returns the row group's map, with pages in the file."""
        maps = one.part.maps
        return MapPages({one.number: None if maps is None else maps.of(one.number)})

    def _mapped(self, one: TableRowGroup, pages: MapPages) -> Candidates | None:
        lines, part = pages.maps[one.number], one.part
        if lines is None:
            return self._decoded(one) if part.rare and not part.remote else None
        scratch = getattr(self._scratches, "of", None)
        if scratch is None:
            scratch = self._scratches.of = Scratch()
        opened = reading(part.path, exactly=bool(self._names))
        with nullcontext(pages.read) if pages.read is not None else opened as read:
            rows = lines_with(read, lines, self._names, self._texts, scratch)
        return self._whole(one, rows) if rows.numbers else NOTHING

    def _where_they_lie(self, one: TableRowGroup) -> Candidates:
        reader, request = one.part.rows, self._request
        assert reader is not None
        found, path, texts = list[int](), one.part.path, self._texts
        spans = reader.spans(one.number, request.fqn, request.run, self._needed)
        self._quick = sum([size for _, size in spans]) <= _QUICK_BYTES
        for span in spans:
            found += places(path, span, texts, _MOST_PLACES - len(found))
        if not found:
            return NOTHING
        return self._whole(one, reader.at(one.number, found))

    def _whole(self, one: TableRowGroup, rows: MatchedLines) -> Candidates:
        """Returns these lines with their attributes."""
        if one.part.bare:
            return rows
        attributes = attributes_of(self._footer(one), one.group, rows.numbers)
        table = pa.Table.from_batches([batch_of([rows])]).drop_columns([ATTRIBUTES])
        return records_of(table.append_column(ATTRIBUTES, attributes))

    def _decoded(self, one: TableRowGroup) -> pa.RecordBatch:
        return decoded(self._footer(one), one.group, self._texts, bare=one.part.bare)

    def _footer(self, one: TableRowGroup) -> TableFileFooter:
        return self._footers.of(one.part.path) if one.footer is None else one.footer


def _encoded(texts: Sequence[str]) -> list[bytes]:
    return [text.encode("utf-8", "surrogatepass") for text in texts]
