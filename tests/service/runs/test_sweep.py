"""What keeps a sweeper from closing a run, and what does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.settings import Tuning
from tailrace.coordination.named_leases import SWEEP, sweep_lease, text_lease
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import StoreUnavailable
from tailrace.logstore.objects.store import DateSample
from tests.service.runs.world import FakeJournal, World
from tests.settings import SETTINGS, settings_with
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule

pytestmark = pytest.mark.usefixtures("every_store")

RUN = RunKey("service.pipeline", "run-1")
DAY = 86_400
OTHER = "node-B"


async def abandoned() -> tuple[World, World]:
    """A node that sweeps, and another one; the run was last written to a day ago."""
    world = World()
    await world.run_logs.start()
    world.append(RUN, b"one\ntwo\n")
    await world.confirm()
    await world.run_logs.drain()
    world.clock.pass_seconds(DAY + 1)
    other = World(store=world.disk_store, journal=FakeJournal(node=OTHER), seed=2)
    other.clock.ms = world.clock.ms
    await other.run_logs.start()
    return world, other


async def state(world: World) -> str:
    return (await world.run_logs.reader.size(RUN)).state


async def test_another_sweeper_that_is_about_it() -> None:
    world, other = await abandoned()
    held = await other.run_logs.leases.acquire(sweep_lease(RUN))
    assert held is not None
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "open"
    await other.run_logs.leases.release(held, forget=True)
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "closed"


async def test_a_live_node_that_says_it_holds_lines() -> None:
    world, other = await abandoned()
    await other.run_logs.leases.acquire(text_lease(OTHER))
    await world.store.put(keys.active(keys.PREFIX, RUN, OTHER), b"")
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "open"
    world.clock.pass_seconds(700)  # silent for longer than its lease
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "closed"


@pytest.mark.parametrize("heartbeat", [True, False])
async def test_a_client_that_says_that_its_run_goes_on(heartbeat: bool) -> None:
    """A job is silent for 30 hours; its status comes again and again."""
    world, _ = await abandoned()
    value = {"pipelineState": "running", "startDate": 5, "heartbeat": heartbeat}
    for _ in range(3):
        await world.reports.put(keys.STATUS, RUN, value)
        await world.run_logs.sweeper.sweep()
        assert await state(world) == "open"
        world.clock.pass_seconds(DAY / 4)
    world.clock.pass_seconds(3 * DAY / 4 - 1)
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "open"
    world.clock.pass_seconds(1)
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "closed"


@pytest.mark.parametrize("value", [{"pipelineState": "success"}, {"endDate": 7}])
async def test_an_end_that_a_client_reports_keeps_no_run_open(value: dict[str, Any]) -> None:
    world, _ = await abandoned()
    await world.reports.put(keys.STATUS, RUN, value)
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "closed"


async def test_lines_of_another_node_that_are_in_a_segment_and_no_chunk() -> None:
    world, other = await abandoned()
    other.append(RUN, b"three\n")
    await other.confirm()
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "open", "whoever flushes them comes first"
    await other.run_logs.drain()
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "open", "it was written to just now"
    world.clock.pass_seconds(DAY + 1)
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "closed"
    assert await world.whole(RUN) == b"one\ntwo\nthree\n"


async def test_lines_of_its_own_that_are_only_in_the_journal() -> None:
    world, _ = await abandoned()
    world.append(RUN, b"three\n")
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "open"


async def test_a_run_that_was_closed_for_one_writer_only() -> None:
    """A client closed it at one node, another has written to it too and lives."""
    world, other = await abandoned()
    await other.run_logs.takeover.look()
    other.append(RUN, b"three\n")
    await other.confirm()
    await other.run_logs.drain()
    assert await world.run_logs.close_run(RUN) == "closed"
    assert await state(world) == "open", "the other node has not said that it is over"
    world.clock.pass_seconds(61)
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "closed"
    assert await world.whole(RUN) == b"one\ntwo\nthree\n"


async def test_a_late_batch_at_another_node_reopens_what_was_swept() -> None:
    world, other = await abandoned()
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "closed"
    other.append(RUN, b"late\n")
    await other.confirm()
    await other.run_logs.drain()
    assert await state(world) == "open"
    assert await world.whole(RUN) == b"one\ntwo\nlate\n"
    other.clock.pass_seconds(61)
    await other.run_logs.closer.close_idle()
    assert await state(world) == "closed"
    assert await world.whole(RUN) == b"one\ntwo\nlate\n"


async def test_the_lease_of_a_sweeper_that_died_goes() -> None:
    world, other = await abandoned()
    await other.run_logs.leases.acquire(sweep_lease(RunKey("gone", "long ago")))
    leases = keys.leases_of(SWEEP)
    await world.run_logs.sweeper.sweep()
    assert len([info async for info in world.store.list(leases)]) == 1
    world.clock.pass_seconds(700)
    await world.run_logs.sweeper.sweep()
    assert [info async for info in world.store.list(leases)] == []


async def test_a_run_that_cannot_be_swept_holds_back_no_other() -> None:
    world = World(tuning=Tuning(partial_seconds=1e9))
    await world.run_logs.start()
    for name in "abc":
        world.append(RunKey("p", name), b"line\n")
    await world.confirm()
    await world.run_logs.drain()
    world.clock.pass_seconds(DAY + 1)
    fails = Schedule({1: Fault.UNAVAILABLE}, applies=lambda call: call == "get runs/p/a.json")
    await world.restart(FaultyStore(world.disk_store, fails))
    await world.run_logs.sweeper.sweep()
    states = [(await world.run_logs.reader.size(RunKey("p", name))).state for name in "abc"]
    assert states == ["open", "closed", "closed"]
    world.store.schedule = Schedule(dict.fromkeys(range(2, 99), Fault.UNAVAILABLE))  # type: ignore[attr-defined]
    with pytest.raises(StoreUnavailable):
        await world.run_logs.sweeper.sweep()


async def test_a_run_that_goes_while_another_is_closed_again() -> None:
    """It took the node down."""
    world = World()
    await world.run_logs.start()
    runs = [RunKey("p", name) for name in "ab"]
    for key in runs:
        world.append(key, b"line\n")
        assert await world.run_logs.close_run(key) == "closed"
        world.append(key, b"late\n")
    await world.confirm()
    await world.run_logs.drain()
    world.clock.pass_seconds(61)
    await asyncio.gather(world.run_logs.closer.close_idle(), world.run_logs.delete_run(runs[1]))
    assert (await world.run_logs.reader.size(runs[0])).state == "closed"
    assert await world.listed("p", 5) == await world.listed("p", 1)


class Skewed(World):
    """A node whose clock may be wrong; the store has one of its own."""

    ahead_ms = 0

    def newest_date(self) -> DateSample:
        """The store's, of now."""
        now = self.clock.monotonic()
        return DateSample(self.clock.ms - self.ahead_ms, now, now, self.clock.ms)


