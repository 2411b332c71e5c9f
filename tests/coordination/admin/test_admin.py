"""What operators see and do: every lease once, nothing taken from a holder without force."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from tailrace.coordination.admin import Kind, LeaseAdmin, LeaseEntry, LeaseFilter
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.memory_store import InMemoryPartitions
from tailrace.coordination.named_leases import NamedLeases, StoredLeases, sweep_lease, text_lease
from tailrace.coordination.partitions import (
    Claim,
    NewPartition,
    Partition,
    Status,
    closed,
    completed,
    failed,
)
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import (
    Conflict,
    InvalidCursor,
    InvalidInput,
    NotFound,
    StoreUnavailable,
)
from tailrace.logstore.objects.local import LocalStore, inline
from tailrace.logstore.objects.store import DateSample
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

START_MS = 1_750_000_000_000
SOURCE = "logs|file"
LONG = "x" * 300


class World:
    """A store with partitions and named leases, and who oversees it."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        disk = LocalStore("/store", PowerCutFileSystem(), clock, Random(0), run=inline)
        self.objects = FaultyStore(disk, Schedule.none())
        self.time = StoreTime(clock, None)
        self.partitions = InMemoryPartitions(clock, Random(1))
        self.named = StoredLeases(self.objects, clock, Random(2), self.time)
        self.admin = LeaseAdmin(self.partitions, self.named)

    def leases(self, node: str) -> NamedLeases:
        return NamedLeases(self.objects, self.clock, Random(node), self.time, node=node)

    async def held(self, key: str, owner: str = "host-1/P", source: str = SOURCE) -> Partition:
        await self.partitions.create(source, [NewPartition(key, progress='{"at":7}')])
        now_ms = self.clock.now_ms()
        claim = Claim(owner, 600_000, now_ms, now_ms)
        (got,) = (await self.partitions.acquire(source, claim, 1, only=key)).partitions
        return got

    async def all(self, wanted: LeaseFilter | None = None, *, limit: int = 2) -> list[LeaseEntry]:
        found: list[LeaseEntry] = []
        after = None
        while True:
            page = await self.admin.page(wanted or LeaseFilter(), after=after, limit=limit)
            assert len(page.entries) <= limit
            found += page.entries
            if page.after is None:
                return found
            after = page.after


class Timeless(InMemoryPartitions):
    """A store whose every answer is too slow to tell its time."""

    @property
    def time(self) -> StoreTime:
        return StoreTime(self._clock, lambda: DateSample(START_MS, 0.0, 5.0, START_MS))


Simulation = Callable[[World], Coroutine[Any, Any, None]]


def play(scenario: Simulation) -> None:
    async def go(clock: VirtualClock) -> None:
        await scenario(World(clock))

    simulate(go, start_ms=START_MS)


def test_every_lease_is_listed_once_whatever_the_size_of_a_page() -> None:
    async def scenario(world: World) -> None:
        node = world.leases("node-A")
        await node.acquire(text_lease("node-A"))
        await node.acquire(text_lease(LONG))
        await node.acquire(sweep_lease(RunKey("a/b", "run 1")))
        for source in (SOURCE, "p|other|type"):
            for key in ("b", "a", "a/c", "é\n"):
                await world.held(key, source=source)
        seen = [[(e.kind, e.source, e.key) for e in await world.all(limit=n)] for n in (1, 3, 100)]
        assert seen[0] == seen[1] == seen[2]
        assert len(set(seen[0])) == len(seen[0]) == 11
        assert [kind for kind, _, _ in seen[0]] == [Kind.LOCK] * 3 + [Kind.PARTITION] * 8
        for _, source, key in seen[0]:
            assert (await world.admin.show(source, key)).key == key

    play(scenario)


def test_a_lease_that_cannot_be_read_hides_no_other() -> None:
    async def scenario(world: World) -> None:
        node = world.leases("node-A")
        for name in ("a", "b", "c"):
            await node.acquire(text_lease(name))
        await world.held("work")
        (key,) = [i.key async for i in world.objects.list(keys.LEASES) if i.key.endswith("/b")]
        await world.objects.put(key, b"")
        page = await world.admin.page(LeaseFilter())
        assert [entry.key for entry in page.entries] == ["a", "c", "work"]
        assert list(page.unreadable) == [key]

    play(scenario)


