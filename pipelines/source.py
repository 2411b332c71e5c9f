"""Segments as pipelines read them: in sequence for each node, decoded once for all that want one.

A segment is fetched whole, checked, and decoded to the columns of `EVENTS`. The last ones are
kept, up to a number of bytes, since all appenders of a process that are up to date ask for the
same. Lines of deleted runs are left out when an event is about to be given to an appender.

A missing number stops its node: later segments wait until it comes, unless the node's low
watermark says that it was removed, which is counted as lost. Quarantined segments count as empty.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from logstore import keys, ulid
from logstore.clock import Clock
from logstore.names import decode
from logstore.objects.store import ObjectStore
from logstore.runs.deletions import StoredDeletions
from logstore.runs.watermark import read_watermark
from logstore.segments.footer import Footer
from logstore.segments.quarantine import quarantined_segments
from logstore.segments.reader import open_segment, read_footer
from logstore.segments.undeleted import undeleted
from pipelines.events import EVENTS, Origin, runs_of

_CACHED_BYTES: Final = 64 << 20
_LIST_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 4.0
_RELIST_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Segment:
    """A decoded segment: its events, and the highest time of a ULID in it, in milliseconds."""

    events: pa.Table
    high_ms: int


@dataclass(slots=True)
class Node:
    """What is known of a node's segments: the numbers that are there, and the low watermark."""

    low: int
    sizes: dict[int, int] = field(default_factory=dict)
    quarantined: set[int] = field(default_factory=set)

    def following(self, seq: int) -> tuple[int, int]:
        """The next segment from `seq` on that is to be read, and how many were lost before it.

        It may not be there yet.
        """
        lost = 0
        while seq in self.quarantined or (seq not in self.sizes and seq < self.low):
            lost += seq not in self.quarantined
            seq += 1
        return seq, lost


class SegmentSource:
    """The segments of a store, for the pipelines of a process."""

    def __init__(
        self, store: ObjectStore, clock: Clock, *, cache_bytes: int = _CACHED_BYTES
    ) -> None:
        self._store = store
        self._clock = clock
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[Origin, Segment] = OrderedDict()
        self._fetching: dict[Origin, asyncio.Task[Segment]] = {}
        self._deletions = StoredDeletions()
        self._pause = _LIST_SECONDS
        self._listing: asyncio.Task[None] | None = None
        self._listed = self._whole = float("-inf")
        self.nodes: dict[str, Node] = {}
        self.decoded = 0
        """Segments that were fetched and decoded."""
        self.fetched_bytes = 0
        self.deleted: Mapping[tuple[str, str | None], int] = {}
        """Up to which ULID lines are deleted; another mapping once that changes."""

    async def refresh(self, since: float | None = None) -> None:
        """Lists what is new, at most once a second for all callers. Raises `StoreUnavailable`.

        While nothing is new it lists less often. `since` is a monotonic time at which, or later,
        the listing is to begin.
        """
        if since is None:
            since = self._clock.monotonic() - self._pause
        while self._listed < since:
            if self._listing is None:
                self._listing = asyncio.ensure_future(self._list())
            await asyncio.shield(self._listing)

    async def read(self, node: str, seq: int) -> Segment:
        """A segment's events. Raises `NotFound`, `Damaged`, `StoreUnavailable`."""
        origin = Origin(node, seq)
        known = self._cached.get(origin)
        if known is not None:
            self._cached.move_to_end(origin)
            return known
        if origin not in self._fetching:
            self._fetching[origin] = asyncio.ensure_future(self._fetch(origin))
        return await asyncio.shield(self._fetching[origin])

    def forget(self) -> None:
        """Lets the decoded segments go that are kept for whoever asks next."""
        self._cached.clear()

    async def footer(self, origin: Origin) -> Footer:
        """A segment's footer. Raises `NotFound`, `Damaged`, `StoreUnavailable`."""
        return await read_footer(self._store, keys.segment(*origin))

    def kept(self, events: pa.Table) -> pa.Table:
        """The events that no deletion covers, as far as `refresh` knows."""
        if not self.deleted:
            return events
        runs = runs_of(events)
        names: set[tuple[str, str | None]] = {*runs, *((run.fqn, None) for run in runs)}
        touching = [(*name, self.deleted[name]) for name in names if name in self.deleted]
        return undeleted(events, touching)

    # --- reading -------------------------------------------------------------------------

    async def _fetch(self, origin: Origin) -> Segment:
        try:
            body = (await self._store.get(keys.segment(*origin)))[1]
            self.fetched_bytes += len(body)
            segment = await asyncio.to_thread(_decoded, body)
            self.decoded += 1
        finally:
            del self._fetching[origin]
        self._cached[origin] = segment
        size = sum(one.events.get_total_buffer_size() for one in self._cached.values())
        while size > self._cache_bytes and len(self._cached) > 1:
            _, oldest = self._cached.popitem(last=False)
            size -= oldest.events.get_total_buffer_size()
        return segment

    async def _list(self) -> None:
        began = self._clock.monotonic()
        try:
            whole = began - self._whole >= _RELIST_SECONDS
            nodes = await self._nodes({} if whole else self.nodes)
            deleted = await self._highest_deletions()
            if deleted != self.deleted:
                self.deleted = deleted
            longer = min(self._pause * 2, _IDLE_SECONDS)
            self._pause = longer if nodes == self.nodes else _LIST_SECONDS
            self.nodes, self._listed = nodes, began
            if whole:
                self._whole = began
        finally:
            self._listing = None

    async def _highest_deletions(self) -> dict[tuple[str, str | None], int]:
        """Up to which ULID the lines of a run, or of a pipeline's runs, are deleted."""
        highest: dict[tuple[str, str | None], int] = {}
        for stored in await self._deletions.all(self._store):
            name = stored.deletion.fqn, stored.deletion.run
            highest[name] = max(stored.deletion.t, highest.get(name, 0))
        return highest

    async def _nodes(self, known: Mapping[str, Node]) -> dict[str, Node]:
        quarantined = await quarantined_segments(self._store)
        found: dict[str, Node] = {}
        async for component in self._store.folders(keys.SEGMENTS):
            name = decode(component)
            if component.startswith(".") or name is None:
                continue
            old = known.get(name) or Node(0)
            low = max((await read_watermark(self._store, name)).low, 1)
            sizes = {seq: size for seq, size in old.sizes.items() if seq >= low}
            last = keys.segment(name, max(sizes)) if sizes else ""
            async for info in self._store.list(keys.segments_of(name), after=last):
                parsed = keys.parse_segment(info.key)
                if parsed is not None:
                    sizes[parsed[1]] = info.size
            found[name] = Node(low, sizes, quarantined.get(name, set()))
        return found


def _decoded(body: bytes) -> Segment:
    segment = open_segment(body)
    tables = [table.select(EVENTS.names).cast(EVENTS) for table in segment.groups()]
    events = pa.concat_tables(tables) if tables else EVENTS.empty_table()
    high = segment.footer.high
    return Segment(events, ulid.time_ms(ulid.decode(high)) if high else 0)
