"""Reading run logs as records: pages, catching up, whole runs; in order of arrival or of ULID.

Text, position and ULID of each record come from the run's log and its index, so a record is there
whenever its lines are. Time, level, connector and attributes are what a search says of the record
(`Details`): chunks do not have them, and what a line carries on from the one before it is known
there. A record that no search finds, such as one that OpenMetadata wrote, has the time and level
that are found in its text (decision 080).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.batch import RunKey
from logstore.position import Cursor
from service.runs import ulid_order
from service.runs.cursors import cursor_at, line_of_record, settled, unseen
from service.runs.held_place import HeldPlace, given
from service.runs.pages import (
    MAX_PAGE_BYTES,
    Page,
    Wanted,
    must_exist,
    no_record,
    read_page,
    silent_of,
)
from service.runs.part_lines import read_parts
from service.runs.parts import SCHEMA, RecordPart, as_records
from service.runs.pinned_log import LogNow, PinnedLog
from service.runs.snapshot import Snapshot, Snapshots, fetching
from service.runs.source_pieces import (
    After,
    Begun,
    OneSource,
    after_piece,
    piece_end,
    place_after,
    resumed,
    sources_of,
)

DETAILS = ("ulid", "ts", "pos", "level", "connector_id", "attributes", "carried")
_HIGHEST = (1 << 128) - 1


class Known(NamedTuple):
    """What journal, segments and table know of records, with the columns of `DETAILS`.

    `missing` are keys of what could not be read.
    """

    records: pa.Table
    missing: Sequence[str]


Details = Callable[[RunKey, int, int, pa.Array], Awaitable[Known]]
"""Of a run's records with these ULIDs, which lie between two. Raises `Unavailable`,
`LimitReached`."""


@dataclass(frozen=True, slots=True)
class RecordPage:
    """A page without its text, and its records as parts; `key` is the run."""

    key: RunKey
    parts: Sequence[RecordPart]
    page: Page

    def as_text(self) -> Page:
        """The page with its lines as text."""
        return replace(self.page, text=b"".join([part.text for part in self.parts]))


@dataclass(frozen=True, slots=True)
class RecordPiece:
    """Records behind a cursor, and the cursor after the last of them.

    The first record has `seen` lines that were before the cursor. `sources`: see `source_pieces`.
    """

    parts: Sequence[RecordPart]
    cursor: Cursor | HeldPlace
    seen: int
    sources: Sequence[OneSource] = ()


class ArrowRecords(NamedTuple):
    """Records with the columns of `/query`, and the keys of what could not be read for them."""

    batch: pa.RecordBatch
    missing: Sequence[str]


class _PartsOfLines(NamedTuple):
    parts: list[RecordPart]
    start: int
    end: int

    @property
    def text(self) -> bytes:
        return b""


class RecordReader:
    """Reads runs as records at one node. `details` gives None where nothing can be searched."""

    def __init__(self, snapshots: Snapshots, details: Callable[[], Details | None]) -> None:
        self._snapshots = snapshots
        self._details = details

    async def page(
        self,
        key: RunKey,
        *,
        after: str | None = None,
        limit: int,
        tail: int | None = None,
        before: str | None = None,
        around: int | None = None,
        by_ulid: bool = False,
        max_bytes: int = MAX_PAGE_BYTES,
        stored: bool = False,
    ) -> RecordPage:
        """Records of about `limit` lines, as `RunLogReader.page` gives lines.

        It ends where a record ends; one that begins within a record begins with that record's
        first line. With `by_ulid` the order is that of ULIDs, and places are of that order.
        Raises `NotFound`, `InvalidCursor`, `StoreUnavailable`.
        """
        take = self._snapshots.with_one if stored else self._snapshots.read
        if by_ulid:
            wanted = _UlidPage.parsed(limit, after, before, tail, around, max_bytes)
            return await take(key, wanted.read)
        lines = Wanted.parsed(limit, after=after, before=before, tail=tail, around=around)

        async def read(snapshot: Snapshot) -> RecordPage:
            async def parts(start: int, end: int) -> _PartsOfLines:
                found = await read_parts(snapshot, start, end, max_bytes)
                return _PartsOfLines(found.parts, found.start, found.end)

            found, page = await read_page(snapshot, lines, parts)
            return RecordPage(key, found.parts, page)

        return await take(key, read)

    async def after(
        self,
        key: RunKey,
        where: Cursor | int | HeldPlace | None,
        *,
        max_bytes: int,
        begun: Begun | None = None,
    ) -> After[RecordPiece]:
        """Records after a place, up to about `max_bytes`; nothing at the hot end.

        Of a batch that was `begun` only the records of which lines are left.
        """

        async def read(snapshot: Snapshot) -> After[RecordPiece]:
            if snapshot.held:
                return await held_records(snapshot, where, max_bytes)
            cursor, again = await settled(snapshot, where), False
            if isinstance(where, HeldPlace):
                again = cursor == where.before and where.lines > 0
            return (await after_cursor(snapshot, cursor))._replace(again=again)

        async def after_cursor(
            snapshot: Snapshot, cursor: Cursor | int | None
        ) -> After[RecordPiece]:
            ranges, apart = await resumed(snapshot, await unseen(snapshot, cursor), begun)
            if not ranges:
                return after_piece(snapshot, None, ranges, 0)
            start, end = ranges[0]
            end = piece_end(snapshot, start, end)
            found = await read_parts(snapshot, start, end, max_bytes)
            before = cursor if isinstance(cursor, Cursor) and cursor.complete else None
            sources = await sources_of(snapshot, before, found.start, found.end, apart=apart)
            if found.start >= snapshot.chunk_lines:
                parts = [(p.ulid, p.pos, p.records, p.lines, p.first, 0) for p in found.parts]
                sources = [source._replace(batches=parts, begun=0) for source in sources]
            after = await place_after(snapshot, before, sources, found.end, apart=apart)
            piece = RecordPiece(found.parts, after, start - found.start, sources)
            return after_piece(snapshot, piece, ranges, found.end)

        return await self._snapshots.read(key, read)

    async def whole(
        self, key: RunKey, *, by_ulid: bool, max_bytes: int, held: bool = False
    ) -> AsyncIterator[Sequence[RecordPart]]:
        """All records of the run as it is at the first piece, in pieces of about `max_bytes`.

        `held`: those that nodes hold, without the store. Raises `NotFound` (with the first piece,
        or if the run is deleted meanwhile), `Unavailable`.
        """
        at = _Whole(key, by_ulid, max_bytes)
        if held:
            async with self._snapshots.held(key) as snapshot:
                while not at.done:
                    yield await fetching(snapshot, at.step)
            return
        while not at.done:
            yield await self._snapshots.with_one(key, at.step)

    async def records(self, key: RunKey, parts: Sequence[RecordPart]) -> ArrowRecords:
        """The parts' records in their order, with all that is known of them.

        Raises `Unavailable`, `LimitReached`, `Damaged`.
        """
        # Off the event loop: 20 ms for half a MiB.
        batch = await asyncio.to_thread(as_records, key, parts)
        details = self._details()
        if details is None or not parts:
            return ArrowRecords(batch, ())
        low, high = min(part.low for part in parts), max(part.high for part in parts)
        known = await details(key, low, high, batch.column("ulid"))
        return ArrowRecords(_detailed(batch, known.records), known.missing)


async def held_records(
    snapshot: Snapshot, where: Cursor | int | HeldPlace | None, max_bytes: int
) -> After[RecordPiece]:
    """Records after a place in a snapshot of what nodes hold."""
    ranges = await unseen(snapshot, where)
    if not ranges:
        return after_piece(snapshot, None, ranges, 0)
    start, end = ranges[0]
    found = await read_parts(snapshot, start, end, max_bytes)
    place = given(where, await cursor_at(snapshot, found.end), found.end - start)
    piece = RecordPiece(found.parts, place, start - found.start)
    return after_piece(snapshot, piece, ranges, found.end)


def _detailed(batch: pa.RecordBatch, known: pa.Table) -> pa.RecordBatch:
    """The batch with what is known of its records in place of what its text says."""
    if known.num_rows == 0:
        return batch
    found = known.combine_chunks().to_batches()[0]
    where = pc.index_in(batch.column("ulid"), value_set=found.column("ulid"))
    own = pa.array(np.arange(batch.num_rows), pa.int64())
    takes = pc.coalesce(pc.add(where.cast(pa.int64()), batch.num_rows), own)
    for name in DETAILS[1:]:
        both = pa.concat_arrays([batch.column(name), found.column(name)])
        number = batch.schema.get_field_index(name)
        batch = batch.set_column(number, SCHEMA.field(name), both.take(takes))
    return batch


@dataclass(frozen=True, slots=True)
class _UlidPage:
    """A page in the order of ULIDs: ULIDs in place of cursors."""

    limit: int
    after: int | None
    before: int | None
    tail: int | None
    around: int | None
    max_bytes: int

    @staticmethod
    def parsed(
        limit: int,
        after: str | None,
        before: str | None,
        tail: int | None,
        around: int | None,
        max_bytes: int,
    ) -> _UlidPage:
        first = None if after is None else ulid_order.decode_place(after, "after")
        last = None if before is None else ulid_order.decode_place(before, "before")
        return _UlidPage(limit, first, last, tail, around, max_bytes)

    async def read(self, snapshot: Snapshot) -> RecordPage:
        """The page. Raises `NotFound`, `Moved`."""
        must_exist(snapshot)
        ranges = await self._ranges(snapshot)
        parts = await ulid_order.read_ranges(snapshot, ranges, self.max_bytes)
        lines = sum([part.lines for part in parts])
        after = before = None
        if parts:
            last, first = parts[-1].high, parts[0].low
            # A ULID says nothing of records in the store that were not given.
            if not snapshot.held and await ulid_order.from_ulid(snapshot, last + 1, 1, 1):
                after = ulid_order.encode_place(last)
            if not snapshot.held and await ulid_order.before_ulid(snapshot, first, 1):
                before = ulid_order.encode_place(first)
        page = Page(
            text=b"",
            lines=lines,
            after=after,
            before=before,
            total_lines=snapshot.lines,
            total_bytes=snapshot.size,
            state=snapshot.state,
            missing=max(sum(end - start for start, end in ranges) - lines, 0) if after else 0,
            first_line=0,
            silent=silent_of(snapshot),
            held=snapshot.held,
        )
        return RecordPage(snapshot.manifest.key, parts, page)

    async def _ranges(self, snapshot: Snapshot) -> list[ulid_order.LineRange]:
        if self.around is not None:
            return await self._around(snapshot, self.around)
        if self.before is not None:
            return await ulid_order.before_ulid(snapshot, self.before, self.limit)
        if self.tail is not None:
            return await ulid_order.before_ulid(snapshot, _HIGHEST, self.tail)
        first = 0 if self.after is None else self.after + 1
        return await ulid_order.from_ulid(snapshot, first, self.limit, MAX_PAGE_BYTES)

    async def _around(self, snapshot: Snapshot, ulid: int) -> list[ulid_order.LineRange]:
        if await line_of_record(snapshot, ulid) is None:
            raise no_record(snapshot, ulid)
        half = self.limit - self.limit // 2
        found = await ulid_order.from_ulid(snapshot, ulid, half, MAX_PAGE_BYTES)
        left = self.limit - sum(end - start for start, end in found)
        if left <= 0:
            return found
        return await ulid_order.before_ulid(snapshot, ulid, left) + found


@dataclass(slots=True)
class _Whole:
    """The progress of a whole run's reading; the first snapshot fixes its records and their order.

    `ranges` come next in the order of ULIDs, and after them what begins with `ulid`.
    """

    key: RunKey
    by_ulid: bool
    max_bytes: int
    log: PinnedLog | None = None
    line: int = 0
    ulid: int = 0
    ranges: Sequence[ulid_order.LineRange] = ()
    done: bool = False

    async def step(self, now: Snapshot) -> list[RecordPart]:
        """The next records."""
        if self.log is None:
            must_exist(now)
            self.log = PinnedLog(now)
        return await (self._next_ulids if self.by_ulid else self._next_lines)(self.log.at(now))

    async def _next_lines(self, log: LogNow) -> list[RecordPart]:
        end = log.log.lines
        found = await log.parts(self.line, end, self.max_bytes)
        self.line, self.done = found.end, found.end >= end
        return found.parts

    async def _next_ulids(self, log: LogNow) -> list[RecordPart]:
        order, ranges = log.order(), self.ranges
        if not ranges:
            all_lines = ulid_order.NO_LIMIT
            ranges = await ulid_order.from_ulid(order, self.ulid, all_lines, self.max_bytes)
        parts = await ulid_order.read_ranges(order, ranges, self.max_bytes, log.parts)
        self.ranges = _without_first(ranges, sum([part.lines for part in parts]))
        if parts:
            self.ulid = parts[-1].high + 1
        self.done = not parts
        return parts


def _without_first(
    ranges: Sequence[ulid_order.LineRange], lines: int
) -> list[ulid_order.LineRange]:
    """The ranges without so many of their first lines."""
    left: list[ulid_order.LineRange] = []
    for start, end in ranges:
        skipped = min(lines, end - start)
        lines -= skipped
        if skipped < end - start:
            left.append((start + skipped, end))
    return left
