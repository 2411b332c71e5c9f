"""Segments whose lines are not all in chunks yet: what the journal may hold no more.

Those of this node come as they are confirmed and go with the watermark. Inherited ones
are those of a parent incarnation, found in the store at the start, and of nodes that are
lost. A run's news stand in this order, which is also the order in which they become chunks:
inherited segments, segments of this node that the journal has let go, the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from logstore import keys
from logstore.batch import RunKey
from logstore.errors import Damaged, NotFound, UnsupportedVersion
from logstore.objects.store import ObjectStore
from logstore.runs.manifest import Manifest
from logstore.runs.watermark import read_watermark
from logstore.segments.footer import SegmentRun
from logstore.segments.reader import fetch_segment, read_footer
from logstore.segments.stored import SegmentBatches
from service.runs.pin import Pin
from service.runs.selection import Source
from service.runtime.threads import Offload


@dataclass(slots=True)
class StoredSegment:
    """A confirmed segment; `runs` is known once its footer was read, empty if it is unreadable.

    `waiting` are the runs of an inherited one that were not flushed since it came.
    """

    node: str
    seq: int
    first: int
    end: int
    runs: dict[RunKey, SegmentRun] | None = None
    waiting: set[RunKey] = field(default_factory=set)


class Backlog:
    """Of this node, its parents, and lost nodes that it looks after."""

    def __init__(self, store: ObjectStore, node: str, offload: Offload) -> None:
        self._store = store
        self._node = node
        self._offload = offload
        self.inherited: list[StoredSegment] = []
        self.own: list[StoredSegment] = []
        self.unreadable = 0
        self.gaps: dict[str, int] = {}

    async def find(self, node: str, *, most: int | None = None) -> list[StoredSegment]:
        """Segments of `node` above its watermark, in order, at most so many.

        Of another node those before a gap: what is behind it waits, and is reported.
        """
        mark = await read_watermark(self._store, node)
        found: list[StoredSegment] = []
        after = keys.segment(node, mark.seq)
        pos = mark.pos
        self.gaps.pop(node, None)
        async for info in self._store.list(keys.segments_of(node), after=after):
            parsed = keys.parse_segment(info.key)
            if parsed is None:
                continue
            if node != self._node and parsed[1] != mark.seq + len(found) + 1:
                self.gaps[node] = mark.seq + len(found) + 1
                break
            segment = StoredSegment(node, parsed[1], pos, pos)
            await self._describe(segment)
            pos = segment.end
            found.append(segment)
            if len(found) == most:
                break
        return found

    async def inherit(self, segments: Sequence[StoredSegment]) -> None:
        """Takes segments of another node, whose runs are flushed from now on.

        Raises `StoreUnavailable`, `UnsupportedVersion`.
        """
        for segment in segments:
            segment.waiting = {run.key for run in await self.runs_of(segment)}
        self.inherited += segments

    def disown(self, node: str) -> None:
        """Somebody else looks after the node."""
        self.inherited = [segment for segment in self.inherited if segment.node != node]

    def done(self) -> list[StoredSegment]:
        """Of each such node the last segment before one with a run that waits."""
        last: dict[str, StoredSegment] = {}
        blocked: set[str] = set()
        for segment in self.inherited:
            if segment.waiting:
                blocked.add(segment.node)
            elif segment.node not in blocked:
                last[segment.node] = segment
        return list(last.values())

    def drop(self, through: StoredSegment) -> None:
        """Forgets an inherited segment and those of its node before it: the mark is past them."""
        self.inherited = [
            s for s in self.inherited if s.node != through.node or s.seq > through.seq
        ]

    def now(self) -> list[StoredSegment]:
        """The segments of this moment; taken before the manifest is read."""
        return [*self.inherited, *self.own]

    async def sources(
        self,
        key: RunKey,
        pin: Pin,
        segments: Sequence[StoredSegment],
        manifest: Manifest,
        low: int,
        end: int,
    ) -> list[Source]:
        """Where news of the run stand, in order: of this node positions from `low` to `end`.

        `low` and `segments` are of before the manifest was read: what was dealt with by
        then is in the manifest.
        """
        found: list[Source] = []
        for segment in segments:
            own = segment.node == self._node
            limit = min(segment.end, end, pin.first_pos) if own else segment.end
            start = max(segment.first, manifest.dealt_with(segment.node), low if own else 0)
            if start < limit:
                found += await self._open(segment, key, limit)
        start = max(manifest.dealt_with(self._node), pin.first_pos, low)
        found.append(Source(pin.batches(run=key, start=start, end=end), min(end, pin.end_pos)))
        return found

    async def runs_of(self, segment: StoredSegment) -> Sequence[SegmentRun]:
        """The runs of which the segment holds lines."""
        if segment.runs is None:
            await self._describe(segment)
        return list((segment.runs or {}).values())

    async def _open(self, segment: StoredSegment, key: RunKey, limit: int) -> list[Source]:
        if all(run.key != key for run in await self.runs_of(segment)):
            return []
        try:
            where = keys.segment(segment.node, segment.seq)
            file = await fetch_segment(self._store, where, run=key)
            batches = await self._offload(lambda: SegmentBatches(file, key))
        except NotFound:
            return []  # consumed by all and deleted: its lines are in the chunks
        return [Source(batches, limit)]

    async def _describe(self, segment: StoredSegment) -> None:
        try:
            footer = await read_footer(self._store, keys.segment(segment.node, segment.seq))
        except UnsupportedVersion:
            raise
        except (NotFound, Damaged) as error:
            # A segment that fails its checks is set aside by the compactor; its place
            # is empty for every reader until `verify --repair` brings it back.
            self.unreadable += isinstance(error, Damaged)
            segment.runs = {}
            return
        segment.runs = {run.key: run for run in footer.runs}
        if footer.ranges:
            segment.first, segment.end = footer.ranges[0][0], footer.ranges[-1][1]
