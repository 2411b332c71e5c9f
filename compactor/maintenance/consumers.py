"""Finds the segments that consumer groups still need, and evicts groups that are late.

A segment that table and run logs have stays as long as a group needs it: it was not handed out,
is leased, or has failed and nobody has retried it. A group that keeps it for `evict_after_hours`
is evicted, and a failed segment that old is given up, so that one dead consumer cannot fill the
store. Time counts from when the segment was stored, the group was created or reset, or the
segment failed, whichever was last. A group that is only behind, while nothing could be deleted
without it either, is left alone.

The group of a log pipeline is evicted when it alone keeps more than `segments.max_bytes`, or than
its file says, however old that is: a pipeline that is paused over a holiday loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compactor.context import Compactor
from compactor.ingest.plan import StoredSegment
from compactor.report import Report
from coordination.groups import Group, State, change_group, drop_failed, evict, read_groups
from logstore.state_kinds import advice

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Candidates:
    """Segments of a node that could be removed, lowest first; and the quarantined ones."""

    segments: Sequence[StoredSegment]
    quarantined: frozenset[int]


async def settle(compactor: Compactor, candidates: Mapping[str, Candidates]) -> int:
    """Evicts groups that are late, and gives their number.

    Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
    """
    now = compactor.clock.now_ms()
    oldest = now - round(compactor.evict_after_hours * _HOUR_MS)

    def settled(group: Group) -> Group:
        if group.of_pipeline:
            return _within(group, candidates, compactor.pipeline_bytes, now)
        return _settled(group, candidates, oldest, now)

    evicted = 0
    for group in (await read_groups(compactor.store)).groups:
        if settled(group) == group:
            continue
        after = await change_group(
            compactor.store, group.name, settled, fresh_id=compactor.fresh_id
        )
        compactor.reached("group settled")
        evicted += after is not None and after.evictions > group.evictions
    return evicted


async def free(
    compactor: Compactor, candidates: Mapping[str, Candidates], report: Report
) -> Mapping[str, Sequence[StoredSegment]]:
    """For each node, the segments that no group needs, as far as all below them are free.

    A group that cannot be read may need all of them, which is an alarm. Raises `StoreUnavailable`.
    """
    groups, unreadable = await read_groups(compactor.store)
    for key, why in unreadable.items():
        report.alarm(f"no segment is removed, because a group may need it: {why}. {advice(key)}")
    if unreadable:
        return {}
    return {node: _free(groups, node, of_node) for node, of_node in candidates.items()}


def _free(groups: Sequence[Group], node: str, candidates: Candidates) -> list[StoredSegment]:
    found: list[StoredSegment] = []
    for segment in candidates.segments:
        if any(group.holds(node, segment.seq, candidates.quarantined) for group in groups):
            return found
        found.append(segment)
    return found


def _settled(
    group: Group, candidates: Mapping[str, Candidates], oldest_ms: int, now_ms: int
) -> Group:
    """The group without old failed segments; evicted, if it is late."""
    if group.state is State.EVICTED or group.since_ms > oldest_ms:
        return group
    for node, of_node in candidates.items():
        for segment in of_node.segments:
            if segment.modified_ms > oldest_ms or not group.holds(
                node, segment.seq, of_node.quarantined
            ):
                continue
            failed = group.cursor(node).failed.get(segment.seq)
            if failed is not None:
                if failed.failed_ms <= oldest_ms:
                    group = drop_failed(group, node, segment.seq)
            elif _undecided(group, node, segment.seq):
                return evict(group, now_ms, f"it kept segment {segment.seq} of {node} for too long")
    return group


def _within(
    group: Group, candidates: Mapping[str, Candidates], most_bytes: int, now_ms: int
) -> Group:
    """The group of a pipeline; evicted, if it keeps too much."""
    kept = sum(
        segment.size
        for node, of_node in candidates.items()
        for segment in of_node.segments
        if group.holds(node, segment.seq, of_node.quarantined)
    )
    name = "segments_max_bytes of its file" if group.max_bytes else "segments.max_bytes"
    most_bytes = group.max_bytes or most_bytes
    if kept <= most_bytes:
        return group
    return evict(group, now_ms, f"it kept {kept} bytes of segments, and {name} is {most_bytes}")


def _undecided(group: Group, node: str, seq: int) -> bool:
    """Whether the group needs the segment itself, not only a failed one below it."""
    cursor = group.cursor(node)
    return group.state is State.STARTING or seq in cursor.pending or seq > cursor.seq
