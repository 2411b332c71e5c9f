"""How few requests the object store is asked: changes are grouped, and what did not change is
not read again."""

from __future__ import annotations

import asyncio
from collections import Counter

from tailrace.coordination.partitions import Claim, NewPartition, Status, completed, saved
from tests.coordination.object_store.counted import (
    SOURCE,
    START_MS,
    Counted,
    Slow,
    claim_at,
    many,
    on_disk,
    process,
    take,
)
from tests.simulation.virtual_time import VirtualClock, simulate


def test_changes_of_a_process_at_one_time_are_one_write() -> None:
    async def scenario(clock: VirtualClock) -> None:
        objects = Counted(on_disk(clock))
        store = process(objects, clock, shards=1)
        await store.create(SOURCE, many(100))
        held = await take(store, clock, 100)
        objects.made()
        await asyncio.gather(
            *[store.change(one, saved(one, "1", one.until_ms)) for one in held[:40]],
            *[store.change(one, completed(one, clock.now_ms())) for one in held[40:70]],
            *[store.delete(one) for one in held[70:]],
        )
        assert objects.made() == {"put": 1}
        counts = await store.counts(SOURCE)
        assert counts == {Status.ASSIGNED: 40, Status.COMPLETED: 30}

    simulate(scenario, start_ms=START_MS)


def test_what_comes_during_a_write_is_in_the_next() -> None:
    async def scenario(clock: VirtualClock) -> None:
        objects = Counted(on_disk(clock))
        store = process(objects, clock, shards=1)
        await store.create(SOURCE, many(30))
        held = await take(store, clock, 30)
        objects.made()
        first = asyncio.create_task(store.change(held[0], saved(held[0], "1", held[0].until_ms)))
        await asyncio.sleep(0)
        await asyncio.gather(
            first, *[store.change(one, saved(one, "1", one.until_ms)) for one in held[1:]]
        )
        assert objects.made()["put"] <= 2

    simulate(scenario, start_ms=START_MS)


def test_acquiring_and_completing_at_a_shard_of_ones_own_is_a_write_each() -> None:
    async def scenario(clock: VirtualClock) -> None:
        objects = Counted(on_disk(clock))
        store = process(objects, clock)
        await store.create(SOURCE, many(800))
        await take(store, clock, 1)
        objects.made()
        for _ in range(20):
            (held,) = await take(store, clock, 1)
            await store.change(held, completed(held, clock.now_ms()))
        assert objects.made() == {"put": 40}

    simulate(scenario, start_ms=START_MS)


def test_a_batch_costs_as_much_as_one() -> None:
    async def scenario(clock: VirtualClock) -> None:
        objects = Counted(on_disk(clock))
        store = process(objects, clock)
        await store.create(SOURCE, many(800))
        await take(store, clock, 1)
        objects.made()
        held = await take(store, clock, 50)
        assert len(held) == 50
        assert objects.made() == {"put": 1}
        await asyncio.gather(*[store.change(one, completed(one, clock.now_ms())) for one in held])
        assert objects.made() == {"put": 1}

    simulate(scenario, start_ms=START_MS)


def test_with_nothing_free_of_100_000_an_acquire_is_one_listing() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        maker = process(disk, clock, shards=64)
        for start in range(0, 100_000, 50_000):
            new = [NewPartition(f"{number}") for number in range(start, start + 50_000)]
            await maker.create(SOURCE, new)
        (held,) = await take(maker, clock, 1)

        objects = Counted(disk)
        # Memory for a tenth: what is remembered of shards must do.
        store = process(objects, clock, cache_bytes=6_000_000)
        early = Claim("other/B", 60_000, START_MS - 1, START_MS)  # nothing is due as yet
        assert (await store.acquire(SOURCE, early, 10)).partitions == []
        assert objects.made() == {"get": 65, "list": 1}, "each shard once, when it is new to us"
        for random in (True, False):
            for _ in range(3):
                assert (await store.acquire(SOURCE, early, 10, random=random)).partitions == []
                assert objects.made() == {"list": 1}

        await maker.change(held, completed(held, clock.now_ms()))
        assert (await store.acquire(SOURCE, early, 10)).partitions == []
        assert objects.made() == {"list": 1, "get": 1}, "only the shard that changed"
        assert (await store.counts(SOURCE))[Status.COMPLETED] == 1
        assert objects.made() == {"list": 1}
        assert len(await take(store, clock, 10)) == 10

    simulate(scenario, start_ms=START_MS)


def test_in_order_only_the_shards_that_come_first_are_read() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        await process(disk, clock, shards=32).create(SOURCE, many(3200))
        objects = Counted(disk)
        store = process(objects, clock, cache_bytes=1)
        claim = claim_at(clock)
        await store.acquire(SOURCE, claim, 1, random=False)
        objects.made()
        keys = []
        for _ in range(10):
            keys += [
                one.key for one in (await store.acquire(SOURCE, claim, 1, random=False)).partitions
            ]
        assert keys == [f"{number:06d}" for number in range(1, 11)]
        made = objects.made()
        assert (made["list"], made["put"]) == (10, 10)
        assert made["get"] <= 40

    simulate(scenario, start_ms=START_MS)


def test_a_supplier_that_comes_again_with_what_exists_lists_once() -> None:
    async def scenario(clock: VirtualClock) -> None:
        objects = Counted(on_disk(clock))
        store = process(objects, clock)
        await store.create(SOURCE, many(500))
        objects.made()
        assert await store.create(SOURCE, many(500)) == []
        assert objects.made() == {"list": 1}

    simulate(scenario, start_ms=START_MS)


def test_workers_of_their_own_seldom_meet() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        await process(disk, clock, shards=64).create(SOURCE, many(2000))
        calls: Counter[str] = Counter()
        refused = 0
        done: list[str] = []

        async def work(number: int) -> None:
            nonlocal refused
            objects = Slow(disk, clock, number)
            store = process(objects, clock, seed=number)
            while held := await take(store, clock, 10, f"host-{number}/A"):
                done.extend([one.key for one in held])
                await asyncio.gather(
                    *[store.change(one, completed(one, clock.now_ms())) for one in held]
                )
            refused += objects.refused
            calls.update(objects.made())

        await asyncio.gather(*[work(number) for number in range(8)])
        assert sorted(done) == [f"{number:06d}" for number in range(2000)]
        assert refused / calls["put"] < 0.10
        assert calls.total() / 2000 < 0.8

    simulate(scenario, start_ms=START_MS)
