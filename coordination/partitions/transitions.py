"""The state transitions of a partition: pure functions from one version to the next.

An owner stops before its time is over, and another waits until after it: `coordination.lease`
says when. Functions return a partition without a new `version`: the store's writer adds one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from coordination.lease import identity_of, is_earlier_process, is_over
from coordination.partitions.partition import AGEING_MS, Partition, Status

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
    """The partition as FAILED because it is `exhausted`, with what is known of the reason."""
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
        replace(partition, progress=progress, attempts=1 if moved else partition.attempts),
        until_ms,
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
