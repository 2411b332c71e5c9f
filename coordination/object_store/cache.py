"""The memory that shards may take: those that are kept, and those that are being worked on.

kept        the shards used last; others drop their rows as soon as memory is needed
in work     shards being read or written, with their memory reserved: as many as fit into half
            of the limit, or one that needs more
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

EXPANSION: Final = 5
"""What a shard takes in memory per byte of its JSON, measured: objects of Python are large."""


class Forgetful(Protocol):
    """An object that holds rows and can drop them."""

    def forget_rows(self) -> None:
        """Drops the rows, and keeps what is small."""
        ...


class Cache:
    """Makes the least recently used holders drop their rows; never the one that was used last."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._sizes: OrderedDict[Forgetful, int] = OrderedDict()
        self._held = 0
        self._under_way = 0
        self._turn = asyncio.Lock()
        self._left = asyncio.Event()

    def used(self, holder: Forgetful, size: int) -> None:
        """Records that `holder` uses a shard with `size` bytes of JSON."""
        self.dropped(holder)
        self._sizes[holder] = size * EXPANSION
        self._held += size * EXPANSION
        self._shrink()

    def dropped(self, holder: Forgetful) -> None:
        """Records that `holder` holds no shard any more."""
        self._held -= self._sizes.pop(holder, 0)

    @asynccontextmanager
    async def reserved(self, holder: Forgetful, size: int) -> AsyncIterator[None]:
        """Waits, first come first served, until `holder` may work on that many bytes of JSON.

        A holder that has its reservation waits for no other.
        """
        needed = size * EXPANSION
        async with self._turn:
            # Half of the memory stays for shards that are kept for the next operation.
            while self._under_way and self._under_way + needed > self.limit_bytes // 2:
                self._left.clear()
                await self._left.wait()
            self._under_way += needed
        try:
            if holder in self._sizes:
                self._sizes.move_to_end(holder)
            self._shrink()
            yield
        finally:
            self._under_way -= needed
            self._left.set()

    def _shrink(self) -> None:
        while self._held + self._under_way > self.limit_bytes and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self.dropped(oldest)
            oldest.forget_rows()
