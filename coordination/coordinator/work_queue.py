"""All the work of one type of partitions, as one process sees it.

    files = coordinator.work("file", supplier=listing)
    for held in await files.acquire(10):
        async for line in lines_of(held.key, start=held.progress):
            if not held.valid(): break
            …
        await held.complete()

Partitions come in the order of `coordination.partitions.transitions.chosen`. Where there is
nothing to acquire the supplier makes more. Which of several coordinators gets what is up to
the store, and to the fair share of each (`workers.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from coordination.coordinator.lease import Lease
from coordination.coordinator.lease_manager import LeaseManager
from coordination.coordinator.supply import Supplier, Supply
from coordination.coordinator.workers import Workers
from coordination.counters import CoordinationCounters
from coordination.partitions.partition import NewPartition, Partition, Status
from coordination.partitions.store import Page, update
from coordination.partitions.transitions import reopened, reset, ruled_out
from logstore.errors import Conflict, NotFound, PreconditionFailed

_TRIES = 8


class WorkQueue:
    """Acquires partitions of a type, and changes partitions that this process does not hold.

    All methods raise `StoreUnavailable`, `OutcomeUnknown`, `Damaged`; none reports such an
    error as "no work". `Coordinator.work` makes a work queue.
    """

    def __init__(
        self,
        manager: LeaseManager,
        *,
        base: str,
        kind: str,
        supplier: Supplier | None,
        random: bool,
        balance: bool,
        rotate: bool,
    ) -> None:
        self.source = f"{base}|{kind}"
        self.counters = CoordinationCounters()
        self.supply = Supply(manager, self.counters, base=base, kind=kind, supplier=supplier)
        self.workers = (
            Workers(manager, self.counters, base=base, kind=kind, rotate=rotate)
            if balance
            else None
        )
        self._manager = manager
        self._store = manager.store
        self._random = random
        self._turn = asyncio.Lock()

    async def acquire(self, count: int = 1) -> list[Lease]:
        """Acquires up to `count` partitions, or fewer if no more are free or others need them.

        Runs the supplier if nothing is free, and otherwise at intervals; raises its errors.
        """
        await self.supply.run(idle=False)
        held = await self._acquire(count)
        if not held and await self.supply.run(idle=True):
            if self.workers is not None:
                self.workers.look_again()  # there is more to share now
            held = await self._acquire(count)
        self.counters.none_acquired += not held
        return held

    async def acquire_key(self, key: str) -> Lease | None:
        """Acquires the partition of that key, out of order; None if it is not free."""
        held = await self._take(1, only=key)
        return held[0] if held else None

    def held(self) -> list[Lease]:
        """The leases of this process, the one held longest first."""
        return self._manager.of(self.source)

    def oldest_seconds(self) -> float:
        """Seconds for which the oldest lease is held; 0 without leases."""
        held = self.held()
        return self._manager.clock.monotonic() - held[0].since if held else 0.0

    def lag_seconds(self) -> float:
        """Seconds since the held partition that was due first became due; 0 without leases."""
        due_ms = min([held.partition.available_ms for held in self.held()], default=None)
        return 0.0 if due_ms is None else max(self._store.time.at_least_ms() - due_ms, 0) / 1000

    async def finished(self) -> bool:
        """Whether all partitions are COMPLETED or FAILED, and no more will come."""
        if not await self.supply.finished():
            return False
        counts = await self._store.counts(self.source)
        left = {status for status, count in counts.items() if count}
        return left <= {Status.COMPLETED, Status.FAILED}

    async def wait_finished(self) -> None:
        """Returns once `finished`. Another task has to do the work meanwhile."""
        while not await self.finished():
            seconds = self._manager.limits.poll_seconds * self._manager.jitter()
            await self._manager.clock.sleep(seconds)

    # --- by key --------------------------------------------------------------------

    async def create(self, new: Sequence[NewPartition]) -> list[str]:
        """Makes those partitions that do not exist; returns their keys.

        Raises `InvalidInput`, `TooLarge`.
        """
        made = await self._store.create(self.source, new)
        self.counters.created += len(made)
        return made

    async def get(self, key: str) -> Partition | None:
        """Returns the partition of that key as it is stored."""
        return await self._store.get(self.source, key)

    async def page(
        self, *, status: Status | None = None, after: str | None = None, limit: int = 1000
    ) -> Page:
        """Partitions of a status, or all, in the order of their keys behind `after`."""
        return await self._store.page(self.source, status=status, after=after, limit=limit)

    async def reopen(self, key: str) -> Partition:
        """Frees a partition that was closed, COMPLETED or FAILED; its progress stays.

        Raises `NotFound`, and `Conflict` if it is held or free.
        """
        return await self._changed(key, _reopened)

    async def reset(self, key: str, *, forget: bool = False) -> Partition:
        """Frees a partition at once, whatever its status; `forget` drops its progress.

        A worker that holds the partition loses it. Raises `NotFound`.
        """
        return await self._changed(key, lambda one, now: reset(one, now, forget=forget))

    async def fail(self, key: str, reason: str) -> Partition:
        """Makes a partition FAILED until it is reset or reopened. Raises `NotFound`."""
        return await self._changed(key, lambda one, now: ruled_out(one, reason, now))

    async def delete(self, key: str) -> None:
        """Removes a partition, even if somebody holds it. Raises `NotFound`."""
        for _ in range(_TRIES):
            try:
                await self._store.delete(await self._found(key))
            except PreconditionFailed:
                continue
            self.counters.deleted += 1
            return
        raise Conflict(f"{key!r} of {self.source!r} changes all the time")

    async def purge(self, older_seconds: float) -> int:
        """Removes partitions that were COMPLETED that long ago; returns how many."""
        before_ms = self._store.time.at_least_ms() - round(older_seconds * 1000)
        return await self._store.purge(self.source, before_ms)

    # -------------------------------------------------------------------------------

    async def _acquire(self, count: int) -> list[Lease]:
        async with self._turn:
            allowed = count if self.workers is None else await self.workers.allowance(count)
            return await self._take(allowed) if allowed > 0 else []

    async def _take(self, count: int, only: str | None = None) -> list[Lease]:
        return await self._manager.acquire(
            self.source,
            count,
            self.counters,
            only=only,
            random=self._random,
            max_attempts=self._manager.limits.max_attempts,
        )

    async def _found(self, key: str) -> Partition:
        found = await self._store.get(self.source, key)
        if found is None:
            raise self._nothing(key)
        return found

    async def _changed(self, key: str, wanted: Callable[[Partition, int], Partition]) -> Partition:
        now_ms = self._store.time.at_most_ms
        changed = await update(self._store, self.source, key, lambda one: wanted(one, now_ms()))
        if changed is None:
            raise self._nothing(key)
        return changed

    def _nothing(self, key: str) -> NotFound:
        return NotFound(f"there is no partition {key!r} of {self.source!r}")


def _reopened(one: Partition, now_ms: int) -> Partition:
    if one.status in (Status.UNASSIGNED, Status.ASSIGNED):
        raise Conflict(f"{one.key!r} is {one.status}", hint="Reset it to take it from its owner.")
    return reopened(one, now_ms)


class Measure(NamedTuple):
    """A gauge: its name, its help text, and how it is read from a work queue."""

    name: str
    help: str
    of: Callable[[WorkQueue], float]


def _attempts(work: WorkQueue) -> float:
    return max([held.partition.attempts for held in work.held()], default=0)


HELD: Final = Measure("leases_held", "Leases that this process holds.", lambda w: len(w.held()))
OLDEST: Final = Measure(
    "lease_oldest_seconds",
    "For how long the oldest of them is held.",
    lambda work: work.oldest_seconds(),
)
ATTEMPTS: Final = Measure(
    "lease_attempts",
    "Acquisitions without progress of the partition held that has most.",
    _attempts,
)
LAG: Final = Measure(
    "lease_lag_seconds",
    "For how long the work of the held partition that was due first is due.",
    lambda work: work.lag_seconds(),
)
MEASURES: Final = (HELD, OLDEST, ATTEMPTS, LAG)
