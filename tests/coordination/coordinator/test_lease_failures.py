"""A worker's writes that fail, or whose answer is lost: nothing is taken for done or undone."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.coordination.leases import Lease
from tailrace.coordination.partitions import Status
from tailrace.logstore.errors import LeaseLost, OutcomeUnknown, StoreUnavailable
from tests.coordination.coordinator.holding import ENDS, STATUS, counted, one_held
from tests.coordination.processes import LIMITS, World, told
from tests.simulation.faulty_store import Fault


@pytest.mark.parametrize(
    ("name", "action"), [("save", "saveState"), ("close", "close"), ("complete", "complete")]
)
def test_an_update_that_fails_is_counted_raised_and_may_be_tried_again(
    name: str, action: str
) -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        held = await one_held(work)
        verb = (ENDS | {"save": lambda held: held.save("x")})[name]
        world.faulty.fault = lambda _: Fault.UNAVAILABLE
        with pytest.raises(StoreUnavailable):
            await verb(held)
        errors = {"saveState": 0, "close": 0, "complete": 0} | {action: 1}
        assert work.counters.update_errors == errors
        assert held.valid()
        world.faulty.fault = lambda _: None
        await verb(held)
        assert sum(counted(work).values()) == 1

    told(scenario)


@pytest.mark.parametrize("name", ["renew", "delete", "give up", "fail"])
def test_what_has_no_such_counter_is_raised_and_may_be_tried_again_as_well(name: str) -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        held = await one_held(work)
        before = await world.stored()
        verbs = {"renew": Lease.renew, "delete": Lease.delete}
        verb = (ENDS | verbs)[name]
        world.faulty.fault = lambda _: Fault.UNAVAILABLE
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await verb(held)
        world.faulty.fault = lambda _: None
        assert await world.stored() == before, "it is not taken for given up"
        assert held.valid()
        assert counted(work) == {}
        await verb(held)
        assert sum(counted(work).values()) == (name != "renew")
        assert not any(work.counters.update_errors.values())

    told(scenario)


def test_a_close_that_fails_counts_as_what_it_would_have_been() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        for status in (Status.CLOSED, Status.COMPLETED):
            held = await one_held(work)
            world.faulty.fault = lambda _: Fault.UNAVAILABLE
            with pytest.raises(StoreUnavailable):
                await held.close(0.0, max_closed_count=2)
            world.faulty.fault = lambda _: None
            await held.close(0.0, max_closed_count=2)
            assert (await world.stored()).status is status
        assert work.counters.update_errors == {"saveState": 0, "close": 1, "complete": 1}
        assert counted(work) == {"closed": 1, "completed": 1}

    told(scenario)


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE])
@pytest.mark.parametrize("by_heartbeat", [False, True])
@pytest.mark.parametrize("name", ENDS)
def test_an_end_whose_answer_was_lost_may_be_asked_for_again(
    name: str, by_heartbeat: bool, fault: Fault
) -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        work = coordinator.work("file")
        held = await one_held(work)
        world.faulty.fault = lambda call: fault if call == "change" else None
        with pytest.raises(OutcomeUnknown):
            await ENDS[name](held)
        world.faulty.fault = lambda _: None
        if by_heartbeat:
            async with world.running(coordinator):
                await world.clock.sleep(LIMITS.lease_seconds)
        for _ in range(2):
            await ENDS[name](held)
        assert (await world.stored()).status is STATUS[name]
        assert sum(counted(work).values()) == 1, "and is counted once"
        assert work.held() == []

    told(scenario)


def test_another_end_than_the_one_that_happened_unheard_is_refused() -> None:
    async def scenario(world: World) -> None:
        held = await one_held(world.coordinator().work("file"))
        world.faulty.fault = lambda _: Fault.UNKNOWN_DONE
        with pytest.raises(OutcomeUnknown):
            await held.complete()
        world.faulty.fault = lambda _: None
        with pytest.raises(LeaseLost, match="COMPLETED"):
            await held.give_up()
        assert (await world.stored()).status is Status.COMPLETED

    told(scenario)


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE, None])
def test_a_save_whose_answer_was_lost_or_not_awaited_fails_no_later_one(
    fault: Fault | None,
) -> None:
    async def scenario(world: World) -> None:
        held = await one_held(world.coordinator().work("file"))
        for turn in range(3):
            world.faulty.fault = lambda call: fault if call == "change" else None
            saving = asyncio.create_task(held.save(f"lost {turn}"))
            if fault is None:
                for _ in range(turn + 1):
                    await asyncio.sleep(0)
                saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)
            world.faulty.fault = lambda _: None
            await held.save(f"line {turn}")
            assert (await world.stored()).progress == f"line {turn}"

    told(scenario)
