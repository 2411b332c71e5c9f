"""A partition that this process holds, and what it may do with it.

    held ──save, renew, wait for acknowledgements──► held
     │ └──complete, close, give up, fail, delete──► over
     └──somebody else's, deleted, or 2 s before its time ends──► lost

Every write is conditional on the version that was read or written last, and so on owner and
epoch. The worker and the heartbeat write under one lock. A write whose outcome is not known,
as its answer was lost or its caller cancelled, is looked for before the next: to ask for the
same end again is safe, and a save that happened does not make the next one fail.

`valid()` is asked before each effect; what the effect changes should know `epoch` and refuse
lower ones, since no lease alone is exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from coordination.coordinator.limits import CoordinatorLimits
from coordination.counters import Action, CoordinationCounters
from coordination.lease import left_ms
from coordination.partitions.partition import Partition, Status
from coordination.partitions.store import PartitionStore
from coordination.partitions.transitions import (
    closed,
    completed,
    failed,
    given_up,
    renewed,
    saved,
)
from logstore.entropy import Entropy
from logstore.errors import LeaseLost, NotFound, OutcomeUnknown, PreconditionFailed, TailraceError

_TRIES = 4
_DICE_BITS = 20

Wanted: TypeAlias = Callable[[Partition, int], Partition]
"""The next version, of the last and the store's time in ms."""


