"""The lag of a group: the segments that it has not committed."""

from __future__ import annotations

from dataclasses import dataclass

from coordination.groups import Group, State
from service.queue.catalog import Catalog
from service.queue.segment import Name


@dataclass(frozen=True, slots=True)
class Lag:
    """`seconds` is the time since the oldest of them was stored; unknown for an evicted group."""

    segments: int = 0
    bytes: int = 0
    seconds: float = 0.0
    leased: int = 0
    failed: int = 0


def lag_of(group: Group, catalog: Catalog, now_ms: int) -> Lag:
    """The lag of a group, as far as the listing reaches. FAILED segments are counted separately."""
    if group.state is State.EVICTED:
        return Lag()
    behind = []
    for node in catalog.nodes:
        cursor = group.cursor(node)
        open_ = [catalog.listed(Name(node, seq)) for seq in cursor.pending]
        behind += [listed for listed in open_ if listed is not None]
        behind += [listed for _, listed in catalog.after(node, cursor.seq)]
    oldest = min([listed.modified_ms for listed in behind], default=now_ms)
    cursors = group.cursors.values()
    return Lag(
        segments=len(behind),
        bytes=sum([listed.size for listed in behind]),
        seconds=max(now_ms - oldest, 0) / 1000,
        leased=sum(1 for c in cursors for one in c.pending.values() if one.until_ms),
        failed=sum(len(c.failed) for c in cursors),
    )
