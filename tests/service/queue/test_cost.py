"""What the queue asks of the store: grouped writes, shared listings."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from service.query.sources import Deletion
from service.queue.contents import Contents
from tailrace.logstore import keys
from tests.service.queue.world import (
    SETTINGS,
    QueueWorld,
    commit,
    consume_all,
    playing,
    take,
    taken,
)
from tests.simulation.faulty_store import FaultyStore, Schedule


def counted(store: FaultyStore) -> Counter[str]:
    """Calls since the last time, by what they were for."""
    found: Counter[str] = Counter()
    for call in store.calls:
        verb, _, key = call.partition(" ")
        if "item of" not in call:
            found[f"{verb} {'groups' if key.startswith(keys.GROUPS) else 'others'}"] += 1
    store.calls.clear()
    return found


def test_what_waits_together_is_written_together() -> None:
    async def scenario(world: QueueWorld) -> None:
        for _ in range(40):
            await world.put("a")
        store = FaultyStore(world.store, Schedule.none())
        queue = world.queue(store)
        await take(queue, "other")
        counted(store)
        given = await asyncio.gather(*[taken(queue) for _ in range(40)])
        assert counted(store)["put groups"] <= 3, "to make the group, the first, and the rest"
        await asyncio.gather(*[commit(queue, one) for one in given])
        calls = counted(store)
        assert calls["put groups"] <= 2
        assert calls["get groups"] == 0, "the version that was written last is remembered"

    playing(scenario)


def test_a_thousand_who_wait_ask_as_much_as_one() -> None:
    async def scenario(world: QueueWorld) -> list[Counter[str]]:
        costs = []
        for count in (1, 500):
            await world.put("a")
            store = FaultyStore(world.store, Schedule.none())
            queue = world.queue(store)
            await consume_all(queue)
            counted(store)
            waiting = [asyncio.ensure_future(take(queue, wait=20.0)) for _ in range(count)]
            await asyncio.wait(waiting)
            costs.append(counted(store))
        return costs

    one, many = playing(scenario)
    # All but a few of them join the first beat.
    assert sum(many.values()) <= sum(one.values()) + 10
    assert sum(one.values()) < 20 / SETTINGS.poll_seconds * 6


async def nothing_deleted() -> Sequence[Deletion]:
    return []


def test_what_a_segment_is_takes_two_requests() -> None:
    async def scenario(world: QueueWorld) -> None:
        name = await world.put("a")
        store = FaultyStore(world.store, Schedule.none())
        opened = await Contents(store, nothing_deleted, 1 << 20).open(name)
        assert opened.footer.rows == 2
        assert counted(store) == {"head others": 1, "get others": 1}

    playing(scenario)
