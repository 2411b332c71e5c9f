"""Which lines are deleted: what the store says, read again only where it changed.

The key of a run's record says all of it, so records are listed, and only few are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from logstore import keys
from logstore.errors import NotFound
from logstore.objects.store import ObjectInfo, ObjectStore
from logstore.runs.deletion import Deletion, decode_deletion, deletion_at

MOST_DELETIONS: Final = 10_000
"""At a time: they are held in memory, and told to every executor."""
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class StoredDeletion:
    """A deletion, its key, and when it was stored by the store's clock, perhaps in seconds."""

    deletion: Deletion
    modified_ms: int
    key: str


@dataclass(frozen=True, slots=True)
class Deletions:
    """Those of a store. There may be as many as runs that expire in some weeks."""

    _read: dict[str, tuple[str, Deletion]] = field(default_factory=dict)

    async def all(self, store: ObjectStore) -> list[StoredDeletion]:
        """Every deletion of now. Raises `StoreUnavailable`, `Damaged`."""
        listed = [info async for info in store.list(keys.DELETED)]
        fresh = [info.key for info in listed if not self._is_known(info)]
        for start in range(0, len(fresh), _AT_ONCE):
            some = fresh[start : start + _AT_ONCE]
            await asyncio.gather(*(self._get(store, key) for key in some))
        for gone in self._read.keys() - {info.key for info in listed}:
            del self._read[gone]
        found = [(self._read.get(info.key), info) for info in listed]
        return [
            StoredDeletion(read[1], info.modified_ms, info.key)
            for read, info in found
            if read is not None
        ]

    async def above(self, store: ObjectStore, low: int) -> list[Deletion]:
        """Those of ULIDs at or above `low`. Raises as `all`."""
        return [one.deletion for one in await self.all(store) if one.deletion.t >= low]

    def _is_known(self, info: ObjectInfo) -> bool:
        read = self._read.get(info.key)
        if read is not None and read[0] == info.etag:
            return True
        said = deletion_at(info.key)
        if said is not None:
            self._read[info.key] = (info.etag, said)
        return said is not None

    async def _get(self, store: ObjectStore, key: str) -> None:
        try:
            found, body = await store.get(key)
        except NotFound:  # it is done everywhere, and somebody removed it
            self._read.pop(key, None)
        else:
            self._read[key] = (found.etag, decode_deletion(body))


async def deletions_above(store: ObjectStore, low: int) -> Sequence[Deletion]:
    """Deletions of ULIDs at or above `low`. Raises `StoreUnavailable`, `Damaged`."""
    return await Deletions().above(store, low)
