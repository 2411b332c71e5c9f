"""Metrics of the HTTP API (appends, live streams, searches, reports of runs) and the segment queue.

The metrics of the queue are OK Log's counters by the last words of their names, and lags.
"""

from __future__ import annotations

from service.metrics.declared import DeclaredMetric, counter, gauge, histogram

REPORTS: tuple[DeclaredMetric, ...] = (
    counter(
        "reports",
        "Reports of clients on their runs that were stored.",
        lambda s: dict(s.node.status.stored),
        "kind",
    ),
    counter(
        "reports_expired",
        "Reports removed because their run is gone.",
        lambda s: s.node.status.expiry.removed,
    ),
    counter(
        "report_sweep_failures",
        "Sweeps of reports that failed because of the store.",
        lambda s: s.node.status.sweep_failures,
    ),
    counter(
        "status_look_failures",
        "Failed reads of a watched run's status; the run counts as running meanwhile.",
        lambda s: s.node.status.endings.failures,
    ),
)


HTTP: tuple[DeclaredMetric, ...] = (
    gauge("connections", "HTTP connections that are open.", lambda s: s.http.connections),
    counter(
        "connections_refused",
        "Connections refused before routing: too many connections, a malformed request, or too"
        " large a head.",
        lambda s: s.http.connections_refused,
    ),
    counter(
        "access_refused",
        "Requests that the rules of access refused: no-token, invalid-token, scope, quota,"
        " concurrency, other.",
        lambda s: dict(s.http.access_refused),
        "reason",
    ),
    counter(
        "connections_timed_out",
        "Connections ended because their client stalled in a head, a body or a reply.",
        lambda s: s.http.connections_timed_out,
    ),
    counter("append_requests", "Append requests.", lambda s: s.http.append_requests),
    counter(
        "append_refused",
        "Appends and closes answered with an error.",
        lambda s: s.http.append_refused,
    ),
    counter(
        "appends_shed",
        "Appends refused because this node sheds load; clients send them to another node.",
        lambda s: s.http.shed,
    ),
    histogram(
        "append_seconds",
        "From a decoded batch to its acknowledgement.",
        lambda s: s.http.append_seconds,
    ),
    histogram("batch_lines", "Records per acknowledged batch.", lambda s: s.http.batch_lines),
    counter("close_requests", "Close requests.", lambda s: s.http.close_requests),
    counter("body_bytes", "Bytes of append bodies as they were sent.", lambda s: s.http.body_bytes),
    counter(
        "replaced_characters",
        "Characters that were not UTF-8 and became U+FFFD.",
        lambda s: s.http.replaced,
    ),
    counter(
        "door_records",
        "Records that clients of other log stores sent and that were stored, by door.",
        lambda s: dict(s.http.door_records),
        "door",
    ),
    counter(
        "door_repeats",
        "Records that were not stored again, since the same client had sent the same bytes.",
        lambda s: dict(s.http.door_repeats),
        "door",
    ),
    counter(
        "door_refused", "Records that a door refused.", lambda s: dict(s.http.door_refused), "door"
    ),
    counter(
        "disconnects",
        "Clients that disconnected before their body was complete.",
        lambda s: s.http.disconnects,
    ),
    gauge("stream_readers", "Live streams that are open.", lambda s: s.http.readers),
    counter("stream_events", "Frames sent to live streams.", lambda s: s.http.stream_events),
    counter("stream_bytes", "Bytes sent to live streams.", lambda s: s.http.stream_bytes),
    gauge("queries_running", "Searches that run.", lambda s: s.query.running),
    gauge(
        "oldest_query_overdue_seconds",
        "Age of the oldest step of a search that still runs a minute after the search's time"
        " limit.",
        lambda s: s.query.ongoing.overdue_seconds,
    ),
    gauge("queries_waiting", "Searches in the queue.", lambda s: s.query.waiting),
    counter(
        "queries_refused", "Searches refused because the queue was full.", lambda s: s.query.refused
    ),
    counter(
        "queries_stopped",
        "Searches stopped by a limit or by their client.",
        lambda s: s.query.stopped,
    ),
    counter(
        "skip_indexes_damaged",
        "Damaged skip indexes, whose table files searches read completely.",
        lambda s: s.query.indexes.damaged,
    ),
    gauge(
        "scan_copies_bytes",
        "Disk used by copies of table files that searches scan.",
        lambda s: s.query.copies.bytes,
    ),
    counter("scan_copies_made", "Copies of table files made.", lambda s: s.query.copies.made),
    counter(
        "scan_copies_failed",
        "Copies of table files that could not be made, so that searches read the files themselves.",
        lambda s: s.query.copies.failed,
    ),
    gauge(
        "file_cache_bytes",
        "Disk used by cached table files of a store on S3.",
        lambda s: s.query.files.used_bytes,
    ),
    counter(
        "file_cache_fetched",
        "Table files that were fetched from S3 into the cache.",
        lambda s: s.query.files.fetched,
    ),
    counter(
        "file_cache_failed",
        "Table files that could not be fetched or cached, so that searches read S3.",
        lambda s: s.query.files.failed,
    ),
)


QUEUE: tuple[DeclaredMetric, ...] = (
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
        "Changes of a group that were repeated because another node changed it first.",
        lambda s: s.queue.conflicts,
    ),
    counter(
        "queue_report_failures",
        "Reports on all groups that failed because of the store.",
        lambda s: s.queue.report_failures,
    ),
    gauge(
        "queue_waiting",
        "Consumers that wait for a segment at this node.",
        lambda s: s.queue.waiting,
    ),
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
        "Segments of the group that failed too often and wait for an operator's decision.",
        lambda s: {name: lag.failed for name, lag in s.queue.lags.items()},
        "group",
    ),
    gauge("queue_groups_evicted", "Evicted groups that were not reset.", lambda s: s.queue.evicted),
    counter(
        "queue_evictions", "Evictions of the group.", lambda s: dict(s.queue.evictions), "group"
    ),
    counter(
        "queue_dropped_segments",
        "Failed segments of the group that were given up without an operator's decision.",
        lambda s: dict(s.queue.dropped),
        "group",
    ),
)
