"""The state transitions of a segment in a group: pure functions from one version to the next.

    new ──lease──► pending ──commit──► committed
                    │   ▲ └─ lease over, or failed: free again after a back-off
                    │   └──────────────────────┘
                    └─ `max_attempts` leases over or failed ──► failed ──retry──► pending

A pipeline's segments do not fail by attempts: it reads them without a lease, and its own checkpoint
records its progress, so an expired lease only shows that one of its processes ended. A lease is
valid until the store's time is certainly past its end; no consumer takes an expired one before
`tailrace.coordination.lease` says that it is over. Each function recognises its own effect, so it
may be applied a second time to a version that has it already: a lease by its claim, the others by
the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from service.queue.catalog import Leased, Segment, SegmentName
from service.settings import QueueSettings
from tailrace.coordination.groups import (
    ConsumerGroup,
    FailedSegment,
    GroupCursor,
    GroupStart,
    PendingSegment,
    State,
)
from tailrace.coordination.lease import is_over, next_epoch
from tailrace.logstore.errors import GroupEvicted, LeaseLost, NotFound
from tailrace.logstore.retry import doubled

_MOST_FAILED: Final = 1000
_RECENT: Final = 512
_REASON_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class TimeInterval:
    """The interval that contains the store's time: both ends in milliseconds."""

    at_least_ms: int
    at_most_ms: int


def fresh(name: str, start: GroupStart, moment: TimeInterval) -> ConsumerGroup:
    """A new group; it retains all segments until its cursors are set."""
    now = moment.at_most_ms
    return ConsumerGroup(name, State.STARTING, start, now, now)


def begun(group: ConsumerGroup, first: Mapping[str, int]) -> ConsumerGroup:
    """The group with its first cursors: each node's segments up to a number are excluded."""
    cursors = {node: GroupCursor(seq) for node, seq in first.items() if seq > 0}
    return replace(group, state=State.ACTIVE, cursors=cursors)


def reset(group: ConsumerGroup, start: GroupStart, moment: TimeInterval) -> ConsumerGroup:
    """The group restarted at another place; its leases are lost, and epochs continue to rise."""
    return replace(
        group,
        state=State.STARTING,
        start=start,
        since_ms=moment.at_most_ms,
        cursors={},
        evicted=None,
    )


def lease(
    group: ConsumerGroup,
    upcoming: Sequence[Segment],
    claim: str,
    lease_ms: int,
    moment: TimeInterval,
    settings: QueueSettings,
) -> tuple[ConsumerGroup, Leased | None]:
    """Leases the oldest free segment for `lease_ms`; None if no segment is free.

    `upcoming` are the next segments that were never handed out, oldest first, each node's in
    sequence. Raises `GroupEvicted`.
    """
    _check_place(group)
    if group.state is not State.ACTIVE:
        return group, None  # reset by a change before this one: it begins with the next
    found = _claimed(group, claim)
    if found is not None:
        return group, found
    group = overdue(_without_damaged(group, upcoming, moment), moment, settings)
    free = _oldest_free(group, moment)
    new = _next_new(group, upcoming) if _outstanding(group) < settings.outstanding else None
    if new is not None and (free is None or new.low < free[1].low):
        return _given(
            group, new.name, PendingSegment(0, 0, 0, "", new.low, new.size), claim, lease_ms, moment
        )
    if free is not None:
        return _given(group, *free, claim, lease_ms, moment)
    return group, None


def commit(
    group: ConsumerGroup, name: SegmentName, epoch: int, moment: TimeInterval
) -> tuple[ConsumerGroup, None]:
    """Commits the segment for good. Raises `LeaseLost`, `GroupEvicted`, `NotFound`."""
    if (*name, epoch) in group.recent:
        return group, None
    pending = _held(group, name, epoch, moment)
    done = replace(
        _without(group, name),
        recent=tuple(sorted((*group.recent, (*name, epoch)), key=lambda one: one[2])[-_RECENT:]),
        committed_segments=group.committed_segments + 1,
        committed_bytes=group.committed_bytes + pending.size,
    )
    return done, None


def fail(
    group: ConsumerGroup,
    name: SegmentName,
    epoch: int,
    reason: str,
    moment: TimeInterval,
    settings: QueueSettings,
) -> tuple[ConsumerGroup, None]:
    """Frees the segment after a back-off, or fails it after too many attempts.

    Raises as `commit`.
    """
    cursor = group.cursor(name.node)
    pending, failed = cursor.pending.get(name.seq), cursor.failed.get(name.seq)
    if pending is not None and pending.epoch == epoch and not pending.until_ms:
        return group, None
    if failed is not None and failed.epoch == epoch:
        return group, None
    pending = _held(group, name, epoch, moment)
    return _returned(group, name, pending, reason, moment, settings), None