class Lease:
    """One lease. The heartbeat keeps it until it is ended, so end it, whatever happens.

    Verbs raise `LeaseLost` and `NotFound` once it is not ours any more: stop then.

    They raise `StoreUnavailable` (nothing was changed, ours as long as before),
    `OutcomeUnknown` (ask again), `TooLarge`, `Damaged`.
    """

    def __init__(
        self,
        partition: Partition,
        store: PartitionStore,
        entropy: Entropy,
        limits: CoordinatorLimits,
        counters: CoordinationCounters,
        *,
        lease_ms: int,
        since: float,
        ended: Callable[[Lease], None],
    ) -> None:
        self.partition = partition
        """Its newest version that is known."""
        self.since = since
        """The monotonic second at which it was acquired."""
        self.lost = asyncio.Event()
        """Set once it is not ours any more, though nobody here ended it."""
        self.asked_back = asyncio.Event()
        """Set when others should have it: save and give up at the next good moment."""
        self._store = store
        self._entropy = entropy
        self._limits = limits
        self.counters = counters
        self._lease_ms = lease_ms
        self._ended = ended
        self._over = False
        self._counted = False
        self._handing_over = False
        self._waiting = False
        self._before = partition
        self._unclear: Partition | None = None
        self._lock = asyncio.Lock()

    @property
    def key(self) -> str:
        """Its name within the source."""
        return self.partition.key

    @property
    def epoch(self) -> int:
        """The fencing token: above that of every earlier owner."""
        return self.partition.epoch

    @property
    def progress(self) -> str | None:
        """As it was saved last, by us or by those before."""
        return self.partition.progress

    def valid(self) -> bool:
        """Whether it is ours, for 2 s more at least. Asked before each effect."""
        return not self._handing_over and self._ours()

    def left_ms(self) -> int:
        """For how long it is still valid, unless it is renewed."""
        return left_ms(self.partition.until_ms, self._store.time.at_most_ms())

    async def save(self, progress: str | None) -> None:
        """Keeps progress, and the lease for another timeout."""
        await self._change(lambda one, now: saved(one, progress, now + self._lease_ms), "saveState")
        self._waiting = False
        self.counters.saved += 1

    async def renew(self) -> None:
        """The lease for another timeout; the heartbeat does it, too."""
        await self._renew(self._lease_ms)
        self._waiting = False

    async def wait_for_acknowledgements(self, seconds: float) -> None:
        """Ours for `seconds` without the heartbeat, until saved, renewed or ended.

        If nothing comes by then it is lost, and somebody starts from the progress saved last.
        """
        await self._renew(round(seconds * 1000))
        self._waiting = True

    async def complete(self) -> None:
        """Done for good. Progress is kept."""
        if await self._end(completed, "complete"):
            self.counters.completed += 1

    async def close(self, reopen_after_seconds: float, max_closed_count: int = 0) -> None:
        """Done until then; for good with the close of that number, 0 is never."""
        after_ms = round(reopen_after_seconds * 1000)

        def wanted(one: Partition, now: int) -> Partition:
            return closed(one, now, now + after_ms, max_closed_count)

        last = wanted(self.partition, 0).status is Status.COMPLETED
        if await self._end(wanted, "complete" if last else "close"):
            for_good = self.partition.status is Status.COMPLETED
            self.counters.completed += for_good
            self.counters.closed += not for_good

    async def give_up(
        self,
        *,
        priority: float | None = None,
        later_seconds: float = 0.0,
        progress: str | None = None,
    ) -> None:
        """Free for others with its progress, or the last that is given; no attempt is counted.

        One that was deleted is free of us, too.
        """
        later_ms = round(later_seconds * 1000)

        def wanted(one: Partition, now: int) -> Partition:
            last = one if progress is None else replace(one, progress=progress)
            return given_up(last, now, priority=priority, later_ms=now + later_ms)

        with suppress(NotFound):
            self.counters.given_up += await self._end(wanted)

    async def fail(self, reason: str) -> None:
        """It could not be done: tried again after a pause, FAILED after too many attempts."""

        def wanted(one: Partition, now: int) -> Partition:
            dice = self._entropy.getrandbits(_DICE_BITS) / (1 << _DICE_BITS)
            later_ms = now + self._limits.retry_ms(one.attempts, dice)
            return failed(
                one, reason, now, max_attempts=self._limits.max_attempts, retry_ms=later_ms
            )

        if await self._end(wanted):
            self.counters.failures += 1
            self.counters.failed += self.partition.status is Status.FAILED

    async def delete(self) -> None:
        """Removes the partition. One that was removed is no error."""
        async with self._lock:
            for _ in range(_TRIES):
                self._require()
                try:
                    await self._store.delete(self.partition)
                except PreconditionFailed:
                    await self._look()
                    continue
                except NotFound:
                    pass
                self._finish()
                self.counters.deleted += 1
                return
            raise self._gone_elsewhere()

    async def hand_over(self) -> None:
        """Gives it up in any case: if the store does not hear of it, it is renewed no more.

        It is not valid from now on, and only then free: its worker may not know of this yet.
        """
        self._handing_over = True
        self.lost.set()
        await self.give_up()

    # --- for the heartbeat ---------------------------------------------------------

    async def beat(self) -> None:
        """Renews it if it is to be renewed. Raises nothing else than the verbs."""
        fresh = self._unclear is None and self.left_ms() > self._lease_ms * 5 / 6
        if not self._waiting and not fresh and self.valid():
            await self._renew(self._lease_ms)

    def look_at_time(self) -> None:
        """Loses it if its time is over."""
        if not self._over and self.left_ms() <= 0:
            self._lose()

    # --- versions ------------------------------------------------------------------

    async def _renew(self, for_ms: int) -> None:
        await self._change(lambda one, now: renewed(one, now + for_ms))

    async def _end(self, wanted: Wanted, action: Action | None = None) -> bool:
        """Whether this is the first to hear of the end: that one counts it."""
        await self._change(wanted, action)
        self._finish()
        first, self._counted = not self._counted, True
        return first

    async def _change(self, wanted: Wanted, action: Action | None = None) -> None:
        async with self._lock:
            try:
                await self._written(wanted)
            except TailraceError:
                if action is not None:
                    self.counters.update_errors[action] += 1
                raise

    async def _written(self, wanted: Wanted) -> None:
        if self._unclear is not None:
            await self._look()
        if self._has_ended(wanted):
            return
        for _ in range(_TRIES):
            self._require()
            now_ms = self._store.time.at_most_ms()
            self._before = self.partition
            self._unclear = attempt = wanted(self.partition, now_ms)
            try:
                self.partition = await self._store.change(self.partition, attempt)
            except PreconditionFailed:
                if await self._look():
                    return
                continue
            except OutcomeUnknown:
                raise
            except NotFound:
                self._unclear = None
                raise self._gone() from None
            except TailraceError:
                self._unclear = None
                raise
            self._unclear = None
            return
        raise self._gone_elsewhere()

    async def _look(self) -> bool:
        """Whether what is stored is what we tried to write. Raises if it is not ours."""
        found = await self._store.get(self.partition.source, self.partition.key)
        attempt, self._unclear = self._unclear, None
        if found is None:
            raise self._gone()
        if attempt is not None and found == replace(attempt, version=found.version):
            self.partition = found
            return True
        if (found.owner, found.epoch) != (self.partition.owner, self.partition.epoch):
            raise self._gone_elsewhere()
        self.partition = found
        return False

    def _has_ended(self, wanted: Wanted) -> bool:
        """Whether it ended in the way that is asked for again; raises if in another."""
        if self.partition.status is Status.ASSIGNED:
            return False
        self._finish()
        if wanted(self._before, 0).status is not self.partition.status:
            raise LeaseLost(f"{self.key!r} became {self.partition.status} before")
        return True

    def _ours(self) -> bool:
        return not self._over and self.left_ms() > 0

    def _require(self) -> None:
        if not self._ours():
            raise self._gone_elsewhere()

    def _gone(self) -> NotFound:
        self.counters.not_found += 1
        self._lose()
        return NotFound(f"the partition {self.key!r} of {self.partition.source!r} was deleted")

    def _gone_elsewhere(self) -> LeaseLost:
        self.counters.not_owned += 1
        self._lose()
        return LeaseLost(f"{self.key!r} of {self.partition.source!r} is not ours any more")

    def _lose(self) -> None:
        self.lost.set()
        self._finish()

    def _finish(self) -> None:
        if not self._over:
            self._over = True
            self._ended(self)
