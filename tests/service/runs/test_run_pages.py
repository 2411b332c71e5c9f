"""Pages of runs: each once, whatever comes and goes meanwhile, at a bounded cost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import chain

import pytest

from logstore.batch import RunKey
from logstore.errors import InvalidCursor
from logstore.patterns import name_test
from logstore.runs.report import Report, make_report
from service.runs.outcomes import RunOutcomes
from service.runs.run_pages import (
    ReportedRuns,
    RunEntry,
    RunFilter,
    RunNames,
    RunPages,
    RunSummary,
)
from tests.service.runs.world import World

FQN = "service.pipeline"


class NothingSaid:
    """No client reported anything."""

    async def get(self, key: RunKey) -> Report | None:
        return None

    async def components(self, fqn: str) -> dict[str, int]:
        return {}

    async def at(self, fqn: str, component: str) -> Report | None:
        raise NotImplementedError

    async def pipelines(self) -> list[str]:
        return []

    async def pipeline(self, component: str) -> str | None:
        raise NotImplementedError


OUTCOMES = RunOutcomes(300, 86_400)


class Runs:
    """Runs in memory, as a store lists them: `moments` are of their last change."""

    def __init__(self, count: int) -> None:
        self.moments = {f"run-{n:06d}": 1000 + n for n in range(count)}
        self.states: dict[str, str] = {}
        self.listed = 0
        self.read = 0
        self.list = RunPages(self._names, self._summary, OUTCOMES)

    async def _names(self, fqn: str, _: ReportedRuns) -> RunNames:
        self.listed += 1
        return RunNames(fqn, [RunEntry(moment, name) for name, moment in self.moments.items()])

    async def _summary(self, _: RunNames, name: str) -> RunSummary | None:
        self.read += 1
        if name not in self.moments:
            return None
        first = 1000 + int(name.partition("-")[2])
        state = self.states.get(name, "closed")
        return RunSummary(name, state, 1, 1, first, self.moments[name])

    async def paged(
        self, limit: int, wanted: RunFilter | None = None, *, now_ms: int = 500_000
    ) -> AsyncIterator[list[str]]:
        after = None
        while True:
            found = await self.list.page(
                FQN, wanted or RunFilter(), limit, after, now_ms=now_ms, reported=NothingSaid()
            )
            yield [run.run.run for run in found.runs]
            after = found.after
            if after is None:
                return

    def forget(self) -> None:
        """As another node, or this one after a start."""
        self.list = RunPages(self._names, self._summary, OUTCOMES)


@pytest.mark.parametrize("limit", [1, 7, 16, 100, 1000])
async def test_each_run_once_those_that_changed_last_first(limit: int) -> None:
    runs = Runs(100)
    pages = [page async for page in runs.paged(limit)]
    assert [*chain(*pages)] == sorted(runs.moments, reverse=True)
    assert runs.listed == 1


@pytest.mark.parametrize("limit", [1, 3, 7, 40])
async def test_of_those_that_just_changed_the_newest_come_first(limit: int) -> None:
    runs = Runs(40)
    # All of them within a second, for all that a store knows; the oldest was written to last.
    runs.moments = dict.fromkeys(runs.moments, 2_000) | {"run-000000": 3_000}
    pages = [page async for page in runs.paged(limit, now_ms=4_000)]
    assert pages[0] == sorted(runs.moments, reverse=True)[:limit]
    assert sorted(chain(*pages)) == sorted(runs.moments)
    few = Runs(5)
    few.moments = dict.fromkeys(few.moments, 2_000) | {"run-000000": 3_000}
    pages = [page async for page in few.paged(limit, now_ms=4_000)]
    assert [*chain(*pages)] == sorted(few.moments, reverse=True)


@pytest.mark.parametrize("forget", [False, True])
async def test_runs_that_stay_are_listed_while_others_come_and_go(forget: bool) -> None:
    runs, seen = Runs(60), list[str]()
    stay = set(runs.moments) - {"run-000010"}
    async for page in runs.paged(9, now_ms=200_000):
        if not seen:
            runs.moments["run-900000"] = 900_000  # younger than the first page
            del runs.moments["run-000010"]
            runs.moments["run-000003"] = 400_000  # is written to
        seen += page
        if forget:
            runs.forget()
    assert set(seen) == stay
    assert len(seen) == len(stay)


async def test_a_page_of_a_hundred_thousand_runs_reads_few() -> None:
    runs = Runs(100_000)
    pages = runs.paged(10)
    for _ in range(3):
        before = runs.read
        assert len(await anext(pages)) == 10
        assert runs.read - before <= 16
    assert runs.listed == 1
    runs.states["run-000000"] = "open"
    page = await runs.list.page(
        FQN,
        RunFilter(states=frozenset({"open"})),
        10,
        None,
        now_ms=500_000,
        reported=NothingSaid(),
    )
    assert (page.runs, runs.read <= 1100) == ([], True)
    assert page.after is not None
    named = RunFilter(name=name_test("run-09999?"))
    before = runs.read
    assert sum([len(page) async for page in runs.paged(100, named)]) == 10
    assert runs.read - before == 10
    late = RunFilter(low_ms=100_990)
    before = runs.read
    found = [page async for page in runs.paged(100, late, now_ms=10_000_000)]
    assert [*chain(*found)] == [f"run-{n:06d}" for n in range(99_999, 99_989, -1)]


async def test_filters_by_state_time_name_and_outcome() -> None:
    world = World()
    await world.run_logs.start()
    times = {}
    for name in ("night-1", "night-2", "day-1"):
        world.append(RunKey(FQN, name), b"a\n")
        times[name] = world.clock.ms
        world.clock.pass_seconds(100)
    await world.confirm()
    await world.run_logs.flusher.drain()
    await world.run_logs.close_run(RunKey(FQN, "night-1"))
    world.append(RunKey(FQN, "hot"), b"b\n")

    class Said(NothingSaid):
        async def get(self, key: RunKey) -> Report | None:
            if key.run != "night-2":
                return None
            return make_report(key, 1 << 100, 1, 1, {"pipelineState": "failed"})

    async def found(wanted: RunFilter) -> set[str]:
        page = await world.run_logs.listing.run_page(
            FQN, wanted, 10, None, now_ms=world.clock.ms, reported=Said()
        )
        return {listed.run.run for listed in page.runs}

    assert await found(RunFilter()) == {"night-1", "night-2", "day-1", "hot"}
    assert await found(RunFilter(states=frozenset({"closed"}))) == {"night-1"}
    assert await found(RunFilter(name=name_test("night"))) == {"night-1", "night-2"}
    assert await found(RunFilter(name=name_test("*-1"))) == {"night-1", "day-1"}
    assert await found(RunFilter(outcomes=frozenset({"failed"}))) == {"night-2"}
    assert await found(RunFilter(outcomes=frozenset({"none"}))) == {"night-1", "day-1", "hot"}
    assert await found(RunFilter(high_ms=times["day-1"] - 1)) == {"night-1", "night-2"}
    await world.run_logs.delete_run(RunKey(FQN, "night-2"))
    assert await found(RunFilter(name=name_test("night"))) == {"night-1"}


async def test_what_is_no_place_in_a_list_is_refused() -> None:
    runs = Runs(3)
    for text in ("1", "l1.", "l1.bm8", "u1.x"):
        with pytest.raises(InvalidCursor, match="not a place"):
            await runs.list.page(FQN, RunFilter(), 1, text, now_ms=1, reported=NothingSaid())
