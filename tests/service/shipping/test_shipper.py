"""The shipper alone: order, lost answers, outages, patience, lineage."""

from __future__ import annotations

import asyncio

import pytest

from service.journal.state import Cut
from service.settings import FlushSettings
from service.shipping.watermarks import Forked
from tailrace.logstore import keys
from tests.service.journal.rig import NODE
from tests.service.shipping.shipping import Ship, is_put, sail
from tests.settings import changed
from tests.simulation.faulty_store import Fault, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock

pytestmark = pytest.mark.usefixtures("every_store")


def test_segments_are_cut_by_age_and_shipped_in_order() -> None:
    async def scenario(clock: VirtualClock) -> None:
        ship = Ship(clock)
        ship.run()
        for _ in range(3):
            await ship.add()
            await clock.sleep(10.5)
        assert await ship.stored() == [(1, ((0, 1),)), (2, ((1, 2),)), (3, ((2, 3),))]
        assert [cut.seq for cut in ship.confirmed] == [1, 2, 3]
        assert ship.journal.state.confirmed == Cut(3, 2, 3)

    sail(scenario)


def test_a_segment_is_cut_at_its_size_without_waiting() -> None:
    async def scenario(clock: VirtualClock) -> None:
        ship = Ship(
            clock, settings=changed(FlushSettings(), segment_seconds=3600.0, segment_bytes=100)
        )
        ship.run()
        await ship.add(b"x" * 99 + b"\n")
        await clock.sleep(0.01)
        assert len(await ship.stored()) == 1

    sail(scenario)


def test_whoever_waits_gets_a_segment_within_its_patience() -> None:
    async def scenario(clock: VirtualClock) -> None:
        ship = Ship(clock)
        ship.run()
        first = await ship.add()
        began = clock.monotonic()
        waiting = ship.shipper.confirmed_through(first)
        await clock.sleep(0.2)
        second = ship.shipper.confirmed_through(await ship.add())
        await asyncio.gather(waiting, second)
        assert 0.2 < clock.monotonic() - began <= 0.26
        assert await ship.stored() == [(1, ((0, 2),))], "one segment serves both"
        await ship.shipper.confirmed_through(first)

    sail(scenario)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE])
def test_a_lost_answer_is_resolved_by_what_is_stored(fault: Fault) -> None:
    async def scenario(clock: VirtualClock) -> None:
        ship = Ship(clock, schedule=Schedule({1: fault, 2: fault}, applies=is_put))
        ship.run()
        await ship.shipper.confirmed_through(await ship.add())
        await ship.shipper.confirmed_through(await ship.add())
        assert [seq for seq, _ in await ship.stored()] == [1, 2]
        assert ship.shipper.uploads == 2
        assert ship.shipper.consecutive_failures == 0
        assert ship.shipper.last_error is None

    sail(scenario)


def test_an_outage_costs_cuts_and_nothing_else() -> None:
    async def scenario(clock: VirtualClock) -> None:
        away = dict.fromkeys(range(1, 10_000), Fault.UNAVAILABLE)
        schedule = Schedule(away)
        ship = Ship(clock, schedule=schedule)
        ship.run()
        for _ in range(100):
            await ship.add()
            await clock.sleep(11.0)
        assert await ship.stored() == []
        assert len(ship.journal.state.cuts) == 100
        assert "coordination/text" in (ship.shipper.last_error or "")
        # It asks again after 0.25 s, then ever less often, at last every 8 s.
        assert 1100 / 8.5 <= ship.shipper.failures <= 1100 / 8 + 6
        away.clear()
        await ship.shipper.confirmed_through(ship.journal.next_pos)
        assert [seq for seq, _ in await ship.stored()] == list(range(1, 101))

    sail(scenario)


def test_what_a_full_disk_refused_does_not_keep_the_cutter_busy() -> None:
    """A refused batch was counted as text to cut: the loop never came to rest again."""

    async def scenario(clock: VirtualClock) -> None:
        ship = Ship(
            clock, settings=changed(FlushSettings(), segment_seconds=1.0, segment_bytes=100)
        )
        ship.run()
        ship.journal.taken_bytes += 1000
        ship.shipper.added()
        await clock.sleep(5.0)
        await ship.shipper.confirmed_through(await ship.add())

    sail(scenario)


