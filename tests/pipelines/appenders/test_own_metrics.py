"""Counters and gauges of an appender's own: names, kinds, limits."""

from __future__ import annotations

import pytest

from tailrace.logstore.errors import InvalidInput
from tailrace.pipelines.appenders.contract import (
    MOST,
    AppenderMetrics,
    DeclaredMetrics,
    collect_own,
)

PART = ("p", "a", "0")


def test_a_name_is_one_number() -> None:
    metrics = AppenderMetrics()
    metrics.counter("rows", "Rows.").add(2)
    metrics.counter("rows", "Rows.").add()
    metrics.gauge("open_files", "Files.").set(4)
    metrics.gauge("open_files", "Files.").set(3)
    assert metrics.values() == {"rows": 3, "open_files": 3}


def test_appenders_with_the_same_name_are_one_metric_with_their_labels() -> None:
    names = DeclaredMetrics()
    parts: dict[tuple[str, ...], AppenderMetrics] = {
        PART: AppenderMetrics(names),
        ("q", "b", "1"): AppenderMetrics(names),
    }
    for count, part in enumerate(parts.values(), 1):
        part.counter("rows", "Rows.").add(count)
    (metric,) = collect_own(names, parts)
    assert metric.name == "tailrace_pipelines_appender_rows"
    assert metric.documentation == "Rows."
    assert [(sample.labels["pipeline"], sample.value) for sample in metric.samples] == [
        ("p", 1),
        ("q", 2),
    ]


def test_a_name_of_the_other_kind_is_refused_in_any_appender() -> None:
    names = DeclaredMetrics()
    AppenderMetrics(names).counter("rows", "Rows.")
    other = AppenderMetrics(names)
    with pytest.raises(InvalidInput, match="is a counter already"):
        other.gauge("rows", "Rows.")
    assert other.values() == {}


@pytest.mark.parametrize("name", ["", "Rows", "rows_total", "rows_", "rows{}", "1", "a" * 61, "ä"])
def test_a_name_that_prometheus_would_not_take_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be the name of a metric"):
        AppenderMetrics().counter(name, "Rows.")


def test_there_are_only_so_many() -> None:
    metrics = AppenderMetrics()
    for number in range(MOST):
        metrics.counter(f"rows{number}", "Rows.")
    with pytest.raises(InvalidInput, match=f"at most {MOST}"):
        metrics.gauge("more", "Rows.")
    metrics.counter("rows0", "Rows.").add()


@pytest.mark.parametrize("amount", [-1, float("nan")])
def test_a_counter_only_grows(amount: float) -> None:
    with pytest.raises(InvalidInput, match="cannot grow"):
        AppenderMetrics().counter("rows", "Rows.").add(amount)
