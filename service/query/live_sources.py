"""Reads for a live reader the records that its cursor has not seen, up to a moment of the live end.

Late records come first: records that arrived above the cursor's position with keys below its key.
They are read segment by segment, in the order of positions, and last from the journal. Then a
search returns the rest by key. Segments stay for `compaction.grace_seconds` after the table has
them. If a segment is gone, it is unknown which records of the table arrived late in it: the reader
gets a `Gap` and reads on.

A moment's pin and the segments up to it hold exactly the records that the live end has seen, and a
search at that moment reads nothing beyond. The same holds for other nodes (`Reach`): the moment's
cursor names a position for each node. The pin has this node's records that are in no confirmed
segment; other nodes are asked for theirs. The records that a silent node holds beyond its segments
cannot be read. For that node the cursor goes back to the end of the readable records, and remembers
the records that the reader got. So later records are neither lost nor returned twice.

`LivePeers` is the interface to other nodes; `service/peers/remote_feeds.py` implements it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from service.query.engine import QueryEngine, RunningSearch
from service.query.live_cursor import MatchedRecords, Reorder, StreamCursor, late_pieces, pieces
from service.query.request import QueryRequest, RecordKey, UlidRange
from service.query.sources import (
    LISTINGS,
    AllJournals,
    OpenSnapshot,
    Outdated,
    SearchedSegment,
    SearchReport,
    SearchSnapshot,
    SearchSources,
    held_snapshot,
    open_pinned,
)
from service.query.unflushed import JournalRecords, SearchPin
from tailrace.logstore import keys, ulid
from tailrace.logstore.errors import Damaged, NotFound, StoreUnavailable, TailraceError
from tailrace.logstore.objects.store import ObjectInfo
from tailrace.logstore.search.conditions import All, Column, Compares
from tailrace.logstore.table.schema import RECORD_SCHEMA
from tailrace.logstore.table.snapshot import FileIndex

# --- Interfaces of live searches ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fed:
    """A node's records from `start` to before `end`, with the columns of `RECORD_SCHEMA`.

    Without `records`, the records below `end` must be read where they are stored.
    """

    node: str
    end: int
    records: pa.Table | None


@dataclass(frozen=True, slots=True)
class UnconfirmedRecords:
    """The records beyond a node's confirmed segments, the last of which is `confirmed_seq`."""

    records: pa.Table
    confirmed_seq: int
    confirmed_pos: int
    end_pos: int


@dataclass(frozen=True, slots=True)
class Began:
    """A process in the register: when it began, and its first position that is new since."""

    time_ms: int
    pos: int


class LivePeers(Protocol):
    """The other nodes, as long as anybody follows a search."""

    @property
    def met(self) -> bool:
        """Returns true if the position up to which each reachable node is read is known.

        While the store does not answer, nodes that need it for their position are not waited for.
        """
        ...

    @property
    def listed(self) -> bool:
        """Returns true if the store has named the nodes that left, and how far they are read."""
        ...

    @property
    def silent(self) -> Sequence[str]:
        """Returns the nodes that do not answer, in order."""
        ...

    def began(self, node: str) -> Began | None:
        """Returns the beginning of a process, or of this one; None if it is not in the register."""
        ...

    def confirmed(self, node: str) -> int | None:
        """Returns the last known position up to which a node's records are in segments."""
        ...

    def start(self) -> None:
        """Begins to follow the nodes; after a `stop`, from their present ends on."""
        ...

    def stop(self) -> None:
        """Stops following the nodes."""
        ...

    def take(self) -> list[Fed]:
        """Returns the records that have come since the last call, in order for each node."""
        ...

    async def held(self, request: QueryRequest) -> Mapping[str, UnconfirmedRecords]:
        """Returns what answering nodes hold within the request's time, run or pipeline."""
        ...


