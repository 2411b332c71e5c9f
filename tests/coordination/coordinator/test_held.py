"""What a worker may do with a partition it holds, and how it learns that it may no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from coordination.coordinator.held import Held
from coordination.coordinator.limits import CoordinatorLimits
from coordination.coordinator.work import Work
from coordination.partitions.partition import Status
from logstore.errors import LeaseLost, NotFound, OutcomeUnknown, StoreUnavailable, TooLarge
from tests.coordination.processes import LIMITS, World, put, told
from tests.faulty_store import Fault

ENDS: dict[str, Callable[[Held], Awaitable[None]]] = {
    "complete": lambda held: held.complete(),
    "close": lambda held: held.close(60.0),
    "give up": lambda held: held.give_up(),
    "fail": lambda held: held.fail("bad"),
}
STATUS = {
    "complete": Status.COMPLETED,
    "close": Status.CLOSED,
    "give up": Status.UNASSIGNED,
    "fail": Status.UNASSIGNED,
}


async def one_held(work: Work, key: str = "a") -> Held:
    if await work.get(key) is None:
        await put(work, key)
    held = await work.acquire_key(key)
    assert held is not None
    return held


def counted(work: Work) -> dict[str, int]:
    """Counters that are not 0, but those that every test here counts."""
    names = (
        "completed closed deleted given_up saved not_found not_owned failures failed "
        "renewal_errors asked_back"
    )
    found = {name: getattr(work.counters, name) for name in names.split()}
    return {name: count for name, count in found.items() if count}


def test_it_has_the_key_the_progress_the_count_of_closes_and_an_epoch() -> None:
    async def story(world: World) -> None:
        work = world.coordinator().work("file")
        first = await one_held(work)
        await first.save('{"line":3}')
        await first.close(0.0)
        second = await one_held(work)
        assert (second.key, second.progress) == ("a", '{"line":3}')
        assert second.partition.closed_count == 1
        assert second.epoch > first.epoch
        assert second.valid()

    told(story)


def test_saving_keeps_progress_and_renews() -> None:
    async def story(world: World) -> None:
        work = world.coordinator().work("file")
        held = await one_held(work)
        until_ms = held.partition.until_ms
        await world.clock.sleep(30.0)
        await held.save("half")
        stored = await world.stored()
        assert (stored.progress, stored.status) == ("half", Status.ASSIGNED)
        assert stored.until_ms == until_ms + 30_000
        assert counted(work) == {"saved": 1}

    told(story)


def test_renewing_keeps_what_was_saved() -> None:
    async def story(world: World) -> None:
        held = await one_held(world.coordinator().work("file"))
        await held.save("half")
        await world.clock.sleep(30.0)
        await held.renew()
        stored = await world.stored()
        assert stored.progress == "half"
        assert stored.until_ms == world.clock.now_ms() + 60_000

    told(story)


@pytest.mark.parametrize("name", ENDS)
def test_an_end_keeps_progress_and_frees_the_partition_of_its_owner(name: str) -> None:
    async def story(world: World) -> None:
        work = world.coordinator().work("file")
        held = await one_held(work)
        await held.save("half")
        await ENDS[name](held)
        stored = await world.stored()
        assert (stored.status, stored.owner, stored.progress) == (STATUS[name], None, "half")
        assert not held.valid()
        assert not held.lost.is_set(), "it ended as its worker wanted"
        assert work.held() == []

    told(story)


def test_each_end_is_counted() -> None:
    async def story(world: World) -> None:
        work = world.coordinator().work("file")
        for i, end in enumerate(ENDS.values()):
            await end(await one_held(work, str(i)))
        await (await one_held(work, "gone")).delete()
        expected = {"completed": 1, "closed": 1, "given_up": 1, "failures": 1, "deleted": 1}
        assert counted(work) == expected
        assert await work.get("gone") is None

    told(story)


def test_a_close_below_its_highest_count_closes_and_at_it_completes() -> None:
    async def story(world: World) -> None:
        work = world.coordinator().work("file")
        for count, status in enumerate([Status.CLOSED, Status.CLOSED, Status.COMPLETED], 1):
            await (await one_held(work)).close(0.0, max_closed_count=3)
            stored = await world.stored()
            assert (stored.status, stored.closed_count) == (status, count)
        assert counted(work) == {"closed": 2, "completed": 1}

    told(story)


def test_closed_it_is_nobodys_until_it_is_due() -> None:
    async def story(world: World) -> None:
        work = world.coordinator().work("file")
        await (await one_held(work)).close(100.0)
        assert await work.acquire() == []
        await world.clock.sleep(99.0)
        assert await work.acquire() == []
        await world.clock.sleep(1.0)
        assert [held.key for held in await work.acquire()] == ["a"]

    told(story)


def test_given_up_with_another_priority_later_and_with_last_progress() -> None:
    async def story(world: World) -> None:
        work = world.coordinator().work("file")
        held = await one_held(work)
        await held.give_up(priority=-2.5, later_seconds=30.0, progress="last")
        stored = await world.stored()
        assert (stored.priority, stored.progress, stored.attempts) == (-2.5, "last", 0)
        assert await work.acquire() == []
        await world.clock.sleep(30.0)
        assert len(await work.acquire()) == 1

    told(story)


def test_failures_are_tried_again_later_and_later_until_there_were_too_many() -> None:
    limits = CoordinatorLimits(max_attempts=4, retry_seconds=10.0, max_retry_seconds=15.0)

    async def story(world: World) -> None:
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

    told(story)


def test_progress_between_failures_begins_their_count_anew() -> None:
    async def story(world: World) -> None:
        limits = CoordinatorLimits(max_attempts=2, retry_seconds=0.0)
        work = world.coordinator(limits=limits).work("file")
        await put(work, "a")
        for turn in range(6):
            (held,) = await work.acquire()
            await held.save(str(turn))
            await held.fail("store of the sink away")
        assert counted(work) == {"failures": 6, "saved": 6}

    told(story)


@pytest.mark.parametrize("name", ["save", "renew", *ENDS])
def test_what_was_deleted_is_not_found_and_its_worker_stops(name: str) -> None:
    async def story(world: World) -> None:
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

    told(story)


@pytest.mark.parametrize("name", ["save", "renew", "delete", *ENDS])
def test_what_another_owns_is_left_to_it(name: str) -> None:
    async def story(world: World) -> None:
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

    told(story)


def test_what_this_process_acquired_anew_is_another_lease() -> None:
    async def story(world: World) -> None:
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

    told(story)


def test_a_change_that_leaves_it_ours_fails_nothing() -> None:
    async def story(world: World) -> None:
        held = await one_held(world.coordinator().work("file"))
        stored = await world.stored()
        await world.store.change(stored, replace(stored, priority=7.0))
        await held.save("half")
        stored = await world.stored()
        assert (stored.priority, stored.progress) == (7.0, "half")

    told(story)


@pytest.mark.parametrize("name", ["save", *ENDS])
def test_after_its_time_it_changes_nothing_though_nobody_took_it(name: str) -> None:
    async def story(world: World) -> None:
        held = await one_held(world.coordinator().work("file"))
        before = await world.stored()
        await world.clock.sleep(LIMITS.lease_seconds - 2.0)
        assert not held.valid()
        with pytest.raises(LeaseLost):
            await (ENDS | {"save": lambda held: held.save("x")})[name](held)
        assert await world.stored() == before

    told(story)


@pytest.mark.parametrize(
    ("name", "action"), [("save", "saveState"), ("close", "close"), ("complete", "complete")]
)
def test_an_update_that_fails_is_counted_raised_and_may_be_tried_again(
    name: str, action: str
) -> None:
    async def story(world: World) -> None:
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

    told(story)


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE])
@pytest.mark.parametrize("by_heartbeat", [False, True])
@pytest.mark.parametrize("name", ENDS)
def test_an_end_whose_answer_was_lost_may_be_asked_for_again(
    name: str, by_heartbeat: bool, fault: Fault
) -> None:
    async def story(world: World) -> None:
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

    told(story)


def test_another_end_than_the_one_that_happened_unheard_is_refused() -> None:
    async def story(world: World) -> None:
        held = await one_held(world.coordinator().work("file"))
        world.faulty.fault = lambda _: Fault.UNKNOWN_DONE
        with pytest.raises(OutcomeUnknown):
            await held.complete()
        world.faulty.fault = lambda _: None
        with pytest.raises(LeaseLost, match="COMPLETED"):
            await held.give_up()
        assert (await world.stored()).status is Status.COMPLETED

    told(story)


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE, None])
def test_a_save_whose_answer_was_lost_or_not_awaited_fails_no_later_one(
    fault: Fault | None,
) -> None:
    async def story(world: World) -> None:
        held = await one_held(world.coordinator().work("file"))
        for turn in range(3):
            world.faulty.fault = lambda call: fault if call == "change" else None
            saving = asyncio.create_task(held.save(f"lost {turn}"))
            if fault is None:
                for _ in range(turn + 1):
                    await asyncio.sleep(0)
                saving.cancel()
            await asyncio.wait([saving])
            world.faulty.fault = lambda _: None
            await held.save(f"line {turn}")
            assert (await world.stored()).progress == f"line {turn}"

    told(story)


def test_progress_that_is_too_large_changes_nothing() -> None:
    async def story(world: World) -> None:
        held = await one_held(world.coordinator().work("file"))
        await held.save("small")
        with pytest.raises(TooLarge):
            await held.save("x" * 400_000)
        assert held.valid()
        await held.save("fits")
        assert (await world.stored()).progress == "fits"

    told(story)
