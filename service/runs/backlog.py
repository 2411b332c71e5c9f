"""Segments whose lines are not all in chunks yet, and may no longer be in the journal.

Segments of this node are added when they are confirmed, and removed with the watermark.
Inherited segments are those of a parent incarnation, found in the store at the start, and
those of lost nodes. The new lines of a run are read, and become chunks, in this order:
inherited segments, segments of this node that the journal has released, the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from logstore import keys
from logstore import ulid as ulids
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

    `high` is its highest ULID, 0 as long as that is not known.
    `waiting` are the runs of an inherited segment that were not flushed since it came.
    """

    node: str
    seq: int
    first: int
    end: int
    runs: dict[RunKey, SegmentRun] | None = None
    high: int = 0
    waiting: set[RunKey] = field(default_factory=set)


class Backlog:
    """Segments of this node, its parents, and lost nodes that it looks after."""

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

        For another node only those before a gap: later ones wait, and are reported.
        """
        mark = await read_watermark(self._store, node)
        found: list[StoredSegment] = []
        after = keys.segment(node, mark.seq)
        pos, gap = mark.pos, None
        async for info in self._store.list(keys.segments_of(node), after=after):
            parsed = keys.parse_segment(info.key)
            if parsed is None:
                continue
            if node != self._node and parsed[1] != mark.seq + len(found) + 1:
                gap = mark.seq + len(found) + 1
                break
            segment = StoredSegment(node, parsed[1], pos, pos)
            await self._describe(segment)
            pos = segment.end
            found.append(segment)
            if len(found) == most:
                break
        # Not before: what is known of a gap stays known while somebody looks again.
        if gap is None:
            self.gaps.pop(node, None)
        else:
            self.gaps[node] = gap
        return found

    def lacks(self, node: str) -> bool:
        """Whether one of the node's segments is missing, and this node looks after it."""
        return node in self.gaps

    async def inherit(self, segments: Sequence[StoredSegment]) -> None:
        """Adds segments of another node, whose runs this node flushes from now on.

        Raises `StoreUnavailable`, `UnsupportedVersion`.
        """
        for segment in segments:
            segment.waiting = {run.key for run in await self.runs_of(segment)}
        self.inherited += segments

    def disown(self, node: str) -> None:
        """Drops the segments of a node that another node looks after."""
        self.inherited = [segment for segment in self.inherited if segment.node != node]

    def done(self) -> list[StoredSegment]:
        """For each inherited node, the last segment before one with a run that waits."""
        last: dict[str, StoredSegment] = {}
        blocked: set[str] = set()
        for segment in self.inherited:
            if segment.waiting:
                blocked.add(segment.node)
            elif segment.node not in blocked:
                last[segment.node] = segment
        return list(last.values())

    def drop(self, through: StoredSegment) -> None:
        """Removes an inherited segment and earlier ones of its node: the watermark is past them."""
        self.inherited = [
            s for s in self.inherited if s.node != through.node or s.seq > through.seq
        ]

    def waiting_runs(self) -> dict[RunKey, int]:
        """Runs with lines of other nodes here that are in no chunk; no id of theirs is higher."""
        found: dict[RunKey, int] = {}
        for segment in self.inherited:
            for key in segment.waiting:
                found[key] = max(found.get(key, 0), segment.high)
        return found

    def now(self) -> list[StoredSegment]:
        """The present segments; call it before the manifest is read."""
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
        """Where new lines of the run are, in order: of this node positions from `low` to `end`.

        `low` and `segments` were taken before the manifest was read: the manifest has all lines
        that were flushed by then.
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
        """The runs that have lines in the segment."""
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
        segment.high = ulids.decode(footer.high) if footer.high else 0
        if footer.ranges:
            segment.first, segment.end = footer.ranges[0][0], footer.ranges[-1][1]
