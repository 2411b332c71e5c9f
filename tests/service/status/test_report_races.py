"""Reports of one run that race: what was said last stays."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from service.status.reports import Reports
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import OutcomeUnknown, PreconditionFailed
from tailrace.logstore.objects.store import Body, ObjectInfo
from tests.service.runs.world import World
from tests.simulation.clocks import ManualClock
from tests.simulation.faulty_store import FaultyStore, Schedule

RUN = RunKey("service.pipeline", "run")


class Stalling(FaultyStore):
    """Its first put hangs until it is let go, and then fails as it is told to."""

    def __init__(self, inner: Any, error: Exception) -> None:
        super().__init__(inner, Schedule.none())
        self.stalled = asyncio.Event()
        self.let_go = asyncio.Event()
        self._error: Exception | None = error

    async def put(self, key: str, body: Body, **conditions: Any) -> ObjectInfo:
        error, self._error = self._error, None
        if error is not None:
            self.stalled.set()
            await self.let_go.wait()
            raise error
        return await super().put(key, body, **conditions)


@pytest.mark.parametrize("error", [OutcomeUnknown("slow"), PreconditionFailed("slow")])
async def test_a_report_that_the_store_kept_waiting_does_not_replace_a_later_one(
    error: Exception,
) -> None:
    """A client that gave up on `running` has said `success` meanwhile."""
    world = World()
    store = Stalling(world.disk_store, error)
    reports = Reports(store, ManualClock(), Random(1), horizon=lambda _: 0)
    first = asyncio.create_task(reports.put(keys.STATUS, RUN, {"pipelineState": "running"}))
    await store.stalled.wait()
    await reports.put(keys.STATUS, RUN, {"pipelineState": "success"})
    store.let_go.set()
    assert (await first).value == {"pipelineState": "success"}, "what stands there now"
    kept = await reports.get(keys.STATUS, RUN)
    assert kept is not None
    assert kept.value == {"pipelineState": "success"}
    await reports.put(keys.STATUS, RUN, {"pipelineState": "running"})
    kept = await reports.get(keys.STATUS, RUN)
    assert kept is not None
    assert kept.value == {"pipelineState": "running"}


async def test_what_is_added_at_once_or_while_the_clock_goes_back_stays_in_order() -> None:
    clock = ManualClock()
    reports = Reports(World().disk_store, clock, Random(1), horizon=lambda _: 0)
    for number in range(20):
        clock.ms -= number // 10
        await reports.add(keys.METRICS, RUN, {"number": number})
    found, _ = await reports.added(keys.METRICS, RUN, after=0, limit=100, most_bytes=1 << 20)
    assert [report.value["number"] for report in found] == list(range(20))
