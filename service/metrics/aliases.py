"""Names of OK Log's and OpenMetadata's metrics for the metrics of this service.

OK Log's names have `tailrace_` instead of `oklog_`. Some are second names of ours, for dashboards
and alerts that were made for OK Log. The object store does the work of OK Log's replication:
objects that a node puts there count as replicated. The other metrics of OK Log's store are the
compactor's, those of its forwarder are the forwarder's.

OpenMetadata's names are for existing dashboards and rules. Its design (`om_streamable_logs_*`) and
its code (`om_s3_*` and the rest) spell some differently: both are exported, and the help of each
describes its value in this service. Metrics of its client, and those that its design calls legacy,
are left out: a constant metric would mislead on a dashboard.
"""

from __future__ import annotations

from collections.abc import Iterator

from service.metrics.declared import (
    DeclaredMetric,
    Kind,
    MetricSources,
    Read,
    counter,
    gauge,
    histogram,
)
from service.metrics.node import lag_bytes
from service.runtime.counters import READS, WRITES

OKLOG: tuple[DeclaredMetric, ...] = (
    gauge(
        "ingest_connected_clients",
        "HTTP connections that are open. One carries batches of every durability, OK Log's"
        " modality, so the label says `any`.",
        lambda s: {"any": s.http.connections},
        "modality",
    ),
    counter(
        "ingest_writer_bytes_written",
        "Bytes of text appended to the journal.",
        lambda s: s.writer.journal.taken_bytes,
    ),
    counter("ingest_writer_records_written", "Records stored.", lambda s: s.writer.appender.lines),
    counter("ingest_writer_syncs", "Group syncs of the journal.", lambda s: s.writer.journal.syncs),
    counter(
        "ingest_writer_flushes",
        "Segments cut, by reason: `age`, `size`, or `demand` (a caller waits for the segment).",
        lambda s: s.writer.shipper.counters.cuts,
        "reason",
    ),
    histogram(
        "ingest_segment_flush_age_seconds",
        "Age of the oldest line of a segment when it is cut.",
        lambda s: s.writer.shipper.counters.ages,
    ),
    histogram(
        "ingest_segment_flush_size_bytes",
        "Bytes of text of a segment when it is cut.",
        lambda s: s.writer.shipper.counters.sizes,
    ),
    counter(
        "store_replicated_segments",
        "Segments that this node put into the object store, which replicates them.",
        lambda s: {"egress": s.writer.shipper.uploads},
        "direction",
    ),
    counter(
        "store_replicated_bytes",
        "Bytes of these segments, as stored.",
        lambda s: {"egress": s.writer.shipper.counters.uploaded_bytes},
        "direction",
    ),
    gauge(
        "cluster_size",
        "Processes of nodes in the register, with this one.",
        lambda s: s.node.members.size,
    ),
    histogram(
        "api_request_duration_seconds",
        "Time of requests, of a stream the time that it was open. `path` is a route's pattern or"
        " `none`; the status is 499 if the client left before an answer began.",
        lambda s: s.http.request_seconds,
        "method",
        "path",
        "status_code",
    ),
)


def _failures_in_a_row(sources: MetricSources) -> int:
    shipper, flusher = sources.writer.shipper, sources.node.run_logs.flusher
    return max(flusher.pending.worst, shipper.consecutive_failures)


def _spelled(
    kind: Kind, text: str, read: Read, *names: str, label: str = "", value: str = ""
) -> Iterator[DeclaredMetric]:
    """One metric under all its names, with one fixed label if upstream has one."""
    labels = (label,) if label else ()
    for name in names:
        yield DeclaredMetric(name, kind, text, _labelled(read, value) if label else read, labels)


def _labelled(read: Read, value: str) -> Read:
    def labelled(sources: MetricSources) -> dict[str, float]:
        reading = read(sources)
        assert isinstance(reading, int | float)
        return {value: reading}

    return labelled


