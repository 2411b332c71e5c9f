"""Which shard a worker turns to: each goes round all of them in an order of its own.

A worker stays at a shard as long as it gives work, so that its next acquire needs no read,
but no longer than `STAY_SECONDS`: what waits in other shards must not wait for ever. It
leaves a shard where it met another worker.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import xxhash

STAY_SECONDS: Final = 10.0
_OWNERS: Final = 256


class Route:
    """One owner's way."""

    def __init__(self, owner: str, shards: int) -> None:
        self._order = sorted(
            range(shards), key=lambda number: xxhash.xxh3_64_intdigest(f"{owner} {number}".encode())
        )
        self._at = -1
        self._since: float | None = None

    def here(self, now: float) -> int | None:
        """The shard to stay at; None if it is time to look around. `now` in seconds."""
        if self._since is not None and now - self._since >= STAY_SECONDS:
            self._since = None
        return None if self._since is None else self._order[self._at]

    def ahead(self) -> list[int]:
        """All shards, the next one first and the last visited last."""
        return self._order[self._at + 1 :] + self._order[: self._at + 1]

    def arrive(self, number: int, now: float) -> None:
        """That shard gave work."""
        at = self._order.index(number)
        if self._since is None or at != self._at:
            self._at, self._since = at, now


class Routes:
    """The routes of a source's owners of late."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._routes: OrderedDict[str, Route] = OrderedDict()

    def of(self, owner: str) -> Route:
        """The owner's."""
        route = self._routes.pop(owner, None) or Route(owner, self._shards)
        self._routes[owner] = route
        if len(self._routes) > _OWNERS:
            self._routes.popitem(last=False)
        return route
