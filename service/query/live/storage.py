"""What a reader has missed: all up to a moment of the live end that its cursor has not given.

First come the late ones: records that arrived above the cursor's position, with keys below its key.
They are read segment by segment, in the order of positions, and last from the journal. Then a
search gives the rest by key. Segments stay for `compaction.grace_seconds` after the table has
them. If a segment is gone, nobody can say any more which records of the table arrived late
there: the reader is told of a `Gap`, and reads on.

A moment's pin and the segments up to it hold exactly what the live end has seen, and a search
at it looks at nothing beyond. So it is with other nodes (`reach`). Of a silent one the cursor goes
back to what can be read and remembers what it was given, so that what comes later is neither lost
nor given twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from logstore import ulid
from logstore.errors import Damaged, NotFound
from logstore.search.conditions import All, Compares
from service.query.cursor import RecordKey
from service.query.engine import QueryEngine
from service.query.hot import SCHEMA
from service.query.live.cursor import StreamCursor
from service.query.live.elsewhere import OtherNodes
from service.query.live.pins import LivePin
from service.query.live.reach import POS, Reach, reach_of, segments_of, without_copies
from service.query.live.reorder import Matches, late_pieces, pieces
from service.query.request import QueryRequest
from service.query.running import RunningSearch
from service.query.segments import Segment
from service.query.view import Look, Sources

_SHOWN: Final = 20
_HEARD_MS: Final = 60_000
"""A process that began so long before a cursor's time at most may be new to the cursor."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The live end of a search at one moment: its pin, its cursor, the number of its next piece."""

    pin: LivePin
    cursor: StreamCursor
    mark: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Records may be missing, and why; `cursor` is behind it."""

    reason: str
    cursor: StreamCursor


async def missed(
    engine: QueryEngine,
    sources: Sources,
    request: QueryRequest,
    moment: Moment,
    cursor: StreamCursor,
    others: OtherNodes | None = None,
) -> AsyncGenerator[Matches | Gap | StreamCursor]:
    """What lies between the cursor and the moment's, and the cursor behind it.

    That is below the moment's for a node that is silent. Raises as a search does.
    """
    if cursor == moment.cursor:
        return
    until = ulid.decode(max(moment.cursor.last, cursor.last).ulid)
    asked = replace(request, low=0, high=until)
    reach = await reach_of(others, sources, asked, moment.pin, moment.cursor.seen)
    reading = _Reading(engine, sources, request, reach, others)
    for node, end in reach.ends.items():
        async with aclosing(reading.late(node, cursor, end)) as late:
            async for piece in late:
                yield piece
                cursor = _behind(piece)
    cursor = replace(
        cursor,
        seen={node: cursor.seen[node] for node in reach.ends},
        given={node: value for node, value in cursor.given.items() if node in reach.ends},
    )
    yield cursor
    async with aclosing(_on_time(engine, request, reach, moment, cursor)) as on_time:
        async for piece in on_time:
            yield piece
            cursor = _behind(piece)
    yield replace(cursor, last=max(cursor.last, moment.cursor.last))


def _behind(piece: Matches | Gap | StreamCursor) -> StreamCursor:
    if isinstance(piece, StreamCursor):
        return piece
    return piece.after if isinstance(piece, Matches) else piece.cursor


async def _on_time(
    engine: QueryEngine,
    request: QueryRequest,
    reach: Reach,
    moment: Moment,
    cursor: StreamCursor,
) -> AsyncGenerator[Matches | Gap]:
    """Records above the cursor's key and up to the moment's, in order."""
    until = moment.cursor.last
    if cursor.last >= until:
        return
    asked = replace(
        request,
        low=ulid.decode(cursor.last.ulid),
        high=ulid.decode(until.ulid),
        after=cursor.last,
        descending=False,
    )
    async with (
        await engine.open(asked, reach.everything()) as search,
        aclosing(search.batches()) as batches,
    ):
        async for batch in batches:
            table = pa.Table.from_batches([batch.cast(SCHEMA)], SCHEMA)
            behind = replace(cursor, last=RecordKey.last_of(batch))
            for piece in pieces(table, cursor, behind):
                yield piece
            cursor = behind
        if (reason := _unread(search)) is not None:
            yield Gap(reason, replace(cursor, last=until))


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads late records: at or below the cursor's key, above its position of their node."""

    engine: QueryEngine
    sources: Sources
    request: QueryRequest
    reach: Reach
    others: OtherNodes | None

    async def late(
        self, node: str, cursor: StreamCursor, end: int
    ) -> AsyncGenerator[Matches | Gap | StreamCursor]:
        """Those of a node below `end`, in the order of positions; a cursor that has seen them."""
        if node not in cursor.seen:
            start = self._beginning(node, cursor)
            if start is None:
                reason = f"the cursor has seen nothing of {node}: late records may be missing"
                yield Gap(reason, cursor.at(node, end))
                return
            cursor = cursor.at(node, min(start, end))
        elif cursor.seen[node] > end and node != self.reach.pin.node:
            if node in cursor.given:
                reason = f"{node} is silent again: records that were late there may be missing"
                yield Gap(reason, replace(cursor, given={}).back_to(node, end))
            else:
                yield cursor.back_to(node, end)
            return
        if cursor.seen[node] < end:
            async with aclosing(self._parts(node, cursor, end)) as parts:
                async for piece in parts:
                    yield piece
                    cursor = _behind(piece)
        yield cursor.at(node, end)

    def _beginning(self, node: str, cursor: StreamCursor) -> int | None:
        """Where a node began that the cursor does not name; None if it was there before."""
        began = None if self.others is None else self.others.began(node)
        if began is None or began.time_ms < _time(cursor) - _HEARD_MS:
            return None
        return began.pos

    async def _parts(
        self, node: str, cursor: StreamCursor, end: int
    ) -> AsyncGenerator[Matches | Gap]:
        reach, highest, start = self.reach, ulid.decode(cursor.last.ulid), cursor.seen[node]
        looks: list[tuple[Look, int]] = []
        if start < reach.confirmed[node]:
            segments, all_there = await _segments(self.sources, node, start, reach.through[node])
            if not all_there:
                first = segments[0].first_pos if segments else reach.confirmed[node]
                cursor = cursor.at(node, max(first, start))
                reason = (
                    "segments that came since are gone: records that were late there may be missing"
                )
                yield Gap(reason, cursor)
            looks = [(reach.segment(node, s), s.end_pos) for s in segments if s.low <= highest]
        for look, until in [*looks, (reach.journal(node, start), end)]:
            for piece in await self._late_of(look, cursor, node, min(until, end)):
                yield piece
                cursor = _behind(piece)

    async def _late_of(
        self, look: Look, cursor: StreamCursor, node: str, end: int
    ) -> list[Matches | Gap]:
        asked = replace(
            self.request,
            low=0,
            high=ulid.decode(cursor.last.ulid),
            after=None,
            descending=False,
        )
        unseen = Compares(POS, ">=", cursor.seen[node])
        whole = All((unseen,)) if asked.condition is None else All((asked.condition, unseen))
        async with await self.engine.open(replace(asked, condition=whole), look) as search:
            found = [batch.cast(SCHEMA) async for batch in search.batches()]
            reason = _unread(search)
        records = _up_to(pa.Table.from_batches(found, SCHEMA), cursor.last)
        if node in cursor.given:
            records = _not_given(records, *cursor.given[node])
        records = await without_copies(
            self.engine, self.sources, self.request, self.reach, cursor, node, records
        )
        given = late_pieces(records.sort_by("pos"), cursor, node, end)
        if reason is None:
            return [*given]
        return [*given, Gap(reason, cursor.at(node, end))]


