"""How every `PartitionStore` gives work out: who gets what, in which order, with which epoch.

`PartitionStoreContract` of `tests.contracts.partition_store` brings these tests.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tailrace.coordination.lease import MARGIN_MS
from tailrace.coordination.partitions import (
    AGEING_MS,
    Claim,
    NewPartition,
    Partition,
    PartitionStore,
    Status,
    closed,
    completed,
    failed,
    given_up,
    renewed,
    saved,
)
from tailrace.logstore.errors import PreconditionFailed

SOURCE = "prefix|pipeline|file"


def claim_of(
    store: PartitionStore,
    owner: str = "host/A",
    *,
    lease_ms: int = 60_000,
    max_attempts: int = 0,
    ageing_ms: int = AGEING_MS,
    restarted: bool = False,
) -> Claim:
    return Claim(
        owner,
        lease_ms,
        store.time.at_least_ms(),
        store.time.at_most_ms(),
        max_attempts,
        ageing_ms,
        restarted,
    )


def claim_at(now_ms: int, owner: str, *, max_attempts: int = 0) -> Claim:
    """A claim as it will be made at another time."""
    return Claim(owner, 60_000, now_ms, now_ms, max_attempts)


async def put(
    store: PartitionStore, *keys: str, source: str = SOURCE, priority: float = 0.0
) -> None:
    made = await store.create(source, [NewPartition(key, priority) for key in keys])
    assert made == list(keys)


async def got(store: PartitionStore, key: str, source: str = SOURCE) -> Partition:
    found = await store.get(source, key)
    assert found is not None
    return found


async def taken(
    store: PartitionStore,
    key: str | None = None,
    owner: str = "host/A",
    source: str = SOURCE,
    lease_ms: int = 60_000,
) -> Partition:
    claim = claim_of(store, owner, lease_ms=lease_ms)
    brought = await store.acquire(source, claim, 1, only=key, random=False)
    assert len(brought.partitions) == 1
    return brought.partitions[0]


async def order_of(store: PartitionStore, claim: Claim, source: str = SOURCE) -> list[str]:
    """Keys as one worker gets them, one after another."""
    found = []
    while (brought := await store.acquire(source, claim, 1, random=False)).partitions:
        found += [one.key for one in brought.partitions]
    return found


async def keys_taken(store: PartitionStore, claim: Claim, count: int) -> list[str]:
    brought = await store.acquire(SOURCE, claim, count, random=False)
    return [one.key for one in brought.partitions]


class PartitionAcquireContract:
    """How every lease store gives out partitions; a subclass gives the store."""

    LEASE_MS = 60_000
    """A lease that tests let run out: short where time cannot be moved by hand."""
    STEP_MS = 1000
    """A time that the store can tell from now."""

    async def pass_time(self, ms: int) -> None:
        """Time passes for the store of this test."""
        raise NotImplementedError

    async def run_out(self) -> None:
        """A lease of `LEASE_MS` ends, by any clock: `Date` is in whole seconds."""
        await self.pass_time(self.LEASE_MS + MARGIN_MS + 1100)

    # -- one partition

    async def test_nothing_to_acquire(self, store: PartitionStore) -> None:
        for random in (True, False):
            brought = await store.acquire(SOURCE, claim_of(store), 5, random=random)
            assert (list(brought.partitions), list(brought.failed)) == ([], [])

    async def test_acquired_is_owned_until_its_time(self, store: PartitionStore) -> None:
        await put(store, "a")
        before = await got(store, "a")
        claim = claim_of(store)
        (held,) = (await store.acquire(SOURCE, claim, 1)).partitions
        assert held == await got(store, "a")
        assert held.version != before.version
        assert held.epoch > before.epoch
        assert held == replace(
            before,
            status=Status.ASSIGNED,
            owner="host/A",
            until_ms=claim.at_most_ms + claim.lease_ms,
            attempts=1,
            epoch=held.epoch,
            version=held.version,
        )
        assert held.identity == "host"

    async def test_what_is_held_nobody_gets(self, store: PartitionStore) -> None:
        await put(store, "a")
        await taken(store, "a")
        for owner in ("host/A", "host/B", "other/A"):
            assert await keys_taken(store, claim_of(store, owner), 1) == []

    async def test_an_expired_lease_is_taken_over_with_its_progress(
        self, store: PartitionStore
    ) -> None:
        await put(store, "a")
        first = await taken(store, lease_ms=self.LEASE_MS)
        first = await store.change(first, saved(first, '{"line":7}', first.until_ms))
        await self.run_out()
        second = await taken(store, owner="other/B")
        assert (second.progress, second.attempts) == ('{"line":7}', 2)
        assert second.epoch > first.epoch

    async def test_nobody_takes_it_before_its_time_and_the_margin(
        self, store: PartitionStore
    ) -> None:
        await put(store, "a")
        held = await taken(store)
        early = replace(claim_of(store, "other/B"), at_least_ms=held.until_ms + MARGIN_MS - 1)
        assert await keys_taken(store, early, 1) == []
        late = replace(early, at_least_ms=held.until_ms + MARGIN_MS)
        assert await keys_taken(store, late, 1) == ["a"]

    async def test_a_renewed_lease_is_not_taken_over(self, store: PartitionStore) -> None:
        await put(store, "a")
        held = await taken(store)
        held = await store.change(held, renewed(held, held.until_ms + 60_000))
        late = replace(claim_of(store, "other/B"), at_least_ms=held.until_ms - 60_000 + MARGIN_MS)
        assert await keys_taken(store, late, 1) == []

    async def test_a_late_owner_changes_nothing_of_its_successors(
        self, store: PartitionStore
    ) -> None:
        await put(store, "a")
        zombie = await taken(store, lease_ms=self.LEASE_MS)
        await self.run_out()
        second = await taken(store, owner="other/B")
        now_ms = store.time.at_most_ms()
        for late in (
            saved(zombie, "mine", now_ms),
            completed(zombie, now_ms),
            closed(zombie, now_ms, now_ms),
            given_up(zombie, now_ms),
            failed(zombie, "mine", now_ms),
        ):
            with pytest.raises(PreconditionFailed):
                await store.change(zombie, late)
        with pytest.raises(PreconditionFailed):
            await store.delete(zombie)
        assert await got(store, "a") == second

    async def test_a_restarted_identity_takes_its_own_back_at_once(
        self, store: PartitionStore
    ) -> None:
        await put(store, "a", "b", "c")
        first = await taken(store, "a", "host/A")
        await taken(store, "b", "other/X")
        await taken(store, "c", "host/B")
        earlier = claim_of(store, "host/A", restarted=True)
        assert await keys_taken(store, earlier, 9) == [], "not what a later process holds"
        again = claim_of(store, "host/B", restarted=True)
        (back,) = (await store.acquire(SOURCE, again, 9, random=False)).partitions
        assert (back.key, back.owner) == ("a", "host/B")
        assert back.epoch > first.epoch

    async def test_only_one_key(self, store: PartitionStore) -> None:
        await put(store, "a", "b", "c")
        assert (await taken(store, "b")).key == "b"
        for key in ("b", "absent"):
            brought = await store.acquire(SOURCE, claim_of(store, "other/B"), 1, only=key)
            assert list(brought.partitions) == []
        assert await store.get(SOURCE, "absent") is None

    @pytest.mark.parametrize("random", [True, False])
    async def test_in_batches(self, store: PartitionStore, random: bool) -> None:
        await put(store, *[f"{i:03d}" for i in range(100)])
        claim = claim_of(store)
        sizes = []
        keys: set[str] = set()
        while found := (await store.acquire(SOURCE, claim, 30, random=random)).partitions:
            sizes.append(len(found))
            keys |= {one.key for one in found}
        assert len(keys) == sum(sizes) == 100
        assert max(sizes) <= 30
        if not random:
            assert sizes == [30, 30, 30, 10]

    async def test_racing_acquirers_never_get_the_same(self, store: PartitionStore) -> None:
        await put(store, *[f"{i:03d}" for i in range(120)])

        async def work(owner: str) -> list[str]:
            mine = []
            while found := (await store.acquire(SOURCE, claim_of(store, owner), 7)).partitions:
                mine += [one.key for one in found]
                assert {one.owner for one in found} == {owner}
            return mine

        shares = await asyncio.gather(*[work(f"host/{i}") for i in range(6)])
        assert sorted([key for share in shares for key in share]) == [
            f"{i:03d}" for i in range(120)
        ]

    async def test_racing_for_one(self, store: PartitionStore) -> None:
        await put(store, "a")
        claims = [claim_of(store, f"host/{i}") for i in range(8)]
        brought = await asyncio.gather(
            *[store.acquire(SOURCE, claim, 1, random=False) for claim in claims]
        )
        assert sum([len(one.partitions) for one in brought]) == 1

    # -- order

    async def test_the_suppliers_order(self, store: PartitionStore) -> None:
        keys = ["m", "z", "a", "k", "b", "10", "9"]
        await put(store, *keys)
        assert await order_of(store, claim_of(store)) == keys

    async def test_lists_of_suppliers_one_after_another(self, store: PartitionStore) -> None:
        await put(store, "x", "b")
        await self.pass_time(self.STEP_MS + 1000)
        await put(store, "c", "a")
        assert await order_of(store, claim_of(store)) == ["x", "b", "c", "a"]

    async def test_priorities_are_numbers(self, store: PartitionStore) -> None:
        wanted = {"nine": 9.0, "ten": 10.0, "half": 0.5, "none": 0.0, "minus": -3.5, "two": 2.0}
        await store.create(SOURCE, [NewPartition(*item) for item in wanted.items()])
        expected = sorted(wanted, key=lambda key: wanted[key])
        assert await order_of(store, claim_of(store)) == expected

    async def test_expired_ones_come_first(self, store: PartitionStore) -> None:
        await put(store, "old", "new", "late")
        assert (await taken(store, "late", lease_ms=self.LEASE_MS)).key == "late"
        await self.run_out()
        assert await order_of(store, claim_of(store, "other/B")) == ["late", "old", "new"]

    async def test_what_is_due_again_and_what_is_new_take_turns_by_waiting(
        self, store: PartitionStore
    ) -> None:
        now_ms = store.time.at_most_ms()
        await put(store, "new", "early", "late")
        for key, due_ms in {"early": now_ms - 5000, "late": now_ms + self.STEP_MS}.items():
            held = await taken(store, key)
            await store.change(held, closed(held, now_ms, due_ms))
        await self.pass_time(self.STEP_MS + 1100)
        assert await order_of(store, claim_of(store)) == ["early", "new", "late"]

    async def test_a_step_of_priority_is_so_much_waiting(self, store: PartitionStore) -> None:
        await put(store, "a", priority=1.0)
        held = await taken(store, "a")
        now_ms = store.time.at_most_ms()
        await store.change(held, given_up(held, now_ms - 50_000))
        await put(store, "b")
        both = [await got(store, key) for key in ("a", "b")]
        assert sorted([one.rank_ms(40_000) for one in both]) == [
            now_ms - 10_000,
            both[1].available_ms,
        ]
        assert await order_of(store, claim_of(store, ageing_ms=40_000)) == ["a", "b"]

    async def test_what_was_given_up_goes_behind(self, store: PartitionStore) -> None:
        await put(store, "a", "b", "c")
        held = await taken(store, "a")
        await self.pass_time(self.STEP_MS + 1000)
        await store.change(held, given_up(held, store.time.at_most_ms()))
        assert await order_of(store, claim_of(store)) == ["b", "c", "a"]

    async def test_given_up_with_another_priority(self, store: PartitionStore) -> None:
        await put(store, "a", "b", "c")
        held = await taken(store, "c")
        now_ms = store.time.at_most_ms()
        await store.change(held, given_up(held, now_ms, priority=-1.0))
        assert await order_of(store, claim_of(store)) == ["c", "a", "b"]

    async def test_what_is_not_due_waits_and_stops_nobody(self, store: PartitionStore) -> None:
        await put(store, "closed", "given up", "failed", "free")
        now_ms = store.time.at_most_ms()
        later_ms = now_ms + 3_600_000
        held = {key: await taken(store, key) for key in ("closed", "given up", "failed")}
        await store.change(held["closed"], closed(held["closed"], now_ms, later_ms))
        await store.change(
            held["given up"],
            given_up(held["given up"], now_ms, priority=-99.0, later_ms=later_ms),
        )
        await store.change(held["failed"], failed(held["failed"], "bad", now_ms, retry_ms=later_ms))
        assert await order_of(store, claim_of(store)) == ["free"]
        late = claim_at(later_ms, "other/B")
        assert await order_of(store, late) == ["free", "given up", "closed", "failed"]

    async def test_done_for_good_is_never_given_out(self, store: PartitionStore) -> None:
        await put(store, "completed", "closed", "failed")
        now_ms = store.time.at_most_ms()
        held = {key: await taken(store, key) for key in ("completed", "closed", "failed")}
        await store.change(held["completed"], completed(held["completed"], now_ms))
        last = await store.change(held["closed"], closed(held["closed"], now_ms, now_ms, 1))
        bad = await store.change(
            held["failed"], failed(held["failed"], "bad", now_ms, max_attempts=1)
        )
        assert (last.status, bad.status) == (Status.COMPLETED, Status.FAILED)
        assert await order_of(store, claim_at(now_ms + 10**10, "other/B")) == []

    # -- attempts

    async def test_what_kills_its_workers_fails_and_blocks_nobody(
        self, store: PartitionStore
    ) -> None:
        await put(store, "poison")
        now_ms = store.time.at_most_ms()
        for turn in range(2):
            claim = claim_at(now_ms + turn * 10**6, f"host/{turn}", max_attempts=2)
            assert await keys_taken(store, claim, 1) == ["poison"]
        await put(store, "fine")
        claim = claim_at(now_ms + 2 * 10**6, "host/2", max_attempts=2)
        brought = await store.acquire(SOURCE, claim, 1, random=False)
        assert [one.key for one in brought.partitions] == ["fine"]
        (poison,) = brought.failed
        assert poison == await got(store, "poison")
        assert (poison.status, poison.owner, poison.attempts) == (Status.FAILED, None, 2)
        assert "2 times" in (poison.last_error or "")
        assert "host/1" in (poison.last_error or "")

    async def test_progress_begins_the_count_anew(self, store: PartitionStore) -> None:
        await put(store, "a")
        now_ms = store.time.at_most_ms()
        for turn in range(5):
            claim = claim_at(now_ms + turn * 10**6, f"host/{turn}", max_attempts=2)
            (held,) = (await store.acquire(SOURCE, claim, 1)).partitions
            await store.change(held, saved(held, f"line {turn}", held.until_ms))

    # -- epochs

    async def test_epochs_rise_over_everything(self, store: PartitionStore) -> None:
        await put(store, "a")
        epochs = []
        for turn in range(6):
            held = await taken(store, "a", f"host/{turn}")
            epochs.append(held.epoch)
            now_ms = store.time.at_most_ms()
            if turn % 3 == 0:
                await store.delete(held)
                await put(store, "a")
            elif turn % 3 == 1:
                await store.change(held, given_up(held, now_ms))
            else:
                await store.change(held, closed(held, now_ms, now_ms))
        assert epochs == sorted(set(epochs))

    async def test_what_was_deleted_and_made_again_is_another(self, store: PartitionStore) -> None:
        await put(store, "a")
        zombie = await taken(store, "a")
        await store.delete(zombie)
        await put(store, "a")
        with pytest.raises(PreconditionFailed):
            await store.change(zombie, completed(zombie, store.time.at_most_ms()))
        assert (await got(store, "a")).status is Status.UNASSIGNED
