"""Lists that are longer than what is kept of them: exact, and read a few times only."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.coordination.partitions import NewPartition, Partition, Status, completed, given_up
from tailrace.logstore import keys
from tailrace.logstore.errors import Damaged
from tests.coordination.object_store.counted import (
    SOURCE,
    START_MS,
    Counted,
    many,
    on_disk,
    process,
    take,
)
from tests.simulation.virtual_time import VirtualClock, simulate

LITTLE = 100_000
"""Memory: a part of it holds some 80 rows."""


async def _listed(
    store: ObjectPartitions, limit: int, status: Status | None = None, after: str | None = None
) -> list[str]:
    found: list[str] = []
    while True:
        page = await store.page(SOURCE, status=status, after=after, limit=limit)
        assert len(page.partitions) <= limit
        found += [one.key for one in page.partitions]
        if (after := page.after) is None:
            return found
        assert after == found[-1]


def test_a_list_is_read_once_if_it_fits() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        await process(disk, clock).create(SOURCE, many(1000))
        objects = Counted(disk)
        store = process(objects, clock)
        assert await _listed(store, 10) == [one.key for one in many(1000)]
        assert objects.made() == {"list": 100, "get": 9}

    simulate(scenario, start_ms=START_MS)


def test_a_long_list_is_read_far_less_often_than_it_has_pages() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        await process(disk, clock).create(SOURCE, many(1000))
        objects = Counted(disk)
        store = process(objects, clock, cache_bytes=LITTLE)
        assert await _listed(store, 5) == [one.key for one in many(1000)]
        made = objects.made()
        assert made["list"] == 200
        assert 8 * 5 < made["get"] < 8 * 25, "all eight shards, for 40 to 200 rows"

    simulate(scenario, start_ms=START_MS)


def test_only_shards_that_changed_are_read_again() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        other = process(disk, clock)
        await other.create(SOURCE, many(1000))
        objects = Counted(disk)
        store = process(objects, clock)
        page = await store.page(SOURCE, limit=10)
        objects.made()
        (held,) = await take(other, clock, 1)
        await other.change(held, completed(held, clock.now_ms()))
        page = await store.page(SOURCE, after=page.after, limit=10)
        assert objects.made() == {"list": 1, "get": 1}
        assert [one.key for one in page.partitions] == [one.key for one in many(20)[10:]]

    simulate(scenario, start_ms=START_MS)


def test_an_earlier_page_and_another_status_are_read_anew() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = process(on_disk(clock), clock, cache_bytes=LITTLE)
        await store.create(SOURCE, many(500))
        held = await take(store, clock, 3)
        assigned = sorted(one.key for one in held)
        for _ in range(2):
            page = await store.page(SOURCE, after="000300", limit=10)
            assert [one.key for one in page.partitions] == [one.key for one in many(311)[301:]]
            assert await _listed(store, 2, Status.ASSIGNED) == assigned
            first = await store.page(SOURCE, limit=2)
            page = await store.page(SOURCE, status=Status.ASSIGNED, after=first.after, limit=5)
            behind = [key for key in assigned if key > (first.after or "")]
            assert [one.key for one in page.partitions] == behind

    simulate(scenario, start_ms=START_MS)


def test_pages_of_two_sources_in_turn() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = process(on_disk(clock), clock)
        sources = [SOURCE, "p|pipeline|other"]
        for source in sources:
            await store.create(source, [NewPartition(f"{source} {i}") for i in range(8)])
        for at in range(7):
            for source in sources:
                after = f"{source} {at}"
                page = await store.page(source, after=after, limit=1)
                assert [one.key for one in page.partitions] == [f"{source} {at + 1}"]
                assert {one.source for one in page.partitions} == {source}

    simulate(scenario, start_ms=START_MS)


@pytest.mark.parametrize("seed", range(8))
def test_while_others_make_change_and_delete(seed: int) -> None:
    """Each page is what a list of all at that moment has behind the last key."""

    async def scenario(clock: VirtualClock) -> None:
        dice = Random(seed)
        disk = on_disk(clock)
        maker = process(disk, clock)
        store = process(disk, clock, seed=9, cache_bytes=dice.choice([1, LITTLE, 1 << 30]))
        there: dict[str, Partition] = {}

        async def changes() -> None:
            new = [NewPartition(f"{dice.randrange(3000):04d}") for _ in range(dice.randrange(40))]
            await maker.create(SOURCE, new)
            for one in await take(maker, clock, dice.randrange(12)):
                what = dice.randrange(4)
                if what == 0:
                    await maker.delete(one)
                elif what == 1:
                    await maker.change(one, completed(one, clock.now_ms()))
                elif what == 2:
                    await maker.change(one, given_up(one, clock.now_ms()))
            there.clear()
            # Another process has nothing in memory that could be wrong.
            everything = await process(disk, clock, seed=5).page(SOURCE, limit=100_000)
            assert everything.after is None
            there.update({one.key: one for one in everything.partitions})

        for _ in range(5):
            await changes()
        for _ in range(6):
            status = dice.choice([None, None, Status.UNASSIGNED, Status.COMPLETED])
            after: str | None = None
            while True:
                limit = dice.choice([1, 7, 40])
                page = await store.page(SOURCE, status=status, after=after, limit=limit)
                expected = [
                    there[key]
                    for key in sorted(there)
                    if key > (after or "") and status in (None, there[key].status)
                ]
                assert page.partitions == expected[:limit]
                more = len(expected) > limit
                assert page.after == (expected[limit - 1].key if more else None)
                if (after := page.after) is None:
                    break
                if dice.random() < 0.2:
                    await changes()

    simulate(scenario, start_ms=START_MS)


def test_a_damaged_shard_ends_the_list() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        await process(disk, clock).create(SOURCE, many(80))
        store = process(disk, clock)
        page = await store.page(SOURCE, limit=10)
        body = (await disk.get(keys.partition_shard(SOURCE, 3)))[1]
        await disk.put(keys.partition_shard(SOURCE, 3), b"{")
        for _ in range(2):
            with pytest.raises(Damaged):
                await store.page(SOURCE, after=page.after, limit=10)
        await disk.put(keys.partition_shard(SOURCE, 3), body)
        assert await _listed(store, 10) == [one.key for one in many(80)]

    simulate(scenario, start_ms=START_MS)
