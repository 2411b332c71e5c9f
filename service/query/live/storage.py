"""What a reader has missed: all up to a moment of the live end that its cursor has not given.

First come the late ones: records that arrived above the cursor's position, with keys below its key.
They are read segment by segment, in the order of positions, and last from the journal. Then a
search gives the rest by key. Segments stay for `compaction.grace_seconds` after the table has
them. If a segment is gone, nobody can say any more which records of the table arrived late
there: the reader is told of a `Gap`, and reads on.

A moment's pin and the segments up to it hold exactly what the live end has seen, and a search
at it looks at nothing beyond.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from logstore import keys, ulid
from logstore.errors import Damaged, NotFound
from logstore.search.conditions import All, Column, Compares
from logstore.table.file_index import FileIndex
from service.query.cursor import RecordKey
from service.query.engine import QueryEngine
from service.query.hot import SCHEMA, HotRecords, Pin
from service.query.live.cursor import StreamCursor
from service.query.live.reorder import Matches, late_pieces, pieces
from service.query.request import QueryRequest
from service.query.running import RunningSearch
from service.query.segments import Segment
from service.query.view import Look, Outdated, Report, Sources, View, open_pinned

_SHOWN: Final = 20
_POS: Final = Column("pos")


class LivePin(Pin, Protocol):
    """A pin that can be taken again, and says how far the node was."""

    @property
    def held(self) -> bool:
        """Whether it was not released yet."""
        ...

    @property
    def first_pos(self) -> int:
        """The lowest position that the journal still holds."""
        ...

    @property
    def end_pos(self) -> int:
        """One past the last record that was synced."""
        ...

    @property
    def confirmed_seq(self) -> int:
        """The number of the last confirmed segment."""
        ...

    def again(self) -> LivePin:
        """Another pin of the same moment."""
        ...


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


def at(pin: LivePin) -> Look:
    """The view of a search that looks at nothing beyond the pin."""

    async def look(sources: Sources, request: QueryRequest) -> View:
        return await open_pinned(sources, request, _again(pin), pin.confirmed_seq)

    return look


def _again(pin: LivePin) -> LivePin:
    if not pin.held:
        raise Outdated("the pin was released")
    return pin.again()


async def missed(
    engine: QueryEngine,
    sources: Sources,
    request: QueryRequest,
    moment: Moment,
    cursor: StreamCursor,
) -> AsyncGenerator[Matches | Gap]:
    """What lies between the cursor and the moment's. Raises as a search does."""
    node, end = moment.pin.node, moment.cursor.seen[moment.pin.node]
    start = cursor.seen.get(node)
    if start is None:
        cursor = replace(cursor, seen={**cursor.seen, node: end})
        yield Gap(f"the cursor has seen nothing of {node}: late records may be missing", cursor)
    elif start < end:
        async with aclosing(_late(engine, sources, request, moment, cursor)) as late:
            async for piece in late:
                yield piece
                cursor = piece.after if isinstance(piece, Matches) else piece.cursor
        cursor = replace(cursor, seen={**cursor.seen, node: end})
    async with aclosing(_on_time(engine, request, moment, cursor)) as on_time:
        async for piece in on_time:
            yield piece


async def _on_time(
    engine: QueryEngine, request: QueryRequest, moment: Moment, cursor: StreamCursor
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
        await engine.open(asked, at(moment.pin)) as search,
        aclosing(search.batches()) as batches,
    ):
        async for batch in batches:
            table = pa.Table.from_batches([batch.cast(SCHEMA)], SCHEMA)
            last = RecordKey(*[batch.column(n)[-1].as_py() for n in ("ulid", "fqn", "run_id")])
            behind = replace(cursor, last=last)
            for piece in pieces(table, cursor, behind):
                yield piece
            cursor = behind
        if (reason := _unread(search)) is not None:
            yield Gap(reason, replace(cursor, last=until))


