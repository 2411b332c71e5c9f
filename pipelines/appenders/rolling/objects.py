"""An object store for appenders, which make blocking calls in a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from logstore.clock import Clock, system_entropy
from logstore.disk import Disk
from logstore.objects.open import open_store
from logstore.objects.settings import StoreSettings
from logstore.objects.store import ObjectInfo, ObjectStore

T = TypeVar("T")


class Objects:
    """A store that is open until `close`; all calls come from one thread."""

    def __init__(self, settings: StoreSettings, clock: Clock) -> None:
        self._runner = asyncio.Runner()
        self._open = AsyncExitStack()
        self._store = self._runner.run(self._opened(settings, clock))

    def call(self, call: Callable[[ObjectStore], Awaitable[T]]) -> T:
        """What a call of the store gives. Raises what it raises."""

        async def run() -> T:
            return await call(self._store)

        return self._runner.run(run())

    def list(self, prefix: str) -> list[ObjectInfo]:
        """The objects whose keys have the prefix."""

        async def all_of(found: AsyncIterator[ObjectInfo]) -> list[ObjectInfo]:
            return [one async for one in found]

        return self.call(lambda store: all_of(store.list(prefix)))

    def close(self) -> None:
        """Closes the store's connections."""
        try:
            self._runner.run(self._open.aclose())
        finally:
            self._runner.close()

    async def _opened(self, settings: StoreSettings, clock: Clock) -> ObjectStore:
        store = open_store(settings, clock, system_entropy(), Disk(private=True))
        return await self._open.enter_async_context(store)
