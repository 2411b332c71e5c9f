"""A lease that this process holds on a partition, and what its worker may do with it.

    held ──save, renew, wait for acknowledgements──► held
     │ └──complete, close, give up, fail, delete──► over
     └──another owner's, deleted, or 2 s before its time ends──► lost

Every write is conditional on the version that was read or written last, and thereby on owner
and epoch. The worker and the heartbeat write under one lock. The outcome of a write is unknown
if its answer was lost or its caller was cancelled. The next write then first looks whether that
one happened. A repeated request for the same end is therefore safe, and a save that did happen
does not make the next one fail.

A worker asks `valid()` before each effect. No lease alone makes an effect exact, so the target
of the effect should store `epoch` and refuse lower ones.
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
from logstore.clock import Entropy
from logstore.errors import LeaseLost, NotFound, OutcomeUnknown, PreconditionFailed, TailraceError

_TRIES = 4
_DICE_BITS = 20

Wanted: TypeAlias = Callable[[Partition, int], Partition]
"""The next version, of the last and the store's time in ms."""


class Lease:
    """One lease. The heartbeat renews it until it is ended, so a worker ends it in every case.

    All methods raise `LeaseLost` or `NotFound` once this process does not own the partition;
    the worker then stops.

    They also raise `StoreUnavailable` (nothing changed, and the lease is valid for as long as
    before), `OutcomeUnknown` (repeat the call), `TooLarge` and `Damaged`.
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
        """The partition's key within its source."""
        return self.partition.key

    @property
    def epoch(self) -> int:
        """The fencing token, which is above that of every earlier owner."""
        return self.partition.epoch

    @property
    def progress(self) -> str | None:
        """The progress that this or an earlier owner saved last."""
        return self.partition.progress

    def valid(self) -> bool:
        """Whether the lease is valid for 2 s more at least. A worker asks before each effect."""
        return not self._handing_over and self._ours()

    def left_ms(self) -> int:
        """Milliseconds for which the lease is still valid, unless it is renewed."""
        return left_ms(self.partition.until_ms, self._store.time.at_most_ms())

    async def save(self, progress: str | None) -> None:
        """Saves progress and renews the lease for another timeout."""
        await self._change(lambda one, now: saved(one, progress, now + self._lease_ms), "saveState")
        self._waiting = False
        self.counters.saved += 1

    async def renew(self) -> None:
        """Renews the lease for another timeout, as the heartbeat does."""
        await self._renew(self._lease_ms)
        self._waiting = False

    async def wait_for_acknowledgements(self, seconds: float) -> None:
        """Keeps the lease for `seconds` without the heartbeat, until it is saved, renewed or ended.

        If none of these happens in that time, the lease is lost, and the next owner starts from
        the progress that was saved last.
        """
        await self._renew(round(seconds * 1000))
        self._waiting = True

    async def complete(self) -> None:
        """Completes the partition for good; its progress is kept."""
        if await self._end(completed, "complete"):
            self.counters.completed += 1

    async def close(self, reopen_after_seconds: float, max_closed_count: int = 0) -> None:
        """Closes the partition until it is due again in `reopen_after_seconds`.

        The close of number `max_closed_count` completes it for good; with 0 none does.
        """
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
        """Frees the partition without counting an attempt; `progress` replaces the old one.

        It is no error if the partition was deleted meanwhile.
        """
        later_ms = round(later_seconds * 1000)

        def wanted(one: Partition, now: int) -> Partition:
            last = one if progress is None else replace(one, progress=progress)
            return given_up(last, now, priority=priority, later_ms=now + later_ms)

        with suppress(NotFound):
            self.counters.given_up += await self._end(wanted)

    async def fail(self, reason: str) -> None:
        """Reports a failure: the partition is retried later, or FAILED after too many attempts."""

        def wanted(one: Partition, now: int) -> Partition:
            # Partitions that failed together, with a server that they need, are not retried
            # together.
            dice = self._entropy.getrandbits(_DICE_BITS) / (1 << _DICE_BITS)
            later_ms = now + self._limits.retry_ms(one.attempts, dice)
            return failed(
                one, reason, now, max_attempts=self._limits.max_attempts, retry_ms=later_ms
            )

        if await self._end(wanted):
            self.counters.failures += 1
            self.counters.failed += self.partition.status is Status.FAILED

    async def delete(self) -> None:
        """Removes the partition. It is no error if it was removed already."""
        async with self._lock:
            for _ in range(_TRIES):
                self._require()
                try:
                    await self._store.delete(self.partition)
                except PreconditionFailed:
                    await self._look()
                    continue
                except NotFound:
                    pass  # an earlier try whose answer was lost, or somebody else, removed it
                self._finish()
                self.counters.deleted += 1
                return
            raise self._gone_elsewhere()

    async def hand_over(self) -> None:
        """Gives the lease up in any case; if the store cannot be reached, it is not renewed again.

        The lease becomes invalid first and is freed after that, since its worker may still be
        unaware of the hand-over.
        """
        self._handing_over = True
        self.lost.set()
        await self.give_up()

    # --- for the heartbeat ---------------------------------------------------------

    async def beat(self) -> None:
        """Renews the lease if it is due for renewal. Raises as the other methods."""
        # Saving progress renews, too: a lease that was just written needs no other write.
        fresh = self._unclear is None and self.left_ms() > self._lease_ms * 5 / 6
        if not self._waiting and not fresh and self.valid():
            await self._renew(self._lease_ms)

    def look_at_time(self) -> None:
        """Marks the lease as lost if its time is over."""
        if not self._over and self.left_ms() <= 0:
            self._lose()

    # --- versions ------------------------------------------------------------------

    async def _renew(self, for_ms: int) -> None:
        await self._change(lambda one, now: renewed(one, now + for_ms))

    async def _end(self, wanted: Wanted, action: Action | None = None) -> bool:
        """Whether this call is the first to learn that the lease ended, and so counts the end."""
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
        """Whether the store has what was last written. Raises if the lease is another owner's."""
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
        """Whether the lease ended as `wanted`; raises if it ended otherwise."""
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
