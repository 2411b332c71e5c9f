"""The index is behind the table, and its heads are wanted by all: what is asked, and what decides.

`Between` stands before botocore's client, since DynamoDB Local never answers with what was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tailrace.coordination.dynamodb.item import SHARDS, DynamoTable
from tailrace.coordination.dynamodb.requests import DynamoRequests
from tailrace.coordination.dynamodb.store import DynamoPartitions, ItemRetention, open_client
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.partitions import (
    AGEING_MS,
    NewPartition,
    Status,
    closed,
    completed,
    given_up,
    saved,
)
from tailrace.logstore.errors import Damaged, InvalidInput
from tests.contracts.partition_acquire import SOURCE, claim_of, got, keys_taken, put, taken
from tests.coordination.dynamodb.tables import settings_of
from tests.servers.dynamodb import DynamoDb
from tests.simulation.clocks import NOW_MS, ManualClock

pytestmark = pytest.mark.dynamodb


def may_be_old(operation: str, parameters: dict[str, Any]) -> bool:
    """Whether the answer may be of before some write: always of the index."""
    if operation == "batch_get_item":
        return not all("ConsistentRead" in one for one in parameters["RequestItems"].values())
    return operation in ("get_item", "query", "scan") and "ConsistentRead" not in parameters


class Between:
    """A client that answers with what was, if it may, and before whose operations things happen."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._seen: dict[str, Any] = {}
        self.still = False
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        async def ask(**parameters: Any) -> Any:
            if operation in self.before:
                await self.before.pop(operation)()
            question = f"{operation} {parameters}"
            if self.still and may_be_old(operation, parameters) and question in self._seen:
                return self._seen[question]
            answer = await getattr(self._client, operation)(**parameters)
            self._seen[question] = answer
            return answer

        return ask


@asynccontextmanager
async def watched(server: DynamoDb) -> AsyncIterator[tuple[DynamoPartitions, Between]]:
    clock, settings = ManualClock(), settings_of(server)
    async with open_client(settings, clock, 8) as client:
        between = Between(client)
        requests = DynamoRequests(between, settings.table_name, clock, Random(1))
        store = DynamoPartitions(
            requests,
            DynamoTable(requests, settings, clock),
            clock,
            Random(2),
            ItemRetention(AGEING_MS),
            time=StoreTime(clock, None),
        )
        await store.start()
        yield store, between


def made(store: DynamoPartitions) -> dict[str, int]:
    """What was asked since the last call."""
    found = dict(store.requests.made)
    store.requests.made.clear()
    return found


# -- what is asked


async def test_what_an_acquire_asks(dynamodb: DynamoDb) -> None:
    async with watched(dynamodb) as (store, _):
        await put(store, *[f"{i:03d}" for i in range(200)])
        assert made(store)["put_item"] == 200
        brought = await store.acquire(SOURCE, claim_of(store), 10)
        assert len(brought.partitions) == 10
        assert made(store) == {"query": 3, "update_item": 1, "put_item": 10}
        await store.acquire(SOURCE, claim_of(store), 10, random=False)
        assert made(store) == {"query": 2 + SHARDS, "update_item": 1, "put_item": 10}
        await taken(store, "199")
        assert made(store) == {"get_item": 1, "update_item": 1, "put_item": 1}
        held = await got(store, "199")
        made(store)
        await store.change(held, completed(held, NOW_MS))
        assert made(store) == {"put_item": 1}


async def test_what_an_acquire_asks_when_there_is_no_work(dynamodb: DynamoDb) -> None:
    """However many partitions are done, held, or wait for their time."""
    async with watched(dynamodb) as (store, _):
        await put(store, *[f"{i:02d}" for i in range(60)])
        held = (await store.acquire(SOURCE, claim_of(store), 60)).partitions
        for one in held[:20]:
            await store.change(one, completed(one, NOW_MS))
        for one in held[20:40]:
            await store.change(one, closed(one, NOW_MS, NOW_MS + 10**6))
        made(store)
        brought = await store.acquire(SOURCE, claim_of(store, "other/B"), 10)
        assert list(brought.partitions) == []
        assert made(store) == {"query": 2 + SHARDS}