async def test_a_clock_that_is_days_ahead_of_the_stores_expires_and_closes_nothing() -> None:
    world = Skewed(settings=settings_with(SETTINGS, runs={"expiration_days": 30}))
    await world.run_logs.start()
    world.append(RUN, b"one\ntwo\n")
    await world.confirm()
    await world.run_logs.drain()
    world.clock.ms += 40 * DAY * 1000
    world.ahead_ms = 40 * DAY * 1000
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "open"
    assert await world.whole(RUN) == b"one\ntwo\n"
    world.ahead_ms = 0  # so long has really passed
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "deleted"


@pytest.mark.parametrize(
    ("connectors", "door"),
    [
        (["otlp/a", "otlp/b"], "otlp"),
        (["otlp/a", "loki/a"], ""),
        (["otlp/a", None], ""),
        ([None, "otlp/a"], ""),
        (["somebody"], ""),
    ],
)
async def test_a_run_of_a_door_is_closed_after_the_idle_time_of_the_door(
    connectors: list[str | None], door: str
) -> None:
    world = World()
    await world.run_logs.start()
    for connector in connectors:
        world.append(RUN, b"a line\n", connector=connector)
        await world.confirm()
        await world.run_logs.drain()
    idle = SETTINGS.doors.otlp_idle_minutes * 60
    world.clock.pass_seconds(idle - 1)
    await world.run_logs.sweeper.sweep()
    assert await state(world) == "open"
    world.clock.pass_seconds(2)
    await world.run_logs.sweeper.sweep()
    assert await state(world) == ("closed" if door else "open")
    manifest = (await world.run_logs.manifests.get(RUN)).manifest
    assert (manifest.door, manifest.abandoned) == (door, False)
