"""Counts of events by level, in a file for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from tailrace.coordination.partitions import MAX_PROGRESS_BYTES
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed, State
from tailrace.pipelines.appenders.simple import LevelMetrics, MetricsSettings
from tests.pipelines.events import events


def counting(path: Path, state: State | None = None, **more: Any) -> LevelMetrics:
    made = LevelMetrics(MetricsSettings(file=str(path), **more))
    made.start(
        AppenderContext("p", "levels", 0, 1, Disk(private=True), SystemClock(), lambda: True), state
    )
    return made


def counts(path: Path) -> dict[tuple[str, ...], float]:
    (family,) = text_string_to_metric_families(path.read_text())
    for one in family.samples:
        assert (one.name, one.labels.pop("pipeline")) == ("tailrace_log_events_total", "p")
        assert one.labels.pop("appender") == "levels"
    return {tuple(one.labels.values()): one.value for one in family.samples}


def test_events_are_counted_once_also_behind_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "logs.prom"
    some = [events(["a", "b"], fqn="s.x"), events(["c"], fqn="s.y", level="ERROR")]
    first = counting(path, labels=["level", "fqn", "service"])
    first.append(pa.concat_tables(some))
    state = first.sync()
    first.append(some[0])
    first.sync()  # this one is not saved
    first.stop()
    second = counting(path, state, labels=["level", "fqn", "service"])
    assert counts(path) == {("INFO", "s.x", "s"): 2, ("ERROR", "s.y", "s"): 1}
    second.append(some[0])
    second.sync()
    second.stop()
    assert counts(path) == {("INFO", "s.x", "s"): 4, ("ERROR", "s.y", "s"): 1}
    assert path.stat().st_mode & 0o777 == 0o644


def test_one_traceback_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "logs.prom"
    metrics = counting(path, labels=["level"])
    metrics.append(events(["a", " b", " c"], level="ERROR", carried=[None, True, True]))
    metrics.sync()
    assert counts(path) == {("ERROR",): 1}


def test_labels_are_bounded_and_may_be_attributes_of_any_text(tmp_path: Path) -> None:
    path = tmp_path / "logs.prom"
    metrics = counting(path, labels=["attribute.k-1"], max_series=2)
    for value in ('a"\\\n', "b", "c", "d"):
        metrics.append(events(["x"], attributes={"k-1": value}))
    metrics.append(events(["x"]))
    metrics.sync()
    assert counts(path) == {('a"\\\n',): 1, ("b",): 1, ("other",): 3}


def test_what_is_counted_apart_fits_into_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "logs.prom"
    metrics = counting(path, labels=["attribute.k"], max_series=2000)
    for number in range(300):
        metrics.append(events(["x"], attributes={"k": f"{number} " + "ü" * 1000}))
    state = metrics.sync()
    metrics.stop()
    assert len(orjson.dumps(state)) < MAX_PROGRESS_BYTES
    again = counting(path, state, labels=["attribute.k"], max_series=2000)
    again.append(events(["x"], attributes={"k": "new " + "x" * 1000}))
    again.sync()
    again.stop()
    found = counts(path)
    assert 10 < len(found) < 300
    assert sum(found.values()) == 301
    assert found["other",] == 301 - len(found) + 1


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="has 'host'; known are level, fqn"):
        MetricsSettings(file="/x", labels=("host",))
    metrics = LevelMetrics(MetricsSettings(file=str(tmp_path / "x")))
    with pytest.raises(AppenderFailed, match="several parts"):
        metrics.start(AppenderContext("p", "x", 0, 2, Disk(), SystemClock(), lambda: True), None)
