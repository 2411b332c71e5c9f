"""Counters that are raised where things happen; `service.metrics` reads them at a scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
LINES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5)


class Distribution:
    """A histogram: an observation is one search in a dozen numbers. Bounds are upper bounds."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def add(self, other: Distribution) -> None:
        """Counts all that another of the same bounds has counted."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def __copy__(self) -> Distribution:
        made = Distribution(self._bounds)
        made.add(self)
        return made

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds with cumulative counts, as Prometheus wants them."""
        total = 0
        found = []
        for bound, count in zip((*self._bounds, float("inf")), self.counts, strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return found


class Throughput:
    """Bytes per second over the last minute; times are monotonic seconds."""

    SECONDS = 60.0

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque()
        self._bytes = 0

    def add(self, now: float, size: int) -> None:
        """Counts bytes that went at `now`."""
        self._recent.append((now, size))
        self._bytes += size
        self._forget(now)

    def per_second(self, now: float) -> float:
        """The mean of the last minute."""
        self._forget(now)
        return self._bytes / self.SECONDS

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] <= now - self.SECONDS:
            self._bytes -= self._recent.popleft()[1]


RequestSeconds: TypeAlias = dict[tuple[str, str, str], Distribution]
"""Times of requests by method, pattern of the route, and status."""


@dataclass(slots=True)
class HttpCounters:
    """What the HTTP API counts. All only grow, but `connections` and `readers`."""

    connections: int = 0
    connections_refused: int = 0
    access_refused: Counter[str] = field(default_factory=Counter)
    connections_timed_out: int = 0
    append_requests: int = 0
    append_refused: int = 0
    shed: int = 0
    close_requests: int = 0
    body_bytes: int = 0
    replaced: int = 0
    disconnects: int = 0
    readers: int = 0
    stream_events: int = 0
    stream_bytes: int = 0
    stored: int = 0
    not_stored: int = 0
    append_seconds: Distribution = field(default_factory=Distribution)
    batch_lines: Distribution = field(default_factory=lambda: Distribution(LINES))
    request_seconds: RequestSeconds = field(default_factory=dict)


Outcome: TypeAlias = Literal["done", "refused", "failed", "unknown", "left"]
"""Of a call of the store: `refused` is an answer (a condition, nothing there), `failed` is
none, `unknown` may have happened, `left` was given up by whoever called."""

WRITES = ("put", "compose")
READS = ("get", "stream")


@dataclass(slots=True)
class StoreCounters:
    """What the metered store counts, by operation.

    `sent` are bytes of bodies handed over, also to calls that failed; `composed` are bytes
    that the store copied within itself. `running` are calls without an answer yet.
    `s3_requests` is the S3 store's own count, by its operation: what one call makes of it.
    """

    requests: dict[tuple[str, str], int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    composed: dict[str, int] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, Distribution] = field(default_factory=dict)
    write_throughput: Throughput = field(default_factory=Throughput)
    s3_requests: Mapping[str, int] = field(default_factory=dict)

    def calls(self, *operations: str) -> int:
        """Calls that have ended, of some operations or of all."""
        chosen = [n for (name, _), n in self.requests.items() if name in operations]
        return sum(chosen if operations else self.requests.values())

    def done(self, *operations: str) -> int:
        """Calls of these operations that did what they were for."""
        return sum([self.requests.get((name, "done"), 0) for name in operations])

    @property
    def errors(self) -> int:
        """Calls that the store did not answer."""
        wrong = ("failed", "unknown")
        return sum([n for (_, outcome), n in self.requests.items() if outcome in wrong])

    def all_seconds(self) -> Distribution:
        """The time of all calls together."""
        total = Distribution()
        for seconds in self.seconds.values():
            total.add(seconds)
        return total


@dataclass(slots=True)
class SyncCounters:
    """What the metered syncer counts. Syncs that hang are in no histogram: `begun` has them."""

    seconds: Distribution = field(default_factory=Distribution)
    begun: dict[object, float] = field(default_factory=dict)

    def waiting_seconds(self, now: float) -> float:
        """How long the oldest sync under way has taken by now; 0 if there is none."""
        return max([now - start for start in self.begun.values()], default=0.0)
