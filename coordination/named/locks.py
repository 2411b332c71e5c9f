"""The named leases of `coordination.named`, as who operates them needs them: all, one, free it.

A key is that of the lease's object behind its source: encoded names with `/` between, which is
what lists show. Nothing else can be reached by it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final, NamedTuple

from coordination.named.lease import Lease, LeaseName, decode_lease, encode_lease
from coordination.storetime import StoreTime
from logstore import keys
from logstore import ulid as ulids
from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.errors import NotFound, OutcomeUnknown
from logstore.objects.store import ObjectStore

_AT_ONCE: Final = 16
_COMPONENT: Final = r"[A-Za-z0-9_%-][A-Za-z0-9._%~-]*"
_SOURCE: Final = re.compile(_COMPONENT)
_KEY: Final = re.compile(rf"{_COMPONENT}(/{_COMPONENT})*")


class Lock(NamedTuple):
    """A named lease under its source and key, and the ETag to change it by."""

    source: str
    key: str
    lease: Lease
    etag: str


class Locks:
    """All named leases of a store."""

    def __init__(self, store: ObjectStore, clock: Clock, entropy: Entropy, time: StoreTime) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self.time = time

    async def sources(self) -> list[str]:
        """Kinds of work that there are leases of, sorted. Raises `StoreUnavailable`."""
        return [name async for name in self._store.folders(keys.LEASES)]

    async def each(self, source: str, *, after: str = "") -> AsyncIterator[Lock]:
        """Leases of a source by key, behind `after`. Raises `StoreUnavailable`, `Damaged`."""
        prefix = keys.leases_of(source)
        waiting: list[str] = []
        async for info in self._store.list(prefix, after=prefix + after):
            waiting.append(info.key.removeprefix(prefix))
            if len(waiting) == _AT_ONCE:
                for lock in await self._read(source, waiting):
                    yield lock
                waiting.clear()
        for lock in await self._read(source, waiting):
            yield lock

    async def get(self, source: str, key: str) -> Lock | None:
        """One of them, None if there is none. Raises `StoreUnavailable`, `Damaged`."""
        if _SOURCE.fullmatch(source) is None or _KEY.fullmatch(key) is None:
            return None
        where = keys.leases_of(source) + key
        try:
            info, body = await self._store.get(where)
        except NotFound:
            return None
        lease = decode_lease(LeaseName(source, tuple(key.split("/"))), body)
        return Lock(source, key, lease, info.etag)

    async def free(self, lock: Lock) -> Lock:
        """Takes it from whoever has it; a holder notices at its next heartbeat.

        Raises `PreconditionFailed` if it is another version by now, `StoreUnavailable`,
        `OutcomeUnknown`.
        """
        version = ulids.encode(ulids.fresh(self._clock, self._entropy))
        lease = replace(lock.lease, owner=None, version=version)
        where = keys.leases_of(lock.source) + lock.key
        # Spelled by its own name, which the object has: its key may hold only a hash of it.
        body = encode_lease(lease, partition=lock.key)
        try:
            info = await self._store.put(where, body, if_match=lock.etag)
        except OutcomeUnknown:
            found = await self.get(lock.source, lock.key)
            if found is None or found.lease.version != version:
                raise
            return found
        return lock._replace(lease=lease, etag=info.etag)

    async def _read(self, source: str, names: list[str]) -> list[Lock]:
        found = await asyncio.gather(*(self.get(source, name) for name in names))
        return [lock for lock in found if lock is not None]
