"""Deletions by requests over a store that falls silent at any of their steps."""

from __future__ import annotations

import asyncio

import pytest

from service.runtime.store_deadline import DeadlineStore, for_request
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound, OutcomeUnknown, StoreUnavailable
from tests.service.runs.world import World
from tests.simulation.hanging_store import HangingStore

RUN = RunKey("service.pipeline", "run")
OLD = b"old 1\nold 2\n"
DEADLINE_SECONDS = 0.05
PATIENCE_SECONDS = 60.0


async def hung(at: str) -> tuple[World, HangingStore]:
    """A node with a stored run, whose store answers nothing from a call on."""
    world = World()
    await world.run_logs.start()
    world.append(RUN, OLD)
    await world.confirm()
    await world.run_logs.flusher.drain()
    fell = False

    def hangs(call: str) -> bool:
        nonlocal fell
        fell |= call.startswith(at) and not hanging.gate.is_set()
        return fell

    hanging = HangingStore(world.disk_store, hangs)
    store = DeadlineStore(hanging, DEADLINE_SECONDS)
    world.answers = store.answers
    await world.restart(store)
    hanging.gate.clear()
    return world, hanging


async def delete(world: World, *, pipeline: bool) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        with for_request():
            if pipeline:
                await world.run_logs.delete_pipeline(RUN.fqn)
            else:
                await world.run_logs.delete_run(RUN)


async def has_lines(world: World) -> bool:
    try:
        return bool(await world.whole(RUN))
    except NotFound:
        return False


@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize("at", ["put coordination/deleted", "put runs", "delete"])
async def test_one_that_the_journal_has_hides_the_lines_and_goes_on(
    at: str, *, pipeline: bool
) -> None:
    world, hanging = await hung(at)
    deleter = world.run_logs.deleter
    with pytest.raises(OutcomeUnknown, match="is recorded at this node, and goes on") as error:
        await delete(world, pipeline=pipeline)
    assert "Repeat the request" in error.value.hint
    assert deleter.unfinished == 1
    hanging.gate.set()
    assert not await has_lines(world)
    await deleter.finish_all()
    assert deleter.unfinished == 0
    await world.restart()
    assert not await has_lines(world)
    world.answers.close()


@pytest.mark.parametrize("pipeline", [False, True])
async def test_one_that_did_not_begin_deletes_nothing(*, pipeline: bool) -> None:
    world, hanging = await hung("list" if pipeline else "get runs")
    with pytest.raises(StoreUnavailable, match="does not answer") as error:
        await delete(world, pipeline=pipeline)
    assert error.value.hint
    assert world.run_logs.deleter.unfinished == 0
    hanging.gate.set()
    assert await has_lines(world)
    world.answers.close()


async def test_a_flush_that_hangs_holds_up_no_deletion() -> None:
    world, hanging = await hung("put runs")
    world.append(RUN, b"new\n")
    await world.confirm()
    flushing = asyncio.create_task(world.run_logs.flusher.drain())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not world.run_logs.flusher._locks.held(RUN):
            await asyncio.sleep(0.001)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await delete(world, pipeline=False)
    hanging.gate.set()
    await flushing
    assert await world.whole(RUN) == OLD + b"new\n"
    assert not world.run_logs.flusher._locks.held(RUN)
    world.answers.close()
