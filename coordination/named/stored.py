"""All named leases of a store, for operators: list them, read one, free one.

The key of a lease is the part of its object's key behind the source: encoded names with `/`
between, as lists show it. No other object can be addressed by it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from coordination.named.record import LeaseName, LeaseRecord, decode_lease, encode_lease
from coordination.storetime import StoreTime
from logstore import keys
from logstore import ulid as ulids
from logstore.clock import Clock, Entropy
from logstore.errors import Damaged, PreconditionFailed
from logstore.objects.store import ObjectStore
from logstore.swap import Document, Revision, swap

_AT_ONCE: Final = 16
_COMPONENT: Final = r"[A-Za-z0-9_%-][A-Za-z0-9._%~-]*"
_SOURCE: Final = re.compile(_COMPONENT)
_KEY: Final = re.compile(rf"{_COMPONENT}(/{_COMPONENT})*")


class StoredLease(NamedTuple):
    """A named lease with its source and key, and the ETag that a change is conditional on."""

    source: str
    key: str
    lease: LeaseRecord
    etag: str


class StoredLeases:
    """All named leases of a store."""

    def __init__(self, store: ObjectStore, clock: Clock, entropy: Entropy, time: StoreTime) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self.time = time

    async def sources(self) -> list[str]:
        """The sources that have leases, sorted. Raises `StoreUnavailable`."""
        return [name async for name in self._store.folders(keys.LEASES)]

    async def each(
        self, source: str, unreadable: dict[str, str], *, after: str = ""
    ) -> AsyncIterator[StoredLease]:
        """The leases of a source by key, behind `after`. Raises `StoreUnavailable`.

        Of those that cannot be read, `unreadable` gets the keys of the objects, and why.
        """
        prefix = keys.leases_of(source)
        waiting: list[str] = []
        async for info in self._store.list(prefix, after=prefix + after):
            waiting.append(info.key.removeprefix(prefix))
            if len(waiting) == _AT_ONCE:
                for stored in await self._read(source, waiting, unreadable):
                    yield stored
                waiting.clear()
        for stored in await self._read(source, waiting, unreadable):
            yield stored

    async def get(self, source: str, key: str) -> StoredLease | None:
        """Returns one lease, None if there is none. Raises `StoreUnavailable`, `Damaged`."""
        if _SOURCE.fullmatch(source) is None or _KEY.fullmatch(key) is None:
            return None
        found = await self._document(source, key).read()
        return None if found is None else StoredLease(source, key, found.value, found.etag)

    async def free(self, stored: StoredLease) -> StoredLease:
        """Frees a lease; its holder notices at its next heartbeat.

        Raises `PreconditionFailed` if the lease changed meanwhile, `StoreUnavailable`,
        `OutcomeUnknown`.
        """

        async def free(found: LeaseRecord | None) -> LeaseRecord | None:
            if found is None or found.version != stored.lease.version:
                raise PreconditionFailed(f"{stored.key!r} of {stored.source!r} has changed")
            version = ulids.fresh_text(self._clock, self._entropy)
            return replace(found, owner=None, version=version)

        known = Revision(stored.lease, stored.etag)
        free_now = await swap(self._document(stored.source, stored.key), free, known=known)
        assert free_now is not None
        return stored._replace(lease=free_now.value, etag=free_now.etag)

    def _document(self, source: str, key: str) -> Document[LeaseRecord]:
        # Spelled by its own name, which the object has: its key may hold only a hash of it.
        name = LeaseName(source, tuple(key.split("/")))
        return Document(
            self._store,
            keys.leases_of(source) + key,
            partial(decode_lease, name),
            partial(encode_lease, partition=key),
        )

    async def _read(
        self, source: str, names: list[str], unreadable: dict[str, str]
    ) -> list[StoredLease]:
        async def read(name: str) -> StoredLease | None:
            try:
                return await self.get(source, name)
            except Damaged as error:
                unreadable[keys.leases_of(source) + name] = str(error)
                return None

        found = await asyncio.gather(*(read(name) for name in names))
        return [stored for stored in found if stored is not None]