def renew(
    group: ConsumerGroup, name: SegmentName, epoch: int, lease_ms: int, moment: TimeInterval
) -> tuple[ConsumerGroup, Leased]:
    """Extends the lease; its end never moves back. Raises as `commit`."""
    pending = _held(group, name, epoch, moment)
    until = max(pending.until_ms, moment.at_most_ms + lease_ms)
    longer = replace(pending, until_ms=until)
    return _with(group, name, longer), Leased(name, epoch, until, pending.attempts)


def given_back(group: ConsumerGroup, claim: str) -> tuple[ConsumerGroup, None]:
    """Frees a segment whose answer could not be delivered; no attempt is counted."""
    found = _claimed(group, claim)
    if found is None:
        return group, None
    pending = group.cursor(found.name.node).pending[found.name.seq]
    again = replace(pending, until_ms=0, attempts=pending.attempts - 1, claim="", available_ms=0)
    return _with(group, found.name, again), None


def retry(
    group: ConsumerGroup, names: Sequence[SegmentName] | None
) -> tuple[ConsumerGroup, list[SegmentName]]:
    """Frees failed segments (all, or these) again, and restarts their count of attempts.

    Raises `GroupEvicted`, and `NotFound` for a segment that has not failed.
    """
    _check_place(group)
    failed = {
        SegmentName(node, seq): f
        for node, c in group.cursors.items()
        for seq, f in c.failed.items()
    }
    chosen = sorted(failed) if names is None else list(names)
    for name in chosen:
        if name not in failed:
            raise NotFound(
                f"{name.id} has not failed in group {group.name!r}",
                hint="GET /segments/groups/{group} lists failed segments.",
            )
        old = failed[name]
        again = PendingSegment(old.epoch, 0, 0, "", old.low, old.size, 0, old.reason)
        group = _with(group, name, again)
    return group, chosen


def expired_between(before: ConsumerGroup, after: ConsumerGroup, moment: TimeInterval) -> int:
    """The number of expired leases that were taken over, or that failed their segment."""
    return sum(
        _left_behind(pending, moment) and after.cursor(name.node).pending.get(name.seq) != pending
        for name, pending in _pending(before)
    )


def overdue(group: ConsumerGroup, moment: TimeInterval, settings: QueueSettings) -> ConsumerGroup:
    """Fails segments whose leases expired too often, since they may crash their consumers."""
    for name, pending in _pending(group):
        if _left_behind(pending, moment) and _too_often(group, pending, settings):
            reason = pending.reason or f"its lease expired; it was leased {pending.attempts} times"
            group = _failed(group, name, pending, reason, moment)
    return group


def _too_often(group: ConsumerGroup, pending: PendingSegment, settings: QueueSettings) -> bool:
    return pending.attempts >= settings.max_attempts and not group.of_pipeline


# --- parts -------------------------------------------------------------------------


def _check_place(group: ConsumerGroup) -> None:
    if group.evicted is not None:
        raise GroupEvicted(f"group {group.name!r} was evicted: {group.evicted.reason}")


def _pending(group: ConsumerGroup) -> list[tuple[SegmentName, PendingSegment]]:
    return [
        (SegmentName(node, seq), pending)
        for node, cursor in group.cursors.items()
        for seq, pending in cursor.pending.items()
    ]


def _outstanding(group: ConsumerGroup) -> int:
    return sum(len(cursor.pending) for cursor in group.cursors.values())


def _left_behind(pending: PendingSegment, moment: TimeInterval) -> bool:
    return pending.until_ms > 0 and is_over(pending.until_ms, moment.at_least_ms)


def _oldest_free(
    group: ConsumerGroup, moment: TimeInterval
) -> tuple[SegmentName, PendingSegment] | None:
    free = [
        (name, pending)
        for name, pending in _pending(group)
        if _left_behind(pending, moment)
        or (not pending.until_ms and moment.at_least_ms >= pending.available_ms)
    ]
    return min(free, key=lambda one: (one[1].low, one[0]), default=None)


def _next_new(group: ConsumerGroup, upcoming: Sequence[Segment]) -> Segment | None:
    return next((s for s in upcoming if s.name.seq > group.cursor(s.name.node).seq), None)


def _without_damaged(
    group: ConsumerGroup, upcoming: Sequence[Segment], moment: TimeInterval
) -> ConsumerGroup:
    """Fails unreadable segments when it is their turn, before they are handed out."""
    while True:
        new = _next_new(group, upcoming)
        if new is None or new.damage is None:
            return group
        moved = replace(group.cursor(new.name.node), seq=new.name.seq)
        pending = PendingSegment(group.epoch, 0, 0, "", new.low, new.size)
        group = _failed(
            group.at(new.name.node, moved), new.name, pending, f"damaged: {new.damage}", moment
        )


