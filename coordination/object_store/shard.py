"""A shard: the partitions of a source whose keys have one hash, in one object.

`coordination/partitions/{source}/{shard:04x}.json`, changed by compare-and-swap, is JSON that
`codec.py` packs:

    format        1
    source        the source's name
    shard, shards this shard's number, and how many the source has
    epoch         the last that was given out here; it rises with every acquisition and never
                  falls, so epochs go on when a partition is deleted and made again. The object
                  is never removed
    version       the ULID of this write, so no two versions have equal bytes
    recent        the ULIDs of the last writes, this one last: who did not hear what became of
                  a write finds it here, also when others have written since
    partitions    key: row (`row.py`)

A partition's shard is the XXH3 (64 bits) of its key's UTF-8 modulo `shards`. Keys that this
version does not know survive a rewrite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import xxhash

from coordination.object_store.row import Stored, has_ended, read_row
from coordination.partitions.partition import Partition
from logstore import keys
from logstore.errors import Damaged, UnsupportedVersion

FORMAT: Final = 1
RECENT: Final = 16
_NAMES: Final = "format source shard shards epoch version recent partitions"
_KNOWN: Final = frozenset(_NAMES.split(" "))


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
    return orjson.dumps(
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
        value = orjson.loads(json)
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
            others={name: kept for name, kept in value.items() if name not in _KNOWN},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{where} is not a shard: {error!r}") from error
    if not set(map(type, found.rows.values())) <= {dict}:
        raise Damaged(f"{where} holds what is no partition")
    names = (found.source, found.number, found.shards)
    if names != (expected.source, expected.number, expected.shards):
        raise Damaged(f"{where} says that it is shard {found.number} of {found.shards}")
    return found
