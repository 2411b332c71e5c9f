"""Where partitions are kept: the contract that every store fulfils.

Stores: `coordination.partitions.in_memory` (one process), `coordination.object_store` (a
folder or S3), `coordination.dynamodb`. One conformance suite runs on all of them
(`tests/contracts/partition_store.py`).

Every write is conditional on the `version` that was read, and with it on owner and epoch.
A store resolves writes whose answer was lost itself: it looks for the version that it wrote.
Errors are errors: none of these answers "no work" because it could not look.
All methods raise `StoreUnavailable` (nothing was changed), `OutcomeUnknown` (it may have been,
and the store could not find out) and `Damaged`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordination.partitions.partition import NewPartition, Partition, Status
from coordination.partitions.transitions import Claim
from coordination.storetime import StoreTime


@dataclass(frozen=True, slots=True)
class Acquired:
    """What an acquire brought: leases, and partitions that FAILED as they were tried too often."""

    partitions: Sequence[Partition]
    failed: Sequence[Partition] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """Partitions in the order of their keys; `after` continues, None at the end."""

    partitions: Sequence[Partition]
    after: str | None


class PartitionStore(Protocol):
    """Partitions by source and key."""

    @property
    def time(self) -> StoreTime:
        """The clock that all who share the store go by."""
        ...

    async def start(self) -> None:
        """Once, before all others: makes tables, looks whether it may be used.

        Raises `InvalidInput` for settings that the store refuses.
        """
        ...

    async def close(self) -> None:
        """Lets connections go; written is what was answered."""
        ...

    async def create(self, source: str, new: Sequence[NewPartition]) -> list[str]:
        """Makes those that are not there, UNASSIGNED, and gives their keys in order.

        A key that exists, whatever its status, stays as it is. Keys given twice are made once.
        Places go up in the order of `new`. In any crash each is made whole or not at all.
        """
        ...

    async def get(self, source: str, key: str) -> Partition | None:
        """The newest version, read after every write that was answered before."""
        ...

    async def acquire(
        self,
        source: str,
        claim: Claim,
        count: int,
        *,
        only: str | None = None,
        spread: bool = True,
    ) -> Acquired:
        """Up to `count` partitions for the claimant, as `transitions.chosen` and `acquired` say.

        Those that are `exhausted` become FAILED instead, with a reason. `only` one key, if it is
        free. With `spread` the order holds within a part of the source that the store chooses,
        so that workers do not meet; without, over all of it.
        """
        ...

    async def change(self, old: Partition, wanted: Partition) -> Partition:
        """Puts `wanted`, under a new version, in the place of `old`; gives what is stored.

        Raises `PreconditionFailed` if `old` is not the newest version, `NotFound` if the
        partition is gone.
        """
        ...

    async def delete(self, old: Partition) -> None:
        """Removes it. Raises as `change`; gone already is `NotFound`.

        Made again under the same key its epochs go on above those it had.
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
        """How many are in each status, exact; statuses that none is in may be missing."""
        ...

    async def sources(self) -> list[str]:
        """Sources with partitions, sorted."""
        ...

    async def purge(self, source: str, ended_before_ms: int) -> int:
        """Removes COMPLETED partitions that ended before that time, giving their number."""
        ...
