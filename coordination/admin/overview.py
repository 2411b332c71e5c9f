"""A lease as operators see it: one shape for both kinds, in lists, pages and programs.

    kind      `partition` (work in a partition store) or `lock` (a named lease of nodes and runs)
    lag       for how long the work has been due and is not done: for a free or held lease since
              the work became available, for a FAILED one since it failed; a COMPLETED lease,
              and one that is not due yet, has no lag
    age       the time since the lease was made
    held      whether an owner has the lease by any clock; acting on it takes it from that owner

Times are milliseconds of the clock of the store that has the lease.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from coordination.lease import is_over
from coordination.named.record import LeaseRecord
from coordination.partitions.partition import Partition, Status
from coordination.partitions.transitions import expired
from coordination.storetime import StoreTime


class Kind(StrEnum):
    """The kind of a lease: of a partition, or a named one."""

    PARTITION = "partition"
    LOCK = "lock"


@dataclass(frozen=True, slots=True)
class LeaseEntry:
    """One lease; `age_ms` and `lag_ms` are as of the moment when it was read."""

    kind: Kind
    source: str
    key: str
    status: Status
    owner: str | None
    held: bool
    epoch: int
    version: str
    created_ms: int
    until_ms: int
    age_ms: int
    lag_ms: int | None = None
    available_ms: int | None = None
    ended_ms: int = 0
    attempts: int = 0
    closed_count: int = 0
    priority: float = 0.0
    last_error: str | None = None
    progress: str | None = None

    def spelled(self, *, whole: bool) -> dict[str, Any]:
        """The entry as JSON, with the same keys for every lease.

        `whole` adds the progress, which may be long.
        """
        row = {
            "kind": self.kind.value,
            "source": self.source,
            "key": self.key,
            "status": self.status.value,
            "owner": self.owner,
            "held": self.held,
            "epoch": self.epoch,
            "until": self.until_ms or None,
            "age_seconds": self.age_ms / 1000,
            "lag_seconds": None if self.lag_ms is None else self.lag_ms / 1000,
            "attempts": self.attempts,
            "closed_count": self.closed_count,
            "priority": self.priority,
            "last_error": self.last_error,
            "created_at": self.created_ms,
            "available_at": self.available_ms,
            "ended_at": self.ended_ms or None,
            "version": self.version,
        }
        return row | {"progress": self.progress} if whole else row


def of_partition(partition: Partition, time: StoreTime) -> LeaseEntry:
    """The entry of a partition, seen now. `time` is known after any answer of the store."""
    now_ms = time.at_least_ms()
    return LeaseEntry(
        Kind.PARTITION,
        partition.source,
        partition.key,
        partition.status,
        partition.owner,
        partition.status is Status.ASSIGNED and not expired(partition, now_ms),
        partition.epoch,
        partition.version,
        partition.created_ms,
        partition.until_ms,
        age_ms=max(now_ms - partition.created_ms, 0),
        lag_ms=_lag_ms(partition, now_ms),
        available_ms=partition.available_ms,
        ended_ms=partition.ended_ms,
        attempts=partition.attempts,
        closed_count=partition.closed_count,
        priority=partition.priority,
        last_error=partition.last_error,
        progress=partition.progress,
    )


def of_named(source: str, key: str, lease: LeaseRecord, time: StoreTime) -> LeaseEntry:
    """The entry of a named lease, seen now; `key` is its partition as text."""
    now_ms = time.at_least_ms()
    owned = lease.owner is not None
    return LeaseEntry(
        Kind.LOCK,
        source,
        key,
        Status.ASSIGNED if owned else Status.UNASSIGNED,
        lease.owner,
        owned and not is_over(lease.until_ms, now_ms),
        lease.epoch,
        lease.version,
        lease.created_ms,
        lease.until_ms if owned else 0,
        age_ms=max(now_ms - lease.created_ms, 0),
    )


def _lag_ms(partition: Partition, now_ms: int) -> int | None:
    if partition.status is Status.COMPLETED:
        return None
    since_ms = partition.available_ms
    if partition.status is Status.FAILED:
        since_ms = partition.ended_ms
    return now_ms - since_ms if now_ms >= since_ms else None