class LivePin(SearchPin, Protocol):
    """The unflushed part of this node at one moment, which can be pinned again."""

    @property
    def held(self) -> bool:
        """Returns true until it is released."""
        ...

    @property
    def first_pos(self) -> int:
        """Returns the lowest position that the journal still holds."""
        ...

    @property
    def end_pos(self) -> int:
        """Returns one past the last record that was synced."""
        ...

    @property
    def confirmed_seq(self) -> int:
        """Returns the number of the last confirmed segment."""
        ...

    def again(self) -> LivePin:
        """Returns another pin of the same moment."""
        ...


# --- The readable records at one moment ---------------------------------------------------------


POS = Column("pos")


@dataclass(frozen=True, slots=True)
class Reach:
    """For each node the end of its readable records, and its last segment below that end.

    `confirmed` is the position up to which the segments go; `held` has the records after it.
    `stored`: the store answered for the nodes that do not.
    """

    pin: LivePin
    ends: Mapping[str, int]
    confirmed: Mapping[str, int]
    through: Mapping[str, int]
    held: Mapping[str, pa.Table]
    stored: bool = True

    def everything(self, *, or_held: bool = False) -> OpenSnapshot:
        """Returns the snapshot of a search that reads nothing beyond the moment.

        `or_held`: if the store does not answer, the snapshot has only the records that nodes hold.
        """

        async def opening(sources: SearchSources, request: QueryRequest) -> SearchSnapshot:
            try:
                if not self.stored:
                    raise sources.answers.error()
                snapshot = await open_pinned(sources, request, self._again(), self.through)
            except StoreUnavailable:
                if not or_held:
                    raise
                snapshot = held_snapshot(sources, request, self._again())
            parts = [part for part in self.held.values() if part.num_rows]
            if parts:
                snapshot.unflushed = AllJournals(snapshot.unflushed, pa.concat_tables(parts))
            return snapshot

        return opening

    def segment(self, node: str, segment: SearchedSegment) -> OpenSnapshot:
        """Returns the snapshot of one segment only."""
        return self.only(node, [segment], RECORD_SCHEMA.empty_table())

    def journal(self, node: str, start: int) -> OpenSnapshot:
        """Returns the snapshot of a node's records beyond its confirmed segments only.

        For this node, runs without a record at or above the position are left out.
        """
        if node != self.pin.node:
            return self.only(node, [], self.held.get(node, RECORD_SCHEMA.empty_table()))

        async def opening(sources: SearchSources, request: QueryRequest) -> SearchSnapshot:
            pin = self._again()
            unflushed = JournalRecords(
                pin, sources.encode, request.bounds, request.fqn, request.run, start
            )
            return await self._snapshot(sources, pin, unflushed, node, [])

        return opening

    def only(
        self, node: str, segments: Sequence[SearchedSegment], records: pa.Table
    ) -> OpenSnapshot:
        """Returns the snapshot of only these segments and of records as a node holds them."""

        async def opening(sources: SearchSources, request: QueryRequest) -> SearchSnapshot:
            pin = self._again()
            none = JournalRecords(
                pin, sources.encode, request.bounds, request.fqn, request.run, pin.end_pos
            )
            unflushed = AllJournals(none, records) if records.num_rows else none
            return await self._snapshot(sources, pin, unflushed, node, segments)

        return opening

    async def _snapshot(
        self,
        sources: SearchSources,
        pin: LivePin,
        unflushed: JournalRecords | AllJournals,
        node: str,
        segments: Sequence[SearchedSegment],
    ) -> SearchSnapshot:
        deletions = await sources.deletions()
        report = SearchReport(nodes={node}, segments=len(segments))
        return SearchSnapshot(pin, unflushed, segments, FileIndex.of([]), deletions, report)

    def _again(self) -> LivePin:
        if not self.pin.held:
            raise Outdated("the pin was released")
        return self.pin.again()


