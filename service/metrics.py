"""Every metric of the service, declared once.

The hot path adds to plain integers on its own objects; a collector reads them when
somebody scrapes, so a metric costs nothing in between. `METRICS` is the whole list:
name, kind, help, and where its value is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from service.counters import Durations, HttpCounters, StoreCounters

if TYPE_CHECKING:
    from service.node import Node
    from service.query.engine import QueryEngine


@dataclass(frozen=True, slots=True)
class Sources:
    """The objects whose numbers are shown."""

    node: Node
    query: QueryEngine
    http: HttpCounters = field(default_factory=HttpCounters)
    store: StoreCounters = field(default_factory=StoreCounters)
    fsync: Durations = field(default_factory=Durations)


Reading: TypeAlias = float | Durations | Mapping[str, float] | Mapping[str, Durations]


class Declared(NamedTuple):
    """One metric. `read` gives a number, numbers by `label`, or histograms by `label`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    read: Callable[[Sources], Reading]
    label: str = ""


def _counter(name: str, text: str, read: Callable[[Sources], float]) -> Declared:
    return Declared(f"tailrace_{name}", "counter", text, read)


def _gauge(name: str, text: str, read: Callable[[Sources], float]) -> Declared:
    return Declared(f"tailrace_{name}", "gauge", text, read)


METRICS: tuple[Declared, ...] = (
    _counter("append_requests", "Append requests.", lambda s: s.http.append_requests),
    _counter(
        "append_refused",
        "Appends and closes answered with an error.",
        lambda s: s.http.append_refused,
    ),
    _counter("close_requests", "Close requests.", lambda s: s.http.close_requests),
    _counter(
        "body_bytes", "Bytes of append bodies as they were sent.", lambda s: s.http.body_bytes
    ),
    _counter(
        "replaced_characters",
        "Characters that were not UTF-8 and became U+FFFD.",
        lambda s: s.http.replaced,
    ),
    _counter(
        "disconnects",
        "Clients that left before their body was complete.",
        lambda s: s.http.disconnects,
    ),
    _gauge("stream_readers", "Live streams that are open.", lambda s: s.http.readers),
    _counter("stream_events", "Frames sent to live streams.", lambda s: s.http.stream_events),
    _counter("stream_bytes", "Bytes sent to live streams.", lambda s: s.http.stream_bytes),
    _counter("batches", "Batches stored.", lambda s: s.node.appender.batches),
    _counter("lines", "Records stored.", lambda s: s.node.appender.lines),
    _counter(
        "text_bytes", "Bytes of text taken into the journal.", lambda s: s.node.journal.taken_bytes
    ),
    _counter(
        "duplicates", "Batches that were known already.", lambda s: s.node.appender.duplicates
    ),
    _counter(
        "batches_slowed",
        "Batches that waited because the store takes less than comes.",
        lambda s: s.node.appender.slowed,
    ),
    _counter(
        "echoes_ignored",
        "Cookies with a ULID too far ahead.",
        lambda s: s.node.appender.echoes_ignored,
    ),
    _gauge("ready", "1 if batches are taken.", lambda s: s.node.ready),
    _gauge("journal_bytes", "Bytes of all journal files.", lambda s: s.node.journal.bytes),
    _gauge("journal_files", "Journal files.", lambda s: len(s.node.journal.files)),
    _counter("journal_syncs", "Group syncs of the journal.", lambda s: s.node.journal.syncs),
    _gauge(
        "damaged_entries",
        "Damaged places found in the journal at the last start.",
        lambda s: len(s.node.damage),
    ),
    _gauge(
        "pending_lines",
        "Lines that are in no confirmed segment.",
        lambda s: s.node.journal.next_pos - s.node.journal.state.confirmed.end,
    ),
    _counter(
        "segments_cut",
        "Segments cut, in the life of this incarnation.",
        lambda s: s.node.journal.state.last_cut().seq,
    ),
    _counter(
        "segments_confirmed",
        "Segments that are in the store, in the life of this incarnation.",
        lambda s: s.node.journal.state.confirmed.seq,
    ),
    _counter(
        "segment_failures",
        "Uploads of segments that failed and are tried again.",
        lambda s: s.node.shipper.failures,
    ),
    _gauge(
        "text_lag_lines",
        "Synced lines that are not yet in their runs' chunks.",
        lambda s: max(0, s.node.journal.synced_pos - s.node.text.flushed_pos),
    ),
    _counter("runs_closed", "Runs whose final text was made.", lambda s: s.node.text.closer.closes),
    _counter(
        "runs_finalised",
        "Runs closed because nobody did it in time.",
        lambda s: s.node.text.sweeper.finalised,
    ),
    _counter(
        "runs_expired",
        "Runs removed at the end of their retention.",
        lambda s: s.node.text.sweeper.expired,
    ),
    _counter("runs_deleted", "Deletions of runs.", lambda s: s.node.text.deleter.deleted),
    _counter(
        "close_failures",
        "Closes that failed and are tried again.",
        lambda s: s.node.text.closer.failures,
    ),
    _counter(
        "run_flushes",
        "Flushes of a run's news into a chunk.",
        lambda s: s.node.text.flusher.flushes,
    ),
    _counter(
        "run_flush_failures",
        "Flushes that failed and are tried again.",
        lambda s: s.node.text.flusher.failures,
    ),
    _counter(
        "chunks", "Chunks of run text written.", lambda s: s.node.text.run_flush.chunks_written
    ),
    _counter(
        "chunk_bytes",
        "Bytes of run text written in chunks.",
        lambda s: s.node.text.run_flush.bytes_written,
    ),
    _counter(
        "chunk_duplicates",
        "Batches that a chunk left out because another copy was there.",
        lambda s: s.node.text.run_flush.left_out,
    ),
    _counter("folds", "Folds of chunks into larger ones.", lambda s: s.node.text.folder.folds),
    _counter("partials", "Partial texts published.", lambda s: s.node.text.partials.published),
    _gauge(
        "unreadable_segments",
        "Segments whose bytes are not what was written.",
        lambda s: s.node.text.backlog.unreadable,
    ),
    _counter("forks", "Times that the folder was found to be a copy.", lambda s: s.node.forks),
    _gauge("queries_running", "Searches at work.", lambda s: s.query.running),
    _gauge("queries_waiting", "Searches in the queue.", lambda s: s.query.waiting),
    _counter(
        "queries_refused", "Searches refused because the queue was full.", lambda s: s.query.refused
    ),
    _counter(
        "queries_stopped",
        "Searches stopped by a limit or by their client.",
        lambda s: s.query.stopped,
    ),
    Declared(
        "tailrace_fsync_seconds", "histogram", "Time of one sync of the journal.", lambda s: s.fsync
    ),
    Declared(
        "tailrace_store_requests",
        "counter",
        "Calls of the object store.",
        lambda s: s.store.requests,
        "operation",
    ),
    Declared(
        "tailrace_store_failures",
        "counter",
        "Calls of the object store that failed.",
        lambda s: s.store.failures,
        "operation",
    ),
    Declared(
        "tailrace_store_bytes",
        "counter",
        "Bytes sent to and got from the object store.",
        lambda s: s.store.bytes,
        "operation",
    ),
    Declared(
        "tailrace_store_seconds",
        "histogram",
        "Time of calls of the object store.",
        lambda s: s.store.seconds,
        "operation",
    ),
    # OpenMetadata's own names, for boards that are there already.
    Declared(
        "om_s3_writes",
        "counter",
        "Batches stored (OpenMetadata's name).",
        lambda s: {"log_write": s.node.appender.batches},
        "operation",
    ),
    Declared(
        "om_streamable_logs_consecutive_flush_failures",
        "gauge",
        "Uploads that failed in a row (OpenMetadata's name).",
        lambda s: s.node.shipper.consecutive_failures,
    ),
)


