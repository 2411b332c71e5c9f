"""When the next pass begins, and how long Spark stays warm, on a clock that leaps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compactor.report import PassReport
from compactor.runner import repeat
from compactor.settings import Compaction
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import StoreUnavailable
from tailrace.logstore.objects.local import LocalStore
from tests.compactor.files import add_files
from tests.compactor.lake import HOUR, NOON, Lake, batch
from tests.compactor.plain_engine import PlainEngine
from tests.simulation.clocks import ShiftedClock

EVERY = 300.0


class Enough(Exception):
    """The scenario is over."""


@dataclass
class Leaping(ShiftedClock):
    """Nobody waits: time passes by as much as is slept, and `happens` as it does."""

    happens: Callable[[float], None] = lambda _at: None
    slept: float = 0.0

    def monotonic(self) -> float:
        return self.slept

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.shift_ms += int(seconds * 1000)
        await asyncio.to_thread(self.happens, self.slept)


@dataclass
class Engine(PlainEngine):
    """Says when it was stopped."""

    clock: Leaping = field(default_factory=Leaping)
    stopped: list[float] = field(default_factory=list)
    running: bool = False

    def cores(self) -> int:
        self.running = True
        return super().cores()

    def stop(self) -> None:
        if self.running:
            self.stopped.append(self.clock.slept)
        self.running = False


@dataclass
class Simulation:
    """A compactor that repeats, until `end` seconds have passed."""

    lake: Lake
    clock: Leaping
    engine: Engine
    began: list[float] = field(default_factory=list)
    reports: list[PassReport] = field(default_factory=list)
    every: float = EVERY

    def go(
        self, end: float, happens: Callable[[float], None] = lambda _at: None, **limits: float
    ) -> None:
        def until_end(at: float) -> None:
            if at >= end:
                raise Enough
            happens(at)

        self.clock.happens = until_end
        self.lake.limits = Compaction.model_validate({"gather_seconds": 0} | limits)
        with suppress(Enough):
            asyncio.run(repeat(self.lake.compactor, self.every, self._next))

    @asynccontextmanager
    async def _next(self) -> AsyncIterator[PassReport]:
        self.began.append(self.clock.slept)
        self.reports.append(PassReport())
        yield self.reports[-1]


@pytest.fixture
def scenario(lake: Lake) -> Simulation:
    clock = Leaping(NOON - SystemClock().now_ms())
    lake.clock, lake.session = clock, Engine(clock=clock)
    return Simulation(lake, clock, lake.session)


def test_a_quiet_store_is_looked_at_when_it_is_time(scenario: Simulation) -> None:
    scenario.go(1000, poll_seconds=15)
    assert scenario.began == [0, 300, 600, 900]


@pytest.mark.parametrize("limit", [{"lag_segments": 3}, {"lag_seconds": 40}])
def test_a_pass_begins_when_too_much_waits(scenario: Simulation, limit: dict[str, float]) -> None:
    def upload(at: float) -> None:
        if at in (20, 30, 40):
            key = scenario.lake.put("a", [batch("f", "r", NOON + int(at), 5)])
            now_ns = scenario.clock.now_ms() * 1_000_000
            os.utime(scenario.lake.store.uri(key), ns=(now_ns, now_ns))

    scenario.go(200, upload, poll_seconds=10, **limit)
    due = 40.0 if "lag_segments" in limit else 60.0
    assert scenario.began == [0, due]
    assert scenario.reports[1].segments == 3


def test_a_pass_begins_when_too_many_bytes_wait(scenario: Simulation) -> None:
    key = scenario.lake.put("a", [batch("f", "r", NOON, 100)])
    size = scenario.lake.run(scenario.lake.store.head(key)).size

    def upload(at: float) -> None:
        if at in (20, 30):
            scenario.lake.put("a", [batch("f", "r", NOON + int(at) * 1000, 100)])

    scenario.go(200, upload, poll_seconds=10, lag_bytes=2 * size - 50)
    assert scenario.began == [0, 30]


def test_what_a_pass_cannot_take_in_starts_no_other(scenario: Simulation) -> None:
    """Segments behind a gap, and one of another kind, wait and wait."""
    for seq in (2, 3, 4):
        scenario.lake.put("a", [batch("f", "r", NOON + seq, 5)], seq=seq)
    scenario.go(1000, poll_seconds=10, lag_segments=2, lag_seconds=10)
    assert scenario.began == [0, 300, 600, 900]


def test_what_another_compactor_took_in_does_not_wait(scenario: Simulation) -> None:
    other = Lake(scenario.lake.data, session=PlainEngine())

    def upload(at: float) -> None:
        if at in (20, 30, 40):
            other.put("a", [batch("f", "r", NOON + int(at), 5)])
            other.compact()

    scenario.go(200, upload, poll_seconds=10, lag_segments=2)
    assert scenario.began == [0]
    assert other.snapshot().mark("a") == 3


def test_spark_is_stopped_once_it_was_idle_for_long(scenario: Simulation) -> None:
    scenario.lake.put("a", [batch("f", "r", NOON, 5)])

    def upload(at: float) -> None:
        if at == 150:
            scenario.lake.put("a", [batch("f", "r", NOON + 1, 5)])

    scenario.go(800, upload, poll_seconds=10, idle_seconds=200)
    assert scenario.began == [0, 300, 600]
    assert [report.commits for report in scenario.reports] == [1, 1, 0]
    assert scenario.engine.stopped == [200, 500]


def test_hours_wait_where_segments_do(scenario: Simulation) -> None:
    """Each has files enough to be rewritten; what comes meanwhile is ingested before the rest."""
    lake, clock = scenario.lake, scenario.clock
    clock.shift_ms += 12 * HOUR
    hours = [[batch("f", "r", NOON + h * HOUR + i, 20) for i in range(5)] for h in range(3)]
    add_files(lake, *([one] for hour in hours for one in hour))

    put: list[str] = []

    def reached(step: str) -> None:
        if step == "hour committed" and not put:
            new = [batch("f", "r", NOON + 9 * HOUR, 5)]
            with ThreadPoolExecutor(1) as beside:  # this thread has a loop that runs
                put.append(beside.submit(lake.put, "a", new).result())

    lake.reached = reached
    scenario.go(100, poll_seconds=10, lag_segments=1)
    assert [report.hours_rewritten for report in scenario.reports] == [1, 2]
    assert [report.segments for report in scenario.reports] == [0, 1]
    assert scenario.began == [0, 10]


class Away(LocalStore):
    """A store that does not answer while `away`."""

    away = False

    def folders(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        if self.away:
            raise StoreUnavailable("away")
        return super().folders(prefix, after=after)


def test_a_store_that_is_away_is_tried_again(scenario: Simulation, tmp_path: Path) -> None:
    lake = scenario.lake
    assert isinstance(lake.store, LocalStore)
    lake.put("a", [batch("f", "r", NOON, 5)])
    lake.store.__class__ = Away

    def come_and_go(at: float) -> None:
        Away.away = 100 <= at < 650

    scenario.go(1000, come_and_go, poll_seconds=10, lag_segments=1)
    assert scenario.began == [0, 300, 600, 900]
    assert lake.snapshot().mark("a") == 1


def uploaded(scenario: Simulation, at: float, lines: int = 5) -> None:
    """A segment of now, by the scenario's clock."""
    key = scenario.lake.put("a", [batch("f", "r", NOON + int(at * 1000), lines)])
    now_ns = scenario.clock.now_ms() * 1_000_000
    os.utime(scenario.lake.store.uri(key), ns=(now_ns, now_ns))


