"""Finds the lines of the table that have a text, before DuckDB sees them.

A search for a word needs few lines of most files. Here only the messages of a row group are read,
all of its bytes are searched for the text at once, and only of lines that have it is more read. By
a map of the row group that is done in its pages (`mapped_lines`); in a copy without compression as
it lies on the disk (`copy_rows`), so nothing is decoded.

What is found are candidates, a superset of the matches: the search's whole condition is applied
to them as to anything else. Row groups that are not looked at here, since it would not pay, are
left to DuckDB: those of very long lines, compressed ones without a map unless they are on this
machine and the skip index leaves out most of their file, and all that follow once the text is in
many lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import nullcontext, suppress
from threading import local
from typing import Any, Final

import pyarrow as pa

from logstore.errors import TailraceError
from logstore.objects.store import is_remote
from logstore.search.needs import needed_texts, sure_texts
from logstore.table.pages.reader import Scratch
from service.query.decoded_rows import NOTHING, attributes_of, decoded, records_of
from service.query.fetched_pages import PageFetcher
from service.query.footers import ATTRIBUTES, Footer, Footers, as_damage
from service.query.found_rows import Found, batch_of
from service.query.looking import Looking
from service.query.mapped_lines import Pages, announce, lines_with, reading
from service.query.page_checks import PageChecks
from service.query.request import QueryRequest
from service.query.row_groups import Candidates, RowGroup, Seen, mapped_groups
from service.query.table_reads import Part, TableReads
from service.query.text_rows import TooMany, places
from service.query.tiles import Tile

_CHECKED_SECONDS: Final = 0.1
_QUICK_BYTES: Final = 1 << 20
_MOST_PLACES: Final = 128  # in a row group of a copy: each is read with two calls of the system
_LONGEST_TEXT: Final = 16 << 20  # of a row group: some are in memory at a time
_MOST_ANNOUNCED: Final = 64 << 20  # bytes of a tile: they wait in the page cache


class Prefilter:
    """For one search. `check` raises once the search is to stop; `fetcher` is for files on S3."""

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
        self.given_up = not self._texts  # the rest of the search is DuckDB's
        self._scratches = local()
        self._quick = True  # little was looked through of the last row group of a copy

    def begin(self, reads: TableReads, tile: Tile) -> Looking:
        """Begins to look for lines in what the tile reads. Raises `Damaged`, `StoreUnavailable`."""
        here, seen = self._here(reads), Seen()
        others = [part for part in reads.parts if part not in here]
        with as_damage():
            work = self._planned(here, None if reads.inside else tile, seen)
        return Looking(self, reads.prefiltered(others, []), work, seen)

    def is_ready(self, reads: TableReads) -> bool:
        """Whether `begin` waits for no footer of a file on S3."""
        remote = [part for part in self._here(reads) if part.remote]
        known = self._known(remote, bounded=not reads.inside)
        return all(part in known or self._footers.has(part.path) for part in remote)

    def ahead(self, paths: Sequence[str]) -> None:
        """Has the footers of these files read, in order, before the search comes to them."""
        for path in paths:
            if not self._texts or self._footers.has(path):
                continue
            if not is_remote(path):
                self._threads.submit(self._read_footer, path)
            elif self._fetcher is not None:
                self._fetcher.threads.submit(self._read_footer, path)

    def _read_footer(self, path: str) -> None:
        # The search itself meets it, and says so.
        with suppress(OSError, pa.ArrowException, TailraceError):
            self._footers.of(path)

    def _here(self, reads: TableReads) -> list[Part]:
        """The parts that are not DuckDB's."""
        if self.given_up:
            return []
        fetched = self._fetcher is not None
        return [
            part for part in reads.parts if not part.remote or (fetched and part.maps is not None)
        ]

    def _known(self, parts: Sequence[Part], *, bounded: bool) -> dict[Part, list[RowGroup]]:
        """The row groups of parts where maps tell all; `bounded`: some may be outside."""
        if bounded or self._names:
            return {}
        return {part: groups for part in parts if (groups := mapped_groups(part)) is not None}

    def _footers_of(self, parts: Sequence[Part]) -> dict[Part, Footer]:
        """Those of their files; those on S3 are fetched at the same time."""
        coming = dict[Part, Future[Footer]]()
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
        """Until it is there. A server may be slow, so the search can be stopped meanwhile."""
        while not fetched.done():
            wait([fetched], _CHECKED_SECONDS)
            self.check()

    def _planned(self, parts: Sequence[Part], tile: Tile | None, seen: Seen) -> list[RowGroup]:
        """Row groups to be looked at; the others that may hold something are left."""
        work, room = list[RowGroup](), _MOST_ANNOUNCED
        known = self._known(parts, bounded=tile is not None)
        # All of them first: behind what is announced they would wait for the disk.
        footers = self._footers_of([part for part in parts if part not in known])
        for part in parts:
            groups = known[part] if part in known else self._groups(part, footers[part], tile)
            if part in footers and part.rows is None and not part.remote and room > 0:
                # With maps several threads read a page each: what is announced delays them.
                unmapped = [one.group for one in groups if not one.mapped]
                room -= footers[part].announce(unmapped, room)
            for one in groups:
                pays = part.pays(one.number) and one.group.text_bytes <= _LONGEST_TEXT
                (work if pays else seen.left).append(one)
        return work

    def _groups(self, part: Part, footer: Footer, tile: Tile | None) -> list[RowGroup]:
        """Those of the part that may have lines of the pipeline and run, in the tile."""
        return [
            RowGroup(part, group, footer)
            for group in footer.groups
            if part.meets(group.first, group.end) and footer.may_hold(group, self._request, tile)
        ]

    def check_parts(self, reads: TableReads, tile: Tile) -> None:
        """Checks what is left to DuckDB, as far as it is on this machine. Raises `Damaged`."""
        bounds = None if reads.inside else tile
        for part in reads.parts:

            def groups(part: Part = part) -> list[int]:
                footer = self._footers.of(part.path)
                return [one.number for one in self._groups(part, footer, bounds)]

            with as_damage():
                self._checks.check_groups(part.path, groups, self.check)

    def announce(self, groups: Sequence[RowGroup]) -> Future[Pages] | None:
        """Has pages fetched, if they are on S3: row groups side by side.

        On this machine, of one row group, the map is read and the pages are announced to the
        system if a part of them is needed: where all of them are read, it reads ahead by itself.
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

    def submit(self, one: RowGroup, pages: Future[Pages] | None) -> Future[Candidates | None]:
        """`candidates`, in another thread."""
        return self._threads.submit(self.candidates, one, pages)

    def in_turn(self, one: RowGroup) -> bool:
        """Whether to look at it is likely to take less time than another thread costs.

        In one pipeline or run, little of a row group says nothing about the next one.
        """
        return not self._names and self._quick and one.part.rows is not None

    def candidates(self, one: RowGroup, pages: Future[Pages] | None = None) -> Candidates | None:
        """The lines of the row group that may match, None if they are many.

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

    def _announced(self, one: RowGroup) -> Pages:
        pages = self._pages(one)
        lines = pages.maps[one.number]
        if lines is not None:
            announce(one.part.path, lines, self._names)
        return pages

    def _pages(self, one: RowGroup) -> Pages:
        """Its map; its pages are in the file."""
        maps = one.part.maps
        return Pages({one.number: None if maps is None else maps.of(one.number)})

    def _mapped(self, one: RowGroup, pages: Pages) -> Candidates | None:
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

    def _where_they_lie(self, one: RowGroup) -> Candidates:
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

    def _whole(self, one: RowGroup, rows: Found) -> Candidates:
        """These lines with their attributes."""
        if one.part.bare:
            return rows
        attributes = attributes_of(self._footer(one), one.group, rows.numbers)
        table = pa.Table.from_batches([batch_of([rows])]).drop_columns([ATTRIBUTES])
        return records_of(table.append_column(ATTRIBUTES, attributes))

    def _decoded(self, one: RowGroup) -> pa.RecordBatch:
        return decoded(self._footer(one), one.group, self._texts, bare=one.part.bare)

    def _footer(self, one: RowGroup) -> Footer:
        return self._footers.of(one.part.path) if one.footer is None else one.footer


def _encoded(texts: Sequence[str]) -> list[bytes]:
    return [text.encode("utf-8", "surrogatepass") for text in texts]
