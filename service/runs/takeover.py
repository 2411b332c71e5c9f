"""Takeover of lost nodes: their segments are flushed into the runs without them.

    segments above a node's watermark, and its text lease is free
        ──► the lease ──► its segments in this node's backlog ──► flushed ──► watermark ──► release

A node holds its own text lease while it lives. Lines that are only in its journal wait for it.
If it lives after all, and flushes the same lines, the writer's position in the manifest decides:
nothing is lost or doubled, the lease only saves work.

If a segment between two others is missing, the takeover waits for it and never skips it. It
derives a damaged watermark again (`service/shipping/watermarks.py`), because its lost node may
never do so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from coordination.named.leases import NamedLease, NamedLeases
from coordination.named.record import text_lease
from logstore import keys
from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.errors import TailraceError
from logstore.names import decode
from logstore.objects.store import ObjectStore
from logstore.runs.watermark import Watermark
from service.runs.backlog import Backlog
from service.runs.flusher import Flusher
from service.runtime.heartbeat import Heartbeat

_AT_ONCE = 8
_BUSY_SECONDS = 5.0


async def gone(leases: NamedLeases, node: str) -> bool:
    """Whether the node no longer holds its own text lease. Raises `StoreUnavailable`."""
    return await leases.held_by(text_lease(node)) != node


class Takeover:
    """The lost nodes that this node looks after, `_AT_ONCE` segments of each at a time."""

    def __init__(
        self,
        node: str,
        store: ObjectStore,
        clock: Clock,
        leases: NamedLeases,
        backlog: Backlog,
        flusher: Flusher,
        *,
        watermark: Callable[[str], Awaitable[Watermark]],
        load_deletions: Callable[[], Awaitable[None]],
        taken: Callable[[], None],
        lags: Callable[[RunKey, str], Awaitable[bool]],
        interval_seconds: float,
    ) -> None:
        """`watermark` reads a node's watermark, and derives a damaged one again.

        `taken` hears of each time that segments were taken over. `lags`: whether a run may lack
        lines of a node.
        """
        self._node = node
        self._store = store
        self._leases = leases
        self._backlog = backlog
        self._flusher = flusher
        self._watermark = watermark
        self._load_deletions = load_deletions
        self._taken = taken
        self._lags = lags
        self._interval = interval_seconds
        self._held: dict[str, NamedLease] = {}
        self._own: NamedLease | None = None
        self._stopping = self._wanted = False
        self.heartbeat = Heartbeat(clock)
        self.inherited = 0
        self.last_error: str | None = None

    async def run(self) -> None:
        """Calls `look` every interval until stopped."""
        while not self._stopping:
            self._wanted = False
            try:
                await self.look()
                self.last_error = None
            except TailraceError as error:
                self.last_error = str(error)
            pause = min(self._interval, _BUSY_SECONDS) if self._held else self._interval
            await self.heartbeat.pause(pause, lambda: self._stopping or self._wanted)

    def stop(self) -> None:
        """Ends `run`."""
        self._stopping = True

    async def is_over(self, node: str, key: RunKey | None = None) -> bool:
        """Whether a node is lost, and its segments are in their runs; else it is looked after soon.

        If one of its segments is missing, the run `key` waits as long as it may lack lines of the
        node; nothing else does. Raises `TailraceError`.
        """
        if not await gone(self._leases, node):
            return False
        if self._backlog.lacks(node):
            return key is None or not await self._lags(key, node)
        if not await self._has_news(node):
            return True
        self._wanted = True
        return False

    async def look(self) -> None:
        """Keeps the own lease, releases finished nodes, and takes over nodes that nobody has.

        A node that cannot be looked after delays no other. Raises the last
        `TailraceError` after trying all.
        """
        if self._own is None or not self._own.valid():
            self._own = await self._leases.acquire(text_lease(self._node))
        await self._let_go()
        failure: TailraceError | None = None
        async for node in self._others():
            self.heartbeat.turn()
            try:
                await self._look_after(node)
            except TailraceError as error:
                failure = error
        self.heartbeat.success()
        if failure is not None:
            raise failure

    async def _let_go(self) -> None:
        for node, held in list(self._held.items()):
            if not held.valid():
                self._backlog.disown(node)
            else:
                await self._watermark(node)  # else what is damaged meanwhile is never raised
                if any(s.node == node for s in self._backlog.inherited) or await self._take(node):
                    continue
            del self._held[node]
            await self._leases.release(held)

    async def _look_after(self, node: str) -> None:
        if await self._leases.held_by(text_lease(node)) is not None:
            return
        if not await self._has_news(node):
            return
        held = await self._leases.acquire(text_lease(node))
        if held is not None:
            self._held[node] = held
            await self._take(node)

    async def _take(self, node: str) -> int:
        """Adds the node's next segments to the backlog; gives their number."""
        segments = await self._backlog.find(node, most=_AT_ONCE)
        if segments:
            # Another node may have deleted, what this one has not heard of, meanwhile.
            await self._load_deletions()
            await self._flusher.inherit(segments)
            self._taken()
        self.inherited += len(segments)
        return len(segments)

    async def _has_news(self, node: str) -> bool:
        mark = await self._watermark(node)
        after = keys.segment(node, mark.seq)
        async for info in self._store.list(keys.segments_of(node), after=after):
            if keys.parse_segment(info.key) is not None:
                return True
        return False

    async def _others(self) -> AsyncIterator[str]:
        """Nodes with segments in the store that nobody here looks after."""
        async for folder in self._store.folders(keys.SEGMENTS):
            node = decode(folder)
            here = {self._node, *self._held, *[s.node for s in self._backlog.inherited]}
            if node and node not in here:
                yield node
