"""What a worker may do with a partition it holds, and how it learns that it may no more."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tailrace.coordination.partitions import Status
from tailrace.coordination.settings import CoordinatorLimits
from tailrace.logstore.errors import LeaseLost, NotFound, TooLarge
from tests.coordination.coordinator.holding import ENDS, STATUS, counted, one_held
from tests.coordination.processes import LIMITS, World, put, told
from tests.simulation.faulty_partitions import FaultyPartitions


def test_it_has_the_key_the_progress_the_count_of_closes_and_an_epoch() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        first = await one_held(work)
        await first.save('{"line":3}')
        await first.close(0.0)
        second = await one_held(work)
        assert (second.key, second.progress) == ("a", '{"line":3}')
        assert second.partition.closed_count == 1
        assert second.epoch > first.epoch
        assert second.valid()

    told(scenario)


def test_saving_keeps_progress_and_renews() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        held = await one_held(work)
        until_ms = held.partition.until_ms
        await world.clock.sleep(30.0)
        await held.save("half")
        stored = await world.stored()
        assert (stored.progress, stored.status) == ("half", Status.ASSIGNED)
        assert stored.until_ms == until_ms + 30_000
        assert counted(work) == {"saved": 1}

    told(scenario)


def test_renewing_keeps_what_was_saved() -> None:
    async def scenario(world: World) -> None:
        held = await one_held(world.coordinator().work("file"))
        await held.save("half")
        await world.clock.sleep(30.0)
        await held.renew()
        stored = await world.stored()
        assert stored.progress == "half"
        assert stored.until_ms == world.clock.now_ms() + 60_000

    told(scenario)


@pytest.mark.parametrize("name", ENDS)
def test_an_end_keeps_progress_and_frees_the_partition_of_its_owner(name: str) -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        held = await one_held(work)
        await held.save("half")
        await ENDS[name](held)
        stored = await world.stored()
        assert (stored.status, stored.owner, stored.progress) == (STATUS[name], None, "half")
        assert not held.valid()
        assert not held.lost.is_set(), "it ended as its worker wanted"
        assert work.held() == []

    told(scenario)


def test_each_end_is_counted() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        for i, end in enumerate(ENDS.values()):
            await end(await one_held(work, str(i)))
        await (await one_held(work, "gone")).delete()
        expected = {"completed": 1, "closed": 1, "given_up": 1, "failures": 1, "deleted": 1}
        assert counted(work) == expected
        assert await work.get("gone") is None

    told(scenario)


def test_a_close_below_its_highest_count_closes_and_at_it_completes() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        for count, status in enumerate([Status.CLOSED, Status.CLOSED, Status.COMPLETED], 1):
            await (await one_held(work)).close(0.0, max_closed_count=3)
            stored = await world.stored()
            assert (stored.status, stored.closed_count) == (status, count)
        assert counted(work) == {"closed": 2, "completed": 1}

    told(scenario)


def test_closed_it_is_nobodys_until_it_is_due() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        await (await one_held(work)).close(100.0)
        assert await work.acquire() == []
        await world.clock.sleep(99.0)
        assert await work.acquire() == []
        await world.clock.sleep(1.0)
        assert [held.key for held in await work.acquire()] == ["a"]

    told(scenario)


def test_given_up_with_another_priority_later_and_with_last_progress() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        held = await one_held(work)
        await held.give_up(priority=-2.5, later_seconds=30.0, progress="last")
        stored = await world.stored()
        assert (stored.priority, stored.progress, stored.attempts) == (-2.5, "last", 0)
        assert await work.acquire() == []
        await world.clock.sleep(30.0)
        assert len(await work.acquire()) == 1

    told(scenario)


def test_failures_are_tried_again_later_and_later_until_there_were_too_many() -> None:
    limits = CoordinatorLimits(max_attempts=4, retry_seconds=10.0, max_retry_seconds=15.0)

    async def scenario(world: World) -> None:
        work = world.coordinator(limits=limits).work("file")
        await put(work, "a")
        waits = []
        for _ in range(4):
            (held,) = await work.acquire()
            await held.fail("wrong codec")
            stored = await world.stored()
            assert stored.last_error == "wrong codec"
            waits.append((stored.available_ms - world.clock.now_ms()) / 1000)
            await world.clock.sleep(max(waits[-1], 0.0))
        assert 5.0 <= waits[0] <= 10.0
        assert 7.5 <= min(waits[1:3]) <= max(waits[1:3]) <= 15.0
        assert (await world.stored()).status is Status.FAILED
        assert await work.acquire() == []
        assert counted(work) == {"failures": 4, "failed": 1}

    told(scenario)


def test_progress_between_failures_begins_their_count_anew() -> None:
    async def scenario(world: World) -> None:
        limits = CoordinatorLimits(max_attempts=2, retry_seconds=0.0)
        work = world.coordinator(limits=limits).work("file")
        await put(work, "a")
        for turn in range(6):
            (held,) = await work.acquire()
            await held.save(str(turn))
            await held.fail("store of the sink away")
        assert counted(work) == {"failures": 6, "saved": 6}

    told(scenario)


@pytest.mark.parametrize("name", ["save", "renew", *ENDS])
def test_what_was_deleted_is_not_found_and_its_worker_stops(name: str) -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        held = await one_held(work)
        await work.delete("a")
        verbs = ENDS | {"save": lambda held: held.save("x"), "renew": lambda held: held.renew()}
        if name == "give up":
            await held.give_up()  # it is free of us
        else:
            with pytest.raises(NotFound):
                await verbs[name](held)
        assert held.lost.is_set()
        assert not held.valid()
        assert work.counters.not_found == 1
        assert await work.get("a") is None

    told(scenario)


@pytest.mark.parametrize("name", ["save", "renew", "delete", *ENDS])
def test_what_another_owns_is_left_to_it(name: str) -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        held = await one_held(work)
        await work.reset("a")
        second = await one_held(world.coordinator("other").work("file"))
        verbs = ENDS | {
            "save": lambda held: held.save("x"),
            "renew": lambda held: held.renew(),
            "delete": lambda held: held.delete(),
        }
        with pytest.raises(LeaseLost):
            await verbs[name](held)
        assert held.lost.is_set()
        assert work.counters.not_owned == 1
        assert await world.stored() == second.partition

    told(scenario)


def test_what_this_process_acquired_anew_is_another_lease() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        first = await one_held(work)
        await work.reset("a")
        second = await one_held(work)
        with pytest.raises(LeaseLost):
            await first.save("late")
        assert not first.valid()
        await second.save("mine")
        assert (await world.stored()).progress == "mine"
        assert work.held() == [second]

    told(scenario)


def test_a_change_that_leaves_it_ours_fails_nothing() -> None:
    async def scenario(world: World) -> None:
        held = await one_held(world.coordinator().work("file"))
        stored = await world.stored()
        await world.store.change(stored, replace(stored, priority=7.0))
        await held.save("half")
        stored = await world.stored()
        assert (stored.priority, stored.progress) == (7.0, "half")

    told(scenario)


@pytest.mark.parametrize("name", ["save", *ENDS])
def test_after_its_time_it_changes_nothing_though_nobody_took_it(name: str) -> None:
    async def scenario(world: World) -> None:
        held = await one_held(world.coordinator().work("file"))
        before = await world.stored()
        await world.clock.sleep(LIMITS.lease_seconds - 2.0)
        assert not held.valid()
        with pytest.raises(LeaseLost):
            await (ENDS | {"save": lambda held: held.save("x")})[name](held)
        assert await world.stored() == before

    told(scenario)


def test_to_delete_what_was_deleted_is_no_error() -> None:
    async def scenario(world: World) -> None:
        work = world.coordinator().work("file")
        held = await one_held(work)
        await work.delete("a")
        await held.delete()
        assert (held.valid(), held.lost.is_set(), work.held()) == (False, False, [])
        assert counted(work) == {"deleted": 2}

    told(scenario)


def test_a_worker_and_its_heartbeat_do_not_refuse_each_other() -> None:
    async def scenario(world: World) -> None:
        slow = FaultyPartitions(world.store, world.clock, seconds=lambda: 2.0)
        work = world.coordinator(store=slow).work("file")
        held = await one_held(work)
        saves = [held.save(str(line)) for line in range(5)]
        await asyncio.gather(*saves, held.renew(), held.beat(), held.renew(), held.complete())
        stored = await world.stored()
        assert (stored.status, stored.progress) == (Status.COMPLETED, "4")
        assert counted(work) == {"saved": 5, "completed": 1}

    told(scenario)


def test_progress_that_is_too_large_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        held = await one_held(world.coordinator().work("file"))
        await held.save("small")
        with pytest.raises(TooLarge):
            await held.save("x" * 400_000)
        assert held.valid()
        await held.save("fits")
        assert (await world.stored()).progress == "fits"

    told(scenario)
