"""Cuts and ships segments: from the journal to the store, strictly in order.

    received ──cut (a synced journal entry)──► read again ──► encoded ──put if absent──► confirmed

A segment is cut when enough bytes or time have gathered, or when a caller waits for it (`bulk`, a
close). Segment n + 1 is uploaded only after n is confirmed. If a put is refused because the key
exists, the stored rows decide: the same rows mean that an earlier try (or an earlier life of this
process) succeeded; other rows mean that this folder is a copy of another one. The checks of
`service.shipping.watermarks.Lineage` may find that, too. Both raise `Forked`.

A number that was consumed already is never put, only compared: its segment is ours if it exists
with our rows.

The shipper's lag is the amount of text that is in no confirmed segment, and its age. Positions
count lines; the bytes and times of a range are known only when it is received. Each cut is
therefore recorded with the bytes that the journal had received by then. Lines that a start finds in
the journal are counted once from their rows, and count as old as the start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from service.journal.journal import Journal
from service.journal.state import Cut
from service.runtime.counters import SECONDS, Distribution
from service.runtime.health import Heartbeat, Ongoing
from service.runtime.process import Offload
from service.settings import FlushSettings
from service.shipping.encoding import CutEncoder, EncodedCut, OffloadedEncoder, SegmentEncoder
from service.shipping.watermarks import Confirmations, Forked, Lineage
from tailrace.logstore import keys
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import (
    Damaged,
    JournalFull,
    NodeNotReady,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    with_hint,
)
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.retry import Backoff
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.reader import read_footer
from tailrace.logstore.segments.writer import EncodedSegment

Reason: TypeAlias = Literal["age", "demand", "size"]
"""Why a segment was cut: its age, its size, or a caller that waits (`bulk`, a close, a stop)."""

_AGES = (*SECONDS, 100.0, 300.0, 1000.0)
_SIZES = tuple(float(1 << bits) for bits in range(14, 29, 2))


@dataclass(slots=True)
class SegmentCounters:
    """Counters of the shipper: cuts by reason, their age and bytes of text, and stored bytes."""

    cuts: dict[str, int] = field(default_factory=dict)
    ages: Distribution = field(default_factory=lambda: Distribution(_AGES))
    sizes: Distribution = field(default_factory=lambda: Distribution(_SIZES))
    uploaded_bytes: int = 0


class Unshipped:
    """The text of one node that is not shipped. Counts bytes of text and monotonic seconds."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._now = clock.monotonic
        self._ends: dict[int, int] = {}
        self._begun: dict[int, float] = {}
        self._since: float | None = None
        with journal.pin() as pin:
            confirmed = pin.confirmed_pos
            rows = pin.batches(start=confirmed).rows
        self._confirmed_bytes = journal.taken_bytes - int(rows["size"].sum())
        for cut in journal.state.cuts:
            before = int(rows["size"][rows["pos"] < cut.end].sum())
            self._ends[cut.seq] = self._confirmed_bytes + before
            self._begun[cut.seq] = self._now()
        if journal.next_pos > journal.state.last_cut().end:
            self._since = self._now()

    def taken(self) -> None:
        """Records that entries were synced."""
        if self._since is None and self._journal.next_pos > self._journal.state.last_cut().end:
            self._since = self._now()

    def cut(self, seq: int, taken_bytes: int) -> tuple[float, int]:
        """Records the cut of segment `seq`, at `taken_bytes` received by the journal.

        Returns its age in seconds and its bytes of text.
        """
        size = taken_bytes - max(self._ends.values(), default=self._confirmed_bytes)
        self._ends[seq] = taken_bytes
        begun = self._begun[seq] = self._now() if self._since is None else self._since
        self._since = None
        self.taken()
        return self._now() - begun, size

    def confirmed(self, seq: int) -> None:
        """Records that segment `seq` is in the store."""
        self._confirmed_bytes = self._ends.pop(seq, self._confirmed_bytes)
        self._begun.pop(seq, None)

    @property
    def bytes(self) -> int:
        """Bytes of text that are in no confirmed segment."""
        if self._journal.next_pos == self._journal.state.confirmed.end:
            return 0  # what a full disk refused was taken, too, and is not there
        return self._journal.taken_bytes - self._confirmed_bytes

    @property
    def seconds(self) -> float:
        """Seconds for which the oldest of it has waited; 0 without any."""
        since = [*self._begun.values(), *([] if self._since is None else [self._since])]
        return max([self._now() - start for start in since], default=0.0)


