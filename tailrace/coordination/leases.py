"""The leases that this process holds on partitions, their heartbeat, and counters.

    held ──save, renew, wait for acknowledgements──► held
     │ └──complete, close, give up, fail, delete──► over
     └──another owner's, deleted, or 2 s before its time ends──► lost

`Lease` is one lease. Every write is conditional on the version that was read or written last, and
thereby on owner and epoch. The worker and the heartbeat write under one lock. The outcome of a
write is unknown if its answer was lost or its caller was cancelled. The next write then first looks
whether that one happened. A repeated request for the same end is therefore safe, and a save that
did happen does not make the next one fail.

A worker asks `valid()` before each effect. No lease alone makes an effect exact, so the target of
the effect should store `epoch` and refuse lower ones.

`LeaseManager` acquires and renews all leases of a process.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, TypeAlias

from tailrace.coordination.lease import is_earlier_process, left_ms
from tailrace.coordination.partitions import (
    Claim,
    Partition,
    PartitionStore,
    Status,
    closed,
    completed,
    failed,
    given_up,
    renewed,
    saved,
)
from tailrace.coordination.settings import CoordinatorLimits
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
)

# Counters of each source, and the names of their metrics.
#
# Counters are plain numbers that metrics read at a scrape. The metrics have the same names wherever
# leases are exported, and all have the label `source`. Counters have the last words of Data
# Prepper's names, and some exist only in Tailrace. Names lack the prefix `tailrace_`, and the
# suffix `_total` that the text format adds.


Action: TypeAlias = Literal["saveState", "close", "complete"]

NAMES: Final = {
    "supplied": "partitionCreationSupplierInvocations",
    "none_acquired": "noPartitionsAcquired",
    "created": "partitionsCreatedCount",
    "acquired": "partitionsAcquired",
    "completed": "partitionsCompleted",
    "closed": "partitionsClosed",
    "deleted": "partitionsDeleted",
    "given_up": "partitionsGivenUp",
    "saved": "savePartitionProgressStateInvocationsSuccess",
    "not_found": "partitionNotFoundErrors",
    "not_owned": "partitionNotOwnedErrors",
}
"""Data Prepper's names of those that it has; `update_errors` are its `partitionUpdateErrors`."""


@dataclass(slots=True)
class CoordinationCounters:
    """The counters of one source in one process. All of them only grow."""

    supplied: int = 0
    none_acquired: int = 0
    created: int = 0
    acquired: int = 0
    completed: int = 0
    closed: int = 0
    deleted: int = 0
    given_up: int = 0
    saved: int = 0
    not_found: int = 0
    not_owned: int = 0
    failures: int = 0
    """Failures that workers reported, also those that are tried again."""
    failed: int = 0
    """Partitions that became FAILED."""
    supplies_lost: int = 0
    """Runs of the supplier that lasted longer than their lease, and were cancelled."""
    held_back: int = 0
    """Acquisitions refused because this worker holds its fair share."""
    asked_back: int = 0
    """Partitions that were requested back for other workers."""
    renewal_errors: int = 0
    update_errors: dict[Action, int] = field(
        default_factory=lambda: {"saveState": 0, "close": 0, "complete": 0}
    )


class Count(NamedTuple):
    """A counter: the field of `CoordinationCounters`, its name and its help text."""

    field: str
    name: str
    help: str


_HELP: Final = {
    "supplied": "Runs of the supplier of new partitions.",
    "none_acquired": "Acquisitions that found no partition.",
    "created": "Partitions created.",
    "acquired": "Leases acquired.",
    "completed": "Partitions done for good.",
    "closed": "Partitions done until they are due again.",
    "deleted": "Partitions and named leases removed by their owner.",
    "given_up": "Leases given up before the end of the work.",
    "saved": "Saves of progress.",
    "not_found": "Leases lost because the item was deleted.",
    "not_owned": "Leases lost to another owner, or to time.",
}


def _snake(upstream: str) -> str:
    return re.sub("([A-Z])", r"_\1", upstream).lower()


UPSTREAMS: Final = tuple(Count(field, _snake(NAMES[field]), _HELP[field]) for field in NAMES)

OURS: Final = (
    Count(
        "failures", "partition_failures", "Failures that workers reported, also those tried again."
    ),
    Count("failed", "partitions_failed", "Partitions that became FAILED: tried too often."),
    Count(
        "supplies_lost",
        "partition_supplies_lost",
        "Runs of the supplier that lasted longer than their lease, and were cancelled.",
    ),
    Count(
        "held_back",
        "partitions_held_back",
        "Acquisitions refused because this process holds its fair share.",
    ),
    Count(
        "asked_back",
        "partitions_asked_back",
        "Partitions that were requested back for other workers.",
    ),
    Count(
        "renewal_errors", "lease_renewal_errors", "Heartbeats of a lease that the store refused."
    ),
)

UPDATE_ERRORS: Final = (
    "partition_update_errors",
    "Writes of a held partition that failed, by `saveState`, `close` and `complete`.",
)
"""The one with a second label, `action`."""


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


# All leases of a process, and the heartbeat that renews them during the work.
#
# All leases are renewed at the same moment, so that a store may group the writes: every third of
# the timeout, and four times as often after an error. A lease that was saved just now is skipped. A
# lease that could not be renewed in time is lost 2 s before its time ends. The clock decides this,
# not an answer of the store. An acquire that was interrupted may have taken partitions that this
# process does not know of; the next acquire of the same source looks for them first.


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

    # --- held leases ---------------------------------------------------------------

    async def _claim(self, source: str, lease_ms: int, max_attempts: int) -> Claim:
        if not self.store.time.known:
            await self.store.get(source, "?")  # for the time of the answer
        if not self.store.time.known:
            raise StoreUnavailable("the store's clock is not known yet: its answers are too slow")
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
