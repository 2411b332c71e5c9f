"""Writes whose answer was lost, and writes that were refused though they were done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tailrace.coordination.object_store.shard import RECENT
from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.coordination.partitions import (
    NewPartition,
    Partition,
    Status,
    completed,
    given_up,
    saved,
)
from tailrace.logstore.errors import (
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
)
from tailrace.logstore.objects.store import Body, ObjectInfo, ObjectStore
from tests.coordination.object_store.counted import (
    SOURCE,
    START_MS,
    Counted,
    claim_at,
    many,
    on_disk,
    process,
    take,
)
from tests.simulation.faulty_store import Fault, Schedule
from tests.simulation.virtual_time import VirtualClock, simulate


def writes(call: str) -> bool:
    return call.startswith("put ")


class Interfering(Counted):
    """After the next put, as long as there are any, others do something; then its caller hears
    that nobody knows, or that it was refused."""

    def __init__(self, inner: ObjectStore, heard: type[Exception]) -> None:
        super().__init__(inner)
        self.heard = heard
        self.others: list[Callable[[], Awaitable[Any]]] = []
        self.done = True

    async def put(self, key: str, body: Body, **how: Any) -> ObjectInfo:
        if not self.others:
            return await super().put(key, body, **how)
        if self.done:
            await super().put(key, body, **how)
        others, self.others = self.others, []
        for other in others:
            await other()
        raise self.heard("lost")


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE])
def test_what_was_written_is_found_and_what_was_not_is_written(fault: Fault) -> None:
    async def scenario(clock: VirtualClock) -> None:
        for step in range(1, 9):
            objects = Counted(on_disk(clock), Schedule({step: fault}, applies=writes))
            store = process(objects, clock, shards=1, seed=step)
            assert await store.create(SOURCE, many(3)) == ["000000", "000001", "000002"]
            first, second, third = await take(store, clock, 3)
            first = await store.change(first, saved(first, "half", first.until_ms))
            first = await store.change(first, completed(first, clock.now_ms()))
            assert first == await store.get(SOURCE, first.key)
            await store.change(second, given_up(second, clock.now_ms()))
            await store.delete(third)
            assert await store.get(SOURCE, third.key) is None
            with pytest.raises(NotFound):
                await store.delete(third)
            assert await store.purge(SOURCE, clock.now_ms() + 1) == 1
            assert objects.schedule.fired == (step < 9)

    simulate(scenario, start_ms=START_MS)


@pytest.mark.parametrize("heard", [OutcomeUnknown, PreconditionFailed])
@pytest.mark.parametrize("done", [True, False])
def test_also_when_others_wrote_since(heard: type[Exception], done: bool) -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        objects = Interfering(disk, heard)
        objects.done = done
        store, other = process(objects, clock, shards=1), process(disk, clock, shards=1, seed=5)
        await store.create(SOURCE, many(30))
        (held,) = await take(store, clock, 1)

        async def another() -> None:
            await take(other, clock, 1, "other/B")

        objects.others = [another] * (RECENT - 3)
        mine = await store.change(held, completed(held, clock.now_ms()))
        assert mine == await store.get(SOURCE, held.key)

        objects.others = [another]
        (second,) = await take(store, clock, 1)
        assert second == await store.get(SOURCE, second.key)
        assert second.owner == "host/A"
        counts = await store.counts(SOURCE)
        assert counts[Status.COMPLETED] == 1

    simulate(scenario, start_ms=START_MS)


def test_a_change_that_was_done_and_changed_again_is_no_lost_race() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        objects = Interfering(disk, OutcomeUnknown)
        store, other = process(objects, clock, shards=1), process(disk, clock, shards=1, seed=5)
        await store.create(SOURCE, many(1))
        (held,) = await take(store, clock, 1)

        async def take_it() -> None:
            assert len(await take(other, clock, 1, "other/B")) == 1

        objects.others = [take_it]
        mine = await store.change(held, given_up(held, clock.now_ms()))
        assert (mine.status, mine.owner) == (Status.UNASSIGNED, None)
        with pytest.raises(PreconditionFailed):
            await store.change(mine, completed(mine, clock.now_ms()))

    simulate(scenario, start_ms=START_MS)


def test_who_cannot_know_says_so() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        objects = Interfering(disk, OutcomeUnknown)
        store, other = process(objects, clock, shards=1), process(disk, clock, shards=1, seed=5)
        await store.create(SOURCE, many(50))
        (held,) = await take(store, clock, 1)

        async def another() -> None:
            await take(other, clock, 1, "other/B")

        objects.others = [another] * (RECENT + 1)
        with pytest.raises(OutcomeUnknown):
            await store.change(held, completed(held, clock.now_ms()))

    simulate(scenario, start_ms=START_MS)


def test_a_store_that_is_away_is_an_error_and_changes_nothing() -> None:
    async def scenario(clock: VirtualClock) -> None:
        objects = Counted(on_disk(clock))
        store = process(objects, clock, shards=2)
        await store.create(SOURCE, many(9))
        (held,) = await take(store, clock, 1)
        before = objects.schedule
        objects.schedule = Schedule(dict.fromkeys(range(1, 99), Fault.UNAVAILABLE))
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.create(SOURCE, many(12)),
            lambda: store.get(SOURCE, held.key),
            lambda: take(store, clock, 1),
            lambda: store.acquire(SOURCE, claim_at(clock), 1, random=False),
            lambda: store.acquire("another", claim_at(clock), 1),
            lambda: store.change(held, completed(held, clock.now_ms())),
            lambda: store.delete(held),
            lambda: store.page(SOURCE),
            lambda: store.counts(SOURCE),
            store.sources,
            lambda: store.purge(SOURCE, clock.now_ms()),
        ]
        for call in calls:
            with pytest.raises(StoreUnavailable):
                await call()
        objects.schedule = before
        assert await store.counts(SOURCE) == {Status.ASSIGNED: 1, Status.UNASSIGNED: 8}
        assert await store.get(SOURCE, held.key) == held

    simulate(scenario, start_ms=START_MS)


def test_leases_are_told_of_though_another_shard_cannot_be_reached() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)
        await process(disk, clock).create(SOURCE, many(80))
        for random in (True, False):
            schedule = Schedule(
                dict.fromkeys(range(1, 999), Fault.UNAVAILABLE),
                applies=lambda call: call.startswith("put ") and call.endswith("0003.json"),
            )
            store = process(Counted(disk, schedule), clock, seed=9)
            claim = claim_at(clock, f"host/{random}", lease_ms=1)
            found = (await store.acquire(SOURCE, claim, 80, random=random)).partitions
            assert 40 < len(found) < 80
            assert schedule.fired
            await clock.sleep(10)

    simulate(scenario, start_ms=START_MS)


def test_a_caller_that_goes_away_stops_no_other() -> None:
    async def scenario(clock: VirtualClock) -> None:
        objects = Counted(on_disk(clock))
        store = process(objects, clock, shards=1)
        await store.create(SOURCE, many(2))
        first, second = await take(store, clock, 2)

        async def complete(one: Partition) -> Partition:
            return await store.change(one, completed(one, clock.now_ms()))

        leaving = asyncio.create_task(complete(first))
        staying = asyncio.create_task(complete(second))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await staying).status is Status.COMPLETED
        assert leaving.cancelled() or await asyncio.wait([leaving])
        await store.close()

    simulate(scenario, start_ms=START_MS)


def test_one_process_makes_the_source_whatever_answers_were_lost() -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = on_disk(clock)

        async def supplier(number: int) -> list[str]:
            fault = Fault.UNKNOWN_DONE if number % 2 else Fault.UNKNOWN_NOT_DONE
            objects = Counted(disk, Schedule({1: fault}, applies=writes))
            store: ObjectPartitions = process(objects, clock, seed=number, shards=number + 1)
            return await store.create(SOURCE, [NewPartition(f"{i}") for i in range(30)])

        made = await asyncio.gather(*[supplier(number) for number in range(6)])
        assert sorted([key for keys in made for key in keys]) == sorted([f"{i}" for i in range(30)])
        page = await process(disk, clock).page(SOURCE)
        assert len(page.partitions) == 30

    simulate(scenario, start_ms=START_MS)
