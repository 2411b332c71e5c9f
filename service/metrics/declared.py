"""Declarations of metrics, and the metrics of leases and of the compactor.

A declaration has a name, kind, help, labels, and a function that reads the value. The hot path adds
to plain integers on its own objects; `read` reads them at a scrape, so a metric costs nothing in
between. Counters are declared without the `_total` that the text format adds. A renamed metric
keeps its old name as its `alias`, which is exported with the same samples until the next version.

Metrics of leases are by source: Data Prepper's counters by their last words, and held leases. Named
leases (`text`, `sweep`) and coordinators count alike. Values that a named lease does not have, such
as progress, stay at 0.

Metrics of the compactor that runs with the service show whether it runs, and what it reports. Both
processes share a file, `compaction.metrics_file` (`CompactorFile`), which the compactor writes in
the text format of Prometheus and every scrape reads. Its metrics of leases are joined with ours of
the same names. Of its other metrics, only those named `tailrace_compactor_…`, or as OK Log's store
names its own, are included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from service.node import Node
from service.queue.queue import QueueCounters
from service.runtime.counters import Distribution, HttpCounters, StoreCounters, SyncCounters
from service.runtime.health import HealthProblem, StateWatch
from service.writer import Writer
from tailrace.coordination.leases import OURS, UPDATE_ERRORS, UPSTREAMS, CoordinationCounters, Count
from tailrace.coordination.work_queue import ATTEMPTS, HELD, LAG, OLDEST, Measure, WorkQueue
from tailrace.logstore.filesystem import FileSystem

if TYPE_CHECKING:
    from service.compaction import CompactionChild
    from service.query.engine import QueryEngine


@dataclass(frozen=True, slots=True)
class MetricSources:
    """The objects whose numbers the metrics show."""

    node: Node
    query: QueryEngine
    http: HttpCounters = field(default_factory=HttpCounters)
    store: StoreCounters = field(default_factory=StoreCounters)
    fsync: SyncCounters = field(default_factory=SyncCounters)
    state: StateWatch = field(default_factory=StateWatch)
    queue: QueueCounters = field(default_factory=QueueCounters)
    work: Sequence[WorkQueue] = ()
    """What coordinators of this process work on."""
    compaction: CompactionChild | None = None
    compactor_file: CompactorFile | None = None

    @property
    def writer(self) -> Writer:
        """The parts that accept lines. Raises `NodeNotReady` if the node only reads."""
        return self.node.writer

    @property
    def now(self) -> float:
        """Monotonic seconds of the node's clock."""
        return self.node.environment.clock.monotonic()


Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Value: TypeAlias = float | Distribution
Reading: TypeAlias = (
    Value
    | Mapping[str, Value]
    | Mapping[tuple[str, str], Value]
    | Mapping[tuple[str, str, str], Value]
)
Read: TypeAlias = Callable[[MetricSources], Reading]


class DeclaredMetric(NamedTuple):
    """One metric. `read` returns a value, or values by the values of its `labels`."""

    name: str
    kind: Kind
    help: str
    read: Read
    labels: tuple[str, ...] = ()
    alias: str = ""


def counter(name: str, text: str, read: Read, *labels: str, alias: str = "") -> DeclaredMetric:
    """A counter of this service; `alias` is its name in the version before."""
    return DeclaredMetric(
        f"tailrace_{name}", "counter", text, read, labels, alias and f"tailrace_{alias}"
    )


def gauge(name: str, text: str, read: Read, *labels: str, alias: str = "") -> DeclaredMetric:
    """A gauge of this service; `alias` is its name in the version before."""
    return DeclaredMetric(
        f"tailrace_{name}", "gauge", text, read, labels, alias and f"tailrace_{alias}"
    )


def histogram(name: str, text: str, read: Read, *labels: str) -> DeclaredMetric:
    """A histogram of this service."""
    return DeclaredMetric(f"tailrace_{name}", "histogram", text, read, labels)


def _counters(sources: MetricSources) -> Mapping[str, CoordinationCounters]:
    named = sources.node.run_logs.leases.counters
    return {**named, **{work.source: work.counters for work in sources.work}}


def _total(name: str) -> Callable[[MetricSources], dict[str, float]]:
    def read(sources: MetricSources) -> dict[str, float]:
        return {source: getattr(one, name) for source, one in _counters(sources).items()}

    return read


def _update_errors(sources: MetricSources) -> dict[tuple[str, str], float]:
    return {
        (source, action): count
        for source, one in _counters(sources).items()
        for action, count in one.update_errors.items()
    }


def _held(sources: MetricSources) -> dict[str, float]:
    found: dict[str, float] = dict.fromkeys(_counters(sources), 0)
    for held in sources.node.run_logs.leases.held:
        found[held.lease.name.source] += 1
    return found | {work.source: HELD.of(work) for work in sources.work}


