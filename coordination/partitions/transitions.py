"""What may become of a partition: pure functions from one version to the next.

An owner stops before its time is over, a taker waits beyond it: `coordination.lease` says when.
Functions give a partition without a new `version`: the store's writer adds one.
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
    """Who wants partitions, and on what terms. Times in milliseconds."""

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
        """The owner without its process."""
        return identity_of(self.owner)


def expired(partition: Partition, at_least_ms: int) -> bool:
    """Whether its owner has stopped, by any clock."""
    return partition.status is Status.ASSIGNED and is_over(partition.until_ms, at_least_ms)


def left_behind(partition: Partition, claim: Claim) -> bool:
    """Whether an owner is over: out of time, or an earlier process of the claimant's."""
    if partition.status is not Status.ASSIGNED:
        return False
    owner = partition.owner if claim.restarted else None
    earlier = owner is not None and is_earlier_process(owner, claim.owner)
    return earlier or expired(partition, claim.at_least_ms)


def free(partition: Partition, claim: Claim) -> bool:
    """Whether the claimant may take it now."""
    if partition.status in (Status.UNASSIGNED, Status.CLOSED):
        return claim.at_least_ms >= partition.available_ms
    return left_behind(partition, claim)


def exhausted(partition: Partition, claim: Claim) -> bool:
    """Whether it was tried too often: it is to be `failed`, not acquired."""
    return 0 < claim.max_attempts <= partition.attempts


def chosen(partitions: Iterable[Partition], claim: Claim, count: int) -> list[Partition]:
    """Up to `count` that are free, in the order in which they are due.

    Those that an owner left behind come first, since what they hold may be urgent; then
    CLOSED that are due and UNASSIGNED together, by rank.
    """
    found = [one for one in partitions if free(one, claim)]
    found.sort(key=lambda one: (one.status is not Status.ASSIGNED, one.order(claim.ageing_ms)))
    return found[:count]


def acquired(partition: Partition, claim: Claim, epoch: int) -> Partition:
    """Taken; `epoch` is above every earlier one of this key."""
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
    """FAILED instead of acquired, as it is `exhausted`; says what is known of why."""
    reason = f"given out {partition.attempts} times without progress"
    if partition.owner is not None:
        reason += f", last to {partition.owner}"
    if partition.last_error is not None:
        reason += f"; {partition.last_error}"
    return failed(partition, reason, claim.at_most_ms, max_attempts=claim.max_attempts)


def renewed(partition: Partition, until_ms: int) -> Partition:
    """Held for longer, never for less than before."""
    return replace(partition, until_ms=max(until_ms, partition.until_ms))


def saved(partition: Partition, progress: str | None, until_ms: int) -> Partition:
    """With progress; other progress than before starts the counting of attempts anew."""
    moved = progress != partition.progress
    return renewed(
        replace(partition, progress=progress, attempts=1 if moved else partition.attempts),
        until_ms,
    )


def completed(partition: Partition, now_ms: int) -> Partition:
    """Done for good; its progress stays to be read."""
    return replace(
        partition, status=Status.COMPLETED, owner=None, until_ms=0, attempts=0, ended_ms=now_ms
    )


def closed(partition: Partition, now_ms: int, reopen_ms: int, max_closed: int = 0) -> Partition:
    """Done until `reopen_ms`; for good with the close number `max_closed`, 0 is never."""
    again = replace(partition, closed_count=partition.closed_count + 1, attempts=0)
    if 0 < max_closed <= again.closed_count:
        return completed(again, now_ms)
    return replace(again, status=Status.CLOSED, owner=None, until_ms=0, available_ms=reopen_ms)


def given_up(
    partition: Partition, now_ms: int, *, priority: float | None = None, later_ms: int = 0
) -> Partition:
    """Free again with its progress, and no attempt counted: nothing was wrong with it.

    It waits from now, or may be taken from `later_ms` on.
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
    """Free again from `retry_ms` on; FAILED once it was tried `max_attempts` times (0: never)."""
    about = replace(partition, owner=None, until_ms=0, last_error=reason[:_ERROR_CHARACTERS])
    if 0 < max_attempts <= partition.attempts:
        return replace(about, status=Status.FAILED, ended_ms=now_ms)
    return replace(about, status=Status.UNASSIGNED, available_ms=max(now_ms, retry_ms))


def reset(partition: Partition, now_ms: int, *, forget: bool = False) -> Partition:
    """Free again at once, whatever it was; with `forget` also without progress: an operator's act.

    A holder that still works finds its version gone and stops.
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
    """To be done again from where its progress stands, though it had ended: an operator's act.

    What was said last of why it failed stays to be read.
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
    """FAILED however often it was tried, until it is reset or reopened: an operator's act."""
    return replace(
        partition,
        status=Status.FAILED,
        owner=None,
        until_ms=0,
        last_error=reason[:_ERROR_CHARACTERS],
        ended_ms=now_ms,
    )
