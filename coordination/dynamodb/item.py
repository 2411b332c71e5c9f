"""A partition as an item of the table, and where it stands in the index.

    attribute                   type  of a partition
    sourceIdentifier            S     source; `#` before one that begins with `#`
    sourcePartitionKey          S     key
    sourceStatusCombinationKey  S     index: `source|READY|n`, `source|WAITING`, `source|ASSIGNED`;
                                      COMPLETED and FAILED have none, they are not looked for
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

READY is what may be taken at any time from now on, by rank, in `SHARDS` parts by a hash of the
key; WAITING what becomes free at a time to come, by that time; ASSIGNED goes by the end of its
ownership. So one range of each says what is free now, and nothing that is not due is read.

`partitionPriority` is text, as in upstream's tables, but orders as numbers do: the bits of a
double, made to sort, in hexadecimal digits; then the tie-breakers of `Partition.order`.

Items of the hash key `#sources` are none of these: one for each source that ever had a
partition, with the counter of its epochs. They have no TTL and are never removed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import xxhash

from coordination.partitions.partition import Partition, Status
from logstore.errors import Damaged

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
            f"the item {item.get(HASH)} {item.get(RANGE)} is no partition: {error!r}",
            hint="Give Tailrace a table or a partition_prefix of its own.",
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
