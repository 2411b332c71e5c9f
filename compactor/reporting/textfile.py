"""Metrics as a file in Prometheus' text format, for node_exporter and for the service.

Counters add up in the file over passes, over restarts, and over all compactors that write to it, so
that a job that cron starts has counters that rise. A change is read, added and renamed into place
under a lock, `{path}.lock`; a reader sees the old file or the new one. A file that is damaged, or
another program's, is replaced: for Prometheus its counters were reset. It is not synced, and a
power cut may cost it. Metrics that were renamed stand there under their aliases too; what an older
compactor wrote under these alone is counted on.
"""

from __future__ import annotations

from contextlib import closing, suppress

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from compactor.reporting.metrics import METRICS, Labels, Metric, Samples, add, by_name
from logstore.errors import Unavailable
from logstore.filesystem import FileSystem

_NAMED = {metric.name: metric for metric in METRICS}
_RENAMED = {metric.alias: metric for metric in METRICS if metric.alias}


class Textfile:
    """The file at an absolute path, in a folder that is there."""

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
        with suppress(FileNotFoundError):  # of one who was killed here
            self._fs.unlink(fresh)
        with closing(self._fs.open(fresh, "create")) as file:
            file.write([content])
        self._fs.rename(fresh, self._path)

    def _failed(self, error: OSError) -> Unavailable:
        return Unavailable(
            f"the metrics file {self._path} cannot be written: {error.strerror}",
            hint="Name another one in compaction.metrics_file, or none.",
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
    except (ValueError, KeyError, IndexError):  # the parser's, of text that is something else
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
                families.append(_family(metric.under_alias(), values))
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
