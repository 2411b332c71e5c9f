"""Checks at the start whether the object store can keep what is entrusted to it.

What a store refuses makes the start impossible. A store that cannot be reached does not: the
node takes batches, they wait in its journal, and the check is made as soon as there is an
answer; if it is refused then, the service stops as it would have at the start. A store in a
folder needs no check.
"""

from __future__ import annotations

import asyncio

from logstore.clock import Clock
from logstore.errors import InvalidInput, StoreUnavailable
from logstore.objects.remote import RemoteStore
from logstore.objects.store import ObjectStore

_AGAIN_SECONDS = 10.0


class StoreCheck:
    """The check of one store; `refused` is done when a late check found that it cannot be used."""

    def __init__(
        self, store: ObjectStore, clock: Clock, *, texts: str, expiration_days: int
    ) -> None:
        """`texts` is the prefix whose objects the bucket expires after so many days."""
        self._store = store if isinstance(store, RemoteStore) else None
        self._clock = clock
        self._texts = texts
        self._days = expiration_days
        self._unchecked: str | None = None
        self._rule: str | None = None
        self.refused: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def first(self) -> None:
        """Checks once, at the start. Raises `InvalidInput` for what the store refuses."""
        if self._store is not None:
            await self._try(self._store)

    async def run(self) -> None:
        """Checks again until the store has answered."""
        while self._store is not None and self._unchecked is not None:
            await self._clock.sleep(_AGAIN_SECONDS)
            try:
                await self._try(self._store)
            except InvalidInput as error:
                self.refused.set_result(error)
                return

    def problems(self) -> list[str]:
        """Problems of the store, as sentences."""
        return [problem for problem in (self._unchecked, self._rule) if problem is not None]

    async def _try(self, store: RemoteStore) -> None:
        try:
            await store.check()
        except StoreUnavailable as error:
            self._unchecked = str(error)
            return
        self._unchecked = None
        try:
            await store.expire(self._texts, self._days)
        except StoreUnavailable as error:
            self._rule = f"expired runs are removed by the service alone: {error}"
