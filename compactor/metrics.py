"""The compactor's metrics: their names, their values from a report, and their text file.

OK Log's names of a store's metrics are among them, under `tailrace_` instead of `oklog_`. A summary
has its sum under its name, and its count under that name with `_count`.

Counters come from the counts of reports, `tailrace_compactor_{field}` unless the field names
another; each count of a report is a metric. Leases are measured under the names that every process
has for them. A renamed metric is exported under its old name, too, its `alias`, until the next
version; samples are kept under the new name alone.

`Textfile` writes them to a file in Prometheus' text format, for node_exporter and for the service.
Counters add up in the file over passes, over restarts, and over all compactors that write to it, so
that a job that cron starts has rising counters. A change is read, added and renamed into place
under a lock, `{path}.lock`; a reader sees the old file or the new one. A file that is damaged, or
that another program wrote, is replaced: for Prometheus its counters were reset. The file is not
synced, so a power cut may lose it. It has renamed metrics under their aliases, too; counts of an
older compactor under an alias alone are continued.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import fields
from typing import Final, Literal, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from compactor.report import PassReport
from tailrace.coordination.leases import OURS, UPDATE_ERRORS, UPSTREAMS
from tailrace.coordination.work_queue import MEASURES, WorkQueue
from tailrace.logstore.errors import Unavailable
from tailrace.logstore.filesystem import FileSystem
from tailrace.logstore.prometheus import under_alias

Labels: TypeAlias = tuple[str, ...]
Samples: TypeAlias = dict[tuple[str, Labels], float]
"""Values by the metric's name and the values of its labels."""

STOPPED: Final = "stopped"
"""`PassReport.error` of a pass that was stopped."""


class Metric(NamedTuple):
    """A metric's name, kind and text; counters lack the `_total` of the text format."""

    name: str
    kind: Literal["counter", "gauge", "summary"]
    help: str
    labels: Labels = ()
    alias: str = ""


_OWN: Final = "tailrace_compactor_"


def _own(kind: Literal["counter", "gauge"], name: str, text: str, alias: str) -> Metric:
    return Metric(f"{_OWN}{name}", kind, text, alias=alias and f"{_OWN}{alias}")


_COUNTED: Final = {
    one.name: _own(
        "counter",
        one.metadata["metric"] or one.name,
        one.metadata["counted"],
        one.metadata["alias"],
    )
    for one in fields(PassReport)
    if "counted" in one.metadata
}
"""The counters of the report's fields."""
PASSES: Final = Metric(
    f"{_OWN}passes",
    "counter",
    "Passes by outcome: `done`, `alarmed` (done as far as possible), `failed` (ended by an"
    " error), `stopped` (by a signal).",
    ("outcome",),
)
PHASE_SECONDS: Final = Metric(
    f"{_OWN}phase_seconds", "counter", "Time that passes spent in the phase.", ("phase",)
)
COMPACT_SECONDS: Final = Metric(
    "tailrace_store_compact_duration_seconds",
    "summary",
    "Time of passes, by whether they changed the table, and by outcome.",
    ("kind", "compacted", "result"),
)
_OKLOG: Final = {
    "segments": Metric(
        "tailrace_store_consumed_segments", "counter", "Segments ingested into the table."
    ),
    "segment_bytes": Metric(
        "tailrace_store_consumed_bytes", "counter", "Bytes of these segments, as stored."
    ),
    "files_rewritten": Metric(
        "tailrace_store_trashed_segments",
        "counter",
        "Table files that were replaced. A failure ends the pass and is counted there.",
        ("success",),
    ),
    "segments_removed": Metric(
        "tailrace_store_purged_segments",
        "counter",
        "Removed segments that nothing needs any more. A failure ends the pass.",
        ("success",),
    ),
}
"""OK Log's counters, by the report's fields."""
COUNTERS: Final = (PASSES, PHASE_SECONDS, *_COUNTED.values(), *_OKLOG.values(), COMPACT_SECONDS)
_GAUGES: Final = {
    "lag_segments": "Segments that are not yet in the table, at the last check.",
    "lag_bytes": "Bytes of these segments, as stored.",
    "lag_seconds": "Age of the oldest of these segments at that time.",
    "nodes_held_elsewhere": "Nodes with segments to ingest that another compactor works on.",
    "hours_held_elsewhere": "Hours to be rewritten that another compactor works on.",
    "segments_left_out": "Damaged segments whose lines are missing in the table until an"
    " operator repairs them or gives them up.",
    "deletions_waiting": "Deletions whose rows may still be in files of the table.",
    "alarms": "Alarms of the last pass, which need an operator; the compactor's log lists them.",
    "running": "1 while a pass runs.",
    "pass_seconds": "Time that the last pass took.",
    "failures_in_a_row": "Passes that failed since the last success.",
    "success_timestamp_seconds": "When the last successful pass ended, in Unix time.",
    "reported_timestamp_seconds": "When these metrics were written, in Unix time.",
}
_GAUGE_ALIASES: Final = {"reported_timestamp_seconds": "told_timestamp_seconds"}
GAUGES: Final = tuple(
    _own("gauge", name, text, _GAUGE_ALIASES.get(name, "")) for name, text in _GAUGES.items()
)
LEASES: Final = (
    *(Metric(f"tailrace_{c.name}", "counter", c.help, ("source",)) for c in (*UPSTREAMS, *OURS)),
    Metric(f"tailrace_{UPDATE_ERRORS[0]}", "counter", UPDATE_ERRORS[1], ("source", "action")),
    *(Metric(f"tailrace_{m.name}", "gauge", m.help, ("source",)) for m in MEASURES),
)
METRICS: Final = (*COUNTERS, *GAUGES, *LEASES)


