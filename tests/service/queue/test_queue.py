"""The segment queue over every store: order, leases, back-off, poison, groups."""

from __future__ import annotations

import asyncio

import pytest

from service.queue.catalog import RELIST_SECONDS, SegmentName
from tailrace.coordination.groups import GroupStart
from tailrace.logstore import keys
from tailrace.logstore.errors import LeaseLost, NodeNotReady, NotFound
from tests.faults.schedule import Schedule as Proxy
from tests.service.queue.world import (
    SETTINGS,
    START_MS,
    QueueWorld,
    commit,
    consume_all,
    playing,
    take,
    taken,
)
from tests.settings import changed

pytestmark = pytest.mark.usefixtures("every_store")


def test_oldest_first_over_all_nodes_and_each_nodes_in_sequence(every_store: Proxy | None) -> None:
    async def scenario(world: QueueWorld) -> list[SegmentName]:
        for node, seconds in (("a", 10), ("b", 5), ("a", 1), ("b", 30), ("c", 20)):
            await world.put(node, START_MS + seconds * 1000)
        return await consume_all(world.queue())

    # a's second is the oldest of all, and still comes behind a's first.
    assert playing(scenario) == [
        SegmentName("b", 1), SegmentName("a", 1), SegmentName("a", 2), SegmentName("c", 1),
        SegmentName("b", 2),
    ]  # fmt: skip


def test_what_is_leased_is_told() -> None:
    async def scenario(world: QueueWorld) -> None:
        name = await world.put("a", lines=7)
        given = await taken(world.queue(), lease=30.0)
        assert given.lease.name == name
        assert given.lease.attempts == 1
        assert given.lease.until_ms == world.clock.now_ms() + 30_000
        assert given.segment.rows == 7
        assert given.segment.low < given.segment.high
        info = await world.store.head(name.key)
        assert (given.segment.size, given.segment.etag) == (info.size, info.etag)

    playing(scenario)


def test_each_group_gets_everything_and_a_group_each_segment_once() -> None:
    async def scenario(world: QueueWorld) -> None:
        names = [await world.put("a") for _ in range(3)]
        one, other = world.queue(), world.queue()
        assert await consume_all(one, "first") == names
        assert await consume_all(other, "first") == []
        assert await consume_all(other, "second") == names
        found = {group.name: group for group in await one.groups()}
        assert found["first"].committed_segments == found["second"].committed_segments == 3

    playing(scenario)


def test_a_group_that_starts_now_gets_what_comes_later() -> None:
    async def scenario(world: QueueWorld) -> None:
        for _ in range(3):
            await world.put("a")
        queue = world.queue()
        assert await take(queue, start=GroupStart.NOW) is None
        names = [await world.put("a"), await world.put("b")]
        await world.clock.sleep(2)
        assert sorted(await consume_all(queue)) == names

    playing(scenario)


def test_two_nodes_never_lease_one_segment_twice() -> None:
    async def scenario(world: QueueWorld) -> None:
        names = [await world.put("a") for _ in range(20)]
        queues = [world.queue(), world.queue()]
        asked = [take(queues[number % 2]) for number in range(24)]
        found = [given.lease for given in await asyncio.gather(*asked) if given is not None]
        assert sorted(lease.name for lease in found) == names
        assert len({lease.epoch for lease in found}) == 20

    playing(scenario)


def test_a_lease_that_ran_out_goes_to_the_next_and_changes_nothing_afterwards() -> None:
    async def scenario(world: QueueWorld) -> None:
        await world.put("a")
        one, other = world.queue(), world.queue()
        zombie = await taken(one, lease=10.0)
        await world.clock.sleep(10)
        for attempt in (one, other):
            with pytest.raises(LeaseLost):
                await commit(attempt, zombie)
        assert await take(other) is None, "nobody may take it within the margin"
        await world.clock.sleep(2)
        heir = await taken(other, lease=10.0)
        assert heir.lease.epoch > zombie.lease.epoch
        assert heir.lease.attempts == 2
        name, old = zombie.lease.name, zombie.lease.epoch
        for refused in (
            commit(one, zombie),
            one.fail("g", name, old, "late"),
            one.renew("g", name, old, 60.0),
        ):
            with pytest.raises(LeaseLost):
                await refused
        await commit(one, heir)
        with pytest.raises(LeaseLost):
            await commit(one, zombie)
        assert (await one.group("g")).committed_segments == 1

    playing(scenario)


