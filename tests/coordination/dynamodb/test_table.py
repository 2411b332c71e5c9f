"""The table: made by one of several nodes, of Data Prepper's shape, or looked at; and its TTL.

What DynamoDB has of a partition is read with a client of botocore's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest

from tailrace.coordination.dynamodb.item import DynamoTable
from tailrace.coordination.dynamodb.requests import DynamoRequests
from tailrace.coordination.dynamodb.store import DynamoPartitions, open_client
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.partitions import (
    NewPartition,
    Status,
    closed,
    completed,
    failed,
    given_up,
    renewed,
    reset,
    saved,
)
from tailrace.logstore.errors import InvalidInput, NotFound, StoreUnavailable
from tests.contracts.partition_acquire import SOURCE, claim_of, got, keys_taken, put, taken
from tests.coordination.dynamodb.tables import settings_of, standing
from tests.servers.dynamodb import DynamoDb
from tests.simulation.clocks import NOW_MS, ManualClock

pytestmark = pytest.mark.dynamodb

KEYS = {"sourceIdentifier": "HASH", "sourcePartitionKey": "RANGE"}
INDEX_KEYS = {"sourceStatusCombinationKey": "HASH", "partitionPriority": "RANGE"}
DAY_MS = 86_400_000


@pytest.fixture
def client(dynamodb: DynamoDb) -> Iterator[Any]:
    found = dynamodb.client()
    yield found
    found.close()


def schema(keys: dict[str, str]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()]


def make_table(
    client: Any,
    name: str,
    *,
    keys: dict[str, str] = KEYS,
    index: str = "source-status",
    index_keys: dict[str, str] = INDEX_KEYS,
    projection: str = "ALL",
    kind: str = "S",
) -> None:
    """As Data Prepper's settings make it, unless told otherwise."""
    capacity = {"ReadCapacityUnits": 10, "WriteCapacityUnits": 10}
    names = [*keys, *index_keys]
    kinds = dict.fromkeys(names, "S") | {names[-1]: kind}
    client.create_table(
        TableName=name,
        AttributeDefinitions=[
            {"AttributeName": name, "AttributeType": kind} for name, kind in kinds.items()
        ],
        KeySchema=schema(keys),
        GlobalSecondaryIndexes=[
            {
                "IndexName": index,
                "KeySchema": schema(index_keys),
                "Projection": {"ProjectionType": projection},
                "ProvisionedThroughput": capacity,
            }
        ],
        ProvisionedThroughput=capacity,
    )


def item_of(client: Any, store: DynamoPartitions, key: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get_item(
        TableName=store.requests.table,
        Key={"sourceIdentifier": {"S": SOURCE}, "sourcePartitionKey": {"S": key}},
        ConsistentRead=True,
    ).get("Item", {})
    return found


# -- creation


async def test_a_table_of_upstreams_shape_is_made(dynamodb: DynamoDb, client: Any) -> None:
    settings = settings_of(dynamodb, provisioned_read_capacity_units=7)
    async with standing(settings):
        about = client.describe_table(TableName=settings.table_name)["Table"]
    assert about["KeySchema"] == schema(KEYS)
    (index,) = about["GlobalSecondaryIndexes"]
    assert (index["IndexName"], index["KeySchema"]) == ("source-status", schema(INDEX_KEYS))
    assert index["Projection"] == {"ProjectionType": "ALL"}
    for one in (about, index):
        units = one["ProvisionedThroughput"]
        assert (units["ReadCapacityUnits"], units["WriteCapacityUnits"]) == (7, 10)
    assert {one["AttributeType"] for one in about["AttributeDefinitions"]} == {"S"}


async def test_nodes_that_start_together_make_one_table(dynamodb: DynamoDb) -> None:
    settings = settings_of(dynamodb, ttl="7d")
    async with AsyncExitStack() as stack:
        opening = [stack.enter_async_context(standing(settings, seed=i)) for i in range(4)]
        stores = await asyncio.gather(*opening)
        await put(stores[0], "a")
        assert [await store.create(SOURCE, [NewPartition("a")]) for store in stores[1:]] == [[]] * 3


async def test_a_table_that_is_there_is_used_as_it_is(dynamodb: DynamoDb, client: Any) -> None:
    settings = settings_of(dynamodb, skip_table_creation=True)
    make_table(client, settings.table_name)
    async with standing(settings) as store:
        await put(store, "a")
        assert (await taken(store, "a")).key == "a"
    async with standing(settings_of(dynamodb, settings.table_name)) as store:
        assert (await got(store, "a")).status is Status.ASSIGNED


async def test_a_table_that_may_not_be_made(dynamodb: DynamoDb, client: Any) -> None:
    settings = settings_of(dynamodb, skip_table_creation=True)
    with pytest.raises(InvalidInput, match="there is no table") as caught:
        async with standing(settings):
            pass
    assert caught.value.field == "source_coordination.store.dynamodb.skip_table_creation"
    assert settings.table_name not in client.list_tables()["TableNames"]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"keys": {"id": "HASH", "sourcePartitionKey": "RANGE"}}, "its key is id"),
        ({"keys": {"sourceIdentifier": "HASH"}}, "its key is sourceIdentifier"),
        ({"index": "another"}, "it has no index source-status"),
        ({"index_keys": {"sourceStatusCombinationKey": "HASH"}}, "the key of its index"),
        ({"projection": "KEYS_ONLY"}, "does not hold ALL attributes"),
        ({"kind": "N"}, "partitionPriority is of type N"),
    ],
)
async def test_a_table_of_another_shape_is_refused_with_what_is_wrong(
    dynamodb: DynamoDb, client: Any, shape: dict[str, Any], said: str, skip: bool
) -> None:
    settings = settings_of(dynamodb, skip_table_creation=skip)
    make_table(client, settings.table_name, **shape)
    with pytest.raises(InvalidInput, match=said) as caught:
        async with standing(settings):
            pass
    assert caught.value.field == "source_coordination.store.dynamodb.table_name"


