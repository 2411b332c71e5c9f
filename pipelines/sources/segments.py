"""Segments as pipelines read them: in sequence for each node, decoded once for all that want one.

A segment is fetched whole, checked, decoded to the columns of `EVENTS`, and put into the order of
keys (`events`), so that those who take all of it share one table. The last ones are kept, up to a
number of bytes, since all appenders of a process that are up to date ask for the same. The next
ones of the node are fetched meanwhile (`ahead`). Lines of
deleted runs are left out when an event is about to be given to an appender.

A missing number stops its node: later segments wait until it comes, unless the node's low
watermark says that it was removed, which is counted as lost. Quarantined segments count as empty.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import replace
from typing import Final

from logstore.clock import Clock
from logstore.errors import Damaged, StoreUnavailable
from pipelines.deletions import Deleted
from pipelines.events import Origin, ordered
from pipelines.sources.ahead import SHARED, Ahead, Prefetch
from pipelines.sources.contract import Held, Node, Segment, Segments
from pipelines.worker.memory import CACHED_BYTES

_LIST_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 4.0
_RELIST_SECONDS: Final = 600.0


class SegmentSource:
    """The segments of a source, for the pipelines of a process."""

    def __init__(
        self,
        segments: Segments,
        clock: Clock,
        *,
        cache_bytes: int = CACHED_BYTES,
        prefetch_bytes: int = 0,
    ) -> None:
        self.segments = segments
        self._clock = clock
        self._cache_bytes = cache_bytes
        self._ahead = Ahead(segments.fetch, clock, prefetch_bytes, cache_bytes)
        self._cached: OrderedDict[Origin, Segment] = OrderedDict()
        self._fetching: dict[Origin, asyncio.Task[Segment]] = {}
        self._pause = _LIST_SECONDS
        self._listing: asyncio.Task[None] | None = None
        self._listed = self._whole = float("-inf")
        self.nodes: dict[str, Node] = {}
        self.decoded = 0
        """Segments that were fetched and decoded."""
        self.fetched_bytes = 0
        self.deleted: Deleted = {}
        """Up to which ULID lines are deleted; another mapping once that changes."""

    async def refresh(self, since: float | None = None) -> None:
        """Lists what is new, at most once a second for all callers.

        Raises `StoreUnavailable`, also if what the store says of its segments cannot be read: that
        is no failure of whoever asks.

        While nothing is new it lists less often. `since` is a monotonic time at which, or later,
        the listing is to begin.
        """
        if since is None:
            since = self._clock.monotonic() - self._pause
        while self._listed < since:
            if self._listing is None:
                self._listing = asyncio.ensure_future(self._list())
            await asyncio.shield(self._listing)

    async def read(self, node: str, seq: int, prefetch: Prefetch = SHARED) -> Segment:
        """A segment's events; what comes behind is fetched for whom `prefetch` says.

        Raises `NotFound`, `Damaged`, `StoreUnavailable`.
        """
        origin = Origin(node, seq)
        known = self._cached.get(origin)
        if known is not None:
            self._cached.move_to_end(origin)
            return known
        if origin not in self._fetching:
            self._fetching[origin] = asyncio.ensure_future(self._fetch(origin))
        self._fetch_ahead(origin, prefetch)
        return await asyncio.shield(self._fetching[origin])

    def forget(self) -> None:
        """Lets the decoded segments go that are kept for whoever asks next."""
        self._cached.clear()

    async def held(self, origin: Origin) -> Held:
        """What a segment holds. Raises `NotFound`, `Damaged`, `StoreUnavailable`."""
        return await self.segments.held(origin)

    # --- reading -------------------------------------------------------------------------

    async def _fetch(self, origin: Origin) -> Segment:
        try:
            fetched = await self._ahead.take(origin)
            segment = await asyncio.to_thread(fetched)
            events = await asyncio.to_thread(ordered, segment.events)
            segment = replace(segment, events=events)
            self.fetched_bytes += segment.fetched
            self.decoded += 1
        finally:
            del self._fetching[origin]
        self._cached[origin] = segment
        size = sum(one.events.get_total_buffer_size() for one in self._cached.values())
        while size > self._cache_bytes and len(self._cached) > 1:
            _, oldest = self._cached.popitem(last=False)
            size -= oldest.events.get_total_buffer_size()
        return segment

    def _fetch_ahead(self, origin: Origin, prefetch: Prefetch) -> None:
        """Begins to fetch what comes behind a segment, as far as that fits."""
        node, seq = self.nodes.get(origin.node), origin.seq + 1
        while node is not None and seq in node.sizes:
            following = Origin(origin.node, seq)
            known = following in self._cached or following in self._fetching
            known = known or seq in node.quarantined
            if not known and not self._ahead.begin(following, node.sizes[seq], prefetch):
                return
            seq += 1

    async def close(self) -> None:
        """Lets everything go; it may be used again."""
        await self._ahead.close()
        self.forget()

    async def _list(self) -> None:
        began = self._clock.monotonic()
        try:
            whole = began - self._whole >= _RELIST_SECONDS
            nodes = await self.segments.nodes({} if whole else self.nodes)
            deleted = await self.segments.deletions()
            if deleted != self.deleted:
                self.deleted = deleted
            longer = min(self._pause * 2, _IDLE_SECONDS)
            self._pause = longer if nodes == self.nodes else _LIST_SECONDS
            self.nodes, self._listed = nodes, began
            if whole:
                self._whole = began
        except Damaged as error:
            raise StoreUnavailable(f"what is stored of segments is damaged: {error}") from error
        finally:
            self._listing = None
