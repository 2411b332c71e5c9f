"""Partitions: pieces of work, their states and transitions, and the contract of their stores.

Fields are those of a coordination item (contract, section 4). Times are milliseconds of the store's
clock. Stores are `tailrace.coordination.memory_store` (one process),
`tailrace.coordination.object_store` (a folder or S3) and `tailrace.coordination.dynamodb`. One
conformance suite runs on all of them (`tests/contracts/partition_store.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

from tailrace.coordination.lease import StoreTime, identity_of, is_earlier_process, is_over
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import (
    Conflict,
    InvalidInput,
    PreconditionFailed,
    TailraceError,
    TooLarge,
)

# A partition: a piece of work that one worker at a time holds, and its state.
#
#   UNASSIGNED ──acquire──► ASSIGNED ──complete──► COMPLETED
#       ▲                    │ │ │                    (kept, so that it is never made again)
#       ├──────give up───────┘ │ └──fail, too often──► FAILED ──reset──► UNASSIGNED
#       │                      └──close──► CLOSED ──due──► ASSIGNED
#       └── once the lease of an owner is over, the partition may be acquired again
#
# Partitions are values: a change is another value with another `version`, a fresh ULID, so no two
# versions of a partition are equal and a write whose answer was lost is recognised by its version.
#
# `rank_ms` is the order within a source: when the partition came to be available, later by
# `ageing_ms` for each step of priority. It does not depend on the present time, so an index can
# keep it; and every later partition has a higher rank, so no partition waits for ever. Equal ranks
# go by creation, by place in the supplier's list, by key.
#
# All stores have the same limits, so that a program may change its store:
#
#   key        1 to 1,024 bytes of UTF-8    DynamoDB's sort key
#   source     1 to 1,024 bytes of UTF-8    DynamoDB's hash key, with a status after it
#   progress   up to 300 KiB of UTF-8       DynamoDB's item has 400 KB, all attributes together
#   priority   a number from -1e9 to 1e9    milliseconds of waiting that still are exact


AGEING_MS: Final = 600_000
"""What one step of priority is worth in waiting, unless told otherwise."""
MAX_KEY_BYTES: Final = 1024
MAX_SOURCE_BYTES: Final = 1024
MAX_PROGRESS_BYTES: Final = 300 * 1024
MAX_PRIORITY: Final = 1e9


class Status(StrEnum):
    """The state of a partition; the values are the contract's."""

    UNASSIGNED = "UNASSIGNED"
    ASSIGNED = "ASSIGNED"
    CLOSED = "CLOSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class NewPartition:
    """A partition that a supplier makes. `key` is unique in its source.

    Low priorities come first.
    """

    key: str
    priority: float = 0.0
    progress: str | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """One version of a partition. `source` is `[prefix|]name|type`, `progress` opaque JSON."""

    source: str
    key: str
    version: str
    created_ms: int
    available_ms: int
    """Since when it waits, or from when it may be taken: created, given up, due to reopen."""
    status: Status = Status.UNASSIGNED
    owner: str | None = None
    """`identity/ULID of the process`, None when free."""
    epoch: int = 0
    """The fencing token: above that of every earlier owner, also over a deletion."""
    until_ms: int = 0
    """While ASSIGNED: when ownership ends."""
    progress: str | None = None
    closed_count: int = 0
    attempts: int = 0
    """Acquisitions since progress was last made."""
    last_error: str | None = None
    priority: float = 0.0
    place: int = 0
    """Where it stood in the supplier's list."""
    ended_ms: int = 0
    """When it was completed or failed."""

    def rank_ms(self, ageing_ms: int = AGEING_MS) -> float:
        """The rank among free partitions, in ms; lower ranks come first."""
        return self.available_ms + self.priority * ageing_ms

    def order(self, ageing_ms: int = AGEING_MS) -> tuple[float, int, int, str]:
        """The sort key of a source's free partitions."""
        return (self.rank_ms(ageing_ms), self.created_ms, self.place, self.key)

    @property
    def identity(self) -> str | None:
        """The owner's identity without its process, which may reacquire at once after a restart."""
        return None if self.owner is None else identity_of(self.owner)


def check_new(source: str, new: NewPartition) -> None:
    """Raises `InvalidInput`, `TooLarge` for a new partition that breaks a limit."""
    check_name("source", source, MAX_SOURCE_BYTES)
    check_name("key", new.key, MAX_KEY_BYTES)
    check_changed(new.progress, new.priority)


