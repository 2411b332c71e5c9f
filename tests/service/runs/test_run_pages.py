"""Pages of runs: each once, whatever comes and goes meanwhile, at a bounded cost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import chain

import pytest

from service.run_log.listing import (
    ReportedRuns,
    RunEntry,
    RunFilter,
    RunNames,
    RunPages,
    RunSummary,
    TimeSpan,
)
from service.status.reports import RunOutcomes
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import InvalidCursor
from tailrace.logstore.objects.store import ObjectInfo
from tailrace.logstore.patterns import name_test
from tailrace.logstore.runs.report import RunReport, make_report
from tests.service.runs.world import NothingSaid, World

FQN = "service.pipeline"


OUTCOMES = RunOutcomes(300, 86_400)


MINUTE = 60_000


class Runs:
    """Runs in memory, as a store lists them: one begins each minute; `moments` are of changes."""

    def __init__(self, count: int) -> None:
        self.moments = {f"run-{n:06d}": n * MINUTE for n in range(1, count + 1)}
        self.states: dict[str, str] = {}
        self.listed = 0
        self.read = 0
        self.list = RunPages(self._names, self._summary, OUTCOMES)

    async def _names(self, fqn: str, _: ReportedRuns) -> RunNames:
        self.listed += 1
        entries = [RunEntry(moment, name, str(moment)) for name, moment in self.moments.items()]
        return RunNames(fqn, entries)

    async def _summary(self, _: RunNames, name: str) -> RunSummary | None:
        self.read += 1
        if name not in self.moments:
            return None
        first = int(name.partition("-")[2]) * MINUTE
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
async def test_each_run_once_those_that_began_last_first(limit: int) -> None:
    runs = Runs(100)
    pages = [page async for page in runs.paged(limit)]
    assert [*chain(*pages)] == sorted(runs.moments, reverse=True)
    assert runs.listed == 1


@pytest.mark.parametrize("limit", [1, 3, 7, 40])
async def test_the_newest_are_on_the_first_pages_whatever_changed_last(limit: int) -> None:
    """Of 80 runs that a sweep had just closed the newest were on none of the first two pages."""
    runs = Runs(80)
    runs.moments |= dict.fromkeys(list(runs.moments)[:60], 200 * MINUTE)
    pages = [page async for page in runs.paged(limit)]
    assert [*chain(*pages)] == sorted(runs.moments, reverse=True)
    assert all(len(page) == limit for page in pages[:-1])


@pytest.mark.parametrize("forget", [False, True])
async def test_runs_that_stay_are_listed_while_others_come_and_go(forget: bool) -> None:
    runs, seen = Runs(60), list[str]()
    stay = sorted(set(runs.moments) - {"run-000010"}, reverse=True)
    changes = iter([f"run-{n:06d}" for n in (3, 59, 30, 1, 12, 60)])
    async for page in runs.paged(9, now_ms=61 * MINUTE):
        if not seen:
            runs.moments["run-000900"] = 900 * MINUTE  # begins after the first page
            del runs.moments["run-000010"]
        runs.moments[next(changes, "run-000002")] = (1000 + len(seen)) * MINUTE
        seen += page
        if forget:
            runs.forget()
    assert seen == stay


async def test_a_page_of_many_thousand_runs_reads_few() -> None:
    runs = Runs(20_000)
    pages = runs.paged(10)
    for _ in range(3):
        before = runs.read
        assert len(await anext(pages)) == 10
        assert runs.read - before <= 10 + 3 * 16  # 15 of them may have begun after the last one
    assert runs.listed == 1
    before = runs.read
    assert len(await anext(runs.paged(10))) == 10
    assert runs.read - before <= 32, "when they began is known"
    runs.states["run-000001"] = "open"
    page = await runs.list.page(
        FQN,
        RunFilter(states=frozenset({"open"})),
        10,
        None,
        now_ms=500_000,
        reported=NothingSaid(),
    )
    assert (page.runs, runs.read <= 1200) == ([], True)
    assert page.after is not None
    named = RunFilter(name=name_test("run-01999?"))
    before = runs.read
    assert sum([len(page) async for page in runs.paged(100, named)]) == 10
    assert runs.read - before == 10
    for wanted in (
        RunFilter(low_ms=19_991 * MINUTE),
        RunFilter(last=TimeSpan(low_ms=19_991 * MINUTE)),
        RunFilter(began=TimeSpan(low_ms=19_991 * MINUTE)),
    ):
        before = runs.read
        found = [page async for page in runs.paged(100, wanted)]
        assert [*chain(*found)] == [f"run-{n:06d}" for n in range(20_000, 19_990, -1)]
        assert runs.read - before <= 48


async def test_filters_by_begin_and_by_last_line_find_runs_that_changed_since() -> None:
    runs = Runs(500)
    runs.moments["run-000200"] = 501 * MINUTE
    span = TimeSpan(199 * MINUTE, 201 * MINUTE)
    found = [page async for page in runs.paged(2, RunFilter(began=span))]
    assert [*chain(*found)] == ["run-000201", "run-000200", "run-000199"]
    found = [page async for page in runs.paged(9, RunFilter(last=TimeSpan(501 * MINUTE)))]
    assert [*chain(*found)] == ["run-000200"]
    span = TimeSpan(None, 2 * MINUTE)
    found = [page async for page in runs.paged(1000, RunFilter(last=span))]
    assert [*chain(*found)] == ["run-000002", "run-000001"]


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

    said = {"night-2": ObjectInfo("night-2", 1, "1", world.clock.ms)}

    class Said(NothingSaid):
        async def components(self, fqn: str) -> dict[str, ObjectInfo]:
            return said

        async def created(self, info: ObjectInfo) -> int | None:
            return world.clock.ms

        async def listed(self, info: ObjectInfo) -> RunReport | None:
            key, now = RunKey(FQN, info.key), world.clock.ms
            return make_report(key, 1 << 100, now, now, {"pipelineState": "failed"})

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
    assert await found(RunFilter(began=TimeSpan(high_ms=times["night-1"]))) == {"night-1"}
    assert await found(RunFilter(last=TimeSpan(high_ms=times["day-1"]))) == times.keys()
    await world.run_logs.delete_run(RunKey(FQN, "night-2"))
    said.clear()
    assert await found(RunFilter(name=name_test("night"))) == {"night-1"}


async def test_what_is_no_place_in_a_list_is_refused() -> None:
    runs = Runs(3)
    for text in ("1", "l2.", "l2.bm8", "l1.WzEsZmFsc2UsMSwiciJd", "u1.x"):
        with pytest.raises(InvalidCursor, match="not a place"):
            await runs.list.page(FQN, RunFilter(), 1, text, now_ms=1, reported=NothingSaid())
