"""How many shards are kept in memory: those used last, up to so many bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

EXPANSION: Final = 5
"""What a shard takes in memory per byte in the store, measured: objects of Python are large."""


class Forgetful(Protocol):
    """What holds a shard."""

    def forget_rows(self) -> None:
        """Keeps what is small of it."""
        ...


class Cache:
    """Least recently used ones forget their rows; the one that was used last never does."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._sizes: OrderedDict[Forgetful, int] = OrderedDict()
        self._held = 0

    def used(self, holder: Forgetful, size: int) -> None:
        """`holder` holds a shard whose object has `size` bytes."""
        self.dropped(holder)
        self._sizes[holder] = size * EXPANSION
        self._held += size * EXPANSION
        while self._held > self._limit and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self.dropped(oldest)
            oldest.forget_rows()

    def dropped(self, holder: Forgetful) -> None:
        """`holder` holds none any more."""
        self._held -= self._sizes.pop(holder, 0)