def counts(report: PassReport, *, over: bool) -> Samples:
    """The counts of the pass so far."""
    found: Samples = {(one.name, ()): getattr(report, name) for name, one in _COUNTED.items()}
    found |= {(PHASE_SECONDS.name, (phase,)): spent for phase, spent in report.seconds.items()}
    for name, metric in _OKLOG.items():
        found[metric.name, tuple("true" for _ in metric.labels)] = getattr(report, name)
    for work in report.works:
        add(found, _counted(work))
    if over:
        found[PASSES.name, (outcome(report),)] = 1
        changed = "true" if report.commits or report.files_rewritten else "false"
        labels = ("pass", changed, outcome(report))
        found[COMPACT_SECONDS.name, labels] = report.took_seconds
        found[f"{COMPACT_SECONDS.name}_count", labels] = 1
    return found


def gauges(report: PassReport, before: Samples, *, over: bool, now_ms: int) -> Samples:
    """The gauges now; `before` are the last samples, of this process or an earlier one."""
    shown = {
        name: before[f"{_OWN}{name}", ()] for name in _GAUGES if (f"{_OWN}{name}", ()) in before
    }
    shown |= {
        "nodes_held_elsewhere": report.held_elsewhere,
        "hours_held_elsewhere": report.hours_held_elsewhere,
        "deletions_waiting": report.deletions_waiting,
        "running": not over,
        "reported_timestamp_seconds": now_ms / 1000,
    }
    if report.lag is not None:  # otherwise the pass has not looked yet
        lag = report.lag
        shown |= {"lag_segments": lag.segments, "lag_bytes": lag.bytes, "lag_seconds": lag.seconds}
    if over:
        failed = outcome(report) == "failed"
        shown["alarms"] = len(report.alarms)
        shown["segments_left_out"] = report.left_out
        shown["pass_seconds"] = report.took_seconds
        shown["failures_in_a_row"] = shown.get("failures_in_a_row", 0) + 1 if failed else 0
        if outcome(report) in ("done", "alarmed"):
            shown["success_timestamp_seconds"] = now_ms / 1000
    found: Samples = {(f"{_OWN}{name}", ()): shown[name] for name in _GAUGES if name in shown}
    for work in report.works:
        found |= {(f"tailrace_{m.name}", (work.source,)): m.of(work) for m in MEASURES}
    return found


def outcome(report: PassReport) -> str:
    """The outcome of a pass: `done`, `alarmed`, `failed` or `stopped`."""
    if report.error is not None:
        return STOPPED if report.error == STOPPED else "failed"
    return "alarmed" if report.alarms else "done"


def add(total: Samples, more: Samples) -> None:
    """Adds `more` to `total` in place, by name and labels."""
    for key, value in more.items():
        total[key] = total.get(key, 0) + value


