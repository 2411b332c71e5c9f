"""Metrics of passes in a file: each count once, over restarts, kills, full disks and writers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from compactor.listeners import MetricsListener
from compactor.metrics import (
    COUNTERS,
    GAUGES,
    LEASES,
    METRICS,
    STOPPED,
    Samples,
    Textfile,
    parse,
    render,
)
from compactor.passes import Passes
from compactor.report import Lag, PassReport
from tailrace.coordination.leases import CoordinationCounters
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import StoreUnavailable, Unavailable
from tailrace.logstore.filesystem import Disk, File, Mode
from tests.simulation.virtual_time import VirtualClock, simulate

SOURCE = "compactor|compact"


def value(samples: Samples, name: str, *labels: str) -> float | None:
    return samples.get((f"tailrace_compactor_{name}", labels))


def work(acquired: int) -> Any:
    counters = CoordinationCounters(acquired=acquired)
    counters.update_errors["close"] = 1
    return SimpleNamespace(
        source=SOURCE,
        counters=counters,
        held=list,
        oldest_seconds=lambda: 1.5,
        lag_seconds=lambda: 2.5,
    )


def tell(listener: MetricsListener, report: PassReport) -> None:
    asyncio.run(listener.over(report))


def test_counters_rise_over_passes_and_restarts(tmp_path: Path) -> None:
    file = Textfile(Disk(), str(tmp_path / "c.prom"))
    for _ in range(2):  # two lives of a job that cron starts
        listener = MetricsListener(SystemClock(), file)
        for _ in range(2):
            report = PassReport(segments=3, rows_in=10, seconds={"merge": 0.5}, lag=Lag(1, 2, 3.0))
            report.works.append(work(2))
            tell(listener, report)
    samples = file.read()
    assert value(samples, "segments") == 12
    assert value(samples, "phase_seconds", "merge") == 2
    assert value(samples, "passes", "done") == 4
    assert value(samples, "lag_bytes") == 2
    assert samples["tailrace_partitions_acquired", (SOURCE,)] == 8
    assert samples["tailrace_partition_update_errors", (SOURCE, "close")] == 4
    assert samples["tailrace_lease_oldest_seconds", (SOURCE,)] == 1.5


def test_a_pass_that_goes_on_is_counted_as_it_goes_and_once(tmp_path: Path) -> None:
    file = Textfile(Disk(), str(tmp_path / "c.prom"))

    async def scenario(clock: VirtualClock) -> list[tuple[float | None, ...]]:
        seen = []
        passes = Passes(clock, [MetricsListener(clock, file)])
        async with passes.next() as report:
            for _ in range(3):
                report.segments += 1
                await clock.sleep(25)
                samples = file.read()
                seen.append((value(samples, "segments"), value(samples, "running")))
        samples = file.read()
        return [*seen, (value(samples, "segments"), value(samples, "running"))]

    assert simulate(scenario, start_ms=1_795_262_400_000) == [(1, 1), (2, 1), (3, 1), (3, 0)]


def test_what_a_pass_has_not_looked_at_stays_as_it_was(tmp_path: Path) -> None:
    file = Textfile(Disk(), str(tmp_path / "c.prom"))
    tell(MetricsListener(SystemClock(), file), PassReport(lag=Lag(5, 6, 7.0)))
    first = file.read()
    later = MetricsListener(SystemClock(), file)
    asyncio.run(later.look(PassReport()))  # nobody has listed yet: the lag is not 0 because of that
    tell(later, PassReport(error="the store is away"))
    tell(later, PassReport(error="the store is away"))
    samples = file.read()
    assert value(samples, "lag_segments") == 5
    assert value(samples, "failures_in_a_row") == 2
    success = "success_timestamp_seconds"
    assert value(samples, success) == value(first, success)
    told = "reported_timestamp_seconds"
    assert (value(samples, told) or 0) > (value(first, told) or 0)
    tell(later, PassReport(alarms=["a gap"]))
    assert value(file.read(), "failures_in_a_row") == 0
    assert value(file.read(), "alarms") == 1


@pytest.mark.parametrize(
    ("report", "outcome"),
    [
        (PassReport(took_seconds=2.5), "done"),
        (PassReport(took_seconds=2.5, alarms=["x"]), "alarmed"),
        (PassReport(took_seconds=2.5, error="x"), "failed"),
        (PassReport(took_seconds=2.5, error=STOPPED), "stopped"),
    ],
)
def test_each_end_of_a_pass_has_its_word(tmp_path: Path, report: PassReport, outcome: str) -> None:
    file = Textfile(Disk(), str(tmp_path / "c.prom"))
    tell(MetricsListener(SystemClock(), file), report)
    found = {name: n for (name, labels), n in file.read().items() if outcome in labels}
    took = "tailrace_store_compact_duration_seconds"
    assert found == {"tailrace_compactor_passes": 1, took: 2.5, f"{took}_count": 1}
    assert value(file.read(), "failures_in_a_row") == (outcome == "failed")


def test_many_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "c.prom")

    def write(_: int) -> None:
        listener = MetricsListener(SystemClock(), Textfile(Disk(), path))
        for _ in range(5):
            tell(listener, PassReport(commits=1))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert value(Textfile(Disk(), path).read(), "commits") == 20


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff", b"a{ b", b"tailrace_compactor_segments_total x\n"]
)
def test_a_file_that_is_something_else_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.prom"
    path.write_bytes(content)
    tell(MetricsListener(SystemClock(), Textfile(Disk(), str(path))), PassReport(segments=2))
    assert value(parse(path.read_bytes()), "segments") == 2


def test_a_killed_writer_leaves_the_old_file_and_holds_nobody_up(tmp_path: Path) -> None:
    file = Textfile(Disk(), str(tmp_path / "c.prom"))
    tell(MetricsListener(SystemClock(), file), PassReport(segments=2))
    (tmp_path / "c.prom.new").write_bytes(b"# TYPE tailrace_comp")
    assert value(file.read(), "segments") == 2
    tell(MetricsListener(SystemClock(), file), PassReport(segments=2))
    assert value(file.read(), "segments") == 4
    assert not (tmp_path / "c.prom.new").exists()


class FullDisk(Disk):
    """Has no room as long as it is `full`."""

    full = True

    def open(self, path: str, mode: Mode) -> Any:
        return NoRoom() if self.full and mode == "create" else super().open(path, mode)


class NoRoom:
    def write(self, _pieces: Sequence[bytes]) -> int:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        """Nothing is open."""


def test_what_could_not_be_written_is_owed_and_an_alarm(tmp_path: Path) -> None:
    disk = FullDisk()
    assert isinstance(cast("File", NoRoom()), NoRoom)
    file = Textfile(disk, str(tmp_path / "c.prom"))

    async def scenario(clock: VirtualClock) -> list[list[str]]:
        passes = Passes(clock, [MetricsListener(clock, file)])
        async with passes.next() as first:
            first.segments = 3
            await clock.sleep(15)
        disk.full = False
        async with passes.next() as second:
            second.segments = 4
        assert passes.alarmed
        return [first.alarms, second.alarms]

    first, second = simulate(scenario, start_ms=1_795_262_400_000)
    assert len(first) == 1
    assert "cannot be written: No space left on device" in first[0]
    assert second == []
    assert value(file.read(), "segments") == 7
    assert value(file.read(), "passes", "done") == 2


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    listener = MetricsListener(SystemClock(), Textfile(Disk(), str(tmp_path / "no" / "c.prom")))
    with pytest.raises(Unavailable, match=r"no/c\.prom cannot be written"):
        tell(listener, PassReport())


def test_every_metric_that_is_declared_is_told_and_reads_back() -> None:
    report = PassReport(seconds={"plan": 1}, lag=Lag(1, 1, 1.0))
    report.works.append(work(1))
    listener = MetricsListener(SystemClock(), None)
    tell(listener, report)
    samples = listener.totals.read()
    counts = {f"{metric.name}_count" for metric in METRICS if metric.kind == "summary"}
    assert {name for name, _ in samples} == {metric.name for metric in METRICS} | counts
    assert parse(render(samples)) == samples
    assert len(METRICS) == len({m.name for m in (*COUNTERS, *GAUGES, *LEASES)})


def test_the_time_of_passes_adds_up_by_whether_they_changed_the_table(tmp_path: Path) -> None:
    file = Textfile(Disk(), str(tmp_path / "c.prom"))
    for report in (PassReport(took_seconds=1), PassReport(took_seconds=2, commits=1), PassReport()):
        tell(MetricsListener(SystemClock(), file), report)
    content = (tmp_path / "c.prom").read_text()
    families = {one.name: one for one in text_string_to_metric_families(content)}
    took = families["tailrace_store_compact_duration_seconds"]
    found = {(s.name.rpartition("_")[2], s.labels["compacted"]): s.value for s in took.samples}
    assert found == {
        ("sum", "false"): 1,
        ("count", "false"): 2,
        ("sum", "true"): 2,
        ("count", "true"): 1,
    }


def test_the_file_has_the_same_samples_under_aliases() -> None:
    listener = MetricsListener(SystemClock(), None)
    tell(listener, PassReport(set_aside=3))
    content = render(listener.totals.read()).decode()
    found = {one.name: one for one in text_string_to_metric_families(content)}
    renamed = {metric.alias: metric for metric in METRICS if metric.alias}
    for old, metric in renamed.items():
        (own,), (alias,) = found[metric.name].samples, found[old].samples
        assert (alias.labels, alias.value) == (own.labels, own.value), old
        assert found[old].type == metric.kind
        assert found[old].documentation == f"Alias of `{metric.name}`, until the next version."
    assert found["tailrace_compactor_set_aside"].samples[0].value == 3
    assert found["tailrace_compactor_told_timestamp_seconds"].samples[0].value > 0
    assert not renamed.keys() & {metric.name for metric in METRICS}


def test_what_an_older_compactor_counted_is_counted_on(tmp_path: Path) -> None:
    path = tmp_path / "c.prom"
    path.write_text(
        "# TYPE tailrace_compactor_set_aside_total counter\ntailrace_compactor_set_aside_total 5\n"
    )
    for _ in range(2):
        tell(MetricsListener(SystemClock(), Textfile(Disk(), str(path))), PassReport(set_aside=2))
    lines = path.read_text().splitlines()
    assert "tailrace_compactor_segments_quarantined_total 9.0" in lines
    assert "tailrace_compactor_set_aside_total 9.0" in lines


@pytest.mark.parametrize(
    "names", [("set_aside", "segments_quarantined"), ("segments_quarantined", "set_aside")]
)
def test_a_metrics_own_name_decides_over_its_alias(names: tuple[str, str]) -> None:
    lines = {
        "set_aside": "tailrace_compactor_set_aside_total 1\n",
        "segments_quarantined": "tailrace_compactor_segments_quarantined_total 2\n",
    }
    content = "".join(
        f"# TYPE tailrace_compactor_{name}_total counter\n{lines[name]}" for name in names
    )
    assert parse(content.encode()) == {("tailrace_compactor_segments_quarantined", ()): 2}


def test_a_pass_that_breaks_off_is_told_and_goes_on_breaking_off(tmp_path: Path) -> None:
    file = Textfile(Disk(), str(tmp_path / "c.prom"))

    async def scenario(clock: VirtualClock) -> PassReport:
        passes = Passes(clock, [MetricsListener(clock, file)])
        with pytest.raises(StoreUnavailable):
            async with passes.next() as report:
                raise StoreUnavailable("no answer")
        return report

    assert simulate(scenario, start_ms=1_795_262_400_000).error == "no answer"
    assert value(file.read(), "passes", "failed") == 1
