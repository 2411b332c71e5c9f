"""Metrics of a node: its batches, journal, disk, segments, loops, object store and run logs.

They include the object store as this node sees it, the heartbeats of the loops, and the work of run
logs: flushed, merged, published, closed and swept.
"""

from __future__ import annotations

from math import nan

from service.metrics.declared import DeclaredMetric, MetricSources, counter, gauge, histogram
from service.runtime.health import Heartbeat
from tailrace.logstore.errors import JournalFailed

STORE: tuple[DeclaredMetric, ...] = (
    counter(
        "store_requests",
        "Finished calls of the object store: done, refused (a condition failed or the object"
        " does not exist), failed, unknown (it may have happened), left by the caller.",
        lambda s: s.store.requests,
        "operation",
        "outcome",
    ),
    gauge(
        "store_running",
        "Calls of the object store that have no answer yet.",
        lambda s: s.store.running,
        "operation",
    ),
    histogram(
        "store_seconds",
        "Time of calls of the object store, with any outcome.",
        lambda s: s.store.seconds,
        "operation",
    ),
    counter(
        "store_sent_bytes",
        "Bytes of bodies handed to the object store, also by calls that failed.",
        lambda s: s.store.sent,
        "operation",
    ),
    counter(
        "store_received_bytes",
        "Bytes of objects got from the object store.",
        lambda s: s.store.received,
        "operation",
    ),
    counter(
        "store_composed_bytes",
        "Bytes that the object store copied within itself.",
        lambda s: s.store.composed,
        "operation",
    ),
    gauge(
        "damaged_state_objects",
        "State objects that were damaged when this node last read them; `/health/ready` names"
        " them.",
        lambda s: s.state.damaged,
    ),
    counter(
        "s3_requests",
        "Requests to S3, every try counted: what calls of the object store cost.",
        lambda s: s.store.s3_requests,
        "operation",
    ),
    gauge(
        "store_clock_ahead_seconds",
        "How far this node's clock is ahead of the store's, negative if behind; 0 for a folder.",
        lambda s: s.node.clock_skew.ahead_ms / 1000,
    ),
)


def loops(sources: MetricSources) -> dict[str, Heartbeat]:
    """The heartbeat of every loop that must not hang."""
    shipper, text = sources.writer.shipper, sources.node.run_logs
    return {
        "cut": shipper.cutting,
        "ship": shipper.shipping,
        "flush": text.flusher.heartbeat,
        "sweep": text.sweeper.heartbeat,
        "lost": text.takeover.heartbeat,
    }


def _left_bytes(sources: MetricSources) -> float:
    try:
        return sources.writer.journal.space.left_bytes()
    except JournalFailed:
        return nan


