"""Segments in memory, for tests of appenders: no node, no service and no file is needed.

segments = MemorySegments()
segments.put(events)                # a table with the columns of `EVENTS`
process = PipelinesProcess(replace(world, segments=segments), [pipeline])
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from coordination.groups import Start
from logstore import ulid
from logstore.errors import Damaged, NotFound
from pipelines.deletions import Deleted
from pipelines.events import Origin, as_events, runs_of
from pipelines.sources.contract import Fetched, Held, Node, Segment


class MemorySegments:
    """Segments that are put, and go once no pipeline needs them."""

    def __init__(self) -> None:
        self.deleted: dict[tuple[str, str | None], int] = {}
        """What `deletions` gives."""
        self.unreadable: Mapping[tuple[str, str | None], str] = {}
        self._segments: dict[Origin, Segment | None] = {}
        self._next: dict[str, int] = {}
        self._low: dict[str, int] = {}
        self._needed: dict[str, Mapping[str, int]] = {}

    def put(self, events: pa.Table, *, node: str = "memory") -> Origin:
        """Adds a segment of these events, in any order; columns of `EVENTS`."""
        events = as_events(events).sort_by("ulid")
        return self._put(node, summed(events, 0))

    def put_damaged(self, *, node: str = "memory") -> Origin:
        """Adds a segment that cannot be read."""
        return self._put(node, None)

    def __len__(self) -> int:
        return len(self._segments)

    async def nodes(self, known: Mapping[str, Node]) -> dict[str, Node]:  # noqa: ARG002
        """As `Segments.nodes`."""
        found = {node: Node(low) for node, low in self._low.items()}
        for node, seq in self._segments:
            found[node].sizes[seq] = 1
        return found

    async def deletions(self) -> Deleted:
        """As `Segments.deletions`."""
        return dict(self.deleted)

    async def fetch(self, origin: Origin) -> Fetched:
        """As `Segments.fetch`."""
        if origin not in self._segments:
            raise NotFound(f"no segment {origin.seq} of {origin.node}")
        found = self._segments[origin]
        if found is None:
            raise Damaged(f"segment {origin.seq} of {origin.node} is damaged")
        return lambda: found

    async def held(self, origin: Origin) -> Held:
        """As `Segments.held`."""
        return held_by((await self.fetch(origin))().events)

    async def keep(self, pipeline: str, start: Start) -> None:  # noqa: ARG002
        """As `Segments.keep`."""
        self._needed.setdefault(pipeline, {})

    async def release(self, pipeline: str, needed: Mapping[str, int]) -> None:
        """As `Segments.release`: what all pipelines have goes."""
        self._needed[pipeline] = dict(needed)
        for node in self._low:
            low = min(one.get(node, 1) for one in self._needed.values())
            self._low[node] = max(self._low[node], low)
        for origin in list(self._segments):
            if origin.seq < self._low[origin.node]:
                del self._segments[origin]

    async def close(self) -> None:
        """Nothing is held."""

    def _put(self, node: str, segment: Segment | None) -> Origin:
        origin = Origin(node, self._next.get(node, 1))
        self._next[node] = origin.seq + 1
        self._low.setdefault(node, 1)
        self._segments[origin] = segment
        return origin


def summed(events: pa.Table, fetched: int) -> Segment:
    """A segment of these events; columns of `EVENTS`, in the order of their ULIDs."""
    high = pc.max(events.column("ulid")).as_py()
    return Segment(events, ulid.time_ms(ulid.decode(high)) if high else 0, fetched)


def held_by(events: pa.Table) -> Held:
    """What a segment of these events holds."""
    ulids = events.column("ulid")
    return Held(pc.min(ulids).as_py() or "", pc.max(ulids).as_py() or "", runs_of(events))
