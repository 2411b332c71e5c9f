"""Metrics of the segment queue: OK Log's counters by the last words of their names, and lags."""

from __future__ import annotations

from service.metrics.declared import Declared, counter, gauge

QUEUE: tuple[Declared, ...] = (
    counter(
        "ingest_committed_segments",
        "Segments that consumers committed, by this node.",
        lambda s: s.queue.committed_segments,
    ),
    counter(
        "ingest_committed_bytes",
        "Bytes of the segments that consumers committed, as they are stored.",
        lambda s: s.queue.committed_bytes,
    ),
    counter(
        "ingest_failed_segments",
        "Segments that consumers gave back, or whose lease ran out.",
        lambda s: s.queue.failed_segments,
    ),
    counter(
        "queue_leases_lost",
        "Commits, renewals and returns that were refused with 409 `lease-lost`.",
        lambda s: s.queue.lost,
    ),
    counter(
        "queue_conflicts",
        "Changes of a group that were repeated because another node was faster.",
        lambda s: s.queue.conflicts,
    ),
    counter(
        "queue_report_failures",
        "Reports on all groups that failed because of the store.",
        lambda s: s.queue.report_failures,
    ),
    gauge("queue_waiting", "Consumers that wait at this node.", lambda s: s.queue.waiting),
    gauge(
        "queue_lag_segments",
        "Segments that the group has not committed, without failed ones.",
        lambda s: {name: lag.segments for name, lag in s.queue.lags.items()},
        "group",
    ),
    gauge(
        "queue_lag_bytes",
        "Bytes of the segments that the group has not committed.",
        lambda s: {name: lag.bytes for name, lag in s.queue.lags.items()},
        "group",
    ),
    gauge(
        "queue_lag_seconds",
        "Age of the oldest stored segment that the group has not committed.",
        lambda s: {name: lag.seconds for name, lag in s.queue.lags.items()},
        "group",
    ),
    gauge(
        "queue_leased_segments",
        "Segments that consumers of the group hold.",
        lambda s: {name: lag.leased for name, lag in s.queue.lags.items()},
        "group",
    ),
    gauge(
        "queue_failed_segments",
        "Segments of the group that were tried too often and wait for a decision.",
        lambda s: {name: lag.failed for name, lag in s.queue.lags.items()},
        "group",
    ),
    gauge(
        "queue_groups_evicted",
        "Groups that lost their place and that nobody has reset.",
        lambda s: s.queue.evicted,
    ),
    counter(
        "queue_evictions",
        "How often the group lost its place.",
        lambda s: dict(s.queue.evictions),
        "group",
    ),
    counter(
        "queue_dropped_segments",
        "Failed segments of the group that were given up because nobody decided on them.",
        lambda s: dict(s.queue.dropped),
        "group",
    ),
)