def test_a_commit_that_is_repeated_is_the_same() -> None:
    async def scenario(world: QueueWorld) -> None:
        await world.put("a")
        one, other = world.queue(), world.queue()
        given = await taken(one)
        for queue in (one, one, other):
            await commit(queue, given)
        await world.clock.sleep(100)
        await commit(other, given)
        assert (await one.group("g")).committed_segments == 1
        assert one.counters.committed_segments == 1
        assert other.counters.committed_segments == 0

    playing(scenario)


def test_a_renewed_lease_lasts_and_is_never_shortened() -> None:
    async def scenario(world: QueueWorld) -> None:
        await world.put("a")
        queue = world.queue()
        given = await taken(queue, lease=10.0)
        name, epoch = given.lease.name, given.lease.epoch
        for _ in range(5):
            await world.clock.sleep(8)
            renewed = await queue.renew("g", name, epoch, 10.0)
            assert renewed.until_ms == world.clock.now_ms() + 10_000
        shorter = await queue.renew("g", name, epoch, 1.0)
        assert shorter.until_ms == renewed.until_ms
        assert await take(queue) is None
        await commit(queue, given)

    playing(scenario)


def test_what_is_given_back_waits_longer_each_time_and_then_has_failed() -> None:
    async def scenario(world: QueueWorld) -> None:
        poison = await world.put("a")
        behind = [await world.put("a") for _ in range(3)]
        queue = world.queue()
        for attempt, pause in enumerate((1, 2, 4, 8, None), start=1):
            given = await taken(queue)
            assert (given.lease.name, given.lease.attempts) == (poison, attempt)
            await queue.fail("g", poison, given.lease.epoch, "it is poison")
            await queue.fail("g", poison, given.lease.epoch, "once more is the same")
            if attempt == 1:
                assert await consume_all(queue) == behind, "poison must not block"
            elif pause is not None:
                assert await take(queue) is None
            if pause is not None:
                await world.clock.sleep(pause)
        await world.clock.sleep(1000)
        assert await take(queue) is None
        failed = (await queue.group("g")).cursor("a").failed
        assert [(seq, one.reason) for seq, one in failed.items()] == [(1, "it is poison")]
        assert queue.counters.failed_segments == 5

    playing(scenario)


def test_a_segment_that_kills_its_consumers_has_failed_after_as_many() -> None:
    async def scenario(world: QueueWorld) -> None:
        poison, good = await world.put("a"), await world.put("a")
        queue = world.queue()
        for _ in range(SETTINGS.max_attempts):
            assert (await taken(queue, lease=5.0)).lease.name == poison
            await world.clock.sleep(7)
        assert await consume_all(queue) == [good]
        failed = (await queue.group("g")).cursor("a").failed[1]
        assert "expired" in failed.reason
        assert failed.attempts == SETTINGS.max_attempts
        with pytest.raises(NotFound):
            await queue.retry("g", [good])
        assert await queue.retry("g", [poison]) == [poison]
        assert await consume_all(queue) == [poison]
        assert (await queue.group("g")).committed_segments == 2

    playing(scenario)


def test_a_missing_number_stops_its_node_and_no_other() -> None:
    async def scenario(world: QueueWorld) -> None:
        names = [await world.put("a", START_MS + number) for number in range(3)]
        other = await world.put("b", START_MS + 9)
        await world.delete(names[1])
        queue = world.queue()
        assert await consume_all(queue) == [names[0], other]
        assert queue.catalog.waiting == {"a": "segment 2 of a is missing"}
        world.seqs["a"] = 1
        await world.put("a", START_MS + 1)
        world.seqs["a"] = 3
        await world.clock.sleep(RELIST_SECONDS + 1)
        assert await consume_all(queue) == names[1:]

    playing(scenario)


