"""The response bodies of the queue's routes. Times are RFC 3339, UTC."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel

from service.queue.catalog import Leased, ListedObject, ListedSegments, SegmentName
from service.queue.queue import GivenLease, GroupLag, lag_of
from tailrace.coordination.groups import ConsumerGroup
from tailrace.logstore import ulid
from tailrace.logstore.clock import rfc3339


class NextSegment(BaseModel):
    """A segment that is leased to the caller."""

    id: str
    url: str
    """Path of its records on this service."""
    group: str
    epoch: int
    """Fencing token for commit, failed and renew."""
    attempts: int
    node: str
    seq: int
    low: str
    """Lowest ULID in it; empty if it has no rows."""
    high: str
    rows: int
    bytes: int
    etag: str
    """Of the segment as it is stored."""
    lease_until: str
    """By the store's clock."""
    lease_seconds: float


class Renewed(BaseModel):
    """A lease that was renewed."""

    id: str
    group: str
    epoch: int
    lease_until: str


class Done(BaseModel):
    """A segment that was committed, or given back."""

    id: str
    group: str
    epoch: int
    message: str


class SegmentState(BaseModel):
    """The state of a segment in a group."""

    state: str
    """`new`, `leased`, `waiting` (to be tried again), `failed`, `committed`, or `evicted`."""
    epoch: int | None = None
    attempts: int | None = None
    lease_until: str | None = None
    reason: str | None = None


class SegmentRow(BaseModel):
    """A stored segment."""

    id: str
    url: str
    node: str
    seq: int
    bytes: int
    stored: str
    aside: bool
    """It cannot be read, and counts as empty."""
    groups: dict[str, SegmentState]


class LagRow(BaseModel):
    """Segments that a group has not committed, without those that failed."""

    segments: int
    bytes: int
    seconds: float
    """Since the oldest of them was stored."""


class EvictionRow(BaseModel):
    """When and why a group lost its place."""

    at: str
    reason: str


class GroupRow(BaseModel):
    """A consumer group."""

    group: str
    state: str
    """`starting`, `active`, or `evicted`."""
    start: str
    created: str
    since: str
    """When it was made, or reset last."""
    epoch: int
    lag: LagRow | None
    """Null for an evicted group."""
    leased: int
    failed: int
    committed_segments: int
    committed_bytes: int
    dropped: int
    """Failed segments that nobody decided on in time."""
    evictions: int
    evicted: EvictionRow | None


class OpenSegment(SegmentState):
    """A segment that was handed out and is not committed."""

    id: str


class GroupDetails(GroupRow):
    """A group with all that is open in it."""

    cursors: dict[str, int]
    """Of each node: all segments up to it are committed or failed."""
    open: list[OpenSegment]


class SegmentPage(BaseModel):
    """Groups, and a page of the segments."""

    groups: list[GroupRow]
    segments: list[SegmentRow]
    next: str | None
    """`after` of the next page; null if this is the last."""
    waiting: list[str]
    """Why segments of a node are not handed out, if something is in the way."""


class GroupList(BaseModel):
    """All groups; `unreadable` are the keys of those that are damaged, or of a newer version."""

    groups: list[GroupRow]
    unreadable: list[str] = []


class DeletedLines(BaseModel):
    """Lines that do not exist any more."""

    fqn: str
    run: str | None
    """Null: of all runs of the pipeline."""
    ulid: str
    """The lines up to this ULID; what is written later counts."""


class DeletionPage(BaseModel):
    """Deletions, by pipeline and run."""

    deletions: list[DeletedLines]
    next: str | None
    """`after` of the next page; null if this is the last."""


class Retried(BaseModel):
    """Segments that are free again."""

    group: str
    retried: list[str]


class Forgotten(BaseModel):
    """A group that was deleted."""

    group: str
    message: str


def deletion_page(
    found: Iterable[tuple[str, str | None, int]], after: str | None, limit: int
) -> DeletionPage:
    """Returns at most `limit` of the deletions (pipeline, run, highest ULID) after a place."""
    places = sorted((f"{fqn}/{run or ''}", fqn, run, t) for fqn, run, t in found)
    first = 0 if after is None else bisect_right(places, after, key=lambda one: one[0])
    page = places[first : first + limit]
    more = first + limit < len(places)
    return DeletionPage(
        deletions=[DeletedLines(fqn=fqn, run=run, ulid=ulid.encode(t)) for _, fqn, run, t in page],
        next=page[-1][0] if more else None,
    )


