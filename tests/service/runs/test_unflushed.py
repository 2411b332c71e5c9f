"""What the store says of runs that are being written: few puts, and nothing that stays behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import OutcomeUnknown, StoreUnavailable
from tests.seeds import some
from tests.service.runs.world import NODE, World
from tests.simulation.backing import on_disk
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule

pytestmark = pytest.mark.usefixtures("every_store")

RUN = RunKey("Ünïcode pipeline", "run/1")


async def marked(world: World) -> list[str]:
    found: AsyncIterator[str] = (
        info.key async for info in world.disk_store.list(keys.all_active(keys.PREFIX))
    )
    return [key async for key in found]


def append(world: World, key: RunKey, text: bytes = b"line\n") -> None:
    world.append(key, text)
    world.run_logs.appended(key, world.journal.end)


async def flushed(world: World) -> None:
    await world.confirm()
    await world.run_logs.flusher.drain()


async def test_a_chatty_run_costs_one_put_and_one_delete() -> None:
    world = World()
    store = FaultyStore(world.disk_store, Schedule.none())
    await world.restart(store)
    for _ in range(10):
        for _ in range(30):
            append(world, RUN)
        await world.run_logs.active.round()
        await flushed(world)
        await world.run_logs.active.round()
    where = keys.active(keys.PREFIX, RUN, NODE)
    assert await marked(world) == [where]
    assert sum(call == f"put {where}" for call in store.calls) == 1
    metadata = (await world.disk_store.head(where)).metadata
    assert metadata["server-id"] == NODE
    assert metadata["pipeline"] == "%C3%9Cn%C3%AFcode%20pipeline"
    assert int(metadata["timestamp"]) > 1_700_000_000_000
    world.clock.pass_seconds(300)
    await world.run_logs.active.round()
    assert await marked(world) == []
    assert len(world.run_logs.active) == 0


async def test_a_run_that_is_flushed_before_the_round_costs_nothing() -> None:
    world = World()
    store = FaultyStore(world.disk_store, Schedule.none())
    await world.restart(store)
    append(world, RUN)
    await flushed(world)
    await world.run_logs.active.round()
    assert await marked(world) == []
    assert not any("/.active/" in call for call in store.calls if call.startswith("put"))


async def test_what_the_chunks_lack_keeps_it_however_long_nothing_comes() -> None:
    world = World()
    await world.run_logs.start()
    append(world, RUN)
    await world.run_logs.active.round()
    world.clock.pass_seconds(100_000)
    await world.run_logs.active.round()
    assert len(await marked(world)) == 1
    await world.confirm()
    await world.run_logs.active.round()
    assert len(await marked(world)) == 1, "in a segment, but in no chunk"
    await world.run_logs.drain()
    assert await marked(world) == []


async def test_a_close_and_a_deletion_take_it_away() -> None:
    world = World()
    await world.run_logs.start()
    append(world, RUN)
    append(world, RunKey("p", "2"))
    await world.run_logs.active.round()
    assert len(await marked(world)) == 2
    assert await world.run_logs.close_run(RUN) == "closed"
    await world.run_logs.delete_run(RunKey("p", "2"))
    await world.run_logs.flusher.drain()  # of what was deleted nothing is left to flush
    await world.run_logs.active.round()
    assert await marked(world) == []


async def test_what_a_killed_process_left_goes_with_the_next_start() -> None:
    world = World()
    await world.run_logs.start()
    other = keys.active(keys.PREFIX, RUN, "node-B")
    await world.disk_store.put(other, b"")
    append(world, RUN)
    append(world, RunKey("p", "flushed"))
    await world.run_logs.active.round()
    await flushed(world)
    append(world, RUN)
    await world.restart()
    await world.run_logs.active.round()
    mine = keys.active(keys.PREFIX, RUN, NODE)
    assert sorted(await marked(world)) == sorted([mine, other]), "lines of RUN wait, so it stays"
    await flushed(world)
    world.clock.pass_seconds(300)
    await world.run_logs.active.round()
    assert await marked(world) == [other], "another node's is not ours to take"


@pytest.mark.parametrize("fault", list(Fault)[:3])
async def test_a_store_that_fails_leaves_nothing_behind_for_ever(fault: Fault) -> None:
    for step in some(range(1, 12), 1 if on_disk() else 6, f"{fault}"):
        world = World()
        await world.restart(FaultyStore(world.disk_store, Schedule.none()))
        world.store.schedule = Schedule({step: fault})  # type: ignore[attr-defined]
        for number in range(3):
            append(world, RunKey("p", str(number)))
        for _ in range(4):
            try:
                await world.run_logs.active.round()
            except (StoreUnavailable, OutcomeUnknown):
                world.clock.pass_seconds(1)
        assert len(await marked(world)) == 3
        world.store.schedule = Schedule.none()  # type: ignore[attr-defined]
        await flushed(world)
        world.clock.pass_seconds(300)
        await world.run_logs.active.round()
        assert await marked(world) == []


async def test_many_runs_at_once_take_turns() -> None:
    world = World()
    store = FaultyStore(world.disk_store, Schedule.none())
    await world.restart(store)
    store.calls.clear()
    for number in range(130):
        append(world, RunKey("p", str(number)))
    await world.run_logs.active.round()
    assert len(store.calls) == 50
    await world.run_logs.active.round()
    await world.run_logs.active.round()
    assert len(await marked(world)) == 130