def test_what_is_quarantined_counts_as_empty() -> None:
    async def scenario(world: QueueWorld) -> None:
        names = [await world.put("a") for _ in range(4)]
        for seq in (1, 3):
            await world.store.put(keys.quarantine_marker("a", seq), b"{}")
        assert await consume_all(world.queue()) == [names[1], names[3]]

    playing(scenario)


def test_a_segment_that_is_not_what_was_written_has_failed_at_once() -> None:
    async def scenario(world: QueueWorld) -> None:
        names = [await world.put("a") for _ in range(3)]
        await world.store.put(names[1].key, b"not a segment, but as long as one might well be")
        queue = world.queue()
        assert await consume_all(queue) == [names[0], names[2]]
        assert "damaged" in (await queue.group("g")).cursor("a").failed[2].reason

    playing(scenario)


def test_who_waits_gets_what_comes_and_nothing_in_vain() -> None:
    async def scenario(world: QueueWorld) -> None:
        queue = world.queue()
        began = world.clock.monotonic()
        assert await take(queue, wait=7.5) is None
        assert world.clock.monotonic() - began == pytest.approx(7.5)
        waiting = [asyncio.ensure_future(take(queue, wait=60.0)) for _ in range(3)]
        await world.clock.sleep(3.3)
        assert queue.counters.waiting == 3
        name = await world.put("a")
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert world.clock.monotonic() - began < 7.5 + 3.3 + 2 * SETTINGS.poll_seconds
        queue.stop()
        given = [one.lease.name for one in await asyncio.gather(*waiting) if one is not None]
        assert given == [name]
        with pytest.raises(NodeNotReady):
            await take(queue, wait=60.0)

    playing(scenario)


def test_who_is_tried_again_comes_to_who_waits() -> None:
    async def scenario(world: QueueWorld) -> None:
        await world.put("a")
        one, other = world.queue(), world.queue()
        given = await taken(one, lease=5.0)
        waiting = asyncio.ensure_future(take(other, wait=60.0))
        await one.fail("g", given.lease.name, given.lease.epoch, "")
        assert (await waiting) is not None
        assert world.clock.monotonic() < 4

    playing(scenario)


def test_who_goes_away_while_waiting_is_leased_nothing() -> None:
    async def scenario(world: QueueWorld) -> None:
        queue = world.queue()
        waiting = asyncio.ensure_future(take(queue, wait=60.0))
        await world.clock.sleep(1.5)
        await world.put("a")
        waiting.cancel()
        await asyncio.wait({waiting})
        await world.clock.sleep(2)
        assert (await taken(queue)).lease.attempts == 1

    playing(scenario)


def test_leases_of_a_group_are_bounded() -> None:
    async def scenario(world: QueueWorld) -> None:
        for _ in range(6):
            await world.put("a")
        queue = world.queue(settings=changed(SETTINGS, outstanding=3))
        given = [await taken(queue) for _ in range(3)]
        assert await take(queue) is None
        await commit(queue, given[1])
        assert (await taken(queue)).lease.name == SegmentName("a", 4)
        assert await take(queue) is None
        cursor = (await queue.group("g")).cursor("a")
        assert (cursor.decided, sorted(cursor.pending)) == (0, [1, 3, 4])

    playing(scenario)


def test_what_is_unknown_is_not_found_and_what_is_not_held_is_lost() -> None:
    async def scenario(world: QueueWorld) -> None:
        await world.put("a")
        there = await world.put("a")
        queue = world.queue()
        await taken(queue)
        with pytest.raises(NotFound, match="no consumer group"):
            await queue.commit("nobody", SegmentName("a", 1), 1)
        for unknown in (SegmentName("a", 99), SegmentName("z", 1)):
            with pytest.raises(NotFound):
                await queue.commit("g", unknown, 1)
        with pytest.raises(LeaseLost):
            await queue.commit("g", there, 1)

    playing(scenario)
