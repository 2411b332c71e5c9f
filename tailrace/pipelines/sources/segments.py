"""Segments as pipelines read them: the contract of a source, read-ahead, and decoded segments.

`SegmentFeed` is the contract of a source, `Prefetcher` fetches ahead, and `SegmentSource` gives the
decoded segments of a feed to the pipelines of a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from tailrace.coordination.groups import GroupStart
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import Damaged, StoreUnavailable
from tailrace.logstore.retry import Backoff
from tailrace.pipelines.events import Deleted, Origin, ordered
from tailrace.pipelines.waiting import CACHED_BYTES


@dataclass(frozen=True, slots=True)
class EventSegment:
    """A decoded segment: its events, and the highest time of a ULID in it, in milliseconds.

    `fetched` is how many bytes were transferred for it.
    """

    events: pa.Table
    high_ms: int
    fetched: int = 0


Fetched: TypeAlias = Callable[[], EventSegment]
"""A segment that was fetched: called, it is decoded, which blocks. Raises `Damaged`."""


class SegmentContents(NamedTuple):
    """The contents of a segment: the lowest and highest ULID, empty without rows, and its runs."""

    low: str
    high: str
    runs: frozenset[RunKey]


@dataclass(slots=True)
class NodeSegments:
    """The known segments of a node: the numbers that exist, and the low watermark."""

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


class SegmentFeed(Protocol):
    """A source of segments. All methods may raise `StoreUnavailable`: then they are tried again."""

    unreadable: Mapping[tuple[str, str | None], str]
    """Of whose lines nobody knows whether they are deleted, and why; as of the last `deletions`."""

    async def nodes(self, known: Mapping[str, NodeSegments]) -> dict[str, NodeSegments]:
        """Every node with the segments that are there; `known` is what an earlier call gave.

        Without `known` it looks at all, and sees which were removed.
        """
        ...

    async def deletions(self) -> Deleted:
        """The present deletions."""
        ...

    async def fetch(self, origin: Origin) -> Fetched:
        """A segment as it is transferred. Raises `NotFound`, `Damaged`."""
        ...

    async def held(self, origin: Origin) -> SegmentContents:
        """The contents of a segment, without its events. Raises `NotFound`, `Damaged`."""
        ...

    async def keep(self, pipeline: str, start: GroupStart) -> None:
        """Keeps segments for a pipeline from now on, before it looks where they begin.

        Called again and again; only the first call of a pipeline uses `start`. Raises
        `GroupEvicted` once what the pipeline had not read may be gone.
        """
        ...

    async def release(self, pipeline: str, needed: Mapping[str, int]) -> None:
        """Says which is the lowest segment of each node that a pipeline still needs."""
        ...

    async def close(self) -> None:
        """Gives connections back."""
        ...


# Read-ahead: segments that are fetched before an appender asks, so that it need not wait for the
# store.
#
# They are kept in their transferred form, a tenth of the decoded size, and count with the size in
# the listing. A segment that no appender takes within a minute is dropped: its appender has
# stopped. Any reader may take a segment, whichever pipeline it was fetched for; it counts for the
# pipeline that asked first. Pipelines without a bound of their own share the bound of the process;
# one that has a bound of its own has it in addition, as long as all together stay within
# `most_of_all`.


_KEPT_SECONDS: Final = 60.0
_AT_ONCE: Final = 8


class Prefetch(NamedTuple):
    """The pipeline for which segments are fetched ahead, and its limit in bytes.

    Without a pipeline, the limit of the process applies.
    """

    name: str = ""
    most_bytes: int = 0


SHARED: Final = Prefetch()


class _BegunFetch(NamedTuple):
    task: asyncio.Task[Fetched]
    size: int
    at: float
    name: str


class Prefetcher:
    """Fetches of one process: some at once, of at most `most_bytes` for all that share them."""

    def __init__(
        self,
        fetch: Callable[[Origin], Awaitable[Fetched]],
        clock: Clock,
        most_bytes: int,
        most_of_all: int = 0,
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._most_bytes = most_bytes
        self._most_of_all = max(most_of_all, most_bytes)
        self._begun: dict[Origin, _BegunFetch] = {}

    def begin(self, origin: Origin, size: int, whose: Prefetch = SHARED) -> bool:
        """Fetches a segment of that size; False: it does not fit in addition to the others."""
        if origin in self._begun:
            return True
        now = self._clock.monotonic()
        for old in [one for one, begun in self._begun.items() if now - begun.at > _KEPT_SECONDS]:
            self._begun.pop(old).task.cancel()
        own = [one.size for one in self._begun.values() if one.name == whose.name]
        most_bytes = whose.most_bytes if whose.name else self._most_bytes
        of_all = sum(one.size for one in self._begun.values()) + size
        if len(own) >= _AT_ONCE or sum(own) + size > most_bytes or of_all > self._most_of_all:
            return False
        task = asyncio.ensure_future(self._fetch(origin))
        task.add_done_callback(_heard)
        self._begun[origin] = _BegunFetch(task, size, now, whose.name)
        return True

    async def take(self, origin: Origin) -> Fetched:
        """The segment; fetched now, if it was not, or could not be. Raises as `fetch`."""
        begun = self._begun.pop(origin, None)
        if begun is not None:
            await asyncio.wait([begun.task])
            if not begun.task.cancelled() and begun.task.exception() is None:
                return begun.task.result()
        return await self._fetch(origin)

    async def close(self) -> None:
        """Lets everything go."""
        for begun in self._begun.values():
            begun.task.cancel()
        for begun in self._begun.values():
            with suppress(asyncio.CancelledError, Exception):
                await begun.task
        self._begun.clear()


def _heard(task: asyncio.Task[Fetched]) -> None:
    """Whoever takes it asks again, and hears of a failure then."""
    if not task.cancelled():
        task.exception()


# Segments in sequence for each node, decoded once for all appenders that want one.
#
# A segment is fetched whole, checked, decoded to the columns of `EVENTS`, and put into the order of
# keys (`tailrace.pipelines.events`), so that all readers of the whole segment share one table. The
# last ones are kept, up to a number of bytes, since all appenders of a process that are up to date
# ask for the same. The next ones of the node are fetched meanwhile. Lines of deleted runs are left
# out when an event is about to be given to an appender.
#
# A missing number stops its node: later segments wait until it comes, unless the node's low
# watermark says that it was removed, which is counted as lost. Quarantined segments count as empty.


_LIST_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 4.0
_RELIST_SECONDS: Final = 600.0


class SegmentSource:
    """The segments of a source, for the pipelines of a process."""

    def __init__(
        self,
        segments: SegmentFeed,
        clock: Clock,
        *,
        cache_bytes: int = CACHED_BYTES,
        prefetch_bytes: int = 0,
    ) -> None:
        self.segments = segments
        self._clock = clock
        self._ahead = Prefetcher(segments.fetch, clock, prefetch_bytes, cache_bytes)
        self._cached: BoundedCache[Origin, EventSegment] = BoundedCache(
            cache_bytes, lambda segment: segment.events.get_total_buffer_size(), least=1
        )
        self._fetching: dict[Origin, asyncio.Task[EventSegment]] = {}
        self._pauses = Backoff(_LIST_SECONDS, _IDLE_SECONDS)
        self._pause = self._pauses.next()
        self._listing: asyncio.Task[None] | None = None
        self._listed = self._whole = float("-inf")
        self.nodes: dict[str, NodeSegments] = {}
        self.decoded = 0
        """Segments that were fetched and decoded."""
        self.fetched_bytes = 0
        self.deleted: Deleted = {}
        """Up to which ULID lines are deleted; another mapping once that changes."""

    async def refresh(self, since: float | None = None) -> None:
        """Lists new segments, at most once a second for all callers.

        Raises `StoreUnavailable`, also if the store's answer about its segments cannot be read:
        that is no failure of the caller.

        While nothing is new it lists less often. `since` is a monotonic time at which, or later,
        the listing has to begin.
        """
        if since is None:
            since = self._clock.monotonic() - self._pause
        while self._listed < since:
            if self._listing is None:
                self._listing = asyncio.ensure_future(self._list())
            await asyncio.shield(self._listing)

    async def read(self, node: str, seq: int, prefetch: Prefetch = SHARED) -> EventSegment:
        """A segment's events; the segments after it are fetched for the pipeline of `prefetch`.

        Raises `NotFound`, `Damaged`, `StoreUnavailable`.
        """
        origin = Origin(node, seq)
        known = self._cached.get(origin)
        if known is not None:
            return known
        if origin not in self._fetching:
            self._fetching[origin] = asyncio.ensure_future(self._fetch(origin))
        self._fetch_ahead(origin, prefetch)
        return await asyncio.shield(self._fetching[origin])

    def forget(self) -> None:
        """Lets the decoded segments go that are kept for whoever asks next."""
        self._cached.clear()

    async def held(self, origin: Origin) -> SegmentContents:
        """The contents of a segment. Raises `NotFound`, `Damaged`, `StoreUnavailable`."""
        return await self.segments.held(origin)

    # --- reading -------------------------------------------------------------------------

    async def _fetch(self, origin: Origin) -> EventSegment:
        try:
            fetched = await self._ahead.take(origin)
            segment = await asyncio.to_thread(fetched)
            events = await asyncio.to_thread(ordered, segment.events)
            segment = replace(segment, events=events)
            self.fetched_bytes += segment.fetched
            self.decoded += 1
        finally:
            del self._fetching[origin]
        self._cached.put(origin, segment)
        return segment

    def _fetch_ahead(self, origin: Origin, prefetch: Prefetch) -> None:
        """Begins to fetch the segments after this one, as far as they fit."""
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
            if nodes != self.nodes:
                self._pauses.reset()
            self._pause = self._pauses.next()
            self.nodes, self._listed = nodes, began
            if whole:
                self._whole = began
        except Damaged as error:
            raise StoreUnavailable(f"the data stored about segments is damaged: {error}") from error
        finally:
            self._listing = None