class Slow:
    """A client whose table takes its time: Local's is there at once."""

    def __init__(self, client: Any, states: list[dict[str, Any]]) -> None:
        self._client = client
        self._states = states
        self.looks = 0

    def __getattr__(self, operation: str) -> Any:
        return getattr(self._client, operation)

    async def describe_table(self, **parameters: Any) -> Any:
        answer = await self._client.describe_table(**parameters)
        self.looks += 1
        if self._states:
            state = self._states.pop(0)
            answer["Table"]["TableStatus"] = state.pop("table", "ACTIVE")
            answer["Table"]["GlobalSecondaryIndexes"][0] |= state
        return answer


async def test_a_table_is_used_when_it_and_its_index_are_complete(
    dynamodb: DynamoDb, client: Any
) -> None:
    """An index that is being filled would say that there is no work."""
    settings, clock = settings_of(dynamodb), ManualClock()
    make_table(client, settings.table_name)
    states: list[dict[str, Any]] = [
        {},
        {"table": "CREATING"},
        {"IndexStatus": "CREATING", "Backfilling": True},
        {"Backfilling": True},
    ]
    async with open_client(settings, clock, 4) as real:
        slow = Slow(real, states)
        requests = DynamoRequests(slow, settings.table_name, clock, Random(1))
        await DynamoTable(requests, settings, clock).ready()
        assert slow.looks == 5
        slow = Slow(real, [{"table": "CREATING"} for _ in range(1000)])
        requests = DynamoRequests(slow, settings.table_name, clock, Random(1))
        with pytest.raises(StoreUnavailable, match="does not become active"):
            await DynamoTable(requests, settings, clock).ready()


# -- TTL


async def test_ttl_is_turned_on_where_it_is_asked_for(dynamodb: DynamoDb, client: Any) -> None:
    for ttl, expected in (("", "DISABLED"), ("P7D", "ENABLED")):
        settings = settings_of(dynamodb, ttl=ttl)
        for _ in range(2):  # a second start finds it as it is
            async with standing(settings):
                pass
        about = client.describe_time_to_live(TableName=settings.table_name)
        assert about["TimeToLiveDescription"]["TimeToLiveStatus"] == expected
    assert about["TimeToLiveDescription"]["AttributeName"] == "expirationTime"


async def test_ttl_that_is_not_there_is_missed_at_start(dynamodb: DynamoDb, client: Any) -> None:
    settings = settings_of(dynamodb, ttl="P7D", skip_table_creation=True)
    make_table(client, settings.table_name)
    with pytest.raises(InvalidInput, match="it has no TTL") as caught:
        async with standing(settings):
            pass
    assert caught.value.field == "source_coordination.store.dynamodb.ttl"
    wanted = {"Enabled": True, "AttributeName": "expirationTime"}
    client.update_time_to_live(TableName=settings.table_name, TimeToLiveSpecification=wanted)
    async with standing(settings) as store:
        await put(store, "a")


