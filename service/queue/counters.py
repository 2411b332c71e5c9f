"""What the segment queue counts; `service.metrics.queue` reads it at a scrape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.queue.lag import Lag


@dataclass(slots=True)
class QueueCounters:
    """Counters of this node; `lags` are of all groups, as they were seen last."""

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
