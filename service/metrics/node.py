"""Metrics of the node: accepted batches, journal and disk, segments, and whether its loops turn.

Also the object store as this node meets it.
"""

from __future__ import annotations

from math import nan

from logstore.errors import JournalFailed
from service.metrics.declared import Declared, Sources, counter, gauge, histogram
from service.runtime.heartbeat import Heartbeat

STORE: tuple[Declared, ...] = (
    counter(
        "store_requests",
        "Calls of the object store that have ended: done, refused (an answer: a condition "
        "failed or nothing was there), failed, unknown (it may have happened), left by the caller.",
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
        "State objects that were damaged when this node read them last: `/health/ready` names "
        "them.",
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


def loops(sources: Sources) -> dict[str, Heartbeat]:
    """The heartbeat of every loop that must not stand still."""
    shipper, text = sources.writer.shipper, sources.node.run_logs
    return {
        "cut": shipper.cutting,
        "ship": shipper.shipping,
        "flush": text.flusher.heartbeat,
        "sweep": text.sweeper.heartbeat,
        "lost": text.takeover.heartbeat,
    }


def _left_bytes(sources: Sources) -> float:
    try:
        return sources.writer.journal.space.left_bytes()
    except JournalFailed:
        return nan


NODE: tuple[Declared, ...] = (
    gauge("ready", "1 if batches are accepted.", lambda s: s.node.ready),
    gauge(
        "load",
        "What the node has to do, 1 for as much as it can take: the largest of its journal, its lag"
        " and its delay, each by its limit in `nodes.shed_…`.",
        lambda s: s.node.shedding.load,
    ),
    counter(
        "node_questions",
        "Questions to other nodes by what came of them: answered, declined (not now), "
        "unknown-question and unreadable (another version), wrong-secret, another-process, "
        "timed-out, unreachable, failed.",
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
        "Other nodes that may hold lines, and do not answer this one or refuse it.",
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
        "Batches that waited because the store accepts less than comes.",
        lambda s: s.writer.appender.slowed,
    ),
    counter(
        "echoes_ignored",
        "Cookies with a ULID too far ahead.",
        lambda s: s.writer.appender.echoes_ignored,
    ),
    counter(
        "forks", "Times that the node found its folder to be a copy.", lambda s: s.writer.forks
    ),
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
        "Lines, at most, that damage of the journal took and that are in no segment, found"
        " at the last start or since.",
        lambda s: s.writer.recovered.lost_lines,
    ),
    gauge(
        "journal_cut_off_bytes",
        "Bytes of the journal that the last start could not read, and that no sync is known to"
        " have covered: mostly a write that a crash broke off, but perhaps damage.",
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
        "Time that the sync under way has taken so far; 0 if there is none.",
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
        "For how long the oldest line that is in no confirmed segment has waited.",
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
        "Uploads of segments that failed and are tried again.",
        lambda s: s.writer.shipper.failures,
    ),
    counter(
        "segment_process_failures",
        "Processes for large segments that could not be started, ended or failed. The node makes "
        "the segment itself then.",
        lambda s: s.writer.shipper.encode.failures,
    ),
    gauge(
        "segment_consecutive_failures",
        "Uploads of segments that failed since the last success.",
        lambda s: s.writer.shipper.consecutive_failures,
    ),
    gauge(
        "oldest_cut_seconds",
        "For how long the oldest segment is being made or stored; 0 without one.",
        lambda s: s.writer.shipper.ongoing.oldest_seconds,
    ),
    gauge(
        "oldest_flush_seconds",
        "For how long the oldest flush of a run into the store is under way; 0 without one.",
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