def test_filters() -> None:
    async def scenario(world: World) -> None:
        await world.leases("host-1").acquire(text_lease("old"))
        await world.held("a", owner="host-2/Q")
        await world.clock.sleep(100)
        await world.held("a", source="new|x")
        done = await world.held("b/1")
        await world.partitions.change(done, completed(done, world.clock.now_ms()))

        async def listed(**wanted: Any) -> list[str]:
            return [f"{e.source} {e.key}" for e in await world.all(LeaseFilter(**wanted))]

        assert await listed(source=SOURCE) == [f"{SOURCE} a", f"{SOURCE} b/1"]
        assert await listed(source="text") == ["text old"]
        assert await listed(status=Status.COMPLETED) == [f"{SOURCE} b/1"]
        assert await listed(status=Status.ASSIGNED) == ["text old", f"{SOURCE} a", "new|x a"]
        assert await listed(owner="host-1") == ["text old", "new|x a"]
        assert await listed(owner="host-2/Q") == [f"{SOURCE} a"]
        assert await listed(prefix="b") == [f"{SOURCE} b/1"]
        assert await listed(older_than_ms=50_000) == ["text old", f"{SOURCE} a"]
        assert await listed(source="nobody's") == []

    play(scenario)


def test_age_lag_and_whether_it_is_held() -> None:
    async def scenario(world: World) -> None:
        world_now = world.clock.now_ms
        await world.partitions.create(SOURCE, [NewPartition("free")])
        await world.held("held")
        done, bad, later = [await world.held(key) for key in ("done", "bad", "later")]
        await world.partitions.change(done, completed(done, world_now()))
        await world.partitions.change(bad, failed(bad, "no", world_now(), max_attempts=1))
        await world.partitions.change(later, closed(later, world_now(), world_now() + 60_000))
        await world.clock.sleep(30)
        entries = {entry.key: entry for entry in await world.all()}
        assert {entry.age_ms for entry in entries.values()} == {30_000}
        lags = {key: entry.lag_ms for key, entry in entries.items()}
        assert lags == {
            "free": 30_000, "held": 30_000, "bad": 30_000, "done": None, "later": None
        }  # fmt: skip
        assert [key for key, entry in entries.items() if entry.held] == ["held"]
        assert entries["bad"].last_error == "no"
        await world.clock.sleep(571)
        assert (await world.admin.show(SOURCE, "held")).held
        assert (await world.admin.show(SOURCE, "later")).lag_ms == 541_000
        await world.clock.sleep(2)
        assert not (await world.admin.show(SOURCE, "held")).held

    play(scenario)


def test_json_has_the_same_keys_for_every_lease_and_progress_only_when_asked() -> None:
    async def scenario(world: World) -> None:
        await world.leases("n").acquire(text_lease("n"))
        await world.held("a")
        rows = [entry.spelled(whole=False) for entry in await world.all()]
        assert rows[0].keys() == rows[1].keys()
        assert "progress" not in rows[1]
        assert (await world.admin.show(SOURCE, "a")).spelled(whole=True)["progress"] == ('{"at":7}')

    play(scenario)


def test_reset_of_what_is_held_needs_force_and_ends_the_holder() -> None:
    async def scenario(world: World) -> None:
        mine = await world.held("a", owner="host-9/Z")
        with pytest.raises(Conflict, match="held by host-9/Z"):
            await world.admin.reset(SOURCE, "a")
        assert await world.partitions.get(SOURCE, "a") == mine
        freed = await world.admin.reset(SOURCE, "a", force=True)
        assert (freed.status, freed.owner, freed.progress) == (Status.UNASSIGNED, None, '{"at":7}')
        again = await world.held("a")
        assert again.epoch > mine.epoch
        await world.clock.sleep(603)  # nobody holds it any more, by any clock
        gone = await world.admin.reset(SOURCE, "a", forget=True)
        assert (gone.progress, gone.attempts) == (None, 0)

    play(scenario)


def test_reset_of_a_named_lease() -> None:
    async def scenario(world: World) -> None:
        node = world.leases("node-A")
        held = await node.acquire(text_lease(LONG))
        assert held is not None
        (entry,) = await world.all()
        with pytest.raises(Conflict, match="node-A"):
            await world.admin.reset("text", entry.key)
        freed = await world.admin.reset("text", entry.key, force=True)
        assert (freed.status, freed.held, freed.until_ms) == (Status.UNASSIGNED, False, 0)
        assert await world.admin.reset("text", entry.key) == freed
        assert not await node.renew(held), "the holder stops"
        other = world.leases("node-B")
        taken = await other.acquire(text_lease(LONG))
        assert taken is not None
        assert taken.epoch > held.epoch
        (after,) = await world.all()
        assert after.key == entry.key

    play(scenario)


