"""What the compactor beside the service says of itself, in the service's own scrape."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import CollectorRegistry, CounterMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from service.compaction import CompactionChild
from service.metrics.declared import COMPACTION, CompactorFile, MetricSources, joined
from service.metrics.scrape import family
from service.runtime.process import RestartPolicy
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk

MOVE_WITH_COMPACTION = {metric.name for metric in COMPACTION}
FILE = """\
# HELP tailrace_compactor_segments_total Segments ingested into the table.
# TYPE tailrace_compactor_segments_total counter
tailrace_compactor_segments_total 7.0
# HELP tailrace_compactor_lag_seconds For how long.
# TYPE tailrace_compactor_lag_seconds gauge
tailrace_compactor_lag_seconds 3.5
# HELP tailrace_partitions_acquired_total Leases acquired.
# TYPE tailrace_partitions_acquired_total counter
tailrace_partitions_acquired_total{source="compactor|compact"} 4.0
tailrace_partitions_acquired_total{source="text"} 99.0
# HELP tailrace_lines_total Not theirs to say.
# TYPE tailrace_lines_total counter
tailrace_lines_total 1.0
"""


def ours() -> Metric:
    made = CounterMetricFamily(
        "tailrace_partitions_acquired", "Leases acquired.", labels=["source"]
    )
    made.add_metric(["text"], 2)
    return made


def scraped(families: list[Metric]) -> dict[str, dict[tuple[str, ...], float]]:
    """What Prometheus reads; it refuses a metric that stands there twice."""

    class All(Collector):
        def collect(self) -> list[Metric]:
            return families

    registry = CollectorRegistry(auto_describe=False)
    registry.register(All())
    text = generate_latest(registry).decode()
    read = list(text_string_to_metric_families(text))
    assert len({one.name for one in read}) == len(read)
    return {one.name: {tuple(s.labels.values()): s.value for s in one.samples} for one in read}


def test_their_leases_stand_beside_ours_and_the_rest_behind(tmp_path: Path) -> None:
    path = tmp_path / "compactor.prom"
    path.write_text(FILE)
    file = CompactorFile(Disk(), str(path))
    for _ in range(2):  # a second scrape finds nothing added up
        assert scraped(list(joined([ours()], file.families()))) == {
            "tailrace_partitions_acquired": {("text",): 2, ("compactor|compact",): 4},
            "tailrace_compactor_segments": {(): 7},
            "tailrace_compactor_lag_seconds": {(): 3.5},
        }


def test_each_scrape_reads_the_file_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "compactor.prom"
    file = CompactorFile(Disk(), str(path))
    assert file.families() == {}
    assert not file.unreadable
    path.write_text(FILE)
    assert len(file.families()) == 3
    (tmp_path / "new").write_text(FILE.replace("7.0", "8.0"))
    (tmp_path / "new").rename(path)
    (sample,) = file.families()["tailrace_compactor_segments"].samples
    assert sample.value == 8
    path.unlink()
    assert file.families() == {}


@pytest.mark.parametrize("content", [b"\x00\xff\xfe", b"a{ b", b"# TYPE x"])
def test_a_file_that_is_something_else_costs_only_its_own_metrics(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "compactor.prom"
    path.write_bytes(content)
    file = CompactorFile(Disk(), str(path))
    assert scraped(list(joined([ours()], file.families()))) == {
        "tailrace_partitions_acquired": {("text",): 2}
    }


async def scenario(tmp_path: Path) -> dict[str, list[float]]:
    """Readings of all metrics: before the child, while it runs, after it ended, a bad file."""
    path = tmp_path / "compactor.prom"
    restart = RestartPolicy(first_pause_seconds=600)
    until_told = tmp_path / "told"
    os.mkfifo(until_told)
    child = CompactionChild(["cat", str(until_told)], SystemClock(), restart=restart)
    sources = MetricSources(
        cast("Any", SimpleNamespace()),
        cast("Any", None),
        compaction=child,
        compactor_file=CompactorFile(Disk(), str(path)),
    )
    seen: dict[str, list[float]] = {metric.name: [] for metric in COMPACTION}

    def look() -> None:
        assert sources.compactor_file is not None
        sources.compactor_file.families()
        for metric in COMPACTION:
            seen[metric.name].append(family(metric, metric.read(sources)).samples[0].value)

    look()
    running = asyncio.create_task(child.run())
    async with asyncio.timeout(120):
        while child.state != "running":
            await asyncio.sleep(0.01)
        look()
        await asyncio.to_thread(until_told.write_bytes, b"")
        while child.failures == 0:
            await asyncio.sleep(0.01)
    path.write_bytes(b"a{ b")
    look()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return seen


def test_each_metric_of_the_child_moves(tmp_path: Path) -> None:
    assert asyncio.run(scenario(tmp_path)) == {
        "tailrace_compaction_running": [0, 1, 0],
        "tailrace_compaction_starts": [0, 1, 1],
        "tailrace_compaction_failures": [0, 0, 1],
        "tailrace_compaction_file_unreadable": [0, 0, 1],
    }
