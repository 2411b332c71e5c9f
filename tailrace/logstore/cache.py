"""A cache of immutable values, bounded by their bytes, for any thread; those used last stay."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Cache(Generic[T]):
    """A cache of at most `limit_bytes`; callers say how large each value is."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = Lock()
        self.bytes = 0

    def get(self, key: Hashable) -> T | None:
        """The value, if it is held."""
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            self._held.move_to_end(key)
            return found[0]

    def drop(self, key: Hashable) -> None:
        """Removes the value, if it is held."""
        with self._lock:
            _, size = self._held.pop(key, (None, 0))
            self.bytes -= size

    def put(self, key: Hashable, value: T, size: int) -> None:
        """Stores the value, unless it is larger than the cache."""
        with self._lock:
            if size > self._limit or key in self._held:
                return
            self._held[key] = (value, size)
            self.bytes += size
            while self.bytes > self._limit:
                _, (_, gone) = self._held.popitem(last=False)
                self.bytes -= gone
