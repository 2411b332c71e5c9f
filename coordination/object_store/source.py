"""The object that describes a source of partitions: `coordination/partitions/{source}/source.json`.

    format        1
    source        the source's name, since the key may hold only a hash of it
    shards        the number of objects that hold its partitions; it never changes
    created_at    milliseconds of the store's clock

The process that makes the first partition puts the object if it is absent; nobody changes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from logstore.checked import decode_checked, encode_checked
from logstore.errors import Damaged, UnsupportedVersion
from logstore.objects.store import ObjectStore
from logstore.swap import Document, swap

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

    Raises `StoreUnavailable`, `Damaged`, and the latter's subclass `UnsupportedVersion`.
    """
    found = await _document(store, key).read()
    return None if found is None else found.value


async def make_source(store: ObjectStore, key: str, wanted: Source) -> Source:
    """The source as stored after the call; another process may have made it.

    Raises as `read_source`, and `OutcomeUnknown`.
    """

    async def change(found: Source | None) -> Source | None:
        return wanted if found is None else None

    stored = await swap(_document(store, key), change)
    assert stored is not None
    return stored.value


def _document(store: ObjectStore, key: str) -> Document[Source]:
    return Document(store, key, partial(decode_source, key), encode_source)


def encode_source(source: Source) -> bytes:
    """The bytes of a source."""
    return encode_checked(
        {
            "format": FORMAT,
            "source": source.name,
            "shards": source.shards,
            "created_at": source.created_ms,
        }
    )


def decode_source(key: str, body: bytes) -> Source:
    """The source that `body` holds. Raises `Damaged`, `UnsupportedVersion`."""
    try:
        value = decode_checked(body)
        if int(value["format"]) > FORMAT:
            raise UnsupportedVersion(f"{key} has format {value['format']}")
        found = Source(str(value["source"]), int(value["shards"]), int(value["created_at"]))
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"{key} is not a source of partitions: {error!r}") from error
    if not 0 < found.shards <= MAX_SHARDS:
        raise Damaged(f"{key} has {found.shards} shards")
    return found