async def reach_of(
    others: LivePeers | None,
    sources: SearchSources,
    request: QueryRequest,
    pin: LivePin,
    seen: Mapping[str, int],
    *,
    strict: bool = True,
    or_held: bool = False,
) -> Reach:
    """Returns the readable records of the positions below `seen`, of the request's time.

    With `strict` it raises `Outdated` if a node has confirmed segments beyond these positions: the
    live end will have them in a moment, too. With `or_held` it returns the records that nodes hold
    if the store does not answer; without it, that raises `StoreUnavailable`.
    """
    ends, confirmed = {pin.node: seen[pin.node]}, {pin.node: pin.confirmed_pos}
    through = {pin.node: pin.confirmed_seq}
    reach = Reach(pin, ends, confirmed, through, held := {})
    if others is None or len(seen) == 1:
        return reach
    answers = await others.held(request)
    for node, end in seen.items():
        answer = answers.get(node)
        if node == pin.node:
            continue
        if answer is not None:
            if strict and answer.confirmed_pos > end:
                raise Outdated(f"{node} has confirmed segments beyond what was looked at")
            ends[node], through[node] = min(end, answer.end_pos), answer.confirmed_seq
            confirmed[node] = answer.confirmed_pos
            held[node] = answer.records.filter(pc.less(answer.records.column("pos"), end))
            continue
        try:
            stored, through[node] = await _stored_below(sources, node, end, others.confirmed(node))
        except StoreUnavailable:
            if not or_held:
                raise
            reach = replace(reach, stored=False)
            continue
        if strict and stored > end:
            raise Outdated(f"segments of {node} that are gone held more than was looked at")
        ends[node] = confirmed[node] = min(stored, end)
    return reach


async def segments_of(sources: SearchSources, node: str) -> dict[int, ObjectInfo]:
    """Returns the node's segments in the store, by number."""
    found: dict[int, ObjectInfo] = {}
    async for info in sources.store.list(keys.segments_of(node)):
        parsed = keys.parse_segment(info.key)
        if parsed is not None:
            found[parsed[1]] = info
    return found


async def stored_ends(sources: SearchSources) -> Mapping[str, int]:
    """Returns one past the last position in the segments of each node. Raises `Unavailable`."""
    last: dict[str, tuple[int, ObjectInfo]] = {}
    async for info in sources.store.list(keys.SEGMENTS):
        parsed = keys.parse_segment(info.key)
        if parsed is not None and parsed[1] > last.get(parsed[0], (0, info))[0]:
            last[parsed[0]] = parsed[1], info
    ends: dict[str, int] = {}
    for node, (_, info) in last.items():
        with suppress(Damaged, NotFound):
            ends[node] = (await sources.catalog.segment(sources.store, info)).end_pos
    return ends


async def _stored_below(
    sources: SearchSources, node: str, end: int, heard: int | None
) -> tuple[int, int]:
    """Returns the end of a silent node's last segment below `end`, and that segment's number.

    Segments that the table has may be gone. They end where the first remaining segment begins,
    which may be beyond `end`; without remaining segments, at the last reported confirmed position
    (`heard`). The mark is read before the segments are listed: segments that the node ships
    meanwhile are above it.
    """
    mark = await sources.answers.blocking(
        LISTINGS, lambda: sources.table.newest().marks([node]).get(node, 0)
    )
    listed = await segments_of(sources, node)
    first: SearchedSegment | None = None
    for seq in sorted(listed, reverse=True):
        try:
            segment = await sources.catalog.segment(sources.store, listed[seq])
        except (Damaged, NotFound):
            continue
        if segment.end_pos <= end:
            return segment.end_pos, seq
        first, mark = segment, seq - 1
    if first is not None:
        return first.first_pos, mark
    return (end if heard is None else min(end, heard)), mark


async def without_copies(
    engine: QueryEngine,
    sources: SearchSources,
    request: QueryRequest,
    reach: Reach,
    cursor: StreamCursor,
    node: str,
    late: pa.Table,
) -> pa.Table:
    """Returns late records of a node, without those of which a copy of another node was returned.

    A batch that was sent again to another node is at two positions. The records of a segment that
    is gone are not known any more.
    """
    others = [name for name in cursor.seen if name != node and name in reach.ends]
    if not others or late.num_rows == 0:
        return late
    edges = pc.min_max(late.column("ulid")).as_py()
    low, high = ulid.decode(edges["min"]), ulid.decode(edges["max"])
    given: set[RecordKey] = set()
    for other in others:
        seen = cursor.seen[other]
        asked = replace(
            request,
            low=low,
            high=high,
            after=None,
            descending=False,
            condition=All((Compares(POS, "<", seen),)),
        )
        segments = await _meeting(sources, other, UlidRange(low, high), seen)
        openings = [reach.only(other, segments, reach.held.get(other, RECORD_SCHEMA.empty_table()))]
        if other == reach.pin.node:
            openings.append(reach.journal(other, 0))
        for opening in openings:
            async with await engine.open(asked, opening) as search:
                async for batch in search.batches():
                    given |= {*RecordKey.of(batch)}
    if not given:
        return late
    return late.filter(pa.array([key not in given for key in RecordKey.of(late)]))


