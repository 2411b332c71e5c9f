"""Leases of a process: kept apart from the work, taken back after a restart, handed over."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.coordination.lease import StoreTime
from tailrace.coordination.partitions import NewPartition, Status
from tailrace.coordination.settings import CoordinatorLimits
from tailrace.logstore.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    StoreUnavailable,
)
from tests.coordination.processes import LIMITS, World, put, told
from tests.simulation.faulty_partitions import FaultyPartitions
from tests.simulation.faulty_store import Fault


def test_a_source_is_made_of_prefix_name_and_type() -> None:
    async def scenario(world: World) -> None:
        await put(world.coordinator().work("file"), "a")
        await put(world.coordinator(prefix="blue").work("file"), "a")
        await put(world.coordinator(name="other").work("table"), "a")
        expected = ["blue|pipeline|file", "other|table", "pipeline|file"]
        assert await world.store.sources() == expected

    told(scenario)


def test_types_that_cannot_be() -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        coordinator.work("file")
        for kind in ("file", "GLOBAL", "WORKERS", "a|b", "a/b", ""):
            with pytest.raises(InvalidInput):
                coordinator.work(kind)

    told(scenario)


def test_owners_of_one_host_differ_by_process() -> None:
    async def scenario(world: World) -> None:
        a = world.coordinator("host")
        await world.clock.sleep(0.1)
        b = world.coordinator("host")
        assert a.owner != b.owner
        assert a.owner.startswith("host/")
        one = a.work("file")
        await put(one, "a")
        (held,) = await one.acquire()
        assert held.partition.owner == a.owner
        assert await b.work("file").acquire() == []

    told(scenario)


def test_the_heartbeat_keeps_what_a_worker_says_nothing_of() -> None:
    async def scenario(world: World) -> None:
        a = world.coordinator("A")
        work, other = a.work("file"), world.coordinator("B").work("file")
        await put(work, *"abc")
        held = await work.acquire(3)
        async with world.running(a):
            for _ in range(50):
                await world.clock.sleep(LIMITS.lease_seconds / 5)
                assert all(one.valid() for one in held)
                assert await other.acquire(3) == []
        assert work.oldest_seconds() == pytest.approx(LIMITS.lease_seconds * 10)

    told(scenario)


def test_what_cannot_be_renewed_is_lost_two_seconds_early_and_its_worker_woken() -> None:
    async def scenario(world: World) -> None:
        a = world.coordinator("A")
        work, other = a.work("file"), world.coordinator("B", store=healthy(world)).work("file")
        await put(work, "a")
        (held,) = await work.acquire()
        acquired = world.clock.monotonic()
        async with world.running(a):
            world.faulty.fault = lambda _: Fault.UNAVAILABLE
            await held.lost.wait()
            passed = world.clock.monotonic() - acquired
            assert passed == pytest.approx(LIMITS.lease_seconds - 2.0, abs=0.01)
            assert work.counters.renewal_errors > 0
            assert "no answer" in (a.last_error or "")
            assert await other.acquire() == []
            await world.clock.sleep(4.1)
            assert len(await other.acquire()) == 1

    told(scenario)


def healthy(world: World) -> FaultyPartitions:
    """A way to the store that never fails."""
    return FaultyPartitions(world.store, world.clock)


def test_a_short_outage_loses_nothing() -> None:
    async def scenario(world: World) -> None:
        a = world.coordinator("A")
        work = a.work("file")
        await put(work, "a")
        (held,) = await work.acquire()
        async with world.running(a):
            for _ in range(10):
                world.faulty.fault = lambda _: Fault.UNAVAILABLE
                await world.clock.sleep(25.0)
                world.faulty.fault = lambda _: None
                await world.clock.sleep(40.0)
                assert held.valid()

    told(scenario)


def test_a_partition_that_was_deleted_is_lost_at_the_next_heartbeat() -> None:
    async def scenario(world: World) -> None:
        a = world.coordinator("A")
        work = a.work("file")
        await put(work, "a")
        (held,) = await work.acquire()
        async with world.running(a):
            await work.delete("a")
            await asyncio.wait_for(held.lost.wait(), LIMITS.lease_seconds / 2)
            assert work.counters.not_found == 1
            assert work.held() == []

    told(scenario)


def test_a_configured_identity_takes_its_leases_back_at_once_after_a_restart() -> None:
    async def scenario(world: World) -> None:
        first = world.coordinator("node", configured=True).work("file")
        await put(first, "a", "b")
        (held,) = await first.acquire()
        await held.save("half")
        await world.clock.sleep(0.1)
        again = world.coordinator("node", configured=True).work("file", balance=False)
        back = await again.acquire(2)
        assert [(one.key, one.progress) for one in back] == [(held.key, "half"), ("b", None)]
        assert back[0].epoch > held.epoch
        assert await first.acquire(2) == [], "of two with one name the later one wins"

    told(scenario)


def test_a_host_does_not_take_what_another_process_of_it_holds() -> None:
    async def scenario(world: World) -> None:
        first = world.coordinator("host").work("file")
        await put(first, "a")
        await first.acquire()
        await world.clock.sleep(0.1)
        second = world.coordinator("host").work("file")
        assert await second.acquire() == []
        await world.clock.sleep(LIMITS.lease_seconds + 3.0)
        assert len(await second.acquire()) == 1

    told(scenario)


def test_stop_hands_over_with_progress_and_without_an_attempt() -> None:
    async def scenario(world: World) -> None:
        a = world.coordinator("A")
        work, other = a.work("file"), world.coordinator("B").work("file")
        await put(work, *"abc")
        held = await work.acquire(3)
        for one in held:
            await one.save("half")
        await held[1].wait_for_acknowledgements(1000.0)
        async with world.running(a):
            await a.stop()
            assert not any(one.valid() for one in held)
            assert all(one.lost.is_set() for one in held)
            assert await work.acquire() == []
            taken = await other.acquire(3)
            assert sorted([one.key for one in taken]) == ["a", "b", "c"]
            assert {(one.progress, one.partition.attempts) for one in taken} == {("half", 1)}
            left = await world.store.page("pipeline|WORKERS")
            assert [one.owner for one in left.partitions] == [other._manager.owner]

    told(scenario)


def test_stop_ends_the_heartbeat_even_if_the_store_is_away() -> None:
    async def scenario(world: World) -> None:
        a = world.coordinator("A")
        work = a.work("file")
        await put(work, "a")
        (held,) = await work.acquire()
        beats = asyncio.create_task(a.run())
        await world.clock.sleep(5.0)
        world.faulty.fault = lambda _: Fault.UNAVAILABLE
        await a.stop()
        assert not held.valid()
        await asyncio.wait_for(beats, 2.0)
        assert "no answer" in (a.last_error or "")
        assert (await world.stored()).status is Status.ASSIGNED, "it runs out"

    told(scenario)


def test_what_an_acquire_on_its_way_brings_is_handed_over_as_well() -> None:
    async def scenario(world: World) -> None:
        slow = FaultyPartitions(world.store, world.clock, seconds=lambda: 2.0)
        a = world.coordinator("A", store=slow)
        work = a.work("file", balance=False)
        await world.store.create("pipeline|file", [NewPartition("a")])
        acquiring = asyncio.create_task(work.acquire())
        await world.clock.sleep(1.5)  # it was done, and its answer is on the way
        await a.stop()
        assert not any(held.valid() for held in await acquiring)
        assert (await world.stored()).owner is None

    told(scenario)


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_acquire_whose_answer_was_lost_strands_nothing(cancelled: bool) -> None:
    async def scenario(world: World) -> None:
        seconds = 1.0 if cancelled else 0.0
        store = FaultyPartitions(world.store, world.clock, seconds=lambda: seconds)
        work = world.coordinator("A", store=store).work("file", balance=False)
        await put(work, *"abc")
        if cancelled:
            acquiring = asyncio.create_task(work.acquire(3))
            await world.clock.sleep(0.75)
            acquiring.cancel()
            await asyncio.wait([acquiring])
        else:
            store.fault = lambda call: Fault.UNKNOWN_DONE if call == "acquire" else None
            with pytest.raises(OutcomeUnknown):
                await work.acquire(3)
            store.fault = lambda _: None
        assert (await world.stored("a")).status is Status.ASSIGNED
        assert len(await work.acquire(2)) == 2
        assert len(await work.acquire(2)) == 1
        assert await work.acquire(2) == []
        assert len(work.held()) == 3

    told(scenario)


def test_as_long_as_the_time_is_not_known_nothing_is_taken_and_that_is_an_error() -> None:
    async def scenario(world: World) -> None:
        store = FaultyPartitions(
            world.store, world.clock, time=StoreTime(world.clock, lambda: None)
        )
        await world.store.create("pipeline|file", [NewPartition("a")])
        work = world.coordinator(store=store).work("file", balance=False)
        with pytest.raises(StoreUnavailable, match="clock"):
            await work.acquire()

    told(scenario)


def test_errors_are_errors_and_never_no_work() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        await put(work, "a")
        await work.acquire()
        for call in ("acquire", "counts", "page", "create", "change"):
            other = world.coordinator(call).work("file")
            world.faulty.fault = lambda name, call=call: Fault.UNAVAILABLE if name == call else None  # type: ignore[misc]
            with pytest.raises(StoreUnavailable):
                await other.acquire()
            assert other.counters.none_acquired == 0

    told(scenario)


# -- by key


def test_what_ended_is_reopened_with_its_progress() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        await put(work, *"abcde")
        held = {one.key: one for one in await work.acquire(4)}
        for one in held.values():
            await one.save(f"of {one.key}")
        await held["a"].complete()
        await held["b"].close(1000.0)
        await work.fail("c", "bad")
        for key in "abc":
            again = await work.reopen(key)
            assert (again.status, again.progress) == (Status.UNASSIGNED, f"of {key}")
        for key in "de":
            with pytest.raises(Conflict):
                await work.reopen(key)
        with pytest.raises(NotFound):
            await work.reopen("absent")
        assert {one.key for one in await work.acquire(9)} == {"a", "b", "c", "e"}

    told(scenario)


def test_reset_forgets_progress_if_asked_and_takes_it_from_its_worker() -> None:
    async def scenario(world: World) -> None:
        a = world.coordinator("A")
        work = a.work("file")
        await put(work, "a")
        (held,) = await work.acquire()
        await held.save("half")
        async with world.running(a):
            assert (await work.reset("a")).progress == "half"
            await held.lost.wait()
        assert (await work.reset("a", forget=True)).progress is None
        assert len(await work.acquire()) == 1

    told(scenario)


def test_what_is_failed_by_hand_is_failed_though_it_was_never_tried() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        await put(work, "a", "b")
        one = await work.fail("a", "not ours")
        assert (one.status, one.last_error) == (Status.FAILED, "not ours")
        assert [held.key for held in await work.acquire(9)] == ["b"]
        listed = await work.page(status=Status.FAILED)
        assert [found.key for found in listed.partitions] == ["a"]

    told(scenario)


def test_what_kills_its_workers_becomes_failed_and_is_counted() -> None:
    async def scenario(world: World) -> None:
        limits = CoordinatorLimits(lease_seconds=60.0, max_attempts=3)
        await put(world.coordinator().work("file"), "poison")
        for turn in range(4):
            work = world.coordinator(str(turn), limits=limits).work("file")
            held = await work.acquire()
            await world.clock.sleep(65.0)
            assert len(held) == (turn < 3)
        assert (await world.stored("poison")).status is Status.FAILED
        assert (work.counters.failed, work.counters.none_acquired) == (1, 1)

    told(scenario)
