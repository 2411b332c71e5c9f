"""A partition as an item of a DynamoDB table, its place in the index, and the table itself.

    attribute                   type  of a partition
    sourceIdentifier            S     source; `#` before one that begins with `#`
    sourcePartitionKey          S     key
    sourceStatusCombinationKey  S     index: `source|READY|n`, `source|WAITING`, `source|ASSIGNED`;
                                      COMPLETED and FAILED have none, no search looks for them
    partitionPriority           S     index: the order within, see below
    sourcePartitionStatus       S     status
    version                     S     version, a ULID
    previous                    S     the version that this one replaced
    partitionOwner              S     owner; absent when free
    partitionOwnershipTimeout   N     until_ms
    partitionProgressState      S     progress; absent for None
    reOpenAt                    N     available_ms
    closedCount                 N     closed_count
    expirationTime              N     TTL, seconds: on COMPLETED items only
    epoch, attempts, place, createdAt, endedAt, priority, lastError

READY partitions may be taken at any time from now on; they are ordered by rank, in `SHARDS` parts
by a hash of the key. WAITING partitions become free at a later time and are ordered by it; ASSIGNED
ones by the end of their ownership. So one range of each has the partitions that are free now, and a
search reads none that is not due.

`partitionPriority` is text, as in upstream's tables, but orders as numbers do: the bits of a
double, made to sort, in hexadecimal digits; then the tie-breakers of `Partition.order`.

Items with the hash key `#sources` are no partitions: each is for a source that ever had a
partition, and holds the counter of its epochs. They have no TTL and are never removed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

import xxhash

from tailrace.coordination.dynamodb.requests import (
    DynamoFailure,
    DynamoRequestFailed,
    DynamoRequests,
)
from tailrace.coordination.partitions import Partition, Status
from tailrace.coordination.settings import DynamoDbSettings
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import Damaged, InvalidInput, StoreUnavailable
from tailrace.logstore.objects.s3.requests import Meaning

Item = dict[str, dict[str, str]]

INDEX: Final = "source-status"
HASH, RANGE = "sourceIdentifier", "sourcePartitionKey"
INDEX_HASH, INDEX_RANGE = "sourceStatusCombinationKey", "partitionPriority"
STATUS, VERSION, PREVIOUS, OWNER, EPOCH, ENDED, EXPIRES = (
    "sourcePartitionStatus",
    "version",
    "previous",
    "partitionOwner",
    "epoch",
    "endedAt",
    "expirationTime",
)
SOURCES: Final = "#sources"
SHARDS: Final = 4
LAST: Final = "~"
"""Above all that stands behind a number in an index key."""

_TEXTS: Final = {
    STATUS: "status",
    VERSION: "version",
    OWNER: "owner",
    "partitionProgressState": "progress",
    "lastError": "last_error",
}
_NUMBERS: Final = {
    "partitionOwnershipTimeout": "until_ms",
    "reOpenAt": "available_ms",
    "closedCount": "closed_count",
    EPOCH: "epoch",
    "attempts": "attempts",
    "place": "place",
    "createdAt": "created_ms",
    ENDED: "ended_ms",
}


def hash_of(source: str) -> str:
    """The hash key of a source's items; it never equals that of the table's own items."""
    return f"#{source}" if source.startswith("#") else source


def key_of(source: str, key: str) -> Item:
    """The primary key of a partition."""
    return {HASH: {"S": hash_of(source)}, RANGE: {"S": key}}


def counter_key(source: str) -> Item:
    """The primary key of the item that a source has as a whole."""
    return {HASH: {"S": SOURCES}, RANGE: {"S": source}}


def encode(partition: Partition, now_ms: int, ageing_ms: int, ttl_ms: int | None) -> Item:
    """The item as stored at `now_ms`; with `ttl_ms` None, COMPLETED items do not expire."""
    item = key_of(partition.source, partition.key)
    for name, field in _TEXTS.items():
        value = getattr(partition, field)
        if value is not None:
            item[name] = {"S": str(value)}
    for name, field in _NUMBERS.items():
        item[name] = {"N": str(getattr(partition, field))}
    item["priority"] = {"N": repr(partition.priority)}
    if partition.status is Status.COMPLETED and ttl_ms is not None:
        item[EXPIRES] = {"N": str((now_ms + ttl_ms) // 1000 + 1)}
    place = _place(partition, now_ms, ageing_ms)
    if place is not None:
        item[INDEX_HASH], item[INDEX_RANGE] = {"S": place[0]}, {"S": place[1]}
    return item


def decode(item: Mapping[str, Mapping[str, str]]) -> Partition:
    """The partition that an item holds. Raises `Damaged` for an item of another shape."""
    try:
        source, key = item[HASH]["S"], item[RANGE]["S"]
        fields: dict[str, Any] = {
            field: item[name]["S"] for name, field in _TEXTS.items() if name in item
        }
        fields |= {field: int(item[name]["N"]) for name, field in _NUMBERS.items()}
        fields["status"] = Status(fields["status"])
        fields["priority"] = float(item["priority"]["N"])
        return Partition(source.removeprefix("#"), key, **fields)
    except (KeyError, ValueError, TypeError) as error:
        raise Damaged(
            f"the item {item.get(HASH)} {item.get(RANGE)} is not a partition: {error!r}",
            hint="Give Tailrace its own table or partition_prefix.",
        ) from error


def ready(source: str, shard: int) -> str:
    """The index key of one part of the partitions that are free."""
    return f"{source}|READY|{shard}"


def waiting(source: str) -> str:
    """The index key of partitions that become free at a later time."""
    return f"{source}|WAITING"


def assigned(source: str) -> str:
    """The index key of partitions that have an owner."""
    return f"{source}|ASSIGNED"


def sortable(number: float) -> str:
    """16 characters that sort as numbers do."""
    (bits,) = struct.unpack(">Q", struct.pack(">d", number + 0.0))  # -0.0 is 0.0
    bits ^= 0xFFFF_FFFF_FFFF_FFFF if bits >> 63 else 1 << 63
    return f"{bits:016x}"


def _place(partition: Partition, now_ms: int, ageing_ms: int) -> tuple[str, str] | None:
    if partition.status in (Status.COMPLETED, Status.FAILED):
        return None
    behind = f".{sortable(partition.created_ms)}.{sortable(partition.place)}"
    if partition.status is Status.ASSIGNED:
        return assigned(partition.source), sortable(partition.until_ms)
    if partition.available_ms > now_ms:
        return waiting(partition.source), sortable(partition.available_ms) + behind
    shard = xxhash.xxh3_64_intdigest(partition.key.encode()) % SHARDS
    return ready(partition.source, shard), sortable(partition.rank_ms(ageing_ms)) + behind


# The table: created if it does not exist, and checked before it is used.
#
# It has the same shape as Data Prepper's: the same keys, the same index, the same TTL attribute.
# Either program can therefore use a table that was made with the other's settings. Several nodes
# may create it at once.


_SECTION: Final = "source_coordination.store.dynamodb"
_LOOK_SECONDS: Final = 1.0
_LOOKS: Final = 120
_KEYS: Final = {HASH: "HASH", RANGE: "RANGE"}
_INDEX_KEYS: Final = {INDEX_HASH: "HASH", INDEX_RANGE: "RANGE"}


class DynamoTable:
    """The table that settings name."""

    def __init__(self, requests: DynamoRequests, settings: DynamoDbSettings, clock: Clock) -> None:
        self._requests = requests
        self._settings = settings
        self._clock = clock

    async def ready(self) -> None:
        """Returns once the table can be used.

        Raises `InvalidInput` for a table that does not exist and may not be created, or that has
        another shape; `StoreUnavailable`.
        """
        about = await self._about()
        if about is None:
            if self._settings.skip_table_creation:
                raise InvalidInput(
                    f"there is no table {self._requests.table}, and it may not be made",
                    field=f"{_SECTION}.skip_table_creation",
                    hint="Create the table, or leave out skip_table_creation.",
                )
            await self._make()
        await self._see_shape(await self._active())
        if self._settings.ttl:
            await self._see_ttl()

    async def _make(self) -> None:
        capacity = {
            "ReadCapacityUnits": self._settings.provisioned_read_capacity_units,
            "WriteCapacityUnits": self._settings.provisioned_write_capacity_units,
        }
        try:
            await self._requests.once(
                "create_table",
                {
                    "TableName": self._requests.table,
                    "AttributeDefinitions": [
                        {"AttributeName": name, "AttributeType": "S"}
                        for name in (*_KEYS, *_INDEX_KEYS)
                    ],
                    "KeySchema": _schema(_KEYS),
                    "GlobalSecondaryIndexes": [
                        {
                            "IndexName": INDEX,
                            "KeySchema": _schema(_INDEX_KEYS),
                            "Projection": {"ProjectionType": "ALL"},
                            "ProvisionedThroughput": capacity,
                        }
                    ],
                    "ProvisionedThroughput": capacity,
                },
            )
        except DynamoRequestFailed as failed:
            # In use: another node makes it. Unclear: it may be there in a moment.
            if failed.failure.meaning not in (Meaning.DONE_NOTHING, Meaning.UNCLEAR):
                raise failed.failure.error(f"make the table {self._requests.table}") from None

    async def _active(self) -> Mapping[str, Any]:
        for _ in range(_LOOKS):
            about = await self._about()
            if about is None:
                await self._make()
            elif _active(about):
                return about
            await self._clock.sleep(_LOOK_SECONDS)
        raise StoreUnavailable(f"the table {self._requests.table} does not become active")

    async def _about(self) -> Mapping[str, Any] | None:
        what = f"look at the table {self._requests.table}"
        try:
            answer = await self._requests.again("describe_table")
        except DynamoRequestFailed as failed:
            if failed.failure.meaning is Meaning.ABSENT:
                return None
            raise failed.failure.error(what) from None
        found: Mapping[str, Any] = answer["Table"]
        return found

    async def _see_shape(self, about: Mapping[str, Any]) -> None:
        wrong = list(_differences(about))
        if wrong:
            raise InvalidInput(
                f"the table {self._requests.table} cannot be used: {'; '.join(wrong)}",
                field=f"{_SECTION}.table_name",
                hint="Name another table, or let Tailrace create one.",
            )

    async def _see_ttl(self) -> None:
        answer = await self._requests.ask("describe_time_to_live", "look at the table's TTL")
        about = answer["TimeToLiveDescription"]
        if about["TimeToLiveStatus"] in ("ENABLED", "ENABLING"):
            if about["AttributeName"] == EXPIRES:
                return
            problem = f"its TTL goes by {about['AttributeName']}, not by {EXPIRES}"
        elif self._settings.skip_table_creation:
            problem = f"it has no TTL; ttl needs one by {EXPIRES}"
        else:
            problem = await self._turn_ttl_on()
        if problem:
            raise InvalidInput(
                f"the table {self._requests.table} cannot be used: {problem}",
                field=f"{_SECTION}.ttl",
                hint=f"Turn on TTL for the attribute {EXPIRES}, or leave out ttl.",
            )

    async def _turn_ttl_on(self) -> str:
        wanted = {"Enabled": True, "AttributeName": EXPIRES}
        try:
            await self._requests.once(
                "update_time_to_live",
                {"TableName": self._requests.table, "TimeToLiveSpecification": wanted},
            )
        except DynamoRequestFailed as failed:
            return await self._turned_on_by_another(failed.failure)
        return ""

    async def _turned_on_by_another(self, failure: DynamoFailure) -> str:
        answer = await self._requests.ask("describe_time_to_live", "look at the table's TTL")
        about = answer["TimeToLiveDescription"]
        if about.get("AttributeName") == EXPIRES:
            return ""
        if failure.meaning is not Meaning.FINAL:
            raise failure.error("turn the table's TTL on")
        return f"its TTL cannot be turned on: {failure.message}"


def _active(about: Mapping[str, Any]) -> bool:
    """Whether table and index answer, and the index covers the whole table."""
    indexes = about.get("GlobalSecondaryIndexes", [])
    ours = [one for one in indexes if one["IndexName"] == INDEX]
    states = [about["TableStatus"], *[one["IndexStatus"] for one in ours]]
    filling = any(one.get("Backfilling", False) for one in ours)
    return not filling and all(state in ("ACTIVE", "UPDATING") for state in states)


def _schema(keys: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()]


def _differences(about: Mapping[str, Any]) -> Iterator[str]:
    types = {one["AttributeName"]: one["AttributeType"] for one in about["AttributeDefinitions"]}
    if _keys(about) != _KEYS:
        yield f"its key is {_text(_keys(about))}, not {_text(_KEYS)}"
    indexes = {one["IndexName"]: one for one in about.get("GlobalSecondaryIndexes", [])}
    index = indexes.get(INDEX)
    if index is None:
        yield f"it has no index {INDEX}"
    else:
        if _keys(index) != _INDEX_KEYS:
            yield f"the key of its index is {_text(_keys(index))}, not {_text(_INDEX_KEYS)}"
        if index["Projection"]["ProjectionType"] != "ALL":
            yield f"the index {INDEX} does not hold ALL attributes"
    for name in (*_KEYS, *_INDEX_KEYS):
        if types.get(name, "S") != "S":
            yield f"{name} is of type {types[name]}, not S"


def _keys(about: Mapping[str, Any]) -> dict[str, str]:
    return {one["AttributeName"]: one["KeyType"] for one in about["KeySchema"]}


def _text(keys: Mapping[str, str]) -> str:
    return " and ".join(f"{name} ({kind})" for name, kind in keys.items())