class NodeCollector(Collector):
    """Reads all metrics of a node at the moment of a scrape."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        for declared in METRICS:
            yield _family(declared, declared.read(self._sources))

    def describe(self) -> list[Metric]:
        return []  # spares reading a node that is not started yet


def scraper(sources: Sources) -> Callable[[], bytes]:
    """What `/metrics` answers with."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(sources))
    return lambda: generate_latest(registry)


def _family(declared: Declared, value: Reading) -> Metric:
    labels = [declared.label] if declared.label else []
    samples: list[tuple[list[str], float | Durations]]
    if isinstance(value, Mapping):
        samples = [([name], sample) for name, sample in value.items()]
    else:
        samples = [([], value)]
    if declared.kind == "histogram":
        return _histogram(declared, labels, samples)
    kind = CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily
    family = kind(declared.name, declared.help, labels=labels)
    for of, sample in samples:
        assert not isinstance(sample, Durations)
        family.add_metric(of, float(sample))
    return family


def _histogram(
    declared: Declared, labels: list[str], samples: list[tuple[list[str], float | Durations]]
) -> Metric:
    family = HistogramMetricFamily(declared.name, declared.help, labels=labels)
    for of, sample in samples:
        assert isinstance(sample, Durations)
        family.add_metric(of, sample.buckets(), sample.sum)
    return family
