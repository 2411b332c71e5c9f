"""What a worker sent on, and waits for: it is held meanwhile, and no longer than was asked."""

from __future__ import annotations

import pytest

from tailrace.coordination.leases import Lease
from tailrace.coordination.partitions import Status
from tailrace.logstore.errors import LeaseLost, NotFound, StoreUnavailable
from tests.coordination.coordinator.holding import ENDS, STATUS, counted, one_held
from tests.coordination.processes import LIMITS, World, put, told
from tests.simulation.faulty_store import Fault


def test_a_heartbeat_does_not_keep_what_waits_for_acknowledgements() -> None:
    async def scenario(world: World) -> None:
        a = world.coordinator("A")
        work, other = a.work("file"), world.coordinator("B").work("file")
        await put(work, "a", "b")
        (first,) = await work.acquire()
        async with world.running(a):
            await first.wait_for_acknowledgements(300.0)
            (second,) = await work.acquire()  # the worker takes another meanwhile
            await world.clock.sleep(297.0)
            assert first.valid()
            await world.clock.sleep(2.0)
            assert not first.valid()
            assert first.lost.is_set()
            await world.clock.sleep(4.0)
            assert [held.key for held in await other.acquire(2)] == [first.key]
            assert second.valid()

    told(scenario)


@pytest.mark.parametrize("verb", ["save", "renew"])
def test_an_acknowledgement_that_comes_ends_the_waiting(verb: str) -> None:
    async def scenario(world: World) -> None:
        a = world.coordinator("A")
        work = a.work("file")
        await put(work, "a")
        (held,) = await work.acquire()
        async with world.running(a):
            await held.wait_for_acknowledgements(100.0)
            await world.clock.sleep(50.0)
            await (held.save("acknowledged") if verb == "save" else held.renew())
            await world.clock.sleep(500.0)
            assert held.valid()

    told(scenario)


@pytest.mark.parametrize("name", ENDS)
def test_what_is_waited_for_may_be_ended_at_any_moment(name: str) -> None:
    """Whoever gets the acknowledgement ends it, however long was asked for."""

    async def scenario(world: World) -> None:
        a = world.coordinator("A")
        work = a.work("file")
        held = await one_held(work)
        async with world.running(a):
            await held.wait_for_acknowledgements(7200.0)
            await world.clock.sleep(50.0)
            await ENDS[name](held)
            stored = await world.stored()
            assert (stored.status, stored.owner) == (STATUS[name], None)
            assert not held.lost.is_set()
            await world.clock.sleep(LIMITS.lease_seconds)
            assert await world.stored() == stored, "and the heart beats no more for it"
        again = await one_held(world.coordinator("B").work("file")) if name == "give up" else None
        assert (again is not None) == (name == "give up"), "nobody waits for two hours"
        assert sum(counted(work).values()) == 1

    told(scenario)


def test_what_was_acknowledged_in_part_is_gone_on_with_from_there() -> None:
    async def scenario(world: World) -> None:
        a = world.coordinator("A")
        held = await one_held(a.work("file"))
        async with world.running(a):
            for line in ("3", "7"):
                await held.wait_for_acknowledgements(100.0)
                await world.clock.sleep(50.0)
                await held.save(line)
            await held.wait_for_acknowledgements(100.0)
            await held.lost.wait()
            await world.clock.sleep(4.1)
            second = await one_held(world.coordinator("B").work("file"))
        assert (second.progress, second.partition.attempts) == ("7", 2)
        assert second.epoch > held.epoch

    told(scenario)


def test_a_short_wait_takes_nothing_of_the_lease() -> None:
    async def scenario(world: World) -> None:
        held = await one_held(world.coordinator().work("file"))
        until_ms = held.partition.until_ms
        await held.wait_for_acknowledgements(1.0)
        assert (await world.stored()).until_ms == until_ms

    told(scenario)


async def wait(held: Lease) -> None:
    await held.wait_for_acknowledgements(300.0)


def test_who_lost_it_waits_for_nothing() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator("A").work("file")
        deleted, taken = await one_held(work, "deleted"), await one_held(work, "taken")
        await work.delete("deleted")
        await work.reset("taken")
        second = await one_held(world.coordinator("B").work("file"), "taken")
        with pytest.raises(NotFound):
            await wait(deleted)
        with pytest.raises(LeaseLost):
            await wait(taken)
        assert (deleted.lost.is_set(), taken.lost.is_set()) == (True, True)
        assert await world.stored("taken") == second.partition
        assert counted(work) == {"deleted": 1, "not_found": 1, "not_owned": 1}

    told(scenario)


def test_a_wait_that_the_store_did_not_hear_of_is_none() -> None:
    async def scenario(world: World) -> None:
        a = world.coordinator("A")
        held = await one_held(a.work("file"))
        async with world.running(a):
            world.faulty.fault = lambda _: Fault.UNAVAILABLE
            with pytest.raises(StoreUnavailable):
                await wait(held)
            world.faulty.fault = lambda _: None
            await world.clock.sleep(3000.0)
            assert held.valid(), "the heart goes on beating for it"
            assert (await world.stored()).status is Status.ASSIGNED

    told(scenario)