_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 8.0
_LOOK_SECONDS = 10.0


class SegmentShipper:
    """The node's segment shipper: one task cuts, one uploads."""

    def __init__(
        self,
        journal: Journal,
        store: ObjectStore,
        clock: Clock,
        settings: FlushSettings,
        *,
        offload: Offload,
        lineage: Lineage,
        confirmations: Confirmations,
        encode: SegmentEncoder | None = None,
    ) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._settings = settings
        self._lineage = lineage
        self._confirmations = confirmations
        self._on_confirmed: list[Callable[[int, int, int], None]] = []
        self._on_stored: list[Callable[[str, EncodedSegment], None]] = []
        self.encode = encode or OffloadedEncoder(offload)
        self.ongoing = Ongoing(clock, "a segment is not made, or not stored")
        self._encoder = CutEncoder(journal, offload, self.encode, self.ongoing)
        self._wake = asyncio.Event()
        self._cut_ready = asyncio.Event()
        self._wanted = confirmations.wanted  # from before a fork
        self._cut_bytes = 0
        self._stopping = False
        self.cutting = Heartbeat(clock)
        self.shipping = Heartbeat(clock)
        self.unshipped = Unshipped(journal, clock)
        self.uploads = 0
        self.counters = SegmentCounters()
        self.failures = 0
        self.consecutive_failures = 0
        self.last_error: str | None = None

    # --- asked from outside --------------------------------------------------------

    @property
    def carry(self) -> Carry:
        """Times and levels of the runs at the end of the last confirmed segment."""
        return self._encoder.carry

    def added(self) -> None:
        """Records that entries were synced."""
        self.unshipped.taken()
        if self._journal.taken_bytes - self._cut_bytes >= self._settings.segment_bytes:
            self._wake.set()

    def confirmed_through(self, pos: int) -> asyncio.Future[None]:
        """A future, done when all lines below `pos` are in confirmed segments; it causes a cut."""
        if self._journal.state.confirmed.end >= pos:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        done = self._confirmations.through(pos)
        if pos > self._journal.state.last_cut().end:
            self._wanted = max(self._wanted, pos)
            self._wake.set()
        return done

    def on_confirmed(self, callback: Callable[[int, int, int], None]) -> None:
        """Subscribes to confirmed segments: the number, the first position, one past the last."""
        self._on_confirmed.append(callback)

    def on_stored(self, callback: Callable[[str, EncodedSegment], None]) -> None:
        """Subscribes to segments that the store has, by their keys."""
        self._on_stored.append(callback)

    def stop(self) -> None:
        """Ends both tasks after their present step; callers continue to wait (for a fork)."""
        self._stopping = True
        self._confirmations.notify()
        self._wake.set()
        self._cut_ready.set()

    # --- cutting -------------------------------------------------------------------

    async def cut_forever(self) -> None:
        """Cuts segments until stopped; tries a check of the lineage before the first one.

        A store that is unavailable or does not answer does not prevent cuts: otherwise segments
        would grow with the outage.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self._settings.segment_seconds, _LOOK_SECONDS)):
                await self._lineage.tried()
        while not self._stopping:
            self.cutting.turn()
            reason = await self._until_due()
            if not self._stopping:
                await self._cut_if_room(reason)

    async def _cut_if_room(self, reason: Reason) -> None:
        try:
            await self.cut(reason)
        except JournalFull as error:  # not even a cut fits on the disk: the next try is later
            self._failed(error)
            await self._pause(_LONGEST_PAUSE_SECONDS)

    async def cut(self, reason: Reason) -> None:
        """Cuts the lines received since the last cut, if any."""
        last = self._journal.state.last_cut()
        # Also without new lines: text that a full disk refused was counted, and must not
        # cause another cut.
        self._cut_bytes = self._journal.taken_bytes
        if self._journal.next_pos > last.end:
            taken = self._cut_bytes
            await self._journal.record_cut(last.seq + 1, last.end)
            age, size = self.unshipped.cut(last.seq + 1, taken)
            self.counters.cuts[reason] = self.counters.cuts.get(reason, 0) + 1
            self.counters.ages.observe(age)
            self.counters.sizes.observe(size)
            self.cutting.success()
            self._cut_ready.set()

    async def _until_due(self) -> Reason:
        """Waits for age, size, or a caller that wants a cut."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._settings.segment_seconds
        reason: Reason = "age"
        while not self._stopping:
            if self._journal.taken_bytes - self._cut_bytes >= self._settings.segment_bytes:
                return "size"
            if self._wanted > self._journal.state.last_cut().end:
                reason, due = "demand", min(due, loop.time() + self._settings.bulk_seconds)
            if loop.time() >= due:
                return reason
            self._wake.clear()
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                return reason
        return reason

    # --- shipping ------------------------------------------------------------------

    async def ship_forever(self) -> None:
        """Uploads cut segments, in order, until stopped. Raises `Forked`."""
        try:
            while not self._stopping:
                self.shipping.turn()
                self._cut_ready.clear()
                if self._journal.state.cuts:
                    await self.ship(self._journal.state.cuts[0])
                else:
                    await self._rest()
        finally:
            await self._encoder.close()

    async def _rest(self) -> None:
        """Waits for a cut; checks the lineage meanwhile. Raises `Forked`."""
        # A check that fails because of the store is repeated before the next put at the latest.
        with suppress(StoreUnavailable, OutcomeUnknown):
            await self._lineage.look_if_due()
        self.shipping.rest()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(self._lineage.due_seconds, _LOOK_SECONDS)):
                await self._cut_ready.wait()

    async def ship(self, cut: Cut) -> None:
        """Ships one segment, retrying until it is confirmed or the shipper is stopped."""
        encoded: EncodedCut | None = None
        pauses = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        while not self._stopping:
            self.shipping.turn()
            try:
                encoded = encoded or await self._encoder.encoded(cut)
                for following in self._journal.state.cuts[1:2]:
                    self._encoder.begin(following, encoded.carry)
                await self._lineage.look_if_due()
                with self.ongoing.piece():
                    await self._put(self._journal.state.node, cut.seq, encoded.segment)
                    await self._lineage.check_put(cut.seq)
            except (StoreUnavailable, NodeNotReady, OutcomeUnknown) as error:
                self._failed(error)
                await self._pause(pauses.next())
                continue
            self.counters.uploaded_bytes += len(encoded.segment.body)
            self._encoder.carry = encoded.carry
            for callback in self._on_stored:
                callback(keys.segment(self._journal.state.node, cut.seq), encoded.segment)
            self._confirmed(cut)
            return

    async def _pause(self, seconds: float) -> None:
        """Waits for a back-off, less if the shipper is stopped."""
        end = self._clock.monotonic() + seconds
        while not self._stopping and self._clock.monotonic() < end:
            await self._clock.sleep(min(0.25, seconds))

    async def _put(self, node: str, seq: int, segment: EncodedSegment) -> None:
        key = keys.segment(node, seq)
        if seq <= self._lineage.taken:
            await self._compare(key, segment)
            return
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

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.consecutive_failures += 1
        self.last_error = with_hint(error)

    def _confirmed(self, cut: Cut) -> None:
        self.uploads += 1
        self.shipping.success()
        self.consecutive_failures = 0
        self.last_error = None
        self._journal.confirm(cut)
        self.unshipped.confirmed(cut.seq)
        self._confirmations.confirmed(cut.end)
        for callback in self._on_confirmed:
            callback(cut.seq, cut.first, cut.end)
