"""What every `PartitionStore` does. Subclass it and give `store`, an empty one that was started.

Time is moved by `pass_time`. Where the store may be given its time, give it
`StoreTime(clock, None)` of a clock moved by hand; where it may not, wait, and set
`LEASE_MS` to some hundreds of milliseconds. `tests/contracts/partition_races.py` has the
part that needs several processes.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tailrace.coordination.partitions import (
    MAX_KEY_BYTES,
    MAX_PROGRESS_BYTES,
    MAX_SOURCE_BYTES,
    NewPartition,
    Partition,
    PartitionStore,
    Status,
    closed,
    completed,
    failed,
    given_up,
    renewed,
    reset,
    saved,
)
from tailrace.logstore.errors import InvalidInput, NotFound, PreconditionFailed, TooLarge
from tests.contracts.partition_acquire import (
    SOURCE,
    PartitionAcquireContract,
    claim_of,
    got,
    put,
    taken,
)

KEYS = [
    "a/b/c",
    "/",
    "//",
    "..",
    "a|b|c",
    "s3://bucket/key with spaces.gz",
    "ü/日本/\U0001f600",
    "%2F%00?#&+'\"\\",
    "line\nbreak\ttab\x01",
    "A",
    "a",
    "~",
    "x" * MAX_KEY_BYTES,
    "日" * (MAX_KEY_BYTES // 3),
]


async def pages_of(
    store: PartitionStore, source: str, status: Status | None = None, limit: int = 1000
) -> list[list[Partition]]:
    pages = []
    after = None
    while True:
        page = await store.page(source, status=status, after=after, limit=limit)
        pages.append(list(page.partitions))
        if page.after is None:
            return pages
        after = page.after


async def keys_of(store: PartitionStore, source: str = SOURCE) -> list[str]:
    return [one.key for page in await pages_of(store, source) for one in page]


async def counts_of(store: PartitionStore) -> dict[Status, int]:
    return {status: count for status, count in (await store.counts(SOURCE)).items() if count}


async def one_of_each_status(store: PartitionStore) -> dict[Status, Partition]:
    """Partitions named after their status, all with progress."""
    names = list(Status)
    await store.create(SOURCE, [NewPartition(name.value, progress="p") for name in names])
    now_ms = store.time.at_most_ms()
    held = {name: await taken(store, name.value) for name in names}
    for name, wanted in {
        Status.UNASSIGNED: given_up(held[Status.UNASSIGNED], now_ms),
        Status.CLOSED: closed(held[Status.CLOSED], now_ms, now_ms + 1000),
        Status.COMPLETED: completed(held[Status.COMPLETED], now_ms),
        Status.FAILED: failed(held[Status.FAILED], "bad", now_ms, max_attempts=1),
    }.items():
        held[name] = await store.change(held[name], wanted)
    assert {name: one.status for name, one in held.items()} == {name: name for name in names}
    return held


class PartitionStoreContract(PartitionAcquireContract):
    """What every lease store does; a subclass gives the store."""

    MANY = 3000
    """More than fit into one request; fewer for a server that is slow for tests only."""

    @pytest.fixture
    def store(self) -> PartitionStore:
        raise NotImplementedError

    # -- create, get

    async def test_what_is_not_there(self, store: PartitionStore) -> None:
        assert await store.get(SOURCE, "a") is None
        assert await store.create(SOURCE, []) == []
        assert await store.sources() == []
        assert await pages_of(store, SOURCE) == [[]]
        assert await counts_of(store) == {}
        assert await store.purge(SOURCE, 1 << 60) == 0

    async def test_a_second_start_changes_nothing(self, store: PartitionStore) -> None:
        await put(store, "a", "b")
        held = await taken(store, "a")
        await store.start()
        assert await got(store, "a") == held
        assert await keys_of(store) == ["a", "b"]
        await store.change(held, given_up(held, store.time.at_most_ms()))
        assert (await taken(store, "a")).epoch > held.epoch

    async def test_created(self, store: PartitionStore) -> None:
        before_ms = store.time.at_least_ms()
        new = [NewPartition("a"), NewPartition("b", 1.5, '{"from":"here"}')]
        assert await store.create(SOURCE, new) == ["a", "b"]
        after_ms = store.time.at_most_ms()
        for place, one in enumerate(new):
            found = await got(store, one.key)
            assert found == Partition(
                SOURCE,
                one.key,
                version=found.version,
                created_ms=found.created_ms,
                available_ms=found.created_ms,
                priority=one.priority,
                progress=one.progress,
                epoch=found.epoch,
                place=found.place,
            )
            assert before_ms <= found.created_ms <= after_ms
            assert found.version
            assert found.place >= place
        assert (await got(store, "a")).version != (await got(store, "b")).version

    async def test_what_exists_stays_whatever_its_status(self, store: PartitionStore) -> None:
        held = await one_of_each_status(store)
        mixed = []
        for name in Status:
            mixed += [NewPartition(name.value, 5.0, "other"), NewPartition(f"new {name}")]
        made = await store.create(SOURCE, mixed)
        assert made == [f"new {name}" for name in Status], "one that exists stops no other"
        for name, before in held.items():
            assert await got(store, name.value) == before
        assert await store.create(SOURCE, mixed) == []

    async def test_keys_given_twice_are_made_once(self, store: PartitionStore) -> None:
        new = [NewPartition("a", progress="first"), NewPartition("b"), NewPartition("a")]
        assert await store.create(SOURCE, new) == ["a", "b"]
        assert (await got(store, "a")).progress == "first"

    async def test_of_racing_suppliers_one_makes_each(self, store: PartitionStore) -> None:
        new = [NewPartition(f"{i:03d}") for i in range(60)]
        made = await asyncio.gather(
            *[store.create(SOURCE, new[start : start + 40]) for start in (0, 10, 20, 0)]
        )
        assert sorted([key for share in made for key in share]) == [one.key for one in new]

    @pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
    async def test_any_key(self, store: PartitionStore, key: str) -> None:
        source = "präfix/1|p*%|日本"
        assert await store.create(source, [NewPartition(key)]) == [key]
        assert await store.create(source, [NewPartition(key)]) == []
        held = await taken(store, key, source=source)
        assert held == await got(store, key, source)
        assert (held.source, held.key) == (source, key)
        assert await keys_of(store, source) == [key]
        assert await store.sources() == [source]
        await store.delete(held)
        assert await store.get(source, key) is None

    async def test_keys_do_not_meet(self, store: PartitionStore) -> None:
        await put(store, *KEYS)
        assert await keys_of(store) == sorted(KEYS)
        for key in KEYS:
            assert (await got(store, key)).key == key

    @pytest.mark.parametrize(
        "new",
        [
            NewPartition(""),
            NewPartition("x" * (MAX_KEY_BYTES + 1)),
            NewPartition("日" * (MAX_KEY_BYTES // 3 + 1)),
            NewPartition("\ud800"),
            NewPartition("a", float("nan")),
            NewPartition("a", float("inf")),
            NewPartition("a", progress="\ud800"),
        ],
        ids=range(7),
    )
    async def test_what_no_partition_may_be(self, store: PartitionStore, new: NewPartition) -> None:
        with pytest.raises(InvalidInput):
            await store.create(SOURCE, [NewPartition("good"), new])
        assert await keys_of(store) == [], "nothing was made"

    @pytest.mark.parametrize("source", ["", "x" * (MAX_SOURCE_BYTES + 1), "\ud800"], ids=range(3))
    async def test_what_no_source_may_be(self, store: PartitionStore, source: str) -> None:
        with pytest.raises(InvalidInput):
            await store.create(source, [NewPartition("a")])

    async def test_large_progress(self, store: PartitionStore) -> None:
        most = "é" * (MAX_PROGRESS_BYTES // 2)
        await store.create(SOURCE, [NewPartition("a", progress=most), NewPartition("b")])
        assert (await got(store, "a")).progress == most
        held = await taken(store, "b")
        held = await store.change(held, saved(held, most, held.until_ms))
        assert (await got(store, "b")).progress == most
        with pytest.raises(TooLarge):
            await store.change(held, saved(held, most + "x", held.until_ms))
        with pytest.raises(TooLarge):
            await store.create(SOURCE, [NewPartition("c", progress=most + "x")])
        assert await got(store, "b") == held

    # -- change, delete

    @pytest.mark.parametrize("progress", [None, "", "{}", "not JSON\n\0", '{"a":"ü😀"}'])
    async def test_every_field_survives(self, store: PartitionStore, progress: str | None) -> None:
        await put(store, "a")
        held = await taken(store, "a")
        now_ms = store.time.at_most_ms()
        for wanted in (
            saved(held, progress, now_ms + 10**9),
            replace(held, priority=-0.1234567890123456, last_error="ü" * 1000, place=2**31),
            replace(held, status=Status.CLOSED, owner=None, until_ms=0, closed_count=12345),
            replace(held, status=Status.FAILED, owner=None, attempts=9, ended_ms=now_ms),
            reset(held, now_ms, forget=True),
            reset(held, now_ms),
            completed(saved(held, progress, now_ms), now_ms),
        ):
            stored = await store.change(await got(store, "a"), wanted)
            assert stored == replace(wanted, version=stored.version)
            assert await got(store, "a") == stored

    async def test_each_version_is_another(self, store: PartitionStore) -> None:
        await put(store, "a", "b")
        other = await got(store, "b")
        held = await taken(store, "a")
        versions = {held.version}
        for _ in range(5):
            held = await store.change(held, held)
            versions.add(held.version)
        assert len(versions) == 6
        assert await got(store, "b") == other, "one partition's change is no other's"

    async def test_a_stale_version_changes_nothing(self, store: PartitionStore) -> None:
        await put(store, "a")
        held = await taken(store, "a")
        newer = await store.change(held, saved(held, "newer", held.until_ms))
        with pytest.raises(PreconditionFailed):
            await store.change(held, completed(held, held.until_ms))
        with pytest.raises(PreconditionFailed):
            await store.delete(held)
        assert await got(store, "a") == newer

    async def test_what_is_gone_cannot_be_changed(self, store: PartitionStore) -> None:
        await put(store, "a", "b")
        held = await taken(store, "a")
        await store.delete(held)
        for _ in range(2):
            with pytest.raises(NotFound):
                await store.change(held, completed(held, held.until_ms))
            with pytest.raises(NotFound):
                await store.delete(held)
        assert await store.get(SOURCE, "a") is None
        elsewhere = replace(await got(store, "b"), source="another|pipeline|file")
        with pytest.raises(NotFound):
            await store.change(elsewhere, elsewhere)

    @pytest.mark.parametrize("status", list(Status))
    async def test_deleted_in_any_status(self, store: PartitionStore, status: Status) -> None:
        held = await one_of_each_status(store)
        await store.delete(held[status])
        assert await store.get(SOURCE, status.value) is None
        assert sorted(await keys_of(store)) == sorted(set(Status) - {status})
        assert await store.create(SOURCE, [NewPartition(status.value)]) == [status.value]

    async def test_of_concurrent_changes_one_wins(self, store: PartitionStore) -> None:
        await put(store, "a")
        held = await taken(store, "a")

        async def save(i: int) -> Partition | None:
            try:
                return await store.change(held, saved(held, str(i), held.until_ms))
            except PreconditionFailed:
                return None

        won = [one for one in await asyncio.gather(*[save(i) for i in range(8)]) if one]
        assert won == [await got(store, "a")]

    async def test_changes_of_many_at_a_time(self, store: PartitionStore) -> None:
        keys = [f"{i:03d}" for i in range(150)]
        await put(store, *keys)
        brought = await store.acquire(SOURCE, claim_of(store), 150, random=False)

        async def work(held: Partition) -> None:
            for line in ("1", "2"):
                held = await store.change(held, saved(held, line, held.until_ms))
            held = await store.change(held, renewed(held, held.until_ms + 1))
            await store.change(held, completed(held, held.until_ms))

        await asyncio.gather(*[work(held) for held in brought.partitions])
        assert await counts_of(store) == {Status.COMPLETED: 150}
        assert {(await got(store, key)).progress for key in keys[::10]} == {"2"}

    async def test_reset_stops_whoever_holds_it(self, store: PartitionStore) -> None:
        await put(store, "a")
        held = await taken(store, "a")
        await store.change(held, reset(held, store.time.at_most_ms()))
        with pytest.raises(PreconditionFailed):
            await store.change(held, saved(held, "late", held.until_ms))
        again = await taken(store, "a", "other/B")
        assert (again.attempts, again.epoch > held.epoch) == (1, True)

    # -- sources, pages, counts, purge

    async def test_sources_do_not_mix(self, store: PartitionStore) -> None:
        sources = ["p|file", "p|file|x", "p", "q|p|file", "p|fil", "p|leader"]
        for source in sources:
            await put(store, "same", source, source=source)
        assert await store.sources() == sorted(sources)
        held = await taken(store, "same", source="p|file")
        await store.delete(await got(store, "same", "p|leader"))
        for source in sources[1:-1]:
            same = await got(store, "same", source)
            assert (same.source, same.status) == (source, Status.UNASSIGNED)
            assert sorted(await keys_of(store, source)) == sorted(["same", source])
        brought = await store.acquire("p|leader", claim_of(store), 9)
        assert [one.source for one in brought.partitions] == ["p|leader"]
        assert (await store.counts("p|file"))[Status.ASSIGNED] == 1
        assert await got(store, "same", "p|file") == held

    async def test_pages(self, store: PartitionStore) -> None:
        keys = [f"{i:03d}" for i in range(95)]
        await put(store, *reversed(keys))
        for limit in (1000, 96, 95, 94, 10):
            pages = await pages_of(store, SOURCE, limit=limit)
            assert max([len(page) for page in pages]) <= limit
            assert [one.key for page in pages for one in page] == keys, limit
        behind = await store.page(SOURCE, after="0499", limit=2)
        assert [one.key for one in behind.partitions] == ["050", "051"]
        assert (await store.page(SOURCE, after="094")).partitions == []

    async def test_pages_and_counts_by_status(self, store: PartitionStore) -> None:
        held = await one_of_each_status(store)
        await put(store, "0", "9")
        for name, one in held.items():
            found = [one for page in await pages_of(store, SOURCE, name, 1) for one in page]
            assert one in found
            assert {one.status for one in found} == {name}
            assert len(found) == (3 if name is Status.UNASSIGNED else 1)
        assert await counts_of(store) == dict.fromkeys(Status, 1) | {Status.UNASSIGNED: 3}

    async def test_only_what_is_completed_is_purged(self, store: PartitionStore) -> None:
        held = await one_of_each_status(store)
        ended_ms = held[Status.COMPLETED].ended_ms
        assert await store.purge("another", ended_ms + 1) == 0
        assert await store.purge(SOURCE, ended_ms) == 0
        assert await store.purge(SOURCE, ended_ms + 1) == 1
        assert sorted(await keys_of(store)) == sorted(set(Status) - {Status.COMPLETED})
        assert await store.purge(SOURCE, 1 << 60) == 0

    async def test_thousands(self, store: PartitionStore) -> None:
        keys = [f"bucket/{i:05d}" for i in range(self.MANY)]
        step = self.MANY // 3
        for start in range(0, self.MANY, step):
            new = [NewPartition(key) for key in keys[start : start + step]]
            assert len(await store.create(SOURCE, new)) == step
        assert await keys_of(store) == keys
        held = (await store.acquire(SOURCE, claim_of(store), 100)).partitions
        assert len(held) > 0
        counts = await store.counts(SOURCE)
        assert counts[Status.ASSIGNED] == len(held)
        assert counts[Status.UNASSIGNED] == self.MANY - len(held)