def _oldest(sources: MetricSources) -> dict[str, float]:
    found: dict[str, float] = dict.fromkeys(_counters(sources), 0)
    for held in sources.node.run_logs.leases.held:
        source = held.lease.name.source
        found[source] = max(found[source], sources.now - held.since)
    return found | {work.source: OLDEST.of(work) for work in sources.work}


def _of_work(measure: Measure) -> Read:
    def read(sources: MetricSources) -> dict[str, float]:
        return {work.source: measure.of(work) for work in sources.work}

    return read


def _gauge(measure: Measure, read: Read) -> DeclaredMetric:
    return gauge(measure.name, measure.help, read, "source")


def _counter(count: Count) -> DeclaredMetric:
    return counter(count.name, count.help, _total(count.field), "source")


LEASES: tuple[DeclaredMetric, ...] = (
    *map(_counter, UPSTREAMS),
    counter(*UPDATE_ERRORS, _update_errors, "source", "action"),
    *map(_counter, OURS),
    _gauge(HELD, _held),
    _gauge(OLDEST, _oldest),
    _gauge(ATTEMPTS, _of_work(ATTEMPTS)),
    _gauge(LAG, _of_work(LAG)),
)


THEIRS: Final = (
    "tailrace_compactor_",
    *(f"tailrace_store_{word}_" for word in ("compact", "consumed", "purged", "trashed")),
)
_SHARED: Final = {metric.name for metric in LEASES}


class CompactorFile:
    """The compactor's metrics file, at an absolute path."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._families: Mapping[str, Metric] = {}
        self._seen: object = None
        self.unreadable = False

    def families(self) -> Mapping[str, Metric]:
        """The metrics in the file, by name; none if it is absent or cannot be read."""
        try:
            found = self._fs.stat(self._path)
            if found != self._seen:
                self._families = {} if found is None else self._read()
                self._seen = found
            self.unreadable = False
        except (OSError, ValueError, KeyError, IndexError):  # errors of the parser for other text
            self._families, self._seen, self.unreadable = {}, None, True
        return self._families

    def problems(self) -> list[str]:
        """Problems of the compactor's last pass that need a person, as sentences."""
        families = self.families()
        left_out, alarms = (_value(families, name) for name in ("segments_left_out", "alarms"))
        found: list[str] = []
        if left_out:
            what = "damaged segments are not in the table until they are repaired or given up"
            found.append(HealthProblem(what, f"{left_out:g} {what}: `tailrace verify` names them"))
        if alarms > left_out:
            what = f"the last compaction had {alarms:g} alarms: the compactor's log has them"
            found.append(HealthProblem("the last compaction had alarms", what))
        return found

    def _read(self) -> dict[str, Metric]:
        with closing(self._fs.open(self._path, "read")) as file:
            text = file.pread(file.size(), 0).decode()
        families = text_string_to_metric_families(text)
        return {
            family.name: family
            for family in families
            if family.name.startswith(THEIRS) or family.name in _SHARED
        }


def _value(families: Mapping[str, Metric], name: str) -> float:
    family = families.get(f"tailrace_compactor_{name}")
    return sum(sample.value for sample in family.samples) if family else 0


def joined(ours: Iterable[Metric], theirs: Mapping[str, Metric]) -> Iterator[Metric]:
    """Our families with the file's samples of the same name added, then the file's other ones."""
    left = dict(theirs)
    for family in ours:
        same = left.pop(family.name, None)
        if same is not None and same.type == family.type:
            known = {_identity(sample) for sample in family.samples}
            family.samples += [one for one in same.samples if _identity(one) not in known]
        yield family
    yield from left.values()


def _identity(sample: tuple[object, ...]) -> tuple[object, ...]:
    name, labels = sample[:2]
    return name, tuple(sorted(labels.items())) if isinstance(labels, dict) else ()


def _running(sources: MetricSources) -> float:
    child = sources.compaction
    return child is not None and child.state == "running"


def _starts(sources: MetricSources) -> float:
    return 0 if sources.compaction is None else sources.compaction.starts


def _failures(sources: MetricSources) -> float:
    return 0 if sources.compaction is None else sources.compaction.failures


def _unreadable(sources: MetricSources) -> float:
    return sources.compactor_file is not None and sources.compactor_file.unreadable


COMPACTION: tuple[DeclaredMetric, ...] = (
    gauge("compaction_running", "1 while the compactor next to this service runs.", _running),
    counter("compaction_starts", "Starts of the compactor next to this service.", _starts),
    counter(
        "compaction_failures", "Unexpected ends of the compactor next to this service.", _failures
    ),
    gauge(
        "compaction_file_unreadable",
        "1 if the compactor's metrics file exists and cannot be read, so that its"
        " metrics are missing.",
        _unreadable,
    ),
)
