"""A lease as operators see it, whichever kind it is: one shape for lists, pages and programs.

    kind      `partition` (work in a partition store) or `lock` (a named lease of nodes and runs)
    lag       for how long the work is due and not done: free or held since it came to be
              available, FAILED since it failed; none of what is COMPLETED or not due yet
    age       since it was made
    held      whether an owner has it by any clock: acting on it takes it from somebody

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
    """What a lease is of."""

    PARTITION = "partition"
    LOCK = "lock"


@dataclass(frozen=True, slots=True)
class Entry:
    """One lease as it stands, `age_ms` and `lag_ms` at the time it was looked at."""

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
        """As JSON, the same keys for every lease; `whole` adds its progress, which may be long."""
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


def of_partition(partition: Partition, time: StoreTime) -> Entry:
    """A partition, seen now. `time` must be known, as it is after any answer of the store."""
    now_ms = time.at_least_ms()
    return Entry(
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


def of_named(source: str, key: str, lease: LeaseRecord, time: StoreTime) -> Entry:
    """A named lease, seen now; `key` is its partition as text."""
    now_ms = time.at_least_ms()
    owned = lease.owner is not None
    return Entry(
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