def test_small_segments_wait_for_one_another_up_to_an_age(scenario: Simulation) -> None:
    """A pass that comes in its time leaves them; one commit takes them all when it is theirs."""

    def upload(at: float) -> None:
        if 290 <= at <= 320:
            uploaded(scenario, at)

    scenario.go(500, upload, poll_seconds=10, gather_seconds=30)
    assert scenario.began == [0, 300, 320]
    assert [report.segments for report in scenario.reports] == [0, 0, 4]
    assert [report.commits for report in scenario.reports] == [0, 0, 1]
    left = scenario.reports[1].lag
    assert left is not None
    assert left.segments == 2
    assert 10 <= left.seconds < 20


@pytest.mark.in_turn(4)
def test_steady_inflow_is_few_commits_and_none_waits_for_longer_than_its_age(
    scenario: Simulation,
) -> None:
    """One a second, though passes would begin every second: it was a commit for each."""
    waited: list[float] = []

    def upload(at: float) -> None:
        uploaded(scenario, at)
        lag = scenario.reports[-1].lag
        waited.append(lag.seconds if lag is not None else 0.0)

    scenario.every = 1.0
    scenario.go(100, upload, poll_seconds=1, gather_seconds=20)
    commits = sum(report.commits for report in scenario.reports)
    assert 4 <= commits <= 5
    assert sum(report.segments for report in scenario.reports) >= 80
    assert max(waited) <= 21


@pytest.mark.parametrize("limit", [{"lag_segments": 2}, {"lag_seconds": 5}, {"lag_bytes": 100}])
def test_what_is_much_or_was_to_be_quick_waits_for_nothing(
    scenario: Simulation, limit: dict[str, float]
) -> None:
    def upload(at: float) -> None:
        if at in (285, 290):
            uploaded(scenario, at)

    scenario.go(310, upload, poll_seconds=5, gather_seconds=3_000, **limit)
    assert sum(report.segments for report in scenario.reports) == 2


def test_a_clock_that_is_behind_the_stores_makes_none_wait_for_longer(scenario: Simulation) -> None:
    """By it, segments are younger than new."""

    def upload(at: float) -> None:
        if at == 290:
            key = scenario.lake.put("a", [batch("f", "r", NOON, 5)])
            ahead = (scenario.clock.now_ms() / 1000 + 7_200,) * 2
            os.utime(scenario.lake.store.uri(key), ahead)

    scenario.go(600, upload, poll_seconds=10, gather_seconds=30)
    assert scenario.began == [0, 300, 330]
    assert [report.segments for report in scenario.reports] == [0, 0, 1]


def test_a_pass_that_is_not_repeated_leaves_nothing(scenario: Simulation) -> None:
    uploaded(scenario, 0)
    scenario.lake.limits = Compaction(gather_seconds=3_000)
    assert scenario.lake.compact().segments == 1


def test_maintenance_goes_on_while_segments_wait_for_one_another(scenario: Simulation) -> None:
    lake, clock = scenario.lake, scenario.clock
    clock.shift_ms += 12 * HOUR
    add_files(lake, *([batch("f", "r", NOON + i, 20)] for i in range(5)))
    uploaded(scenario, 0)
    scenario.go(100, poll_seconds=10, gather_seconds=30)
    assert [report.hours_rewritten for report in scenario.reports] == [1, 0]
    assert [report.segments for report in scenario.reports] == [0, 1]
