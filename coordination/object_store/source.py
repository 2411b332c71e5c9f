"""What a source of partitions is: `coordination/partitions/{source}/source.json`.

    format        1
    source        its name; the key may hold only a hash of it
    shards        among how many objects its partitions are spread; it never changes
    created_at    milliseconds of the store's clock

Put if absent by whoever makes the first partition, and never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson

from logstore.errors import (
    Damaged,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    UnsupportedVersion,
)
from logstore.objects.ambiguous import Unclear
from logstore.objects.store import ObjectStore

FORMAT: Final = 1
MAX_SHARDS: Final = 4096


@dataclass(frozen=True, slots=True)
class Source:
    """A source's name and its number of shards."""

    name: str
    shards: int
    created_ms: int


async def read_source(store: ObjectStore, key: str) -> Source | None:
    """The source whose object is `key`; None if there is none.

    Raises `StoreUnavailable`, `Damaged`, and of that `UnsupportedVersion`.
    """
    try:
        body = (await store.get(key))[1]
    except NotFound:
        return None
    return _decode(key, body)


async def make_source(store: ObjectStore, key: str, wanted: Source) -> Source:
    """The source that is there afterwards, which somebody else may have made.

    Raises as `read_source`, and `OutcomeUnknown`.
    """
    unclear = Unclear()
    while (found := await read_source(store, key)) is None:
        try:
            await store.put(key, _encode(wanted), if_absent=True)
        except PreconditionFailed:
            continue
        except OutcomeUnknown as error:
            unclear.bear(error)
        else:
            return wanted
    return found


def _encode(source: Source) -> bytes:
    return orjson.dumps(
        {
            "format": FORMAT,
            "source": source.name,
            "shards": source.shards,
            "created_at": source.created_ms,
        }
    )


def _decode(key: str, body: bytes) -> Source:
    try:
        value = orjson.loads(body)
        if int(value["format"]) > FORMAT:
            raise UnsupportedVersion(f"{key} has format {value['format']}")
        found = Source(str(value["source"]), int(value["shards"]), int(value["created_at"]))
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"{key} is not a source of partitions: {error!r}") from error
    if not 0 < found.shards <= MAX_SHARDS:
        raise Damaged(f"{key} has {found.shards} shards")
    return found