async def _ended_by(ship: Ship) -> BaseException | None:
    await asyncio.wait([ship.tasks[1]])
    return ship.tasks[1].exception()


@pytest.mark.parametrize("seq", [1, 7])
def test_a_later_segment_in_the_store_is_a_fork(seq: int) -> None:
    """Found without a line of our own."""

    async def scenario(clock: VirtualClock) -> None:
        ship = Ship(clock)
        await ship.store.inner.put(keys.segment(NODE, seq), b"somebody else's")
        ship.run()
        assert isinstance(await _ended_by(ship), Forked)
        assert ship.confirmed == []

    sail(scenario)


def test_a_mark_above_the_own_number_is_a_fork() -> None:
    async def scenario(clock: VirtualClock) -> None:
        ship = Ship(clock, consumed=2)
        ship.run()
        await ship.add()
        assert isinstance(await _ended_by(ship), Forked)
        assert await ship.stored() == []

    sail(scenario)


def test_the_same_number_with_other_rows_is_a_fork() -> None:
    async def scenario(clock: VirtualClock) -> None:
        files = PowerCutFileSystem()
        first = Ship(clock, files=files)
        first.run()
        await first.shipper.confirmed_through(await first.add(b"ours\n"))
        other = Ship(clock, files=files)
        other.run()
        await other.add(b"theirs\n")
        assert isinstance(await _ended_by(other), Forked)
        assert len(await first.stored()) == 1

    sail(scenario)


def test_the_same_number_with_the_same_rows_is_an_earlier_try() -> None:
    async def scenario(clock: VirtualClock) -> None:
        files = PowerCutFileSystem()
        for _ in range(2):
            ship = Ship(clock, files=files)
            end = await ship.add(b"ours\n")
            await ship.shipper.cut("demand")  # as the journal of that life says
            ship.run()
            async with asyncio.timeout(60.0):
                await ship.shipper.confirmed_through(end)
        assert len(await ship.stored()) == 1

    sail(scenario)


def test_lineage_is_looked_at_again_after_a_long_rest() -> None:
    """A clone may have shipped and a consumer deleted meanwhile: only a mark tells."""

    async def scenario(clock: VirtualClock) -> None:
        ship = Ship(clock)
        ship.run()
        await ship.shipper.confirmed_through(await ship.add())
        ship.consumed = 5
        await clock.sleep(3600.0)
        await ship.add()
        assert isinstance(await _ended_by(ship), Forked)

    sail(scenario)


def test_what_is_unshipped_is_counted_in_bytes_and_seconds_until_it_is_confirmed() -> None:
    async def scenario(clock: VirtualClock) -> None:
        outage = dict.fromkeys(range(1, 30), Fault.UNAVAILABLE)
        ship = Ship(clock, Schedule(outage, applies=is_put))
        unshipped = ship.shipper.unshipped
        assert (unshipped.bytes, unshipped.seconds) == (0, 0)
        ship.run()
        await ship.add(b"12345\n")
        await clock.sleep(60)
        await ship.add(b"123\n")
        await clock.sleep(30)
        assert unshipped.bytes == 10
        assert 85 < unshipped.seconds <= 90
        again = ship.make_shipper()
        assert again.unshipped.bytes == 10  # as after a start: from the journal's rows
        await clock.sleep(300)
        assert (unshipped.bytes, unshipped.seconds) == (0, 0)

    sail(scenario)


def test_a_shipper_that_hangs_in_one_call_shows_by_its_age_and_one_without_work_does_not() -> None:
    async def scenario(clock: VirtualClock) -> None:
        ship = Ship(clock)
        ship.run()
        await clock.sleep(1000)
        assert ship.shipper.shipping.age_seconds == 0
        assert ship.shipper.cutting.age_seconds <= 10
        ship.hangs = True
        await ship.add()
        await clock.sleep(1000)
        # It hung 200 s later, when it looked for copies of its folder again.
        assert 790 < ship.shipper.shipping.age_seconds <= 800
        assert 980 < ship.shipper.shipping.success_age_seconds <= 1000
        assert ship.shipper.failures == 0

    sail(scenario)
