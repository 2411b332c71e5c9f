"""Maps with a bound, from which the entries that were not used for longest go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, ItemsView, Iterator, Sequence, ValuesView
from math import inf
from operator import itemgetter
from threading import Lock
from typing import Final, Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
ENTRY_BYTES: Final = 560  # of a small value in a cache, beyond its bytes: key and objects


class BoundedCache(Generic[K, V]):
    """A map of at most `most` entries, in the order of their last use, oldest first.

    With `size_of`, `most` bounds the sum of the sizes; the size of a value must not change. The
    newest `least` entries stay, however large they are. Without `most`, its owner drops entries
    itself. It is not thread-safe.
    """

    __slots__ = ("_entries", "_least", "_most", "_size_of", "size")

    def __init__(
        self, most: float = inf, size_of: Callable[[V], int] | None = None, *, least: int = 0
    ) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._most = most
        self._size_of = size_of
        self._least = least
        self.size = 0
        """The sum of the sizes; without `size_of`, the number of entries."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def items(self) -> ItemsView[K, V]:
        """The entries, oldest first."""
        return self._entries.items()

    def values(self) -> ValuesView[V]:
        """The values, oldest first."""
        return self._entries.values()

    def get(self, key: K) -> V | None:
        """Returns the value, and makes its entry the newest."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def peek(self, key: K) -> V | None:
        """Returns the value; its entry keeps its place in the order."""
        return self._entries.get(key)

    def put(self, key: K, value: V) -> Sequence[tuple[K, V]]:
        """Makes this the newest entry. Returns the entries that had to go, oldest first."""
        self.pop(key)
        self._entries[key] = value
        self.size += 1 if self._size_of is None else self._size_of(value)
        return self.shrink(self._most) if self.size > self._most else ()

    def pop(self, key: K) -> V | None:
        """Removes the entry and returns its value, if it exists."""
        if key not in self._entries:
            return None
        value = self._entries.pop(key)
        self.size -= 1 if self._size_of is None else self._size_of(value)
        return value

    def pop_oldest(self) -> tuple[K, V]:
        """Removes the oldest entry. Raises `KeyError` if the map is empty."""
        key, value = self._entries.popitem(last=False)
        self.size -= 1 if self._size_of is None else self._size_of(value)
        return key, value

    def shrink(self, most: float) -> Sequence[tuple[K, V]]:
        """Drops entries down to `most`, now only. Returns them, oldest first."""
        gone = []
        while self.size > most and len(self._entries) > self._least:
            gone.append(self.pop_oldest())
        return gone

    def clear(self) -> None:
        """Removes all entries."""
        self._entries.clear()
        self.size = 0

    def copy(self) -> BoundedCache[K, V]:
        """Returns a map of its own with the same bound, entries and values."""
        other = BoundedCache[K, V](self._most, self._size_of, least=self._least)
        other._entries = self._entries.copy()
        other.size = self.size
        return other


class Cache(Generic[T]):
    """Immutable values of at most `limit_bytes`, for any thread; callers say how large each is."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: BoundedCache[Hashable, tuple[T, int]] = BoundedCache(limit_bytes, itemgetter(1))
        self._lock = Lock()

    @property
    def bytes(self) -> int:
        """The size of all values."""
        return self._held.size

    def get(self, key: Hashable) -> T | None:
        """Returns the value, if it is held."""
        with self._lock:
            found = self._held.get(key)
            return None if found is None else found[0]

    def drop(self, key: Hashable) -> None:
        """Removes the value, if it is held."""
        with self._lock:
            self._held.pop(key)

    def put(self, key: Hashable, value: T, size: int) -> None:
        """Stores the value, unless it is larger than the cache. `size` includes its objects."""
        with self._lock:
            if size <= self._limit and key not in self._held:
                self._held.put(key, (value, size))