def check_changed(progress: str | None, priority: float) -> None:
    """Raises `InvalidInput`, `TooLarge` for a change that breaks a limit."""
    if progress is not None and _size("progress", progress) > MAX_PROGRESS_BYTES:
        raise TooLarge(
            f"progress has more than {MAX_PROGRESS_BYTES} bytes",
            field="progress",
            hint="Store large data in an object of its own, and its key as progress.",
        )
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidInput(f"{priority} is not from -1e9 to 1e9", field="priority")


def check_name(field: str, name: str, most: int) -> None:
    """Raises `InvalidInput` for a name that is empty or longer than `most` bytes."""
    size = _size(field, name)
    if not 0 < size <= most:
        raise InvalidInput(f"a {field} has 1 to {most} bytes, this has {size}", field=field)


def _size(field: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the {field} is not text: {error}", field=field) from error


# State transitions of a partition: pure functions from one version to the next.
#
# An owner stops before its time is over, and another waits until after it:
# `tailrace.coordination.lease` says when. Functions return a partition without a new `version`: the
# store's writer adds one.


_ERROR_CHARACTERS: Final = 1000


@dataclass(frozen=True, slots=True)
class Claim:
    """The claimant of partitions, and the terms of its leases. Times in milliseconds."""

    owner: str
    """`identity/ULID of the process`."""
    lease_ms: int
    at_least_ms: int
    """The store's time is not before this: what a taker reckons with."""
    at_most_ms: int
    """The store's time is not beyond this: from when the lease is counted."""
    max_attempts: int = 0
    """After so many acquisitions without progress a partition FAILs; 0 is never."""
    ageing_ms: int = AGEING_MS
    restarted: bool = False
    """Whether an earlier process of the same identity is surely gone: its leases are free.

    Earlier by its ULID: two that share an identity by mistake do not take from each other in turn.
    """

    @property
    def identity(self) -> str:
        """The claimant's owner name without its process."""
        return identity_of(self.owner)


def expired(partition: Partition, at_least_ms: int) -> bool:
    """Whether the owner has stopped, by any clock."""
    return partition.status is Status.ASSIGNED and is_over(partition.until_ms, at_least_ms)


def left_behind(partition: Partition, claim: Claim) -> bool:
    """Whether the owner's time is over, or it is an earlier process of the claimant."""
    if partition.status is not Status.ASSIGNED:
        return False
    owner = partition.owner if claim.restarted else None
    earlier = owner is not None and is_earlier_process(owner, claim.owner)
    return earlier or expired(partition, claim.at_least_ms)


def free(partition: Partition, claim: Claim) -> bool:
    """Whether the claimant may acquire the partition now."""
    if partition.status in (Status.UNASSIGNED, Status.CLOSED):
        return claim.at_least_ms >= partition.available_ms
    return left_behind(partition, claim)


def exhausted(partition: Partition, claim: Claim) -> bool:
    """Whether the partition was tried too often, so that it is `failed` instead of acquired."""
    return 0 < claim.max_attempts <= partition.attempts


def chosen(partitions: Iterable[Partition], claim: Claim, count: int) -> list[Partition]:
    """Up to `count` free partitions, in the order in which they are due.

    Partitions that an owner left behind come first, since their unfinished work may be urgent.
    CLOSED partitions that are due and UNASSIGNED ones follow together, by rank.
    """
    found = [one for one in partitions if free(one, claim)]
    found.sort(key=lambda one: (one.status is not Status.ASSIGNED, one.order(claim.ageing_ms)))
    return found[:count]


def acquired(partition: Partition, claim: Claim, epoch: int) -> Partition:
    """The partition as acquired; `epoch` is above every earlier one of this key."""
    assert epoch > partition.epoch, "an epoch must rise"
    return replace(
        partition,
        status=Status.ASSIGNED,
        owner=claim.owner,
        epoch=epoch,
        until_ms=claim.at_most_ms + claim.lease_ms,
        attempts=partition.attempts + 1,
        ended_ms=0,
    )


def worn_out(partition: Partition, claim: Claim) -> Partition:
    """Returns the partition as FAILED because it is `exhausted`, with the known reason."""
    reason = f"given out {partition.attempts} times without progress"
    if partition.owner is not None:
        reason += f", last to {partition.owner}"
    if partition.last_error is not None:
        reason += f"; {partition.last_error}"
    return failed(partition, reason, claim.at_most_ms, max_attempts=claim.max_attempts)


def renewed(partition: Partition, until_ms: int) -> Partition:
    """The lease extended; its end never moves back."""
    return replace(partition, until_ms=max(until_ms, partition.until_ms))


def saved(partition: Partition, progress: str | None, until_ms: int) -> Partition:
    """The partition with progress; progress that differs resets the count of attempts."""
    moved = progress != partition.progress
    return renewed(
        replace(partition, progress=progress, attempts=1 if moved else partition.attempts), until_ms
    )


def completed(partition: Partition, now_ms: int) -> Partition:
    """The partition as COMPLETED for good; its progress stays readable."""
    return replace(
        partition, status=Status.COMPLETED, owner=None, until_ms=0, attempts=0, ended_ms=now_ms
    )


def closed(partition: Partition, now_ms: int, reopen_ms: int, max_closed: int = 0) -> Partition:
    """The partition as CLOSED until `reopen_ms`.

    The close of number `max_closed` completes it for good; with 0 none does.
    """
    again = replace(partition, closed_count=partition.closed_count + 1, attempts=0)
    if 0 < max_closed <= again.closed_count:
        return completed(again, now_ms)
    return replace(again, status=Status.CLOSED, owner=None, until_ms=0, available_ms=reopen_ms)


def given_up(
    partition: Partition, now_ms: int, *, priority: float | None = None, later_ms: int = 0
) -> Partition:
    """The partition as free again with its progress; no attempt is counted, as nothing failed.

    It is available from now, or from `later_ms` on.
    """
    return replace(
        partition,
        status=Status.UNASSIGNED,
        owner=None,
        until_ms=0,
        attempts=max(partition.attempts - 1, 0),
        priority=partition.priority if priority is None else priority,
        available_ms=max(now_ms, later_ms),
    )


def failed(
    partition: Partition, reason: str, now_ms: int, *, max_attempts: int = 0, retry_ms: int = 0
) -> Partition:
    """The partition as free from `retry_ms` on; FAILED after `max_attempts` attempts (0: never)."""
    about = replace(partition, owner=None, until_ms=0, last_error=reason[:_ERROR_CHARACTERS])
    if 0 < max_attempts <= partition.attempts:
        return replace(about, status=Status.FAILED, ended_ms=now_ms)
    return replace(about, status=Status.UNASSIGNED, available_ms=max(now_ms, retry_ms))


def reset(partition: Partition, now_ms: int, *, forget: bool = False) -> Partition:
    """An operator frees the partition at once, whatever its status; `forget` drops its progress.

    A holder that still works finds its version replaced, and stops.
    """
    return replace(
        partition,
        status=Status.UNASSIGNED,
        owner=None,
        until_ms=0,
        attempts=0,
        last_error=None,
        progress=None if forget else partition.progress,
        closed_count=0 if forget else partition.closed_count,
        available_ms=now_ms,
        ended_ms=0,
    )


def reopened(partition: Partition, now_ms: int) -> Partition:
    """An operator reopens a partition that had ended; its work continues from its progress.

    The last reason of a failure stays readable.
    """
    return replace(
        partition,
        status=Status.UNASSIGNED,
        owner=None,
        until_ms=0,
        attempts=0,
        available_ms=now_ms,
        ended_ms=0,
    )


def ruled_out(partition: Partition, reason: str, now_ms: int) -> Partition:
    """An operator makes the partition FAILED until it is reset or reopened."""
    return replace(
        partition,
        status=Status.FAILED,
        owner=None,
        until_ms=0,
        last_error=reason[:_ERROR_CHARACTERS],
        ended_ms=now_ms,
    )


# The contract of a store of partitions, which every implementation fulfils.
#
# Every write is conditional on the `version` that was read, and thereby on owner and epoch. A store
# resolves writes whose answer was lost itself: it looks for the version that it wrote. An error is
# never reported as an empty result: no method answers "no work" because it could not look. All
# methods raise `StoreUnavailable` (nothing was changed), `OutcomeUnknown` (the write may have
# happened, and the store could not find out) and `Damaged`.
#
# `update` changes a partition in any store by a process that does not hold it. `expire_for_ever`
# removes COMPLETED partitions after their `ttl`, in stores that do not do so themselves. Each
# process checks at intervals; several that do so cost requests and nothing else. A partition that
# cannot be removed now is removed later, since nothing depends on its removal.


_TRIES: Final = 8
_LONGEST_PAUSE_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Acquired:
    """The result of an acquire: leases, and partitions that FAILED after too many attempts."""

    partitions: Sequence[Partition]
    failed: Sequence[Partition] = ()


@dataclass(frozen=True, slots=True)
class PartitionPage:
    """Partitions in the order of their keys; `after` gives the next page, None at the end."""

    partitions: Sequence[Partition]
    after: str | None


class PartitionStore(Protocol):
    """Partitions by source and key."""

    @property
    def time(self) -> StoreTime:
        """The clock that all users of the store share."""
        ...

    async def start(self) -> None:
        """Prepares the store, once and before all else: makes tables, checks access.

        Raises `InvalidInput` for settings that the store refuses.
        """
        ...

    async def close(self) -> None:
        """Closes connections. Every write that was answered is stored already."""
        ...

    async def create(self, source: str, new: Sequence[NewPartition]) -> list[str]:
        """Makes those partitions that do not exist, UNASSIGNED; returns their keys in order.

        A key that exists stays as it is, whatever its status. Keys given twice are made once.
        Places go up in the order of `new`. In any crash each partition is made whole or not at all.
        """
        ...

    async def get(self, source: str, key: str) -> Partition | None:
        """Returns the newest version; it includes every write that was answered before the call."""
        ...

    async def acquire(
        self, source: str, claim: Claim, count: int, *, only: str | None = None, random: bool = True
    ) -> Acquired:
        """Acquires up to `count` partitions, as `chosen` and `acquired` say.

        Partitions that are `exhausted` become FAILED instead, with a reason. With `only`, that key
        alone is acquired, if it is free. With `random` the order holds within a part of the source
        that the store chooses, so that workers rarely conflict; without, in the whole source.
        """
        ...

    async def change(self, old: Partition, wanted: Partition) -> Partition:
        """Replaces `old` by `wanted` under a new version; returns what is stored.

        Raises `PreconditionFailed` if `old` is not the newest version, `NotFound` if the
        partition does not exist any more.
        """
        ...

    async def delete(self, old: Partition) -> None:
        """Removes the partition. Raises as `change`; `NotFound` if it was removed already.

        If it is made again under the same key, its epochs continue above the earlier ones.
        """
        ...

    async def page(
        self,
        source: str,
        *,
        status: Status | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> PartitionPage:
        """Returns partitions sorted by key, after `after`."""
        ...

    async def counts(self, source: str) -> Mapping[Status, int]:
        """The exact number of partitions by status; a status without partitions may be missing."""
        ...

    async def sources(self) -> list[str]:
        """The names of sources with partitions, sorted."""
        ...

    async def purge(self, source: str, ended_before_ms: int) -> int:
        """Removes partitions that were COMPLETED before that time; returns their number."""
        ...


async def update(
    store: PartitionStore, source: str, key: str, change: Callable[[Partition], Partition]
) -> Partition | None:
    """The partition after `change`, which is called again whenever another writer was faster.

    Returns None if there is no such partition. Raises what `change` raises, `Conflict` after too
    many lost races, and as `PartitionStore.change`.
    """
    for _ in range(_TRIES):
        found = await store.get(source, key)
        if found is None:
            return None
        wanted = change(found)
        if wanted == found:
            return found
        with suppress(PreconditionFailed):
            return await store.change(found, wanted)
    raise Conflict(f"{key!r} of {source!r} changes all the time")


async def expire_for_ever(store: PartitionStore, clock: Clock, ttl_ms: int) -> None:
    """Removes expired partitions at intervals, until it is cancelled."""
    pause = min(ttl_ms / 1000, _LONGEST_PAUSE_SECONDS)
    while True:
        await clock.sleep(pause)
        await expire(store, ttl_ms)


async def expire(store: PartitionStore, ttl_ms: int) -> int:
    """Removes expired partitions once and returns how many; skips sources that are unreadable."""
    removed = 0
    try:
        for source in await store.sources():
            before_ms = store.time.at_least_ms() - ttl_ms
            removed += await _purged(store, source, before_ms)
    except TailraceError:  # the store is away: workers report that
        pass
    return removed


async def _purged(store: PartitionStore, source: str, before_ms: int) -> int:
    try:
        return await store.purge(source, before_ms)
    except TailraceError:  # a damaged source must not keep others from expiring
        return 0
