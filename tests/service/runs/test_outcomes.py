"""How a run ended, from its log, its client's report and the time."""

from __future__ import annotations

from typing import Any

import pytest

from service.run_log.listing import RunSummary
from service.status.reports import RunOutcomes, filter_words
from tailrace.logstore.batch import RunKey
from tailrace.logstore.runs.report import RunReport, make_report
from tests.service.runs.world import World

RUN = RunKey("shop.orders", "run-1")
OUTCOMES = RunOutcomes(lost_seconds=300, timeout_seconds=86_400)
NOW = 1_800_000_000_000
ALIVE = {"pipelineState": "running", "heartbeat": True}


def summary(state: str, *, silent: float = 0, abandoned: bool = False) -> RunSummary:
    last = NOW - round(silent * 1000)
    return RunSummary(RUN.run, state, 1, 1, last, last, abandoned)


def said(silent: float, **value: Any) -> RunReport:
    stored = NOW - round(silent * 1000)
    return make_report(RUN, 1 << 80, stored, stored, value)


@pytest.mark.parametrize(
    ("run", "report", "outcome"),
    [
        (summary("open"), None, None),
        (summary("open"), said(0, pipelineState="running"), None),
        (summary("open"), said(0, pipelineState="success"), "succeeded"),
        (summary("closed"), said(0, pipelineState="partialSuccess"), "succeeded"),
        (summary("closed"), said(0, pipelineState="failed"), "failed"),
        (summary("closed"), said(0, pipelineState="stopped"), "cancelled"),
        (summary("closed"), None, "unknown"),
        (summary("closed"), said(0, pipelineState="running"), "unknown"),
        (summary("closing"), said(0, pipelineState=None), None),
        (summary("closing"), said(0, pipelineState="failed"), "failed"),
        (summary("closed", abandoned=True), None, "lost"),
        (summary("closed", abandoned=True), said(86_401, pipelineState="running"), "lost"),
        (summary("closed", abandoned=True), said(86_399, pipelineState="running"), None),
        (summary("closed", abandoned=True), said(301, **ALIVE), "lost"),
        (summary("closed", abandoned=True), said(299, **ALIVE), None),
        (summary("closed", abandoned=True), said(0, pipelineState=None, endDate=NOW), "lost"),
        (summary("closed", abandoned=True), said(0, pipelineState="success"), "succeeded"),
        (summary("open", silent=301), said(301, **ALIVE), "lost"),
        (summary("open", silent=301), said(299, **ALIVE), None),
        (summary("open", silent=299), said(301, **ALIVE), None),
        (summary("open", silent=301), said(301, pipelineState="running"), None),
        (summary("open", silent=86_401), said(86_401, pipelineState="running"), "lost"),
        (summary("open", silent=86_401), said(86_401, pipelineState="queued"), None),
        (summary("open", silent=86_401), None, "lost"),
        (summary("unknown", silent=86_401), None, None),
    ],
)
def test_the_outcome_of_a_run(
    run: RunSummary, report: RunReport | None, outcome: str | None
) -> None:
    assert OUTCOMES.decide(run, report, NOW) == outcome


@pytest.mark.parametrize(
    ("outcome", "state", "words"),
    [
        (None, None, {"running", "none"}),
        (None, "running", {"running"}),
        (None, "queued", {"queued"}),
        ("lost", "running", {"lost"}),
        ("unknown", None, {"unknown", "none"}),
        ("succeeded", "partialSuccess", {"succeeded", "partialSuccess"}),
        ("cancelled", "stopped", {"cancelled", "stopped"}),
    ],
)
def test_words_that_find_a_run(outcome: str | None, state: str | None, words: set[str]) -> None:
    report = None if state is None else said(0, pipelineState=state)
    assert filter_words(outcome, report) == words


async def test_only_a_run_that_the_sweeper_closed_is_abandoned() -> None:
    world = World()
    await world.run_logs.start()

    async def append_and_flush() -> None:
        world.append(RUN, b"a\n")
        await world.confirm()
        await world.run_logs.flusher.drain()

    async def abandoned() -> tuple[str, bool]:
        (run,) = await world.listed(RUN.fqn, 5)
        return run.state, run.abandoned

    await append_and_flush()
    assert await abandoned() == ("open", False)
    world.clock.pass_seconds(2 * 86_400)
    await world.run_logs.sweeper.sweep()
    assert await abandoned() == ("closed", True)
    await append_and_flush()
    await world.run_logs.close_run(RUN)
    assert await abandoned() == ("closed", False), "now its client has closed it"
    await append_and_flush()
    world.clock.pass_seconds(2 * 86_400)
    await world.run_logs.sweeper.sweep()
    assert await abandoned() == ("closed", False), "a late batch does not make it abandoned"