OPENMETADATA: tuple[DeclaredMetric, ...] = (
    *_spelled(
        "counter",
        "Batches acknowledged, also those known already.",
        lambda s: s.http.stored,
        "om_streamable_logs_sent",
        "om_streamable_logs_logs_sent",
    ),
    *_spelled(
        "counter",
        "Batches that could be decoded and were not stored.",
        lambda s: s.http.not_stored,
        "om_streamable_logs_failed",
        "om_streamable_logs_logs_failed",
    ),
    *_spelled(
        "histogram",
        "From a decoded batch to its acknowledgement.",
        lambda s: s.http.append_seconds,
        "om_streamable_logs_latency_seconds",
        "om_streamable_logs_log_shipment_seconds",
    ),
    *_spelled(
        "histogram",
        "Records per acknowledged batch.",
        lambda s: s.http.batch_lines,
        "om_streamable_logs_batch_size",
    ),
    *_spelled(
        "counter",
        "Puts and composes of the object store that were done.",
        lambda s: s.store.done(*WRITES),
        "om_s3_writes",
        "om_streamable_logs_s3_writes",
        label="operation",
        value="log_write",
    ),
    *_spelled(
        "counter",
        "Gets and streams of the object store that were done.",
        lambda s: s.store.done(*READS),
        "om_s3_reads",
        "om_streamable_logs_s3_reads",
        label="operation",
        value="log_read",
    ),
    *_spelled(
        "counter",
        "Calls of the object store that failed or whose outcome is unknown.",
        lambda s: s.store.errors,
        "om_s3_errors",
        "om_streamable_logs_s3_errors",
    ),
    *_spelled(
        "histogram",
        "Time of calls of the object store, of all operations.",
        lambda s: s.store.all_seconds(),
        "om_s3_operation_duration_seconds",
        "om_streamable_logs_s3_operation_duration_seconds",
    ),
    *_spelled(
        "gauge",
        "Bytes per second handed to the object store, mean of the last minute.",
        lambda s: s.store.write_throughput.per_second(s.now),
        "om_s3_write_throughput_bytes",
    ),
    *_spelled(
        "gauge",
        "Composes under way, which S3 does as multipart uploads.",
        lambda s: s.store.running.get("compose", 0),
        "om_s3_multipart_uploads_active",
    ),
    *_spelled(
        "gauge",
        "Bytes of text that are not yet in their runs' chunks, of all runs (on disk, not in "
        "memory as upstream).",
        lag_bytes,
        "om_streamable_logs_pending_flush_bytes",
    ),
    *_spelled(
        "gauge",
        "Flushes that failed in a row, of the run with the most, or uploads of segments.",
        _failures_in_a_row,
        "om_streamable_logs_consecutive_flush_failures",
    ),
)

_BREAKER = "Of the client: its circuit breaker. This service has none."
_QUEUE = "Of the client: its queue. The service's is `tailrace_run_log_lag_lines`."
_SESSION = "Runs need no session: every node accepts every batch of a run."
_INGESTION = "Counted by the client, and reported only in its own log."
_PARTS = "Legacy in upstream's design; see `om_s3_multipart_uploads_active`."

NOT_EXPORTED: dict[str, str] = {
    "om_streamable_logs_compression_ratio": "Of the client. Compare `tailrace_body_bytes` with "
    "`tailrace_journal_appended_bytes`.",
    "om_streamable_logs_circuit_breaker_state": _BREAKER,
    "om_streamable_logs_circuit_breaker_trips_total": _BREAKER,
    "om_streamable_logs_circuit_breaker_recoveries_total": _BREAKER,
    "om_streamable_logs_queue_size": _QUEUE,
    "om_streamable_logs_queue_overflows_total": _QUEUE,
    "om_streamable_logs_queue_utilization": _QUEUE,
    "om_streamable_logs_sessions_created_total": _SESSION,
    "om_streamable_logs_sessions_reused_total": _SESSION,
    "om_streamable_logs_sessions_active": _SESSION,
    "om_ingestion_logs_queued_total": _INGESTION,
    "om_ingestion_logs_dropped_total": _INGESTION,
    "om_ingestion_fallback_active_total": _INGESTION,
    "om_s3_pending_part_uploads": _PARTS,
    "om_streamable_logs_pending_part_uploads": _PARTS,
    "om_streamable_logs_multipart_uploads": _PARTS,
}
"""OpenMetadata's names that this service does not export, and why."""
