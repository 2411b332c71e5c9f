"""The contract of a store of partitions, which every implementation fulfils.

Stores: `coordination.partitions.in_memory` (one process), `coordination.object_store` (a
folder or S3), `coordination.dynamodb`. One conformance suite runs on all of them
(`tests/contracts/partition_store.py`).

Every write is conditional on the `version` that was read, and thereby on owner and epoch.
A store resolves writes whose answer was lost itself: it looks for the version that it wrote.
An error is never reported as an empty result: no method answers "no work" because it could not
look. All methods raise `StoreUnavailable` (nothing was changed), `OutcomeUnknown` (the write
may have happened, and the store could not find out) and `Damaged`.

`update` changes a partition in any store by a process that does not hold it. `expire_for_ever`
removes COMPLETED partitions after their `ttl`, in stores that do not do so themselves. Each process
checks at intervals; several that do so cost requests and nothing else. A partition that cannot be
removed now is removed later, since nothing depends on its removal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from coordination.partitions.partition import NewPartition, Partition, Status
from coordination.partitions.transitions import Claim
from coordination.storetime import StoreTime
from logstore.clock import Clock
from logstore.errors import Conflict, PreconditionFailed, TailraceError

_TRIES: Final = 8
_LONGEST_PAUSE_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Acquired:
    """The result of an acquire: leases, and partitions that FAILED after too many attempts."""

    partitions: Sequence[Partition]
    failed: Sequence[Partition] = ()


@dataclass(frozen=True, slots=True)
class Page:
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
        self,
        source: str,
        claim: Claim,
        count: int,
        *,
        only: str | None = None,
        random: bool = True,
    ) -> Acquired:
        """Acquires up to `count` partitions, as `transitions.chosen` and `acquired` say.

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
    ) -> Page:
        """Partitions sorted by key, behind `after`."""
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