NODE: tuple[DeclaredMetric, ...] = (
    gauge("ready", "1 if batches are accepted.", lambda s: s.node.ready),
    gauge(
        "load",
        "Load of the node, 1 at its limit: the largest of journal, lag and delay, each divided"
        " by its limit in `nodes.shed_…`.",
        lambda s: s.node.shedding.load,
    ),
    counter(
        "node_questions",
        "Questions to other nodes by result: answered, declined (not now), unknown-question and"
        " unreadable (another version), wrong-secret, another-process, timed-out, unreachable,"
        " failed.",
        lambda s: s.node.members.outcomes,
        "outcome",
    ),
    counter(
        "node_refusals",
        "Questions of other nodes that this one refused: wrong-secret, another-process.",
        lambda s: s.node.members.refusals,
        "reason",
    ),
    gauge(
        "nodes_unheard",
        "Other nodes that may hold lines, and do not answer this node or refuse it.",
        lambda s: len(s.node.members.cut_off_from),
    ),
    gauge("shedding", "1 while the node sheds load.", lambda s: s.node.shedding.active),
    counter("batches", "Batches stored.", lambda s: s.writer.appender.batches),
    counter("lines", "Records stored.", lambda s: s.writer.appender.lines),
    counter(
        "journal_appended_bytes",
        "Bytes of text appended to the journal.",
        lambda s: s.writer.journal.taken_bytes,
        alias="text_bytes",
    ),
    counter(
        "duplicates", "Batches that were known already.", lambda s: s.writer.appender.duplicates
    ),
    counter(
        "batches_slowed",
        "Batches that waited because the store accepts data more slowly than clients send it.",
        lambda s: s.writer.appender.slowed,
    ),
    counter(
        "echoes_ignored",
        "Cookies with a ULID too far ahead.",
        lambda s: s.writer.appender.echoes_ignored,
    ),
    counter("forks", "Times that the node found its folder to be a copy.", lambda s: s.node.forks),
    gauge("journal_bytes", "Bytes of all journal files.", lambda s: s.writer.journal.bytes),
    gauge("journal_files", "Journal files.", lambda s: len(s.writer.journal.files)),
    gauge(
        "journal_fullness",
        "Share of `journal.max_bytes` that is used; at 1 no batch is accepted.",
        lambda s: s.writer.journal.fullness,
    ),
    gauge(
        "damaged_entries",
        "Damaged places found in the journal, at the last start or since.",
        lambda s: len(s.writer.recovered.found),
    ),
    gauge(
        "journal_lost_lines",
        "Upper bound of the lines lost to damage of the journal, found at the last start or since.",
        lambda s: s.writer.recovered.lost_lines,
    ),
    gauge(
        "journal_cut_off_bytes",
        "Bytes of the journal that the last start could not read, and that were perhaps never"
        " synced: usually a write that a crash interrupted, rarely damage.",
        lambda s: sum(tail.size for tail in s.writer.recovered.torn),
    ),
    gauge(
        "journal_disk_left_bytes",
        "Free bytes on the journal's disk beyond `journal.min_free_bytes`; at 0"
        " no batch is accepted. NaN while the disk does not answer.",
        _left_bytes,
    ),
    counter("journal_syncs", "Group syncs of the journal.", lambda s: s.writer.journal.syncs),
    histogram("fsync_seconds", "Time of one sync of the journal.", lambda s: s.fsync.seconds),
    gauge(
        "fsync_waiting_seconds",
        "Duration of the sync in progress; 0 without one.",
        lambda s: s.fsync.waiting_seconds(s.now),
    ),
    gauge(
        "pending_lines",
        "Lines that are in no confirmed segment.",
        lambda s: s.writer.journal.next_pos - s.writer.journal.state.confirmed.end,
    ),
    gauge(
        "segment_lag_bytes",
        "Bytes of text that are in no confirmed segment.",
        lambda s: s.writer.shipper.unshipped.bytes,
    ),
    gauge(
        "segment_lag_seconds",
        "Age of the oldest line that is in no confirmed segment.",
        lambda s: s.writer.shipper.unshipped.seconds,
    ),
    counter(
        "segments_cut",
        "Segments cut, in the life of this incarnation.",
        lambda s: s.writer.journal.state.last_cut().seq,
    ),
    counter(
        "segments_confirmed",
        "Segments that are in the store, in the life of this incarnation.",
        lambda s: s.writer.journal.state.confirmed.seq,
    ),
    counter(
        "segment_failures",
        "Failed uploads of segments, which are retried.",
        lambda s: s.writer.shipper.failures,
    ),
    counter(
        "segment_process_failures",
        "Processes for large segments that could not be started, ended or failed. The node then"
        " makes the segment itself.",
        lambda s: s.writer.shipper.encode.failures,
    ),
    gauge(
        "segment_consecutive_failures",
        "Uploads of segments that failed since the last success.",
        lambda s: s.writer.shipper.consecutive_failures,
    ),
    gauge(
        "oldest_cut_seconds",
        "Age of the oldest segment that is being made or stored; 0 without one.",
        lambda s: s.writer.shipper.ongoing.oldest_seconds,
    ),
    gauge(
        "oldest_flush_seconds",
        "Age of the oldest flush of a run into the store that is in progress; 0 without one.",
        lambda s: s.node.run_logs.flusher.ongoing.oldest_seconds,
    ),
    gauge(
        "heartbeat_age_seconds",
        "Time since the loop last turned; 0 while it waits for work.",
        lambda s: {name: heart.age_seconds for name, heart in loops(s).items()},
        "loop",
    ),
    gauge(
        "success_age_seconds",
        "Time since the loop last did its work, or since the start.",
        lambda s: {name: heart.success_age_seconds for name, heart in loops(s).items()},
        "loop",
    ),
)


def lag_bytes(sources: MetricSources) -> int:
    """Bytes of text that are not yet in their run's chunks, in a segment or not."""
    return sources.writer.shipper.unshipped.bytes + sources.node.run_logs.flusher.pending.bytes


def lag_seconds(sources: MetricSources) -> float:
    """Seconds since the oldest text that is not yet in its run's chunks was synced."""
    waiting = sources.node.run_logs.flusher.pending.oldest_seconds(sources.now)
    return max(waiting, sources.writer.shipper.unshipped.seconds)


RUN_LOGS: tuple[DeclaredMetric, ...] = (
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
        "Age of the oldest line that is not yet in its run's chunks.",
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
        "Failed flushes, which are retried.",
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
        "Batches left out of a chunk because another copy of them exists.",
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
        "Segments whose bytes do not match their checksum.",
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
        "Failed closes, which are retried.",
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
        " node removed.",
        lambda s: s.node.run_logs.taken_back.lines,
    ),
    counter(
        "runs_finalised",
        "Runs closed because their client did not close them in time.",
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
        "Chunks removed because no manifest names them.",
        lambda s: s.node.run_logs.sweeper.orphans,
    ),
    counter(
        "chunks_vanished",
        "Chunks that a manifest names, and that another program removed or overwrote.",
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
