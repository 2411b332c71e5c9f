"""What is counted where it happens: plain numbers that `service.metrics` reads at a scrape."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

_BOUNDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class Durations:
    """A histogram of seconds: an observation is one search in a dozen numbers."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one duration."""
        self.counts[bisect_left(_BOUNDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds with cumulative counts, as Prometheus wants them."""
        total = 0
        found = []
        for bound, count in zip((*_BOUNDS, float("inf")), self.counts, strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return found


@dataclass(slots=True)
class HttpCounters:
    """What the HTTP doors count. All only grow, but `readers`."""

    append_requests: int = 0
    append_refused: int = 0
    close_requests: int = 0
    body_bytes: int = 0
    replaced: int = 0
    disconnects: int = 0
    readers: int = 0
    stream_events: int = 0
    stream_bytes: int = 0


@dataclass(slots=True)
class StoreCounters:
    """What the metered store counts, by operation."""

    requests: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, Durations] = field(default_factory=dict)
