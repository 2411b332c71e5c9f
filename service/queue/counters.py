"""The counters of the segment queue; `service.metrics.queue` reads them at a scrape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.queue.lag import Lag


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
