"""Groups of the segment queue over every store: bounds, eviction, reset, forgetting."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.coordination.groups import GroupStart, State
from tailrace.logstore.errors import (
    GroupEvicted,
    InvalidInput,
    LeaseLost,
    NotFound,
    OverQuota,
    Unavailable,
)
from tests.service.queue.world import (
    SETTINGS,
    QueueWorld,
    commit,
    consume_all,
    playing,
    take,
    taken,
)
from tests.settings import changed

pytestmark = pytest.mark.usefixtures("every_store")


def test_groups_and_those_who_wait_are_bounded() -> None:
    async def scenario(world: QueueWorld) -> None:
        queue = world.queue(settings=changed(SETTINGS, max_groups=2, max_waiting=1))
        for name in ("one", "two", "one"):
            await take(queue, name)
        with pytest.raises(OverQuota) as refused:
            await take(queue, "three")
        assert refused.value.retry_after_seconds > 0
        with pytest.raises(InvalidInput):
            await take(queue, "x" * 101)
        waiting = asyncio.ensure_future(take(queue, "one", wait=10))
        await world.clock.sleep(0.1)
        with pytest.raises(Unavailable):
            await take(queue, "two", wait=10)
        assert await waiting is None

    playing(scenario)


def test_one_client_cannot_take_all_groups() -> None:
    async def scenario(world: QueueWorld) -> None:
        settings = changed(SETTINGS, max_groups=10, new_groups_per_hour=3)
        queue = world.queue(settings=settings)
        await world.put("a")
        for number in range(3):
            await take(queue, f"theirs-{number}", peer="2001:db8::1")
        for peer in ("2001:db8::1", "2001:db8::2"):  # one host has the whole network
            with pytest.raises(OverQuota, match="within an hour"):
                await take(queue, "theirs-3", peer=peer)
        assert await take(queue, "theirs-0", peer="2001:db8::1") is None, "used, and not made"
        await taken(queue, "mine", peer="192.0.2.1")
        names = [group.name for group in await queue.groups()]
        assert names == ["mine", "theirs-0", "theirs-1", "theirs-2"]
        await world.clock.sleep(3601)
        assert await take(queue, "theirs-3", peer="2001:db8::1") is not None

    playing(scenario)


def test_a_group_that_nobody_uses_gives_its_place_to_one_that_is_needed() -> None:
    async def scenario(world: QueueWorld) -> None:
        settings = changed(SETTINGS, max_groups=3, unused_group_seconds=600)
        queue = world.queue(settings=settings)
        for _ in range(3):
            await world.put("a")
        await commit(queue, await taken(queue, "worked"), "worked")
        for name in ("asked", "idle"):
            await take(queue, name, start=GroupStart.NOW)
        with pytest.raises(OverQuota):
            await take(queue, "new")
        await world.clock.sleep(400)
        await take(queue, "asked")
        await world.clock.sleep(400)
        # Of the three one has committed, one was asked for, and one is neither.
        assert await take(queue, "new") is not None
        assert [group.name for group in await queue.groups()] == ["asked", "new", "worked"]
        with pytest.raises(OverQuota):
            await take(queue, "another")

    playing(scenario)


def test_a_group_below_what_was_deleted_is_evicted_until_somebody_resets_it() -> None:
    async def scenario(world: QueueWorld) -> None:
        names = [await world.put("a") for _ in range(5)]
        one, other = world.queue(), world.queue()
        held = await taken(one)
        await world.low("a", 4)
        await world.delete(*names[:3])
        for queue in (world.queue(), other):
            with pytest.raises(GroupEvicted, match="from 2 to 3 were deleted"):
                await taken(queue)
        for refused in (commit(one, held), one.fail("g", held.lease.name, held.lease.epoch, "")):
            with pytest.raises(GroupEvicted):
                await refused
        found = await one.group("g")
        assert (found.state, found.evictions, found.committed_segments) == (State.EVICTED, 1, 0)
        again = await one.reset("g", GroupStart.OLDEST)
        assert again.state is State.ACTIVE
        first = await taken(one)
        assert first.lease.name == names[3]
        assert first.lease.epoch > held.lease.epoch
        with pytest.raises((LeaseLost, NotFound)):
            await commit(one, held)

    playing(scenario)


def test_a_reset_takes_leases_away_and_starts_over() -> None:
    async def scenario(world: QueueWorld) -> None:
        names = [await world.put("a") for _ in range(3)]
        one, other = world.queue(), world.queue()
        await commit(one, await taken(one))
        held = await taken(one)
        await other.reset("g", GroupStart.OLDEST)
        with pytest.raises(LeaseLost):
            await commit(one, held)
        assert await consume_all(one) == names
        await other.reset("g", GroupStart.NOW)
        assert await consume_all(one) == []

    playing(scenario)


def test_a_group_that_was_forgotten_begins_again_with_higher_epochs() -> None:
    async def scenario(world: QueueWorld) -> None:
        await world.put("a")
        one, other = world.queue(), world.queue()
        held = await taken(one)
        await other.forget("g")
        with pytest.raises(NotFound):
            await other.forget("g")
        with pytest.raises(NotFound):
            await commit(one, held)
        await world.clock.sleep(0.01)
        again = await taken(one)
        assert again.lease.epoch > held.lease.epoch
        with pytest.raises(LeaseLost):
            await commit(other, held)

    playing(scenario)


def test_a_group_begins_with_what_is_kept() -> None:
    async def scenario(world: QueueWorld) -> None:
        names = [await world.put("a") for _ in range(4)]
        await world.low("a", 3)
        await world.delete(*names[:2])
        assert await consume_all(world.queue()) == names[2:]
        assert await consume_all(world.queue(), "other", start=GroupStart.NOW) == []

    playing(scenario)
