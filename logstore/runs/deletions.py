"""The deletions of a store: records are listed, and few of them are read.

The key of a run's record contains the whole record. Other records are read again only if they
changed. There may be as many records as runs that expire in some weeks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from logstore import keys
from logstore.errors import NotFound
from logstore.objects.store import ObjectInfo, ObjectStore
from logstore.runs.deletion import Deletion, decode_deletion, deletion_at

_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class StoredDeletion:
    """A deletion, its key, and when it was stored by the store's clock, perhaps in seconds."""

    deletion: Deletion
    modified_ms: int
    key: str


@dataclass(frozen=True, slots=True)
class StoredDeletions:
    """The deletions of one store, for a caller that reads them repeatedly."""

    _read: dict[str, tuple[str, Deletion]] = field(default_factory=dict)

    async def each(
        self, store: ObjectStore, prefix: str = keys.DELETED
    ) -> AsyncIterator[StoredDeletion]:
        """Every present deletion whose key has the prefix; those that had to be read come last.

        Raises `StoreUnavailable`, `Damaged`.
        """
        others: list[ObjectInfo] = []
        async for info in store.list(prefix):
            said = deletion_at(info.key)
            if said is None:
                others.append(info)
            else:
                yield StoredDeletion(said, info.modified_ms, info.key)
        await self._read_changed(store, others)
        listed = {info.key for info in others}
        for gone in [key for key in self._read if key.startswith(prefix) and key not in listed]:
            del self._read[gone]
        for info in others:
            if info.key in self._read:
                yield StoredDeletion(self._read[info.key][1], info.modified_ms, info.key)

    async def all(self, store: ObjectStore) -> list[StoredDeletion]:
        """Every present deletion, in the order of keys. Raises as `each`."""
        found = [one async for one in self.each(store)]
        return sorted(found, key=lambda one: one.key)

    async def above(self, store: ObjectStore, low: int) -> list[Deletion]:
        """The deletions of ULIDs at or above `low`. Raises as `each`."""
        return [one.deletion for one in await self.all(store) if one.deletion.t >= low]

    async def _read_changed(self, store: ObjectStore, infos: Sequence[ObjectInfo]) -> None:
        known = {key: etag for key, (etag, _) in self._read.items()}
        changed = [info.key for info in infos if known.get(info.key) != info.etag]
        for start in range(0, len(changed), _AT_ONCE):
            some = changed[start : start + _AT_ONCE]
            await asyncio.gather(*(self._get(store, key) for key in some))

    async def _get(self, store: ObjectStore, key: str) -> None:
        try:
            found, body = await store.get(key)
        except NotFound:  # it is done everywhere, and somebody removed it
            self._read.pop(key, None)
        else:
            self._read[key] = (found.etag, decode_deletion(body))


async def deletions_above(store: ObjectStore, low: int) -> Sequence[Deletion]:
    """Deletions of ULIDs at or above `low`. Raises `StoreUnavailable`, `Damaged`."""
    return await StoredDeletions().above(store, low)