def _counted(work: WorkQueue) -> Samples:
    found: Samples = {
        (f"tailrace_{count.name}", (work.source,)): getattr(work.counters, count.field)
        for count in (*UPSTREAMS, *OURS)
    }
    for action, count in work.counters.update_errors.items():
        found[f"tailrace_{UPDATE_ERRORS[0]}", (work.source, action)] = count
    return found


def by_name(samples: Samples) -> Iterator[tuple[Metric, list[tuple[Labels, float]]]]:
    """The metrics that have samples, in the order of `METRICS`, each with its samples.

    A summary's are its sums.
    """
    values: dict[str, list[tuple[Labels, float]]] = {}
    for (name, labels), value in samples.items():
        values.setdefault(name, []).append((labels, value))
    yield from ((metric, values[metric.name]) for metric in METRICS if metric.name in values)


_NAMED = {metric.name: metric for metric in METRICS}
_RENAMED = {metric.alias: metric for metric in METRICS if metric.alias}


class Textfile:
    """The file at an absolute path in an existing folder."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path

    def read(self) -> Samples:
        """The samples in the file; none if it is absent or invalid. Raises `Unavailable`."""
        try:
            with closing(self._fs.open(self._path, "read")) as file:
                return parse(file.pread(file.size(), 0))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._failed(error) from error

    def change(self, counted: Samples, gauges: Samples) -> Samples:
        """Adds to the counters, sets the gauges, returns all samples. Raises `Unavailable`."""
        try:
            lock = self._fs.lock(f"{self._path}.lock", wait=True)
        except OSError as error:
            raise self._failed(error) from error
        assert lock is not None
        try:
            samples = total(self.read(), counted, gauges)
            self._replace(render(samples))
        except OSError as error:
            raise self._failed(error) from error
        finally:
            lock.release()
        return samples

    def _replace(self, content: bytes) -> None:
        fresh = f"{self._path}.new"
        with suppress(FileNotFoundError):  # left by a process that was killed at this point
            self._fs.unlink(fresh)
        with closing(self._fs.open(fresh, "create")) as file:
            file.write([content])
        self._fs.rename(fresh, self._path)

    def _failed(self, error: OSError) -> Unavailable:
        return Unavailable(
            f"the metrics file {self._path} cannot be written: {error.strerror}",
            hint="Name another file in compaction.metrics_file, or leave it empty.",
        )


def total(before: Samples, counted: Samples, gauges: Samples) -> Samples:
    """`before` with counters added and gauges set."""
    samples = dict(before)
    add(samples, counted)
    return samples | gauges


def render(samples: Samples) -> bytes:
    """The samples in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Collected(samples))
    return bytes(generate_latest(registry))


def parse(content: bytes) -> Samples:
    """The samples in the text format; those of other programs, and invalid content, are ignored."""
    try:
        families = list(text_string_to_metric_families(content.decode()))
    except (ValueError, KeyError, IndexError):  # errors of the parser for other text
        return {}
    found: Samples = {}
    for family in families:
        metric = _NAMED.get(family.name) or _RENAMED.get(family.name)
        if metric is None or family.type != metric.kind:
            continue
        for sample in family.samples:
            if set(sample.labels) == set(metric.labels):
                labels = tuple(sample.labels[label] for label in metric.labels)
                if sample.name == f"{metric.name}_count":
                    found[sample.name, labels] = sample.value
                elif family.name == metric.name:
                    found[metric.name, labels] = sample.value
                else:
                    found.setdefault((metric.name, labels), sample.value)
    return found


class _Collected(Collector):
    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> list[Family]:
        families: list[Family] = []
        for metric, values in by_name(self._samples):
            if metric.kind == "summary":
                families.append(_summary(metric, values, self._samples))
                continue
            families.append(_family(metric, values))
            if metric.alias:
                families.append(_family(under_alias(metric), values))
        return families


def _family(
    metric: Metric, values: list[tuple[Labels, float]]
) -> CounterMetricFamily | GaugeMetricFamily:
    made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = made(metric.name, metric.help, labels=list(metric.labels))
    for labels, value in values:
        family.add_metric(list(labels), value)
    return family


def _summary(
    metric: Metric, sums: list[tuple[Labels, float]], samples: Samples
) -> SummaryMetricFamily:
    family = SummaryMetricFamily(metric.name, metric.help, labels=list(metric.labels))
    for labels, value in sums:
        count = samples.get((f"{metric.name}_count", labels), 0)
        family.add_metric(list(labels), count_value=round(count), sum_value=value)
    return family
