"""OK Log's names of metrics that this service has, under `tailrace_` instead of `oklog_`.

Some are second names of ours, for dashboards and alerts that were made for OK Log. OK Log's
replication is the object store's work here: what is replicated is what a node puts there. The
other metrics of OK Log's store are the compactor's, those of its forwarder are the forwarder's.
"""

from __future__ import annotations

from service.metrics.declared import Declared, counter, gauge, histogram

OKLOG: tuple[Declared, ...] = (
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
        "Segments cut, by `age`, `size`, or `demand`: a caller waits for it.",
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