async def _meeting(
    sources: SearchSources, node: str, time_range: UlidRange, below: int
) -> list[SearchedSegment]:
    """Returns the node's segments that may hold records of the range below a position."""
    found = []
    for info in (await segments_of(sources, node)).values():
        try:
            segment = await sources.catalog.segment(sources.store, info)
        except (Damaged, NotFound):
            continue
        if segment.first_pos < below and segment.meets(time_range):
            found.append(segment)
    return found


_SHOWN: Final = 20
_HEARD_MS: Final = 60_000
"""A process that began at most this long before a cursor's time may be new to the cursor."""


@dataclass(frozen=True, slots=True)
class LiveEnd:
    """The live end of a search at one moment: its pin, its cursor, the number of its next piece."""

    pin: LivePin
    cursor: StreamCursor
    mark: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Records may be missing, and why; `cursor` is after the gap."""

    reason: str
    cursor: StreamCursor


async def missed(
    engine: QueryEngine,
    sources: SearchSources,
    request: QueryRequest,
    moment: LiveEnd,
    cursor: StreamCursor,
    others: LivePeers | None = None,
) -> AsyncGenerator[MatchedRecords | Gap | StreamCursor]:
    """Yields the records between the cursor and the moment's, and the cursor after them.

    For a silent node, the last cursor is below the moment's. Raises the errors of a search.
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


def _behind(piece: MatchedRecords | Gap | StreamCursor) -> StreamCursor:
    if isinstance(piece, StreamCursor):
        return piece
    return piece.after if isinstance(piece, MatchedRecords) else piece.cursor


async def _on_time(
    engine: QueryEngine,
    request: QueryRequest,
    reach: Reach,
    moment: LiveEnd,
    cursor: StreamCursor,
) -> AsyncGenerator[MatchedRecords | Gap]:
    """Yields records above the cursor's key and up to the moment's, in order."""
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
            table = pa.Table.from_batches([batch.cast(RECORD_SCHEMA)], RECORD_SCHEMA)
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
    sources: SearchSources
    request: QueryRequest
    reach: Reach
    others: LivePeers | None

    async def late(
        self, node: str, cursor: StreamCursor, end: int
    ) -> AsyncGenerator[MatchedRecords | Gap | StreamCursor]:
        """Yields late records of a node below `end`, by position.

        Then a cursor that has seen them.
        """
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
        """Returns where a node began that the cursor does not name; None if it existed before."""
        began = None if self.others is None else self.others.began(node)
        if began is None or began.time_ms < _time(cursor) - _HEARD_MS:
            return None
        return began.pos

    async def _parts(
        self, node: str, cursor: StreamCursor, end: int
    ) -> AsyncGenerator[MatchedRecords | Gap]:
        reach, highest, start = self.reach, ulid.decode(cursor.last.ulid), cursor.seen[node]
        openings: list[tuple[OpenSnapshot, int]] = []
        if start < reach.confirmed[node]:
            segments, all_there = await _segments(self.sources, node, start, reach.through[node])
            if not all_there:
                first = segments[0].first_pos if segments else reach.confirmed[node]
                cursor = cursor.at(node, max(first, start))
                reason = (
                    "segments that came since are gone: records that were late there may be missing"
                )
                yield Gap(reason, cursor)
            openings = [(reach.segment(node, s), s.end_pos) for s in segments if s.low <= highest]
        for opening, until in [*openings, (reach.journal(node, start), end)]:
            for piece in await self._late_of(opening, cursor, node, min(until, end)):
                yield piece
                cursor = _behind(piece)

    async def _late_of(
        self, opening: OpenSnapshot, cursor: StreamCursor, node: str, end: int
    ) -> list[MatchedRecords | Gap]:
        asked = replace(
            self.request,
            low=0,
            high=ulid.decode(cursor.last.ulid),
            after=None,
            descending=False,
        )
        unseen = Compares(POS, ">=", cursor.seen[node])
        whole = All((unseen,)) if asked.condition is None else All((asked.condition, unseen))
        async with await self.engine.open(replace(asked, condition=whole), opening) as search:
            found = [batch.cast(RECORD_SCHEMA) async for batch in search.batches()]
            reason = _unread(search)
        records = _up_to(pa.Table.from_batches(found, RECORD_SCHEMA), cursor.last)
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
    """Returns the records that are not both below the position and at most at the key."""
    positions = records.column("pos").to_pylist()
    keys = RecordKey.of(records)
    kept = [pos >= end or key > last for pos, key in zip(positions, keys, strict=True)]
    return records.filter(pa.array(kept, pa.bool_()))


