"""What the segment queue counts: this node's work, and how far each group is behind.

`service.metrics.queue` reads the counters at a scrape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordination.groups import Group, State
from service.queue.catalog import Catalog, Name


@dataclass(frozen=True, slots=True)
class Lag:
    """Segments that a group has not committed; `seconds` is the time since the oldest was stored.

    An evicted group has no known lag.
    """

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


@dataclass(slots=True)
class QueueCounters:
    """The counters of this node; `lags` has the lags of all groups when they were last read."""

    committed_segments: int = 0
    committed_bytes: int = 0
    failed_segments: int = 0
    lost: int = 0
    conflicts: int = 0
    report_failures: int = 0
    waiting: int = 0
    lags: Mapping[str, Lag] = field(default_factory=dict)
    evicted: int = 0
    evictions: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
