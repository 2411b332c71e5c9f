"""The scrape, which reads all metrics of a node at the moment of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from service.metrics.compaction import COMPACTION, joined
from service.metrics.declared import Declared, Reading, Sources, TakesNothing, Value
from service.metrics.http import HTTP, REPORTS
from service.metrics.leases import LEASES
from service.metrics.node import NODE, STORE
from service.metrics.oklog import OKLOG
from service.metrics.openmetadata import OPENMETADATA
from service.metrics.queue import QUEUE
from service.metrics.runs import RUN_LOGS
from service.runtime.counters import Distribution

METRICS: tuple[Declared, ...] = (
    *HTTP,
    *NODE,
    *RUN_LOGS,
    *REPORTS,
    *QUEUE,
    *LEASES,
    *COMPACTION,
    *STORE,
    *OKLOG,
    *OPENMETADATA,
)


class NodeCollector(Collector):
    """Reads all metrics of a node."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        file = self._sources.compactor_file
        theirs = {} if file is None else file.families()  # first: it knows then if it is readable
        ours = (_read(declared, self._sources) for declared in METRICS)
        yield from joined(chain.from_iterable(ours), theirs)

    def describe(self) -> list[Metric]:
        return []  # spares reading a node that is not started yet


def scraper(sources: Sources) -> Callable[[], bytes]:
    """Makes the function that answers `/metrics`."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(sources))
    return lambda: generate_latest(registry)


def _read(declared: Declared, sources: Sources) -> Iterator[Metric]:
    """The samples of one metric as it is now; none of one that this kind of node has not."""
    with suppress(TakesNothing):
        yield from families(declared, declared.read(sources))


def families(declared: Declared, reading: Reading) -> Iterator[Metric]:
    """The samples of one metric; if it was renamed, the same again under its alias."""
    yield family(declared, reading)
    if declared.alias:
        yield family(declared.under_alias(), reading)


def family(declared: Declared, reading: Reading) -> Metric:
    """The samples of one metric under its own name."""
    name, text, labels = declared.name, declared.help, list(declared.labels)
    if declared.kind == "histogram":
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for of, value in _samples(reading):
            assert isinstance(value, Distribution)
            histogram.add_metric(of, value.buckets(), value.sum)
        return histogram
    numbers = CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily
    made = numbers(name, text, labels=labels)
    for of, value in _samples(reading):
        assert not isinstance(value, Distribution)
        made.add_metric(of, float(value))
    return made


def _samples(reading: Reading) -> Iterator[tuple[list[str], Value]]:
    if not isinstance(reading, Mapping):
        yield [], reading
        return
    for labels, value in reading.items():
        yield [labels] if isinstance(labels, str) else list(labels), value
