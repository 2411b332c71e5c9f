"""The segments of an object store: listed, fetched whole, checked against their seals."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

import pyarrow as pa

from tailrace.coordination.groups import GroupStart
from tailrace.logstore import keys, ulid
from tailrace.logstore.errors import Damaged
from tailrace.logstore.keys import decode
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.deletions import StoredDeletions, owner_of, undo_flip
from tailrace.logstore.runs.report import read_watermark
from tailrace.logstore.segments.file_format import quarantined_segments
from tailrace.logstore.segments.reader import open_segment, read_footer
from tailrace.pipelines.events import EVENTS, Deleted, Origin, as_events
from tailrace.pipelines.sources.segments import EventSegment, Fetched, NodeSegments, SegmentContents

log = logging.getLogger("tailrace.pipelines")


class StoredSegments:
    """The segments of a store. The pipelines' consumer groups in the store keep them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._deletions = StoredDeletions(damaged=undo_flip)
        self.unreadable: Mapping[tuple[str, str | None], str] = {}

    async def nodes(self, known: Mapping[str, NodeSegments]) -> dict[str, NodeSegments]:
        """As `SegmentFeed.nodes`: a listing for each node, after the last known number."""
        quarantined = await quarantined_segments(self._store)
        found: dict[str, NodeSegments] = {}
        async for component in self._store.folders(keys.SEGMENTS):
            name = decode(component)
            if component.startswith(".") or name is None:
                continue
            old = known.get(name) or NodeSegments(0)
            low = max(await self._low(name, old), 1)
            sizes = {seq: size for seq, size in old.sizes.items() if seq >= low}
            last = keys.segment(name, max(sizes)) if sizes else ""
            async for info in self._store.list(keys.segments_of(name), after=last):
                parsed = keys.parse_segment(info.key)
                if parsed is not None:
                    sizes[parsed[1]] = info.size
            found[name] = NodeSegments(low, sizes, quarantined.get(name, set()))
        return found

    async def _low(self, node: str, known: NodeSegments) -> int:
        """The lowest segment that is kept; the last known one while a node's mark is damaged.

        Its node writes the mark again. Until then removed segments make that node wait, and no
        other.
        """
        try:
            return (await read_watermark(self._store, node)).low
        except Damaged as error:
            log.warning("the watermark of %s is damaged: %s", node, error)
            return known.low

    async def deletions(self) -> Deleted:
        """As `SegmentFeed.deletions`."""
        highest: dict[tuple[str, str | None], int] = {}
        for stored in await self._deletions.all(self._store):
            name = stored.deletion.fqn, stored.deletion.run
            highest[name] = max(stored.deletion.t, highest.get(name, 0))
        unreadable = {}
        for key, error in self._deletions.unreadable.items():
            owner = await owner_of(self._store, key)
            if owner is None:
                raise error
            unreadable[owner] = f"it is unknown whether it is deleted: {error}"
        self.unreadable = unreadable
        return highest

    async def fetch(self, origin: Origin) -> Fetched:
        """As `SegmentFeed.fetch`."""
        return partial(decoded, (await self._store.get(keys.segment(*origin)))[1])

    async def held(self, origin: Origin) -> SegmentContents:
        """As `SegmentFeed.held`: the footer alone is fetched."""
        footer = await read_footer(self._store, keys.segment(*origin))
        return SegmentContents(footer.low, footer.high, frozenset(run.key for run in footer.runs))

    async def keep(self, pipeline: str, start: GroupStart) -> None:
        """Nothing is to be done: `tailrace.pipelines.process.begin` has made the group."""

    async def release(self, pipeline: str, needed: Mapping[str, int]) -> None:
        """Nothing is to be done: `tailrace.pipelines.process.move_group` has moved it."""

    async def close(self) -> None:
        """Whoever opened the store closes it."""


def decoded(body: bytes) -> EventSegment:
    """A segment from its bytes. Raises `Damaged`."""
    segment = open_segment(body)
    tables = [as_events(table) for table in segment.groups()]
    events = pa.concat_tables(tables) if tables else EVENTS.empty_table()
    high = segment.footer.high
    return EventSegment(events, ulid.time_ms(ulid.decode(high)) if high else 0, len(body))
