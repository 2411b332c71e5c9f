"""The format of a shard: the partitions of a source whose keys have one hash, in one object.

`coordination/partitions/{source}/{shard:04x}.json`, changed by compare-and-swap, is JSON:

    format        1
    source        the source's name
    shard, shards this shard's number, and how many the source has
    epoch         the last that was given out here; it rises with every acquisition and never
                  falls, so epochs go on when a partition is deleted and made again. The object
                  is never removed
    version       the ULID of this write, so no two versions have equal bytes
    recent        the ULIDs of the last writes, this one last: a writer whose answer was lost
                  finds its write here, also when others have written since
    partitions    key: row

A partition's shard is the XXH3 (64 bits) of its key's UTF-8 modulo `shards`. A row is a partition:

    version         always; the ULID of this version
    created_at      always; milliseconds of the store's clock, as all times
    available_at    left out if it is `created_at`
    status          left out if UNASSIGNED
    owner, epoch, owner_timeout, progress_state, closed_count, attempts, last_error,
    priority, place, ended_at
                    as in `coordination.partitions.partition`; left out if empty or 0

Keys that this version does not know survive a rewrite, in a shard and in a row. Rows stay as they
were parsed, dicts of plain values, which Python's garbage collector does not look at: there may be
a million.

JSON is stored plain if it is small, so that people can read it, and otherwise compressed with zstd.
A supplier writes large shards with each of its batches, and a worker with each acquisition.
Compression reduces them to about a tenth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import xxhash
import zstandard

from coordination.partitions.partition import NewPartition, Partition, Status
from logstore import keys
from logstore.checked import decode_checked, encode_checked
from logstore.errors import Damaged, UnsupportedVersion

Stored = Mapping[str, Any]

FORMAT: Final = 1
RECENT: Final = 16
"""Writes whose ULIDs a shard remembers."""
PLAIN_BYTES: Final = 64 << 10
"""JSON up to this size stays as it is."""
COMPRESSION: Final = 12
"""The ratio, as measured, by which rows that were never acquired shrink; others shrink less."""
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_MAX_BYTES: Final = 1 << 30
_SHARD_KEYS: Final = frozenset(
    ["format", "source", "shard", "shards", "epoch", "version", "recent", "partitions"]
)
_ENDED: Final = frozenset({Status.COMPLETED.value, Status.FAILED.value})
_ROW_KEYS: Final = frozenset(
    [
        "version",
        "created_at",
        "available_at",
        "status",
        "owner",
        "epoch",
        "owner_timeout",
        "progress_state",
        "closed_count",
        "attempts",
        "last_error",
        "priority",
        "place",
        "ended_at",
    ]
)


def spelled(partition: Partition) -> dict[str, Any]:
    """The stored fields of a partition, without its key and without unknown fields."""
    stored: dict[str, Any] = {"version": partition.version, "created_at": partition.created_ms}
    if partition.available_ms != partition.created_ms:
        stored["available_at"] = partition.available_ms
    if partition.status is not Status.UNASSIGNED:
        stored["status"] = partition.status.value
    fields = (
        ("epoch", partition.epoch),
        ("owner_timeout", partition.until_ms),
        ("closed_count", partition.closed_count),
        ("attempts", partition.attempts),
        ("priority", partition.priority),
        ("place", partition.place),
        ("ended_at", partition.ended_ms),
    )
    texts = (
        ("owner", partition.owner),
        ("progress_state", partition.progress),
        ("last_error", partition.last_error),
    )
    stored.update((name, number) for name, number in fields if number)
    stored.update((name, text) for name, text in texts if text is not None)
    return stored


def unknown(stored: Stored) -> dict[str, Any]:
    """The fields that a newer version wrote and this version does not know."""
    return {name: value for name, value in stored.items() if name not in _ROW_KEYS}


def status_of(stored: Stored) -> str:
    """The status of a row, as it is spelled."""
    found: str = stored.get("status", "UNASSIGNED")
    return found


def has_ended(stored: Stored) -> bool:
    """Whether the partition never becomes free again by itself."""
    return stored.get("status") in _ENDED


def fresh_row(new: NewPartition, version: str, now_ms: int, place: int) -> Stored:
    """The stored fields of a new partition, made without a `Partition` because there are many."""
    stored: dict[str, Any] = {"version": version, "created_at": now_ms}
    if place:
        stored["place"] = place
    if new.priority:
        stored["priority"] = new.priority
    if new.progress is not None:
        stored["progress_state"] = new.progress
    return stored


def read_row(source: str, key: str, stored: Stored) -> Partition:
    """The partition of a row. Raises `ValueError`, `TypeError` or `KeyError` for invalid rows."""
    get = stored.get
    created_ms = int(stored["created_at"])
    return Partition(
        source,
        key,
        version=stored["version"],
        created_ms=created_ms,
        available_ms=int(get("available_at", created_ms)),
        status=Status(get("status", "UNASSIGNED")),
        owner=get("owner"),
        epoch=int(get("epoch", 0)),
        until_ms=int(get("owner_timeout", 0)),
        progress=get("progress_state"),
        closed_count=int(get("closed_count", 0)),
        attempts=int(get("attempts", 0)),
        last_error=get("last_error"),
        priority=float(get("priority", 0.0)),
        place=int(get("place", 0)),
        ended_ms=int(get("ended_at", 0)),
    )


@dataclass(frozen=True, slots=True)
class Shard:
    """One version of a shard. `rows` are never changed in place.

    `read` caches the partitions that were asked for; versions share it.
    """

    source: str
    number: int
    shards: int
    epoch: int = 0
    version: str = ""
    recent: tuple[str, ...] = ()
    rows: Mapping[str, Stored] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    read: dict[str, Partition] = field(default_factory=dict, compare=False)

    def get(self, key: str) -> Partition | None:
        """Returns the partition. Raises `Damaged`."""
        stored = self.rows.get(key)
        return None if stored is None else self._partition(key, stored)

    def unended(self) -> Iterator[Partition]:
        """The partitions that are free now or may become free later. Raises `Damaged`."""
        rows = self.rows.items()
        return (self._partition(key, stored) for key, stored in rows if not has_ended(stored))

    def _partition(self, key: str, stored: Stored) -> Partition:
        known = self.read.get(key)
        try:
            if known is None or known.version != stored["version"]:
                known = self.read[key] = read_row(self.source, key, stored)
        except (ValueError, TypeError, KeyError) as error:
            raise Damaged(
                f"partition {key!r} in {keys.partition_shard(self.source, self.number)}"
                f" is none: {error!r}"
            ) from error
        return known


def shard_of(key: str, shards: int) -> int:
    """The number of the shard that holds `key`."""
    return xxhash.xxh3_64_intdigest(key.encode(errors="surrogatepass")) % shards


def encode_shard(shard: Shard) -> bytes:
    """The JSON of a shard."""
    return encode_checked(
        {
            **shard.others,
            "format": FORMAT,
            "source": shard.source,
            "shard": shard.number,
            "shards": shard.shards,
            "epoch": shard.epoch,
            "version": shard.version,
            "recent": shard.recent,
            "partitions": shard.rows,
        }
    )


def decode_shard(expected: Shard, json: bytes) -> Shard:
    """The shard in `json`, which must be the one that `expected` names.

    Raises `Damaged`, or its subclass `UnsupportedVersion`.
    """
    where = keys.partition_shard(expected.source, expected.number)
    try:
        value = decode_checked(json)
        if int(value["format"]) > FORMAT:
            raise UnsupportedVersion(f"{where} has format {value['format']}")
        found = Shard(
            value["source"],
            int(value["shard"]),
            int(value["shards"]),
            epoch=int(value["epoch"]),
            version=value["version"],
            recent=tuple(value["recent"]),
            rows=dict(value["partitions"]),
            others={name: kept for name, kept in value.items() if name not in _SHARD_KEYS},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{where} is not a shard: {error!r}") from error
    if not set(map(type, found.rows.values())) <= {dict}:
        raise Damaged(f"{where} holds what is no partition")
    names = (found.source, found.number, found.shards)
    if names != (expected.source, expected.number, expected.shards):
        raise Damaged(f"{where} says that it is shard {found.number} of {found.shards}")
    return found


def decode_any_shard(key: str, body: bytes) -> Shard:
    """The shard in an object's bytes, with all its partitions read, whichever shard it is.

    Raises as `decode_shard`.
    """
    json = decompressed(key, body)
    try:
        value = decode_checked(json)
        named = Shard(value["source"], int(value["shard"]), int(value["shards"]))
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"{key} is not a shard: {error!r}") from error
    found = decode_shard(named, json)
    for row in found.rows:
        found.get(row)
    return found


def compressed(json: bytes) -> bytes:
    """Encodes JSON as the object's bytes."""
    if len(json) <= PLAIN_BYTES:
        return json
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(json)


def decompressed(where: str, body: bytes) -> bytes:
    """Decodes an object, which `where` names in errors. Raises `Damaged`."""
    if not body.startswith(_MAGIC):
        return body
    try:
        size = zstandard.frame_content_size(body)
        if not 0 <= size <= _MAX_BYTES:
            raise Damaged(f"{where} says that it holds {size} bytes")
        return zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise Damaged(f"{where} cannot be decompressed: {error}") from error


def decompressed_bytes(body_bytes: int) -> int:
    """Estimates the size of the JSON in an object of that size; rather too high than too low."""
    return body_bytes * COMPRESSION
