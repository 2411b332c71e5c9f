"""What consumer groups say to the deletion of segments, and what happens to those that are late.

A segment that table and texts have stays as long as a group needs it: it was not handed out,
is leased, or has failed and nobody has decided. A group that keeps it for `evict_after_hours`
is evicted, and a failed segment that old is given up: one dead consumer cannot fill the
store. Time counts from when the segment was stored, the group made or reset, the segment
failed, whichever was last. A group that is only behind, while nothing could be deleted
without it either, is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compactor.context import Compactor
from compactor.ingest.plan import StoredSegment
from coordination.groups import Group, State, change_group, drop_failed, evict, read_groups

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Candidates:
    """What could go of a node's segments, lowest first; and which are quarantined."""

    segments: Sequence[StoredSegment]
    quarantined: frozenset[int]


async def settle(compactor: Compactor, candidates: Mapping[str, Candidates]) -> int:
    """Evicts the groups that are late, and gives their number.

    Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
    """
    now = compactor.clock.now_ms()
    oldest = now - round(compactor.evict_after_hours * _HOUR_MS)

    def settled(group: Group) -> Group:
        return _settled(group, candidates, oldest, now)

    evicted = 0
    for group in await read_groups(compactor.store):
        if settled(group) == group:
            continue
        after = await change_group(
            compactor.store, group.name, settled, fresh_id=compactor.fresh_id
        )
        compactor.reached("group settled")
        evicted += after is not None and after.evictions > group.evictions
    return evicted


async def free(
    compactor: Compactor, candidates: Mapping[str, Candidates]
) -> Mapping[str, Sequence[StoredSegment]]:
    """Of each node the segments that no group needs now, as far as all below them are free.

    Raises `StoreUnavailable`, `Damaged`.
    """
    groups = await read_groups(compactor.store)
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
    """The group without failed segments that nobody decides on; evicted, if it is late."""
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


def _undecided(group: Group, node: str, seq: int) -> bool:
    """Whether the segment itself waits for the group, not only for one below it that failed."""
    cursor = group.cursor(node)
    return group.state is State.STARTING or seq in cursor.pending or seq > cursor.seq
