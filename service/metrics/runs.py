"""Metrics of run logs: flushed, merged, published, closed, swept."""

from __future__ import annotations

from service.metrics.declared import Declared, Sources, counter, gauge


def lag_bytes(sources: Sources) -> int:
    """Bytes of text that are not yet in their run's chunks, in a segment or not."""
    return sources.writer.shipper.unshipped.bytes + sources.node.run_logs.flusher.pending.bytes


def lag_seconds(sources: Sources) -> float:
    """Seconds since the oldest text that is not yet in its run's chunks was synced."""
    waiting = sources.node.run_logs.flusher.pending.oldest_seconds(sources.now)
    return max(waiting, sources.writer.shipper.unshipped.seconds)


RUN_LOGS: tuple[Declared, ...] = (
    gauge(
        "watermarks_rebuilt",
        "Watermarks, of this node and of lost ones, that were damaged and rebuilt since the start.",
        lambda s: s.node.marks.taken_again,
        alias="text_marks_taken_again",
    ),
    gauge(
        "run_log_lag_lines",
        "Synced lines that are not yet in their runs' chunks.",
        lambda s: max(0, s.writer.journal.synced_pos - s.node.run_logs.flushed_pos),
        alias="text_lag_lines",
    ),
    gauge(
        "run_log_lag_bytes",
        "Bytes of text that are not yet in their runs' chunks.",
        lag_bytes,
        alias="text_lag_bytes",
    ),
    gauge(
        "run_log_lag_seconds",
        "For how long the oldest line that is not yet in its run's chunks has waited.",
        lag_seconds,
        alias="text_lag_seconds",
    ),
    gauge(
        "runs_waiting",
        "Runs with lines in segments that are not yet in their chunks.",
        lambda s: len(s.node.run_logs.flusher.pending),
    ),
    gauge(
        "runs_failing",
        "Runs whose last flush failed.",
        lambda s: s.node.run_logs.flusher.pending.failing,
    ),
    gauge(
        "run_consecutive_failures",
        "Flushes that failed in a row, of the run with the most.",
        lambda s: s.node.run_logs.flusher.pending.worst,
    ),
    gauge(
        "flush_alert_after_failures",
        "The setting `runs.pending_flush_alert_after_failures`, for alert rules.",
        lambda s: s.node.run_logs.alert_after_failures,
    ),
    counter(
        "run_flushes",
        "Flushes of a run's new lines into a chunk.",
        lambda s: s.node.run_logs.flusher.flushes,
    ),
    counter(
        "run_flush_failures",
        "Flushes that failed and are tried again.",
        lambda s: s.node.run_logs.flusher.failures,
    ),
    counter("chunks", "Chunks written.", lambda s: s.node.run_logs.run_flush.chunks_written),
    counter(
        "chunk_bytes",
        "Bytes of run logs written in chunks.",
        lambda s: s.node.run_logs.run_flush.bytes_written,
    ),
    counter(
        "chunk_duplicates",
        "Batches that a chunk left out because another copy was there.",
        lambda s: s.node.run_logs.run_flush.left_out,
    ),
    counter(
        "chunk_merges",
        "Merges of chunks into larger ones.",
        lambda s: s.node.run_logs.merger.merges,
        alias="folds",
    ),
    counter(
        "partials",
        "Partial logs (`partial.txt`) published.",
        lambda s: s.node.run_logs.partials.published,
    ),
    gauge(
        "unreadable_segments",
        "Segments whose bytes are not what was written.",
        lambda s: s.node.run_logs.backlog.unreadable,
    ),
    counter(
        "runs_closed", "Runs whose final log was made.", lambda s: s.node.run_logs.closer.closes
    ),
    gauge(
        "closes_waiting",
        "Closes that are recorded and not finished.",
        lambda s: s.node.run_logs.closer.unfinished,
    ),
    counter(
        "close_failures",
        "Closes that failed and are tried again.",
        lambda s: s.node.run_logs.closer.failures,
    ),
    counter(
        "runs_reopened",
        "Closed runs that late batches reopened.",
        lambda s: s.node.run_logs.closer.reopened,
    ),
    counter(
        "lines_taken_back",
        "Lines that this node acknowledged while it was cut off, and that a deletion at another"
        " node took back.",
        lambda s: s.node.run_logs.taken_back.lines,
    ),
    counter(
        "runs_finalised",
        "Runs closed because nobody did it in time.",
        lambda s: s.node.run_logs.sweeper.finalised,
    ),
    counter(
        "runs_expired",
        "Runs removed at the end of their retention.",
        lambda s: s.node.run_logs.sweeper.expired,
    ),
    counter("runs_deleted", "Deletions of runs.", lambda s: s.node.run_logs.deleter.deleted),
    counter(
        "chunks_swept",
        "Chunks removed that no manifest names any more.",
        lambda s: s.node.run_logs.sweeper.orphans,
    ),
    counter(
        "chunks_vanished",
        "Chunks that a manifest names and somebody removed or overwrote.",
        lambda s: s.node.run_logs.chunk_repairer.vanished,
    ),
    counter(
        "chunks_repaired",
        "Such chunks rebuilt from segments or table.",
        lambda s: s.node.run_logs.chunk_repairer.repaired,
        alias="chunks_mended",
    ),
    gauge(
        "chunks_lost",
        "Runs with such a chunk that could not be rebuilt.",
        lambda s: len(s.node.run_logs.chunk_repairer.problems()),
    ),
    counter(
        "runs_rebuilt",
        "Runs that had lost their whole log, rebuilt from segments or table.",
        lambda s: s.node.run_logs.rebuilder.rebuilt,
        alias="runs_remade",
    ),
    gauge(
        "damaged_manifests",
        "Runs that the last sweep could not read.",
        lambda s: s.node.run_logs.sweeper.damaged,
    ),
)
