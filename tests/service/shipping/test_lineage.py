"""Whose segment numbers they are: each border, one below and one above."""

from __future__ import annotations

import asyncio

import pytest

from service.settings import FlushSettings
from service.shipping.watermarks import Forked
from tailrace.logstore.runs.report import raise_watermark
from tests.service.journal.rig import NODE
from tests.service.shipping.shipping import Ship, sail
from tests.settings import changed
from tests.simulation.faulty_store import Fault, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock


async def _shipped(ship: Ship, count: int) -> None:
    for _ in range(count):
        async with asyncio.timeout(60.0):
            await ship.shipper.confirmed_through(await ship.add())


async def _raise_low(ship: Ship, low: int) -> None:
    await raise_watermark(ship.store.inner, NODE, fresh_id=lambda: "0" * 26, low=low)


async def _forks(ship: Ship) -> bool:
    """Whether the task that ships has ended, a while from now."""
    await ship.clock.sleep(1300.0)
    if not ship.tasks[1].done():
        return False
    assert isinstance(ship.tasks[1].exception(), Forked)
    return True


@pytest.mark.parametrize(("consumed", "forks"), [(1, False), (2, False), (3, True)])
def test_a_mark_up_to_the_last_cut_is_our_own_and_the_next_number_is_not(
    consumed: int, forks: bool
) -> None:
    async def scenario(clock: VirtualClock) -> None:
        ship = Ship(clock)
        ship.run()
        await _shipped(ship, 2)
        ship.consumed = consumed
        assert await _forks(ship) == forks

    sail(scenario)


@pytest.mark.parametrize(("low", "forks"), [(2, False), (3, False), (4, True)])
def test_low_says_that_all_below_it_was_consumed(low: int, forks: bool) -> None:
    async def scenario(clock: VirtualClock) -> None:
        ship = Ship(clock)
        ship.run()
        await _shipped(ship, 2)
        await _raise_low(ship, low)
        assert await _forks(ship) == forks

    sail(scenario)


@pytest.mark.usefixtures("every_store")
@pytest.mark.parametrize(("low", "forks"), [(2, False), (3, False), (4, True)])
def test_low_is_looked_at_after_each_put(low: int, forks: bool) -> None:
    """No look is due: what was put as number 3 is ours unless a 3 was removed before."""

    async def scenario(clock: VirtualClock) -> None:
        ship = Ship(clock)
        ship.run()
        await _shipped(ship, 2)
        await _raise_low(ship, low)
        await ship.add()
        await clock.sleep(30.0)
        assert ship.tasks[1].done() == forks
        assert len(ship.confirmed) == (2 if forks else 3)
        if forks:
            assert isinstance(ship.tasks[1].exception(), Forked)

    sail(scenario)


@pytest.mark.usefixtures("every_store")
@pytest.mark.parametrize(("consumed", "forks"), [(0, False), (1, True), (3, True)])
def test_a_number_of_ours_that_was_consumed_and_is_absent_is_never_put(
    consumed: int, forks: bool
) -> None:
    """The folder has cut as many segments as it is behind, while the store was away."""

    async def scenario(clock: VirtualClock) -> None:
        ship = Ship(clock, consumed=consumed)
        for _ in range(3):
            await ship.add()
            await ship.shipper.cut("demand")
        ship.run()
        assert await _forks(ship) == forks
        assert len(await ship.stored()) == (0 if forks else 3)

    sail(scenario)


def test_a_number_of_ours_that_was_consumed_and_is_there_is_an_earlier_try() -> None:
    """The process died between the put and its record, and the table was quick."""

    async def scenario(clock: VirtualClock) -> None:
        files = PowerCutFileSystem()
        for consumed in (0, 1):
            ship = Ship(clock, files=files, consumed=consumed)
            end = await ship.add(b"ours\n")
            await ship.shipper.cut("demand")
            ship.run()
            async with asyncio.timeout(60.0):
                await ship.shipper.confirmed_through(end)

    sail(scenario)


@pytest.mark.parametrize("away", [False, True])
def test_nothing_is_cut_before_a_look_unless_the_store_is_away(away: bool) -> None:
    async def scenario(clock: VirtualClock) -> None:
        faults = dict.fromkeys(range(1, 10_000), Fault.UNAVAILABLE) if away else {}
        ship = Ship(
            clock, schedule=Schedule(faults), settings=changed(FlushSettings(), segment_bytes=1)
        )
        ship.hangs = not away
        ship.run()
        await ship.add()
        await clock.sleep(5.0)
        assert len(ship.journal.state.cuts) == away
        await clock.sleep(10.0)
        assert len(ship.journal.state.cuts) == 1, "a store that hangs keeps nobody from cutting"

    sail(scenario)