async def test_what_a_supplier_asks_that_lists_all_again(dynamodb: DynamoDb) -> None:
    async with watched(dynamodb) as (store, _):
        new = [NewPartition(f"{i:03d}") for i in range(150)]
        await store.create(SOURCE, new)
        assert made(store)["update_item"] == 1, "the source is registered once"
        assert await store.create(SOURCE, new) == []
        assert made(store) == {"batch_get_item": 2}, "and nothing is written"


# -- what decides


async def test_what_another_takes_after_the_look_is_refused_and_the_search_goes_on(
    dynamodb: DynamoDb,
) -> None:
    async with watched(dynamodb) as (store, between), watched(dynamodb) as (_, _):
        await put(store, "a", "b", "c", "d", "e")

        async def first() -> None:
            for key in ("a", "b"):
                assert (await taken(store, key, "other/B")).key == key

        between.before["update_item"] = first
        assert await keys_taken(store, claim_of(store), 2) == ["c", "d"]
        assert store.requests.refused == 2


async def test_who_meets_another_keeps_what_it_won_and_leaves_the_rest(
    dynamodb: DynamoDb,
) -> None:
    async with watched(dynamodb) as (store, between):
        keys = [f"{i}" for i in range(8)]
        await put(store, *keys)
        for key in keys:
            await taken(store, key, lease_ms=1000)
        late = replace(claim_of(store, "other/B"), at_least_ms=NOW_MS + 5000)

        async def half() -> None:
            for key in keys[::2]:
                assert (await store.acquire(SOURCE, late, 1, only=key)).partitions

        made(store)
        between.before["update_item"] = half
        mine = replace(late, owner="third/C")
        won = (await store.acquire(SOURCE, mine, 4)).partitions
        assert 0 < len(won) < 4, "half of eight were tried, and some of them were another's"
        assert {one.key for one in won} <= set(keys[1::2])
        assert made(store)["query"] == 3, "no other part was looked at"
        rest = (await store.acquire(SOURCE, mine, 4)).partitions
        assert {one.key for one in [*won, *rest]} == set(keys[1::2])


async def test_an_index_that_stands_still_gives_nothing_out_twice(dynamodb: DynamoDb) -> None:
    async with watched(dynamodb) as (store, between):
        await put(store, *[f"{i:02d}" for i in range(12)])
        await store.acquire(SOURCE, replace(claim_of(store), at_least_ms=1), 4, random=False)
        first = await keys_taken(store, claim_of(store), 4)
        between.still = True
        again = await keys_taken(store, claim_of(store, "other/B"), 4)
        assert len(first) == 4
        assert set(first) & set(again) == set()
        held = [await got(store, key) for key in first]
        assert {one.owner for one in held} == {"host/A"}
        assert store.requests.refused >= 4


async def test_an_index_that_stands_still_keeps_nobody_from_what_it_holds(
    dynamodb: DynamoDb,
) -> None:
    """Upstream could not give up for a while what it had just acquired."""
    async with watched(dynamodb) as (store, between):
        await put(store, "a", "b")
        assert await keys_taken(store, claim_of(store), 2) == ["a", "b"]
        between.still = True
        for key in ("a", "b"):
            held = await got(store, key)
            held = await store.change(held, saved(held, "half", held.until_ms))
            ended = given_up(held, NOW_MS) if key == "a" else completed(held, NOW_MS)
            await store.change(held, ended)
        assert (await got(store, "b")).status is Status.COMPLETED
        again = await taken(store, "a", "other/B")
        assert (again.progress, again.owner) == ("half", "other/B"), "by its key at once"
        assert await keys_taken(store, claim_of(store, "third/C"), 2) == []


async def test_reads_see_what_was_written(dynamodb: DynamoDb) -> None:
    async with watched(dynamodb) as (store, between):

        async def look() -> tuple[object, ...]:
            page = (await store.page(SOURCE)).partitions
            return await store.get(SOURCE, "a"), page, await store.counts(SOURCE)

        await put(store, "a")
        before = await look()
        assert await store.sources() == [SOURCE]
        between.still = True
        held = await taken(store, "a")
        over = await store.change(held, completed(held, NOW_MS))
        assert await look() == (over, [over], {Status.COMPLETED: 1}) != before
        await put(store, "b", source="another")
        assert await store.sources() == sorted([SOURCE, "another"])
        assert await store.purge(SOURCE, NOW_MS + 1) == 1
        assert await look() == (None, [], {})