async def _late(
    engine: QueryEngine,
    sources: Sources,
    request: QueryRequest,
    moment: Moment,
    cursor: StreamCursor,
) -> AsyncGenerator[Matches | Gap]:
    """Records at or below the cursor's key that came above its position, in order of position."""
    pin, node = moment.pin, moment.pin.node
    highest = ulid.decode(cursor.last.ulid)
    segments, all_there = await _segments(sources, node, cursor.seen[node], pin.confirmed_seq)
    if not all_there:
        first = segments[0].first_pos if segments else pin.confirmed_pos
        cursor = replace(cursor, seen={**cursor.seen, node: max(first, cursor.seen[node])})
        reason = "segments that came since are gone: records that were late there may be missing"
        yield Gap(reason, cursor)
    asked = replace(request, low=0, high=highest, after=None, descending=False)
    looks = [
        (_only(pin, segment), segment.end_pos) for segment in segments if segment.low <= highest
    ]
    for look, end in [*looks, (_journal(pin, cursor.seen[node]), pin.end_pos)]:
        for piece in await _late_of(engine, asked, look, cursor, node, end):
            yield piece
            cursor = piece.after if isinstance(piece, Matches) else piece.cursor


async def _late_of(
    engine: QueryEngine,
    asked: QueryRequest,
    look: Look,
    cursor: StreamCursor,
    node: str,
    end: int,
) -> list[Matches | Gap]:
    unseen = Compares(_POS, ">=", cursor.seen[node])
    whole = All((unseen,)) if asked.condition is None else All((asked.condition, unseen))
    async with await engine.open(replace(asked, condition=whole), look) as search:
        found = [batch.cast(SCHEMA) async for batch in search.batches()]
        reason = _unread(search)
    records = _up_to(pa.Table.from_batches(found, SCHEMA), cursor.last)
    given = late_pieces(records.sort_by("pos"), cursor, node, end)
    if reason is None:
        return [*given]
    return [*given, Gap(reason, replace(cursor, seen={**cursor.seen, node: end}))]


def _up_to(records: pa.Table, last: RecordKey) -> pa.Table:
    """The records whose key is at most `last`; few have its ULID."""
    same = pc.equal(records.column("ulid"), last.ulid)
    if not pc.any(same).as_py():
        return records
    names = zip(*[records.column(n).to_pylist() for n in ("ulid", "fqn", "run_id")], strict=True)
    return records.filter(pa.array([name <= last for name in names]))


async def _segments(
    sources: Sources, node: str, start: int, through: int
) -> tuple[list[Segment], bool]:
    """The node's segments from the position on, oldest first, and whether none is missing."""
    listed = {}
    async for info in sources.store.list(keys.segments_of(node)):
        found = keys.parse_segment(info.key)
        if found is not None and found[1] <= through:
            listed[found[1]] = info
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


def _only(pin: LivePin, segment: Segment) -> Look:
    """Nothing but the segment."""

    async def look(sources: Sources, request: QueryRequest) -> View:
        hot = HotRecords(pin, sources.encode, request.fqn, request.run, start=pin.end_pos)
        return await _view(sources, pin, hot, [segment])

    return look


def _journal(pin: LivePin, start: int) -> Look:
    """Nothing but the journal, from the position on or beyond its confirmed segments."""

    async def look(sources: Sources, request: QueryRequest) -> View:
        first = max(start, pin.confirmed_pos)
        hot = HotRecords(pin, sources.encode, request.fqn, request.run, start=first)
        return await _view(sources, pin, hot, [])

    return look


async def _view(
    sources: Sources, pin: LivePin, hot: HotRecords, segments: Sequence[Segment]
) -> View:
    deletions = await sources.deletions()
    report = Report(nodes={pin.node}, segments=len(segments))
    return View(_again(pin), hot, segments, FileIndex.of([]), deletions, report)


def _unread(search: RunningSearch) -> str | None:
    report = search.report
    if report.complete:
        return None
    names = [*report.missing, *report.unreadable]
    return f"could not read {', '.join(names[:_SHOWN])}"
