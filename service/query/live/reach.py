"""What a search at a moment of the live end can read: of each node, up to where.

The moment's cursor names a position for each node. Of this node, the pin has what is in no
confirmed segment. Other nodes are asked for theirs. What a silent one holds beyond its segments
cannot be read: `ends` says up to where its records can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from logstore import keys, ulid
from logstore.errors import Damaged, NotFound, StoreUnavailable
from logstore.objects.store import ObjectInfo
from logstore.search.conditions import All, Column, Compares
from logstore.table.file_index import FileIndex
from service.query.cursor import RecordKey
from service.query.elsewhere import HotOfAll
from service.query.engine import QueryEngine
from service.query.hot import SCHEMA, HotRecords
from service.query.live.cursor import StreamCursor
from service.query.live.elsewhere import OtherNodes
from service.query.live.pins import LivePin
from service.query.request import QueryRequest
from service.query.segments import Segment
from service.query.tiles import Tile
from service.query.view import LOOKS, Look, Outdated, Report, Sources, View, held_view, open_pinned

POS = Column("pos")


@dataclass(frozen=True, slots=True)
class Reach:
    """Of each node the end of what can be read, and its last segment below that.

    `confirmed` is the position up to which the segments go, and `held` what is behind it.
    `stored`: the store answered for the nodes that do not.
    """

    pin: LivePin
    ends: Mapping[str, int]
    confirmed: Mapping[str, int]
    through: Mapping[str, int]
    held: Mapping[str, pa.Table]
    stored: bool = True

    def everything(self, *, or_held: bool = False) -> Look:
        """The view of a search that looks at nothing beyond.

        `or_held`: of what the nodes hold, if the store does not answer.
        """

        async def look(sources: Sources, request: QueryRequest) -> View:
            try:
                if not self.stored:
                    raise sources.answers.error()
                view = await open_pinned(sources, request, self._again(), self.through)
            except StoreUnavailable:
                if not or_held:
                    raise
                view = held_view(sources, request, self._again())
            parts = [part for part in self.held.values() if part.num_rows]
            if parts:
                view.hot = HotOfAll(view.hot, pa.concat_tables(parts))
            return view

        return look

    def segment(self, node: str, segment: Segment) -> Look:
        """Nothing but a segment."""
        return self.only(node, [segment], SCHEMA.empty_table())

    def journal(self, node: str, start: int) -> Look:
        """Nothing but what a node holds beyond its confirmed segments.

        Of this node, runs with no record at or above the position are left out.
        """
        if node != self.pin.node:
            return self.only(node, [], self.held.get(node, SCHEMA.empty_table()))

        async def look(sources: Sources, request: QueryRequest) -> View:
            pin = self._again()
            hot = HotRecords(pin, sources.encode, request.bounds, request.fqn, request.run, start)
            return await self._view(sources, pin, hot, node, [])

        return look

    def only(self, node: str, segments: Sequence[Segment], records: pa.Table) -> Look:
        """Nothing but segments, and records as a node holds them."""

        async def look(sources: Sources, request: QueryRequest) -> View:
            pin = self._again()
            none = HotRecords(
                pin, sources.encode, request.bounds, request.fqn, request.run, pin.end_pos
            )
            hot = HotOfAll(none, records) if records.num_rows else none
            return await self._view(sources, pin, hot, node, segments)

        return look

    async def _view(
        self,
        sources: Sources,
        pin: LivePin,
        hot: HotRecords | HotOfAll,
        node: str,
        segments: Sequence[Segment],
    ) -> View:
        deletions = await sources.deletions()
        report = Report(nodes={node}, segments=len(segments))
        return View(pin, hot, segments, FileIndex.of([]), deletions, report)

    def _again(self) -> LivePin:
        if not self.pin.held:
            raise Outdated("the pin was released")
        return self.pin.again()


async def reach_of(
    others: OtherNodes | None,
    sources: Sources,
    request: QueryRequest,
    pin: LivePin,
    seen: Mapping[str, int],
    *,
    strict: bool = True,
    or_held: bool = False,
) -> Reach:
    """What can be read of the positions below `seen`, of the request's time.

    If it is `strict`, it raises `Outdated` if a node has confirmed segments beyond them: the live
    end will have them, too, in a moment. `or_held`: of what the nodes hold, if the store does not
    answer; else that raises `StoreUnavailable`.
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


async def segments_of(sources: Sources, node: str) -> dict[int, ObjectInfo]:
    """The node's segments in the store, by number."""
    found: dict[int, ObjectInfo] = {}
    async for info in sources.store.list(keys.segments_of(node)):
        parsed = keys.parse_segment(info.key)
        if parsed is not None:
            found[parsed[1]] = info
    return found


async def stored_ends(sources: Sources) -> Mapping[str, int]:
    """One past the last position that the segments of each node hold. Raises `Unavailable`."""
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
    sources: Sources, node: str, end: int, heard: int | None
) -> tuple[int, int]:
    """Of a silent node, where its last segment below `end` ends, and the number of that segment.

    Segments that the table has may be gone. They end where the first one begins that is still
    there, which may be beyond `end`; with none where the node was `heard` to have confirmed. The
    mark is read before the segments are listed: what the node ships meanwhile is above it.
    """
    mark = await sources.answers.blocking(
        LOOKS, lambda: sources.table.newest().marks([node]).get(node, 0)
    )
    listed = await segments_of(sources, node)
    first: Segment | None = None
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
    sources: Sources,
    request: QueryRequest,
    reach: Reach,
    cursor: StreamCursor,
    node: str,
    late: pa.Table,
) -> pa.Table:
    """Late records of a node without those of which a copy of another node was given.

    A batch that was sent again to another node is at two positions. What a segment had that is
    gone is not known any more.
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
        segments = await _meeting(sources, other, Tile(low, high), seen)
        looks = [reach.only(other, segments, reach.held.get(other, SCHEMA.empty_table()))]
        if other == reach.pin.node:
            looks.append(reach.journal(other, 0))
        for look in looks:
            async with await engine.open(asked, look) as search:
                async for batch in search.batches():
                    given |= {*RecordKey.of(batch)}
    if not given:
        return late
    return late.filter(pa.array([key not in given for key in RecordKey.of(late)]))


async def _meeting(sources: Sources, node: str, tile: Tile, below: int) -> list[Segment]:
    """The node's segments that may hold records of the tile below a position."""
    found = []
    for info in (await segments_of(sources, node)).values():
        try:
            segment = await sources.catalog.segment(sources.store, info)
        except (Damaged, NotFound):
            continue
        if segment.first_pos < below and segment.meets(tile):
            found.append(segment)
    return found
