"""Where workers turn to, and what is kept in memory."""

from __future__ import annotations

from tailrace.coordination.object_store.store import STAY_SECONDS, ShardRoute, ShardRoutes
from tailrace.coordination.object_store.writer import EXPANSION, RowCache
from tailrace.coordination.partitions import NewPartition, completed
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


def test_each_owner_goes_round_all_in_an_order_of_its_own() -> None:
    first, second = ShardRoute("host/A", 20), ShardRoute("host/B", 20)
    assert sorted(first.ahead()) == sorted(second.ahead()) == list(range(20))
    assert first.ahead() != second.ahead()
    assert ShardRoute("host/A", 20).ahead() == first.ahead()


def test_stays_where_there_is_work_and_no_longer_than_its_time() -> None:
    route = ShardRoute("host/A", 20)
    assert route.here(0.0) is None
    order = route.ahead()
    route.arrive(order[4], 100.0)
    assert route.here(100.0) == order[4]
    route.arrive(order[4], 100.0 + STAY_SECONDS / 2)
    assert route.here(100.0 + STAY_SECONDS) is None, "more work there does not prolong it"
    assert route.ahead() == order[5:] + order[:5]
    route.arrive(order[4], 200.0)
    assert route.here(200.0) == order[4], "nothing elsewhere: then it stays again"


def test_owners_of_long_ago_are_forgotten() -> None:
    routes = ShardRoutes(3)
    kept = routes.of("host/kept")
    kept.arrive(2, 0.0)
    for number in range(1000):
        routes.of(f"host/{number}")
        assert routes.of("host/kept") is kept
    assert routes.of("host/0").here(0.0) is None


class Holder:
    def __init__(self) -> None:
        self.forgot = 0

    def forget_rows(self) -> None:
        self.forgot += 1


def test_what_was_used_longest_ago_goes_first() -> None:
    cache, holders = RowCache(300 * EXPANSION), [Holder() for _ in range(4)]
    for holder in holders[:3]:
        cache.used(holder, 100)
    cache.used(holders[0], 100)
    cache.used(holders[3], 100)
    assert [holder.forgot for holder in holders] == [0, 1, 0, 0]
    cache.dropped(holders[0])
    cache.used(holders[1], 100)
    assert [holder.forgot for holder in holders] == [0, 1, 0, 0]
    cache.used(holders[2], 1000)
    assert [holder.forgot for holder in holders] == [0, 2, 0, 1], "itself it keeps"


def test_work_in_one_shard_alone_is_a_write_each_also_after_a_while() -> None:
    async def scenario(clock: VirtualClock) -> None:
        objects = Counted(on_disk(clock))
        store = process(objects, clock)
        await store.create(SOURCE, many(80))
        held = await take(store, clock, 80)
        await store.create(SOURCE, [NewPartition("lonely")])
        for _ in range(3):
            for _ in range(4):
                objects.made()
                (one,) = await take(store, clock, 1)
                one = await store.change(one, completed(one, clock.now_ms()))
                made = objects.made()
                await store.delete(one)
                await store.create(SOURCE, [NewPartition("lonely")])
            assert made == {"put": 2}
            await clock.sleep(STAY_SECONDS)
        assert len(held) == 80

    simulate(scenario, start_ms=START_MS)