async def test_what_was_deleted_just_now_is_made_again(dynamodb: DynamoDb) -> None:
    async with watched(dynamodb) as (store, between):
        await put(store, "a")
        assert await store.create(SOURCE, [NewPartition("a")]) == []
        between.still = True
        await store.delete(await got(store, "a"))
        assert await store.create(SOURCE, [NewPartition("a")]) == ["a"]
        assert (await got(store, "a")).status is Status.UNASSIGNED


async def test_what_was_removed_is_not_given_out_by_the_index(dynamodb: DynamoDb) -> None:
    async with watched(dynamodb) as (store, between):
        await put(store, "a", "b")
        assert await keys_taken(store, replace(claim_of(store), at_least_ms=1), 1) == []

        async def away() -> None:
            await store.delete(await got(store, "a"))

        between.before["update_item"] = away
        assert await keys_taken(store, claim_of(store), 1) == ["b"]


async def test_what_expired_is_found_though_much_is_held(dynamodb: DynamoDb) -> None:
    """Held leases that run on do not stand before one that ran out, nor stop the search."""
    async with watched(dynamodb) as (store, _):
        await put(store, *[f"{i:02d}" for i in range(40)], "short")
        long = await store.acquire(SOURCE, claim_of(store, lease_ms=10**9), 40, random=False)
        assert len(long.partitions) == 40
        await taken(store, "short", lease_ms=1000)
        late = replace(claim_of(store, "other/B"), at_least_ms=NOW_MS + 5000)
        made(store)
        assert await keys_taken(store, late, 3) == ["short"]
        assert made(store)["query"] == 2 + SHARDS


async def test_more_than_a_page_of_large_ones(dynamodb: DynamoDb) -> None:
    """A query answers with a megabyte at most."""
    async with watched(dynamodb) as (store, _):
        large = "x" * 300_000
        keys = [f"{i:02d}" for i in range(12)]
        await store.create(SOURCE, [NewPartition(key, progress=large) for key in keys])
        assert [one.key for one in (await store.page(SOURCE)).partitions] == keys
        assert await store.counts(SOURCE) == {Status.UNASSIGNED: 12}
        assert await keys_taken(store, claim_of(store), 12) == keys


async def test_items_of_another_program_are_not_taken_for_ours(dynamodb: DynamoDb) -> None:
    async with watched(dynamodb) as (store, _):
        await put(store, "a")
        client = dynamodb.client()
        theirs = {"sourceIdentifier": SOURCE, "sourcePartitionKey": "b", "version": "x"}
        client.put_item(
            TableName=store.requests.table, Item={name: {"S": it} for name, it in theirs.items()}
        )
        client.close()
        with pytest.raises(Damaged, match="is not a partition") as caught:
            await store.get(SOURCE, "b")
        assert "partition_prefix" in caught.value.hint
        assert await keys_taken(store, claim_of(store), 9) == ["a"]


async def test_a_source_is_not_mistaken_for_the_tables_own_items(dynamodb: DynamoDb) -> None:
    async with watched(dynamodb) as (store, _):
        sources = ["#sources", "##sources", "#", "sources"]
        for source in sources:
            await put(store, "a", source=source)
            held = await taken(store, "a", source=source)
            assert held.source == source
        assert await store.sources() == sorted(sources)
        for source in sources:
            assert [one.source for one in (await store.page(source)).partitions] == [source]


async def test_a_key_beyond_dynamodbs_limit(dynamodb: DynamoDb) -> None:
    async with watched(dynamodb) as (store, _):
        with pytest.raises(InvalidInput, match="1024"):
            await store.create(SOURCE, [NewPartition("x" * 1025)])
        with pytest.raises(InvalidInput, match="1024"):
            await store.get(SOURCE, "x" * 1025)