def _time(cursor: StreamCursor) -> int:
    return ulid.time_ms(ulid.decode(cursor.last.ulid))


def _not_given(records: pa.Table, end: int, last: RecordKey) -> pa.Table:
    """The records that are not both below the position and at most at the key."""
    positions = records.column("pos").to_pylist()
    keys = RecordKey.of(records)
    kept = [pos >= end or key > last for pos, key in zip(positions, keys, strict=True)]
    return records.filter(pa.array(kept, pa.bool_()))


def _up_to(records: pa.Table, last: RecordKey) -> pa.Table:
    """The records whose key is at most `last`; few have its ULID."""
    same = pc.equal(records.column("ulid"), last.ulid)
    if not pc.any(same).as_py():
        return records
    return records.filter(pa.array([key <= last for key in RecordKey.of(records)]))


async def _segments(
    sources: Sources, node: str, start: int, through: int
) -> tuple[list[Segment], bool]:
    """The node's segments from the position on, oldest first, and whether none is missing."""
    listed = await segments_of(sources, node)
    segments: list[Segment] = []
    for seq in range(through, 0, -1):
        if segments and segments[-1].first_pos <= start:
            break
        if seq not in listed:
            return segments[::-1], False
        try:
            segment = await sources.catalog.segment(sources.store, listed[seq])
        except (Damaged, NotFound):
            return segments[::-1], False
        if segment.end_pos <= start:
            break
        segments.append(segment)
    return segments[::-1], True


def _unread(search: RunningSearch) -> str | None:
    report = search.report
    if report.read_all:
        return None
    names = [*report.missing, *report.unreadable]
    return f"could not read {', '.join(names[:_SHOWN])}"