def test_reopen_keeps_progress_and_leaves_what_is_held() -> None:
    async def scenario(world: World) -> None:
        ends: dict[str, Callable[[Partition, int], Partition]] = {
            "done": completed,
            "bad": lambda p, now: failed(p, "no", now, max_attempts=1),
            "closed": lambda p, now: closed(p, now, now + 10**9),
        }
        for key, change in ends.items():
            held = await world.held(key)
            with pytest.raises(Conflict, match="host-1/P works on it"):
                await world.admin.reopen(SOURCE, key)
            await world.partitions.change(held, change(held, world.clock.now_ms()))
            for _ in range(2):
                entry = await world.admin.reopen(SOURCE, key)
                assert (entry.status, entry.progress) == (Status.UNASSIGNED, '{"at":7}')
                assert (entry.attempts, entry.lag_ms, entry.ended_ms) == (0, 0, 0)
            assert (await world.held(key)).attempts == 1

    play(scenario)


def test_fail_says_why_until_somebody_reopens_it() -> None:
    async def scenario(world: World) -> None:
        await world.partitions.create(SOURCE, [NewPartition("a")])
        for _ in range(2):
            entry = await world.admin.fail(SOURCE, "a", reason="poison")
            assert (entry.status, entry.last_error) == (Status.FAILED, "poison")
        now_ms = world.clock.now_ms()
        claim = Claim("host-1/P", 600_000, now_ms, now_ms)
        assert (await world.partitions.acquire(SOURCE, claim, 5)).partitions == []
        with pytest.raises(InvalidInput, match="reason is empty"):
            await world.admin.fail(SOURCE, "a", reason=" ")
        await world.admin.reopen(SOURCE, "a")
        held = await world.held("a")
        with pytest.raises(Conflict, match="held by"):
            await world.admin.fail(SOURCE, "a", reason="x")
        await world.partitions.change(held, completed(held, now_ms))
        with pytest.raises(Conflict, match="COMPLETED"):
            await world.admin.fail(SOURCE, "a", reason="x", force=True)

    play(scenario)


def test_purge_removes_what_was_completed_long_ago() -> None:
    async def scenario(world: World) -> None:
        old, bad = await world.held("old"), await world.held("bad")
        await world.partitions.change(old, completed(old, world.clock.now_ms()))
        await world.partitions.change(bad, failed(bad, "no", world.clock.now_ms(), max_attempts=1))
        await world.clock.sleep(100)
        new = await world.held("new")
        await world.partitions.change(new, completed(new, world.clock.now_ms()))
        assert await world.admin.purge(SOURCE, older_than_ms=50_000) == 1
        assert [entry.key for entry in await world.all()] == ["bad", "new"]

    play(scenario)


def test_what_is_not_there_and_what_cannot_be() -> None:
    async def scenario(world: World) -> None:
        await world.leases("n").acquire(text_lease("n"))
        await world.objects.put(keys.watermark("n"), b"{}")
        for source, key in [("text", "m"), ("a|b", "c"), ("text", "../../text/n"), ("..", "n")]:
            with pytest.raises(NotFound):
                await world.admin.show(source, key)
        for act in (
            world.admin.reopen("text", "n"),
            world.admin.fail("text", "n", reason="x"),
        ):
            with pytest.raises(InvalidInput, match="named lease"):
                await act
        for cursor in ("", "x", "ü", "WzEsMl0", "bnVsbA"):
            with pytest.raises(InvalidCursor):
                await world.admin.page(LeaseFilter(), after=cursor)

    play(scenario)


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE, Fault.UNAVAILABLE])
def test_freeing_whose_answer_is_lost(fault: Fault) -> None:
    async def scenario(world: World) -> None:
        await world.leases("n").acquire(text_lease("n"))
        world.objects.schedule = Schedule({2: fault})
        if fault is Fault.UNAVAILABLE:
            with pytest.raises(StoreUnavailable):
                await world.admin.reset("text", "n", force=True)
        else:
            assert (await world.admin.reset("text", "n", force=True)).owner is None
        assert (await world.admin.reset("text", "n", force=True)).owner is None

    play(scenario)


def test_two_operators_and_a_worker_at_once() -> None:
    async def scenario(world: World) -> None:
        await world.held("a")
        acts = [world.admin.reset(SOURCE, "a", force=True) for _ in range(5)]
        assert {entry.status for entry in await asyncio.gather(*acts)} == {Status.UNASSIGNED}

    play(scenario)


def test_nothing_is_written_while_the_stores_time_is_not_known() -> None:
    async def scenario(world: World) -> None:
        dark = Timeless(world.clock, Random(3))
        await dark.create(SOURCE, [NewPartition("a")])
        blind = LeaseAdmin(dark, world.named)
        with pytest.raises(StoreUnavailable, match="clock"):
            await blind.reset(SOURCE, "a", force=True)
        with pytest.raises(StoreUnavailable, match="clock"):
            await blind.purge(SOURCE, older_than_ms=0)

    play(scenario)
