"""Groups of the segment queue over every store: bounds, eviction, reset, forgetting."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from coordination.groups.groups import Start, State
from logstore.errors import (
    GroupEvicted,
    InvalidInput,
    LeaseLost,
    LimitReached,
    NotFound,
    Unavailable,
)
from tests.service.queue.world import (
    LIMITS,
    QueueWorld,
    commit,
    consume_all,
    playing,
    take,
    taken,
)

pytestmark = pytest.mark.usefixtures("every_store")


def test_groups_and_those_who_wait_are_bounded() -> None:
    async def story(world: QueueWorld) -> None:
        queue = world.queue(limits=replace(LIMITS, max_groups=2, max_waiting=1))
        for name in ("one", "two", "one"):
            await take(queue, name)
        with pytest.raises(LimitReached):
            await take(queue, "three")
        with pytest.raises(InvalidInput):
            await take(queue, "x" * 101)
        waiting = asyncio.ensure_future(take(queue, "one", wait=10))
        await world.clock.sleep(0.1)
        with pytest.raises(Unavailable):
            await take(queue, "two", wait=10)
        assert await waiting is None

    playing(story)


def test_a_group_below_what_was_deleted_is_evicted_until_somebody_resets_it() -> None:
    async def story(world: QueueWorld) -> None:
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
        again = await one.reset("g", Start.OLDEST)
        assert again.state is State.ACTIVE
        first = await taken(one)
        assert first.lease.name == names[3]
        assert first.lease.epoch > held.lease.epoch
        with pytest.raises((LeaseLost, NotFound)):
            await commit(one, held)

    playing(story)


def test_a_reset_takes_leases_away_and_starts_over() -> None:
    async def story(world: QueueWorld) -> None:
        names = [await world.put("a") for _ in range(3)]
        one, other = world.queue(), world.queue()
        await commit(one, await taken(one))
        held = await taken(one)
        await other.reset("g", Start.OLDEST)
        with pytest.raises(LeaseLost):
            await commit(one, held)
        assert await consume_all(one) == names
        await other.reset("g", Start.NOW)
        assert await consume_all(one) == []

    playing(story)


def test_a_group_that_was_forgotten_begins_anew_with_higher_epochs() -> None:
    async def story(world: QueueWorld) -> None:
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

    playing(story)


def test_a_group_begins_with_what_is_kept() -> None:
    async def story(world: QueueWorld) -> None:
        names = [await world.put("a") for _ in range(4)]
        await world.low("a", 3)
        await world.delete(*names[:2])
        assert await consume_all(world.queue()) == names[2:]
        assert await consume_all(world.queue(), "other", start=Start.NOW) == []

    playing(story)