def url_of(name: SegmentName) -> str:
    """Returns the path at which a segment is read."""
    return f"/segments/{quote(name.id, safe='')}"


def given_segment(group: str, given: GivenLease, lease_seconds: float) -> NextSegment:
    """Returns the answer to `POST /segments/next`."""
    lease, segment = given.lease, given.segment
    return NextSegment(
        id=lease.name.id,
        url=url_of(lease.name),
        group=group,
        epoch=lease.epoch,
        attempts=lease.attempts,
        node=lease.name.node,
        seq=lease.name.seq,
        low=segment.low,
        high=segment.high,
        rows=segment.rows,
        bytes=segment.size,
        etag=segment.etag.strip('"'),
        lease_until=rfc3339(lease.until_ms),
        lease_seconds=lease_seconds,
    )


def renewed(group: str, lease: Leased) -> Renewed:
    """Returns the answer to a renewal."""
    until = rfc3339(lease.until_ms)
    return Renewed(id=lease.name.id, group=group, epoch=lease.epoch, lease_until=until)


def group_row(group: ConsumerGroup, catalog: ListedSegments, now_ms: int) -> GroupRow:
    """Returns a summary of a group."""
    return GroupRow(**_summary(group, lag_of(group, catalog, now_ms)))


def group_details(group: ConsumerGroup, catalog: ListedSegments, now_ms: int) -> GroupDetails:
    """Returns a group with all that is open in it."""
    found = [
        OpenSegment(
            id=SegmentName(node, seq).id, **state_of(group, SegmentName(node, seq)).model_dump()
        )
        for node, cursor in sorted(group.cursors.items())
        for seq in sorted({*cursor.pending, *cursor.failed})
    ]
    return GroupDetails(
        **_summary(group, lag_of(group, catalog, now_ms)),
        cursors={node: cursor.decided for node, cursor in group.cursors.items()},
        open=found,
    )


def segment_row(
    name: SegmentName, listed: ListedObject, quarantined: bool, groups: list[ConsumerGroup]
) -> SegmentRow:
    """Returns a segment and its state in each group."""
    return SegmentRow(
        id=name.id,
        url=url_of(name),
        node=name.node,
        seq=name.seq,
        bytes=listed.size,
        stored=rfc3339(listed.modified_ms),
        aside=quarantined,
        groups={group.name: state_of(group, name) for group in groups},
    )


def state_of(group: ConsumerGroup, name: SegmentName) -> SegmentState:
    """Returns the state of a segment in a group."""
    cursor = group.cursor(name.node)
    pending, failed = cursor.pending.get(name.seq), cursor.failed.get(name.seq)
    if failed is not None:
        return SegmentState(
            state="failed", epoch=failed.epoch, attempts=failed.attempts, reason=failed.reason
        )
    if pending is not None:
        return SegmentState(
            state="leased" if pending.until_ms else "waiting",
            epoch=pending.epoch,
            attempts=pending.attempts,
            lease_until=rfc3339(pending.until_ms) if pending.until_ms else None,
            reason=pending.reason,
        )
    if name.seq <= cursor.seq:
        return SegmentState(state="committed")
    return SegmentState(state="evicted" if group.evicted else "new")


def _summary(group: ConsumerGroup, lag: GroupLag) -> dict[str, Any]:
    evicted = group.evicted
    return {
        "group": group.name,
        "state": group.state,
        "start": group.start,
        "created": rfc3339(group.created_ms),
        "since": rfc3339(group.since_ms),
        "epoch": group.epoch,
        "lag": None
        if evicted
        else LagRow(segments=lag.segments, bytes=lag.bytes, seconds=lag.seconds),
        "leased": lag.leased,
        "failed": lag.failed,
        "committed_segments": group.committed_segments,
        "committed_bytes": group.committed_bytes,
        "dropped": group.dropped,
        "evictions": group.evictions,
        "evicted": evicted and EvictionRow(at=rfc3339(evicted.at_ms), reason=evicted.reason),
    }
