"""The scrape, which reads all metrics of a node at the moment of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from copy import copy
from itertools import chain

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from service.metrics.aliases import OKLOG, OPENMETADATA
from service.metrics.declared import (
    COMPACTION,
    LEASES,
    DeclaredMetric,
    MetricSources,
    Reading,
    Value,
    joined,
)
from service.metrics.http import HTTP, QUEUE, REPORTS
from service.metrics.node import NODE, RUN_LOGS, STORE
from service.runtime.counters import Distribution
from tailrace.logstore.errors import NodeNotReady
from tailrace.logstore.prometheus import under_alias

METRICS: tuple[DeclaredMetric, ...] = (
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


class _ReadMetrics(Collector):
    """Metrics as they were read."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def scraper(sources: MetricSources) -> Callable[[], Awaitable[bytes]]:
    """Makes the function that answers `/metrics`.

    The event loop only copies numbers. A thread makes samples and text of them, which takes ten
    times as long, and longer with more groups and routes.
    """

    async def scrape() -> bytes:
        file = sources.compactor_file
        # First: it sets whether the file is readable, which is a metric of ours.
        theirs = {} if file is None else file.families()
        readings = [
            (declared, reading)
            for declared in METRICS
            if (reading := _read(declared, sources)) is not None
        ]
        return await asyncio.to_thread(_text, readings, theirs)

    return scrape


def _read(declared: DeclaredMetric, sources: MetricSources) -> Reading | None:
    """The present values of one metric; None if this kind of node does not have it."""
    try:
        reading = declared.read(sources)
    except NodeNotReady:
        return None
    if isinstance(reading, Mapping):
        return {labels: copy(value) for labels, value in reading.items()}  # type: ignore[return-value]
    return copy(reading)


def _text(
    readings: Iterable[tuple[DeclaredMetric, Reading]], theirs: Mapping[str, Metric]
) -> bytes:
    ours = (families(declared, reading) for declared, reading in readings)
    return generate_latest(_ReadMetrics(joined(chain.from_iterable(ours), theirs)))


def families(declared: DeclaredMetric, reading: Reading) -> Iterator[Metric]:
    """The samples of one metric, and again under its alias if it was renamed."""
    yield family(declared, reading)
    if declared.alias:
        yield family(under_alias(declared), reading)


def family(declared: DeclaredMetric, reading: Reading) -> Metric:
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