@pytest.mark.parametrize("skip", [True, False])
async def test_ttl_by_another_attribute(dynamodb: DynamoDb, client: Any, skip: bool) -> None:
    settings = settings_of(dynamodb, ttl="P7D", skip_table_creation=skip)
    make_table(client, settings.table_name)
    wanted = {"Enabled": True, "AttributeName": "theirs"}
    client.update_time_to_live(TableName=settings.table_name, TimeToLiveSpecification=wanted)
    with pytest.raises(InvalidInput, match="goes by theirs"):
        async with standing(settings):
            pass


async def test_only_what_is_completed_expires(dynamodb: DynamoDb, client: Any) -> None:
    """And later with each update; put back it stays again. Upstream lost live work by its TTL."""
    clock = ManualClock()
    settings = settings_of(dynamodb, ttl="7d")
    time = StoreTime(clock, None)
    async with standing(settings, clock=clock, time=time) as store:
        await put(store, "a", "b")

        def expires(key: str = "a") -> int | None:
            found = item_of(client, store, key).get("expirationTime")
            return None if found is None else int(found["N"]) * 1000

        assert expires() is None
        one = await taken(store, "a")
        for wanted in (
            renewed(one, one.until_ms + 1),
            saved(one, "{}", one.until_ms),
            given_up(one, NOW_MS),
            closed(one, NOW_MS, NOW_MS + DAY_MS),
            failed(one, "bad", NOW_MS, max_attempts=1),
        ):
            one = await store.change(one, wanted)
            assert expires() is None, one.status
        one = await store.change(one, completed(one, NOW_MS))
        first = expires()
        assert first is not None
        assert NOW_MS + 7 * DAY_MS <= first <= NOW_MS + 7 * DAY_MS + 1000
        clock.advance(DAY_MS)
        one = await store.change(one, one)
        renewed_until = expires()
        assert renewed_until is not None
        assert renewed_until >= first + DAY_MS
        one = await store.change(one, reset(one, NOW_MS))
        assert expires() is None
        assert (await taken(store, "a")).key == "a"
        table = client.scan(TableName=settings.table_name, ConsistentRead=True)["Items"]
        of_sources = [item for item in table if item["sourceIdentifier"]["S"] == "#sources"]
        assert [sorted(item) for item in of_sources] == [
            ["epoch", "sourceIdentifier", "sourcePartitionKey"]
        ]


async def test_without_ttl_nothing_expires(dynamodb: DynamoDb, client: Any) -> None:
    async with standing(settings_of(dynamodb)) as store:
        await put(store, "a")
        held = await taken(store, "a", lease_ms=10**6)
        await store.change(held, completed(held, held.until_ms))
        assert "expirationTime" not in item_of(client, store, "a")


async def test_what_dynamodb_removed_goes_on_above_its_epochs(
    dynamodb: DynamoDb, client: Any
) -> None:
    clock = ManualClock()
    time = StoreTime(clock, None)
    async with standing(settings_of(dynamodb), clock=clock, time=time) as store:
        await put(store, "a")
        held = await taken(store, "a")
        done = await store.change(held, completed(held, NOW_MS))
        client.delete_item(
            TableName=store.requests.table,
            Key={"sourceIdentifier": {"S": SOURCE}, "sourcePartitionKey": {"S": "a"}},
        )
        with pytest.raises(NotFound):
            await store.change(done, reset(done, NOW_MS))
        await put(store, "a")
        assert (await taken(store, "a")).epoch > held.epoch


async def test_a_counter_that_somebody_removed_is_set_right(
    dynamodb: DynamoDb, client: Any
) -> None:
    clock = ManualClock()
    time = StoreTime(clock, None)
    async with standing(settings_of(dynamodb), clock=clock, time=time) as store:
        await put(store, "a")
        held = await taken(store, "a")
        for _ in range(3):
            held = await store.change(held, given_up(held, NOW_MS))
            held = await taken(store, "a")
        client.delete_item(
            TableName=store.requests.table,
            Key={"sourceIdentifier": {"S": "#sources"}, "sourcePartitionKey": {"S": SOURCE}},
        )
        await store.change(held, given_up(held, NOW_MS))
        assert (await taken(store, "a")).epoch > held.epoch


async def test_a_table_that_vanished_is_an_error(dynamodb: DynamoDb, client: Any) -> None:
    async with standing(settings_of(dynamodb)) as store:
        await put(store, "a")
        client.delete_table(TableName=store.requests.table)
        with pytest.raises(StoreUnavailable, match="ResourceNotFound") as caught:
            await keys_taken(store, claim_of(store), 1)
        assert "Restore it" in caught.value.hint