def _up_to(records: pa.Table, last: RecordKey) -> pa.Table:
    """Returns the records whose key is at most `last`; few have its ULID."""
    same = pc.equal(records.column("ulid"), last.ulid)
    if not pc.any(same).as_py():
        return records
    return records.filter(pa.array([key <= last for key in RecordKey.of(records)]))


async def _segments(
    sources: SearchSources, node: str, start: int, through: int
) -> tuple[list[SearchedSegment], bool]:
    """Returns the node's segments from the position on, oldest first, and if none is missing."""
    listed = await segments_of(sources, node)
    segments: list[SearchedSegment] = []
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


# --- One followed search ------------------------------------------------------------------------


_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """The interval of the live end, and its limits: for each search, in bytes.

    If more than `behind_bytes` of text came since the last pass, readers read it from storage.
    """

    look_seconds: float = 0.2
    ring_bytes: int = 2 * _MIB
    waiting_bytes: int = 8 * _MIB
    behind_bytes: int = 64 * _MIB
    most_searches: int = 32


class TakenPieces(NamedTuple):
    """Pieces for a reader, the number of the next one, and whether it must read storage."""

    pieces: list[MatchedRecords]
    next_piece: int
    behind: bool


class Followed:
    """A search that somebody follows: its waiting records, and a ring of its newest pieces."""

    def __init__(self, request: QueryRequest, window_ms: int, limits: LiveLimits) -> None:
        self.request = request
        self.window_ms = window_ms
        self.readers = 0
        self.failure: TailraceError | None = None
        self.reorder: Reorder | None = None
        self.ready = False
        self._limits = limits
        self._pieces: deque[MatchedRecords] = deque()
        self._first = 0
        self._bytes = 0

    @property
    def mark(self) -> int:
        """Returns the number of the next piece."""
        return self._first + len(self._pieces)

    def begin(self, cursor: StreamCursor) -> None:
        """Continues at this cursor: readers before it read storage."""
        self.reorder = Reorder(cursor, self._limits.waiting_bytes)
        self.ready = False
        self._first = self.mark + 1
        self._pieces.clear()
        self._bytes = 0

    def keep(self, pieces: list[MatchedRecords]) -> None:
        """Adds pieces to the ring and drops the oldest ones if needed."""
        for piece in pieces:
            self._pieces.append(piece)
            self._bytes += piece.size
        while self._bytes > self._limits.ring_bytes and self._pieces:
            self._bytes -= self._pieces.popleft().size
            self._first += 1

    def take(self, next_piece: int) -> TakenPieces:
        """Returns the pieces from this number on."""
        if next_piece < self._first:
            return TakenPieces([], next_piece, behind=True)
        found = list(self._pieces)[next_piece - self._first :]
        return TakenPieces(found, self.mark, behind=False)

    def check(self) -> None:
        """Raises the error that ended the search, if any."""
        if self.failure is not None:
            raise self.failure
