"""Processes that share pipelines, and appenders that hold up nobody for long."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.objects.config import PipelineSettings
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.definition import PipelineFolder, parse
from tailrace.pipelines.process import PipelinesProcess, run_pipelines
from tailrace.pipelines.world import PipelinesSettings
from tests.pipelines.lake import Lake
from tests.pipelines.remembering import FAST, Remembering, forget, has, named, pipeline, until

__all__ = ["forget"]
_FASTER = 100
_TEN_MINUTES = 600


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.mark.in_turn(3)
async def test_a_part_goes_to_a_second_process_and_back_and_each_line_is_written_once(
    lake: Lake, tmp_path: Path
) -> None:
    lake.settings = lake.settings.model_copy(
        update={"pipelines": PipelineSettings(poll_seconds=0.05, lease_seconds=10)}
    )
    out = tmp_path / "out"
    files = {"type": "rolling_file", "name": "f", "dir": str(out), "path": "{fqn}.log"}
    made = parse({"name": "p", **FAST, "parts": 4, "appenders": [files]}, AppenderRegistry())
    names = [f"shop.p{number}" for number in range(12)]
    put: Counter[str] = Counter()

    async def put_each() -> None:
        for name in names:
            line = f"{name} {put.total()}"
            put[line] += 1
            await lake.put(line, fqn=name)

    def written() -> Counter[str]:
        return Counter(line for path in out.glob("*.log") for line in path.read_text().splitlines())

    def owned(process: PipelinesProcess) -> set[str]:
        return {one.name for one in process.workers}

    parts = {f"p/f/{part}" for part in range(4)}
    async with lake.running(made) as first:
        await until(lambda: owned(first) == parts)
        await put_each()
        await until(lambda: written() == put)
        second_lake = Lake(tmp_path)
        second_lake.settings = lake.settings.model_copy(
            update={"data": str(tmp_path / "second"), "store": f"{tmp_path}/store"}
        )
        async with second_lake.running(made) as second:
            for _ in range(2):
                await put_each()
            await until(lambda: len(owned(first)) == len(owned(second)) == 2)
            assert owned(first) | owned(second) == parts
            await put_each()
            await until(lambda: written() == put)
            assert all(one.counts.failures == 0 for one in (*first.workers, *second.workers))
        await until(lambda: owned(first) == parts)
        await put_each()
        await until(lambda: written() == put)


@pytest.mark.parametrize(("lease", "silent"), [(10, 10), (60, 60), (3600, 60)])
def test_who_is_silent_for_a_lease_has_no_share_of_the_work(lease: int, silent: int) -> None:
    """Otherwise what a process had that died waits for longer than its lease."""
    settings = PipelinesSettings(pipelines=PipelineSettings(lease_seconds=lease))
    assert settings.limits.lease_seconds == lease
    assert settings.limits.worker_seconds == silent


async def test_a_process_makes_its_data_folder_and_is_known_by_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it goes on at once when it is started again; one whose folder cannot be made runs too."""
    monkeypatch.chdir(lake.folder)
    made = pipeline("a")
    for data in ("new/data", "/proc/none"):
        settings = lake.settings.model_copy(update={"data": data, "store": f"{lake.folder}/store"})
        owners: list[str] = []

        def started(process: PipelinesProcess, owners: list[str] = owners) -> None:
            owners.append(process.identity)
            process.stop()

        await run_pipelines(settings, [made], lambda: PipelineFolder([made]), started)
        assert [one.endswith(f"/{data}") for one in owners] == [data != "/proc/none"]


class FasterClock(SystemClock):
    """Time that goes by many times as fast."""

    began = SystemClock().monotonic()
    began_ms = SystemClock().now_ms()

    def monotonic(self) -> float:
        return self.began + (super().monotonic() - self.began) * _FASTER

    def now_ms(self) -> int:
        return round(self.began_ms + (self.monotonic() - self.began) * 1000)

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / _FASTER)


async def test_an_appender_that_is_stuck_for_ten_minutes_holds_up_nobody(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the other appender of its pipeline, nor other pipelines; then it gets everything."""
    monkeypatch.setattr("tailrace.pipelines.world.SystemClock", FasterClock)
    lake.settings = lake.settings.model_copy(
        update={"pipelines": PipelineSettings(poll_seconds=5, lease_seconds=3600)}
    )
    slowly = {"checkpoint_interval_ms": 10_000, "retry_ms": 1000}
    stuck = named("stuck", pipeline("hangs", "beside", **slowly))
    clock, lines = FasterClock(), [str(minute) for minute in range(11)]
    hanging = Remembering.hanging
    async with lake.running(stuck, named("other", pipeline("a", **slowly))) as process:
        await lake.put(lines[0])
        await until(has("a", lines[0]))
        began = clock.monotonic()
        for minute, line in enumerate(lines[1:], 1):
            await clock.sleep(max(began + minute * 60 - clock.monotonic(), 0))
            await lake.put(line)
            for name in ("a", "beside"):
                await until(has(name, *lines[: minute + 1]))
        assert clock.monotonic() - began >= _TEN_MINUTES
        assert not Remembering.lines.get("hangs")
        assert [one.counts.given for one in process.workers if one.appender == "hangs"] == [0]
        hanging.set()
        await until(has("hangs", *lines))
