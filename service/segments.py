"""Cutting and shipping segments: from the journal to the store, strictly in order.

    taken ──cut (a synced journal entry)──► encoded ──put if absent──► confirmed

A segment is cut when enough bytes or time have gathered, or somebody waits for it
(`bulk`, a close). Segment n + 1 is uploaded only after n is confirmed. If a put is
refused because the key exists, the stored rows decide: the same rows mean that an
earlier try (or an earlier life of this process) succeeded; other rows, or a number in
the store above our own, mean that this folder is a copy of another: `Forked`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from logstore import keys
from logstore.clock import Clock
from logstore.errors import (
    Conflict,
    Damaged,
    JournalFull,
    NodeNotReady,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
)
from logstore.objects.store import ObjectStore
from logstore.segments.carry import Carry
from logstore.segments.reader import read_footer
from logstore.segments.writer import EncodedSegment, encode_segment
from service.heartbeat import Heartbeat
from service.journal.failures import translated
from service.journal.journal import Journal
from service.journal.state import Cut
from service.offload import Offload
from service.unshipped import Unshipped

_BACKOFF_SECONDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_LINEAGE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """When a segment is cut: age and size of what is in it, patience of those who wait."""

    seconds: float = 10.0
    bytes: int = 64 << 20
    wanted_seconds: float = 0.25


class Forked(Conflict):
    """The store holds segments of this incarnation that this folder did not write."""


class SegmentShipper:
    """The node's segment flusher: one task cuts, one uploads."""

    def __init__(
        self,
        journal: Journal,
        store: ObjectStore,
        clock: Clock,
        limits: SegmentLimits,
        *,
        offload: Offload,
        consumed_seq: Callable[[str], Awaitable[int]],
        on_confirmed: Callable[[Cut], None],
    ) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._limits = limits
        self._offload = offload
        self._consumed_seq = consumed_seq
        self._on_confirmed = on_confirmed
        self.carry = Carry()
        self._wake = asyncio.Event()
        self._cut_ready = asyncio.Event()
        self._wanted = -1
        self._cut_bytes = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._lineage_checked: float | None = None
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopping = False
        self.cutting = Heartbeat(clock)
        self.shipping = Heartbeat(clock)
        self.unshipped = Unshipped(journal, clock)
        self.uploads = 0
        self.failures = 0
        self.consecutive_failures = 0
        self.last_error: str | None = None

    # --- asked from outside --------------------------------------------------------

    def added(self) -> None:
        """Tells that something was synced."""
        self.unshipped.taken()
        if self._journal.taken_bytes - self._cut_bytes >= self._limits.bytes:
            self._wake.set()

    def confirmed_through(self, pos: int) -> asyncio.Future[None]:
        """Done when all lines below `pos` are in confirmed segments; a cut is made for it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._journal.state.confirmed.end >= pos:
            done.set_result(None)
            return done
        self._waiting.append((pos, done))
        if pos > self._journal.state.last_cut().end:
            self._wanted = max(self._wanted, pos)
            self._wake.set()
        return done

    async def next_confirmed(self) -> None:
        """Returns when the next segment is confirmed, or when the shipper is stopped."""
        await asyncio.shield(self._news)

    def stop(self) -> None:
        """Ends both tasks after what they are doing; waiting callers are cancelled."""
        self._stopping = True
        self._tell_news()
        self._wake.set()
        self._cut_ready.set()
        for _, done in self._waiting:
            done.cancel()

    # --- cutting -------------------------------------------------------------------

    async def cut_forever(self) -> None:
        """Cuts segments until stopped."""
        while not self._stopping:
            self.cutting.turn()
            await self._until_due()
            if not self._stopping:
                await self._cut_if_room()

    async def _cut_if_room(self) -> None:
        try:
            await self.cut()
        except JournalFull as error:  # not even a cut fits on the disk: later, then
            self._failed(error)
            await self._pause(_BACKOFF_SECONDS[-1])

    async def cut(self) -> None:
        """Cuts what was taken since the last cut, if there is anything."""
        last = self._journal.state.last_cut()
        # Also without news: what a full disk refused was counted, and must not ask again.
        self._cut_bytes = self._journal.taken_bytes
        if self._journal.next_pos > last.end:
            taken = self._cut_bytes
            await self._journal.record_cut(last.seq + 1, last.end)
            self.unshipped.cut(last.seq + 1, taken)
            self.cutting.success()
            self._cut_ready.set()

    async def _until_due(self) -> None:
        """Waits for age, size, or somebody who wants a cut."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._limits.seconds
        while not self._stopping:
            if self._journal.taken_bytes - self._cut_bytes >= self._limits.bytes:
                return
            if self._wanted > self._journal.state.last_cut().end:
                due = min(due, loop.time() + self._limits.wanted_seconds)
            if loop.time() >= due:
                return
            self._wake.clear()
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                return

    # --- shipping ------------------------------------------------------------------

    async def ship_forever(self) -> None:
        """Uploads what is cut, in order, until stopped. Raises `Forked`."""
        while not self._stopping:
            self.shipping.turn()
            self._cut_ready.clear()
            if not self._journal.state.cuts:
                self.shipping.rest()
                await self._cut_ready.wait()
                continue
            await self.ship(self._journal.state.cuts[0])

    async def ship(self, cut: Cut) -> None:
        """Makes one segment confirmed, trying until it is or the shipper is stopped."""
        segment: EncodedSegment | None = None
        tries = 0
        while not self._stopping:
            self.shipping.turn()
            try:
                segment = segment or await self._encode(cut)
                await self._check_lineage()
                await self._put(self._journal.state.node, cut.seq, segment)
            except (StoreUnavailable, NodeNotReady, OutcomeUnknown) as error:
                self._failed(error)
                pause = _BACKOFF_SECONDS[min(tries, len(_BACKOFF_SECONDS) - 1)]
                tries += 1
                await self._pause(pause)
                continue
            self._confirmed(cut)
            return

    async def _encode(self, cut: Cut) -> EncodedSegment:
        """The segment of a cut. Raises `NodeNotReady` if no descriptor is free to read it."""
        with translated("a segment could not be made"), self._journal.pin() as pin:
            batches = pin.batches(start=cut.first, end=cut.end)
            return await self._offload(
                lambda: encode_segment(
                    batches,
                    node=pin.node,
                    seq=cut.seq,
                    ranges=[(cut.first, cut.end)],
                    carry=self.carry,
                )
            )

    async def _pause(self, seconds: float) -> None:
        """Waits out a back-off, shorter when the shipper is stopped."""
        end = self._clock.monotonic() + seconds
        while not self._stopping and self._clock.monotonic() < end:
            await self._clock.sleep(min(0.25, seconds))

    async def _put(self, node: str, seq: int, segment: EncodedSegment) -> None:
        key = keys.segment(node, seq)
        try:
            await self._store.put(key, segment.body, if_absent=True)
        except PreconditionFailed:
            await self._compare(key, segment)

    async def _compare(self, key: str, segment: EncodedSegment) -> None:
        try:
            stored = await read_footer(self._store, key)
        except NotFound as error:
            raise Forked(f"{key} was there and is gone: somebody consumed it") from error
        except Damaged as error:
            raise Forked(f"{key} exists and is not ours: {error}") from error
        ours = segment.footer
        if (stored.rows, stored.checksums) != (ours.rows, ours.checksums):
            raise Forked(f"{key} exists with other rows")

    async def _check_lineage(self) -> None:
        """Raises `Forked` if the store knows a later segment of ours than we do.

        Done before the first upload, and again after any stretch without one that is
        long enough for a consumer to delete what somebody else uploaded under our name.
        """
        now = self._clock.monotonic()
        checked = self._lineage_checked
        if checked is not None and now - checked < _LINEAGE_SECONDS:
            self._lineage_checked = now
            return
        node, last = self._journal.state.node, self._journal.state.last_cut().seq
        consumed = await self._consumed_seq(node)
        if consumed > last:
            raise Forked(f"segments of {node} up to {consumed} were consumed, we cut {last}")
        async for found in self._store.list(keys.segments_of(node), after=keys.segment(node, last)):
            raise Forked(f"the store holds {found.key}, we cut up to {last}")
        self._lineage_checked = now

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.consecutive_failures += 1
        self.last_error = str(error)

    def _tell_news(self) -> None:
        told, self._news = self._news, asyncio.get_running_loop().create_future()
        told.set_result(None)

    def _confirmed(self, cut: Cut) -> None:
        self.uploads += 1
        self._tell_news()
        self.shipping.success()
        self.consecutive_failures = 0
        self.last_error = None
        self._journal.confirm(cut)
        self.unshipped.confirmed(cut.seq)
        waiting, self._waiting = self._waiting, []
        for pos, done in waiting:
            if pos > cut.end:
                self._waiting.append((pos, done))
            elif not done.done():
                done.set_result(None)
        self._on_confirmed(cut)


def forked_in(error: BaseException | None) -> Forked | None:
    """The `Forked` that an error is, or is of among others."""
    if isinstance(error, Forked):
        return error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            found = forked_in(inner)
            if found is not None:
                return found
    return None
