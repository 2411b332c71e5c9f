"""Metrics of a process of pipelines: their names, and where each is read when Prometheus asks.

Workers add to plain integers (`Counts`), which the process keeps for as long as it runs; a metric
costs nothing in between. Values are by pipeline, appender and part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import Metric

from logstore.prometheus import Declared, Health, Reading
from pipelines.appenders.own_metrics import LABELS, collect_own
from pipelines.worker.reader import Counts
from pipelines.worker.worker import Worker

if TYPE_CHECKING:
    from pipelines.process import PipelinesProcess

_STUCK_SECONDS: Final = 60.0


def _counter(name: str, text: str, read: Callable[[Counts], float]) -> Declared[PipelinesProcess]:
    def values(process: PipelinesProcess) -> Reading:
        return {key: read(counts) for key, counts in list(process.counts.items())}

    return Declared(f"tailrace_pipelines_{name}", "counter", text, values, LABELS)


def _gauge(name: str, text: str, read: Callable[[Worker], float]) -> Declared[PipelinesProcess]:
    def values(process: PipelinesProcess) -> Reading:
        return {worker.labels: read(worker) for worker in process.workers}

    return Declared(f"tailrace_pipelines_{name}", "gauge", text, values, LABELS)


def _queue_bytes(worker: Worker) -> float:
    return 0 if worker.progress is None else worker.progress.buffer.size


def _lag_segments(worker: Worker) -> float:
    return 0 if worker.progress is None else worker.progress.unread(worker.source.nodes)[0]


def _lag_seconds(worker: Worker) -> float:
    progress = worker.progress
    high_ms = None if progress is None else progress.unread(worker.source.nodes)[1]
    return 0 if high_ms is None else max(worker.clock.now_ms() - high_ms, 0) / 1000


def _replaying(worker: Worker) -> float:
    return worker.progress is not None and worker.progress.replay is not None


METRICS: Final[tuple[Declared[PipelinesProcess], ...]] = (
    _counter("events", "Events that were given to the appender.", lambda c: c.given),
    _counter(
        "late_events",
        "Events that came after later ones had been given; they are out of order.",
        lambda c: c.late,
    ),
    _counter(
        "forced_events",
        "Events that were given before their time, because too many waited.",
        lambda c: c.forced,
    ),
    _counter(
        "clamped_events",
        "Events whose time was more than a minute ahead of their coming, and counts as that.",
        lambda c: c.clamped,
    ),
    _counter("copies", "Events left out because another node had sent them.", lambda c: c.copies),
    _counter(
        "deleted_events", "Events left out because their run was deleted.", lambda c: c.deleted
    ),
    _counter("dead_letters", "Events that went to the dead-letter file.", lambda c: c.dead_letters),
    _counter(
        "refused_events",
        "Events that the appender can never take as they are, and that became dead letters.",
        lambda c: c.refused,
    ),
    _counter(
        "redelivered_events",
        "Dead letters that were sent again and taken.",
        lambda c: c.redelivered,
    ),
    _counter("again_events", "Events that a replay gave to a copy.", lambda c: c.again),
    _counter(
        "lost_segments", "Segments that were removed before they were read.", lambda c: c.lost
    ),
    _counter(
        "damaged_segments", "Segments that cannot be read and were skipped.", lambda c: c.damaged
    ),
    _counter(
        "errors", "Failures of the appender, each of which is tried again.", lambda c: c.failures
    ),
    _counter("checkpoints", "Checkpoints that were saved.", lambda c: c.checkpoints),
    _gauge("queue_bytes", "Bytes of events that wait for their time.", _queue_bytes),
    _gauge(
        "delay_seconds",
        "Age of the oldest of the events that were given last, by their own time.",
        lambda w: w.delay.oldest,
    ),
    _gauge(
        "newest_delay_seconds",
        "Age of the newest of the events that were given last, by its own time.",
        lambda w: w.delay.newest,
    ),
    _gauge(
        "queue_limit_bytes",
        "Bytes of events that may wait: with more, events are forced.",
        lambda w: w.buffer_limit,
    ),
    _gauge(
        "event_delay_seconds",
        "How long an event waits for earlier ones, as the pipeline's file says.",
        lambda w: w.settings.event_delay_ms / 1000,
    ),
    _gauge(
        "checkpoint_interval_seconds",
        "How often a checkpoint is saved, as the pipeline's file says.",
        lambda w: w.settings.checkpoint_interval_ms / 1000,
    ),
    _gauge(
        "last_checkpoint_timestamp_seconds",
        "When the last checkpoint was saved, in seconds since 1970; 0: never.",
        lambda w: w.checkpoint_ms / 1000,
    ),
    _gauge("lag_segments", "Segments that were not read yet.", _lag_segments),
    _gauge(
        "lag_seconds",
        "Age of the newest line that was read of the node that is furthest behind; 0: none is.",
        _lag_seconds,
    ),
    _gauge(
        "failing",
        "Whether the appender fails, and is tried again.",
        lambda w: w.failure is not None,
    ),
    _gauge("disabled", "Whether the dead-letter file takes the events.", lambda w: w.disabled),
    _gauge("replaying", "Whether a replay is under way.", _replaying),
    Declared(
        "tailrace_pipelines_evicted",
        "gauge",
        "Pipelines that do nothing until they are replayed or skip what they missed.",
        lambda process: dict.fromkeys(sorted(process.evicted), 1.0),
        ("pipeline",),
    ),
    Declared(
        "tailrace_pipelines_wrong_files",
        "gauge",
        "Files of pipelines and plugins that are wrong; what runs of them goes on as it was.",
        lambda process: len(process.wrong),
    ),
    Declared(
        "tailrace_pipelines_segments_decoded",
        "counter",
        "Segments that were fetched and decoded, each for all appenders that are up to date.",
        lambda process: process.source.decoded,
    ),
    Declared(
        "tailrace_pipelines_segment_bytes",
        "counter",
        "Bytes of segments that were fetched.",
        lambda process: process.source.fetched_bytes,
    ),
)


def collect(process: PipelinesProcess) -> Iterator[Metric]:
    """The samples of all metrics, also of those that appenders declare."""
    for one in METRICS:
        yield one.family(process)
    own = {labels: counts.own for labels, counts in list(process.counts.items())}
    yield from collect_own(process.own_names, own)


def health(process: PipelinesProcess) -> Health:
    """Live: the process looks for work in time. Ready: its store answers, and its files are good.

    Appenders that fail and pipelines that are evicted are problems of their own, and no reason
    to start the process again.
    """
    problems = list(process.problems)
    failing = {one.name: one.failure for one in process.workers if one.failure is not None}
    problems += [f"{name}: {failure}" for name, failure in sorted(failing.items())]
    late = process.seconds_since_look
    live = late < _STUCK_SECONDS + process.poll_seconds
    if not live:
        problems.insert(0, f"the process has not looked for work for {late:.0f} s")
    return Health(live, not process.unready, problems)
