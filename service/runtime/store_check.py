"""Checks at the start whether the object store can keep what is entrusted to it.

What a store refuses makes the start impossible. A store that cannot be reached, or does not answer
within a second, does not: the node takes batches, they wait in its journal, and the check is made
as soon as there is an answer; if it is refused then, the service stops as it would have at the
start. A store in a folder needs no check.
"""

from __future__ import annotations

import asyncio

from logstore.clock import Clock
from logstore.errors import InvalidInput, StoreUnavailable, with_hint
from logstore.objects.remote import RemoteStore
from logstore.objects.store import ObjectStore
from service.runtime.problem import Problem

_AGAIN_SECONDS = 10.0
_UNCHECKED = "the object store is not checked"


class StoreCheck:
    """The check of one store; `refused` is done when a late check found that it cannot be used."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        *,
        texts: str,
        expiration_days: int,
        first_seconds: float = 1.0,
    ) -> None:
        """`texts` is the prefix whose objects the bucket expires after so many days.

        `first` returns after `first_seconds` at the latest.
        """
        self._store = store if isinstance(store, RemoteStore) else None
        self._clock = clock
        self._texts = texts
        self._days = expiration_days
        self._first_seconds = first_seconds
        self._unchecked: str | None = None
        self._rule: str | None = None
        self._first: asyncio.Task[None] | None = None
        self.refused: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def first(self) -> None:
        """Checks at the start; `run` waits on for a store that takes its time.

        Raises `InvalidInput` for what the store refuses.
        """
        if self._store is None:
            return
        self._unchecked = Problem(_UNCHECKED, "the object store has not answered since the start")
        self._first = asyncio.create_task(self._try(self._store), name="first store check")
        done, _ = await asyncio.wait({self._first}, timeout=self._first_seconds)
        if done:
            self._first.result()

    async def run(self) -> None:
        """Checks again until the store has answered."""
        try:
            if self._first is not None:
                await self._first
            while self._store is not None and self._unchecked is not None:
                await self._clock.sleep(_AGAIN_SECONDS)
                await self._try(self._store)
        except InvalidInput as error:
            self.refused.set_result(error)

    def close(self) -> None:
        """Ends a check that still waits."""
        if self._first is not None:
            self._first.cancel()

    def problems(self) -> list[str]:
        """Problems of the store, as sentences."""
        return [problem for problem in (self._unchecked, self._rule) if problem is not None]

    async def _try(self, store: RemoteStore) -> None:
        try:
            await store.check()
        except StoreUnavailable as error:
            self._unchecked = Problem(_UNCHECKED, with_hint(error))
            return
        self._unchecked = None
        try:
            await store.expire(self._texts, self._days)
        except StoreUnavailable as error:
            what = "expired runs are removed by the service alone"
            self._rule = Problem(what, f"{what}: {with_hint(error)}")
