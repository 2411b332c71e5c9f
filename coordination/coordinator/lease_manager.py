"""All leases that one process holds, and the heartbeat that renews them beside the work.

All leases are renewed at the same moment, so that a store may group the writes: every third of
the timeout, and four times as often after an error. A lease that was saved just now is skipped.
A lease that could not be renewed in time is lost 2 s before its time ends. The clock decides
this, not an answer of the store. An acquire that was interrupted may have taken partitions that
this process does not know of; the next acquire of the same source looks for them first.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from coordination.coordinator.lease import Lease
from coordination.coordinator.limits import CoordinatorLimits
from coordination.counters import CoordinationCounters
from coordination.lease import is_earlier_process, left_ms
from coordination.partitions.partition import Partition, Status
from coordination.partitions.store import PartitionStore
from coordination.partitions.transitions import Claim
from logstore import ulid as ulids
from logstore.clock import Clock, Entropy
from logstore.errors import LeaseLost, NotFound, OutcomeUnknown, StoreUnavailable, TailraceError

_LOOK_SECONDS: Final = 1.0
_AT_ONCE: Final = 500


class LeaseManager:
    """Acquires and renews partitions as `owner`, `identity/ULID of this process`."""

    def __init__(
        self,
        store: PartitionStore,
        clock: Clock,
        entropy: Entropy,
        limits: CoordinatorLimits,
        *,
        identity: str,
        restarted: bool,
    ) -> None:
        self.store = store
        self.clock = clock
        self.entropy = entropy
        self.limits = limits
        self.owner = f"{identity}/{ulids.fresh_text(clock, entropy)}"
        self.last_error: str | None = None
        """Of the last heartbeat or hand-over: a store that was away."""
        self._restarted = restarted
        self._held: dict[tuple[str, str], Lease] = {}
        self._acquiring: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._broken_off: set[str] = set()
        self._stopping = False

    @property
    def stopping(self) -> bool:
        """Whether the manager is stopping and acquires nothing more."""
        return self._stopping

    def of(self, source: str) -> list[Lease]:
        """The leases of a source, the one held longest first."""
        return sorted(
            [held for held in self._held.values() if held.partition.source == source],
            key=lambda held: held.since,
        )

    def succeeds(self, one: Partition) -> bool:
        """Whether the partition's owner was an earlier process of this identity."""
        owner = one.owner if self._restarted else None
        return owner is not None and is_earlier_process(owner, self.owner)

    def jitter(self) -> float:
        """A factor from 0.8 to 1.2, so that processes do not beat in step."""
        return 0.8 + 0.4 * self.entropy.getrandbits(20) / (1 << 20)

    async def acquire(
        self,
        source: str,
        count: int,
        counters: CoordinationCounters,
        *,
        only: str | None = None,
        random: bool = True,
        max_attempts: int = 0,
        lease_ms: int | None = None,
    ) -> list[Lease]:
        """Acquires up to `count` partitions.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """
        for_ms = self.limits.lease_ms if lease_ms is None else lease_ms
        async with self._acquiring[source]:
            if self._stopping:
                return []
            claim = await self._claim(source, for_ms, max_attempts)
            # An acquire whose answer was lost may have taken partitions, which nobody else gives
            # back.
            if source in self._broken_off:
                if found := await self._left_over(source, only):
                    return self._keep(found[:count], counters, for_ms)
                self._broken_off.discard(source)
            try:
                brought = await self.store.acquire(source, claim, count, only=only, random=random)
            except (OutcomeUnknown, asyncio.CancelledError):
                self._broken_off.add(source)
                raise
            counters.failed += len(brought.failed)
            return self._keep(brought.partitions, counters, for_ms)

    async def run(self) -> None:
        """Renews all leases until the manager is stopped."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beats())
            group.create_task(self._looks())

    async def beat(self) -> None:
        """Renews all leases once. The next beat retries what an unavailable store refused."""
        self.last_error = None
        held = list(self._held.values())
        for start in range(0, len(held), _AT_ONCE):
            await asyncio.gather(*[self._renew(one) for one in held[start : start + _AT_ONCE]])

    async def stop(self) -> None:
        """Stops acquiring and gives all leases up. Raises nothing: a lease that remains expires."""
        self._stopping = True
        for acquiring in list(self._acquiring.values()):
            async with acquiring:
                pass  # what is on its way is held by now
        held = list(self._held.values())
        for start in range(0, len(held), _AT_ONCE):
            await asyncio.gather(*[self.hand_over(one) for one in held[start : start + _AT_ONCE]])

    async def hand_over(self, held: Lease) -> None:
        """Gives up a lease that a worker may still use.

        Raises nothing: a lease that remains expires.
        """
        try:
            await held.hand_over()
        except TailraceError as error:
            self.last_error = f"{held.key}: {error}"

    # --- the heartbeat -------------------------------------------------------------

    async def _beats(self) -> None:
        while not self._stopping:
            # After an outage there may be little time left.
            beats = 3 if self.last_error is None else 12
            await self.pause(self.limits.lease_seconds / beats * min(self.jitter(), 1.0))
            await self.beat()

    async def _looks(self) -> None:
        while not self._stopping:
            # A worker learns that its lease is over when it is, not at the next heartbeat.
            for held in list(self._held.values()):
                held.look_at_time()
            left = [held.left_ms() / 1000 for held in self._held.values()]
            await self.clock.sleep(max(min([_LOOK_SECONDS, *left]), 0.001))

    async def pause(self, seconds: float) -> None:
        """Waits that many seconds, or until the manager is stopped."""
        due = self.clock.monotonic() + seconds
        while not self._stopping and (left := due - self.clock.monotonic()) > 0:
            await self.clock.sleep(min(left, _LOOK_SECONDS))

    async def _renew(self, held: Lease) -> None:
        try:
            await held.beat()
        except (LeaseLost, NotFound):
            return  # it has said so to its worker, and was counted
        except TailraceError as error:
            held.counters.renewal_errors += 1
            self.last_error = f"{held.key}: {error}"

    # --- what is held --------------------------------------------------------------

    async def _claim(self, source: str, lease_ms: int, max_attempts: int) -> Claim:
        if not self.store.time.known:
            await self.store.get(source, "?")  # for the time of the answer
        if not self.store.time.known:
            raise StoreUnavailable("the store's time is not known yet: its answers take too long")
        return Claim(
            self.owner,
            lease_ms,
            self.store.time.at_least_ms(),
            self.store.time.at_most_ms(),
            max_attempts,
            self.limits.ageing_ms,
            self._restarted,
        )

    def _keep(
        self, partitions: Iterable[Partition], counters: CoordinationCounters, lease_ms: int
    ) -> list[Lease]:
        kept = [
            Lease(
                one,
                self.store,
                self.entropy,
                self.limits,
                counters,
                lease_ms=lease_ms,
                since=self.clock.monotonic(),
                ended=self._forget,
            )
            for one in partitions
        ]
        self._held |= {(held.partition.source, held.key): held for held in kept}
        counters.acquired += len(kept)
        return kept

    def _forget(self, held: Lease) -> None:
        name = (held.partition.source, held.key)
        if self._held.get(name) is held:
            del self._held[name]

    async def _left_over(self, source: str, only: str | None) -> list[Partition]:
        """Partitions that an acquire of this process took without receiving the answer."""
        found: list[Partition] = []
        after = None
        while True:
            page = await self.store.page(source, status=Status.ASSIGNED, after=after)
            found += [one for one in page.partitions if self._is_left_over(one)]
            if page.after is None:
                return [one for one in found if only in (None, one.key)]
            after = page.after

    def _is_left_over(self, one: Partition) -> bool:
        unknown = (one.source, one.key) not in self._held
        in_time = left_ms(one.until_ms, self.store.time.at_most_ms()) > 0
        return unknown and in_time and one.owner == self.owner