def _given(
    group: ConsumerGroup,
    name: SegmentName,
    pending: PendingSegment,
    claim: str,
    lease_ms: int,
    moment: TimeInterval,
) -> tuple[ConsumerGroup, Leased]:
    epoch = next_epoch(group.epoch, moment.at_most_ms)
    until, attempts = moment.at_most_ms + lease_ms, pending.attempts + 1
    taken = replace(pending, epoch=epoch, until_ms=until, attempts=attempts, claim=claim)
    given = replace(_with(group, name, taken), epoch=epoch)
    return given, Leased(name, epoch, until, attempts)


def _claimed(group: ConsumerGroup, claim: str) -> Leased | None:
    for name, pending in _pending(group):
        if pending.claim == claim and pending.until_ms:
            return Leased(name, pending.epoch, pending.until_ms, pending.attempts)
    return None


def _held(
    group: ConsumerGroup, name: SegmentName, epoch: int, moment: TimeInterval
) -> PendingSegment:
    """The lease, if it is valid. Raises `LeaseLost`, `GroupEvicted`, `NotFound`."""
    _check_place(group)
    cursor = group.cursor(name.node)
    if name.seq > cursor.seq:
        raise NotFound(
            f"group {group.name!r} was never given segment {name.id}",
            hint="Ids come from POST /segments/next; GET /segments lists all of them.",
        )
    pending = cursor.pending.get(name.seq)
    if pending is None or pending.epoch != epoch or not pending.until_ms:
        raise LeaseLost(f"epoch {epoch} does not hold {name.id} in group {group.name!r}")
    if moment.at_least_ms >= pending.until_ms:
        raise LeaseLost(f"the lease of {name.id} with epoch {epoch} has run out")
    return pending


def _returned(
    group: ConsumerGroup,
    name: SegmentName,
    pending: PendingSegment,
    reason: str,
    moment: TimeInterval,
    settings: QueueSettings,
) -> ConsumerGroup:
    reason = reason[:_REASON_CHARACTERS]
    if _too_often(group, pending, settings):
        return _failed(group, name, pending, reason or "its consumer reported a failure", moment)
    times = 0 if group.of_pipeline else pending.attempts - 1
    pause = doubled(settings.retry_seconds, times, settings.longest_retry_seconds)
    available = moment.at_most_ms + round(pause * 1000)
    again = replace(pending, until_ms=0, claim="", available_ms=available, reason=reason or None)
    return _with(group, name, again)


def _failed(
    group: ConsumerGroup,
    name: SegmentName,
    pending: PendingSegment,
    reason: str,
    moment: TimeInterval,
) -> ConsumerGroup:
    cursor = group.cursor(name.node)
    gone = FailedSegment(
        pending.epoch,
        moment.at_most_ms,
        pending.attempts,
        reason[:_REASON_CHARACTERS],
        pending.low,
        pending.size,
    )
    left = {seq: one for seq, one in cursor.pending.items() if seq != name.seq}
    moved = replace(cursor, pending=left, failed={**cursor.failed, name.seq: gone})
    return _within_bounds(group.at(name.node, moved))


def _within_bounds(group: ConsumerGroup) -> ConsumerGroup:
    """Limits failed segments, so that a consumer that fails all of them cannot grow the object."""
    failed = [
        (one.failed_ms, node, seq)
        for node, cursor in group.cursors.items()
        for seq, one in cursor.failed.items()
    ]
    for _, node, seq in sorted(failed)[: max(len(failed) - _MOST_FAILED, 0)]:
        cursor = group.cursor(node)
        left = {other: one for other, one in cursor.failed.items() if other != seq}
        group = replace(group.at(node, replace(cursor, failed=left)), dropped=group.dropped + 1)
    return group


def _with(group: ConsumerGroup, name: SegmentName, pending: PendingSegment) -> ConsumerGroup:
    """The group with this pending segment, which is then not among the failed ones."""
    cursor = group.cursor(name.node)
    failed = {seq: one for seq, one in cursor.failed.items() if seq != name.seq}
    moved = replace(
        cursor,
        seq=max(cursor.seq, name.seq),
        pending={**cursor.pending, name.seq: pending},
        failed=failed,
    )
    return group.at(name.node, moved)


def _without(group: ConsumerGroup, name: SegmentName) -> ConsumerGroup:
    cursor = group.cursor(name.node)
    left = {seq: one for seq, one in cursor.pending.items() if seq != name.seq}
    return group.at(name.node, replace(cursor, pending=left))
