"""The connected clients: how many in all and from one address.

Invariants: no more connections are accepted than the limits allow; the number of clients that are
being sent a refusal is bounded as well. An IPv6 address counts by its /64, which is what one client
has.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable

from logstore.errors import Unavailable
from service.http.settings import HttpSettings
from service.runtime.counters import HttpCounters

_MOST_TURNED_AWAY = 32
_AHEAD_BYTES = 32 << 20
"""What large heads, and requests that wait behind others, may take of the memory, over all
connections."""


class Clients:
    """The counts, settings and counters that all connections share."""

    def __init__(
        self, settings: HttpSettings, counters: HttpCounters, fresh_id: Callable[[], str]
    ) -> None:
        self.settings = settings
        self.counters = counters
        self.fresh_id = fresh_id
        self._of: Counter[str] = Counter()
        self._turned_away = 0
        self._ahead = 0

    def enter(self, peer: str) -> Unavailable | None:
        """Counts a connection, or returns the reason why it is one too many."""
        if self.counters.connections >= self.settings.max_connections:
            return Unavailable(
                f"there are {self.settings.max_connections} connections already",
                hint="Keep fewer connections open, or raise server.max_connections.",
            )
        if self._of[peer] >= self.settings.max_connections_per_peer:
            return Unavailable(
                f"{peer} has {self.settings.max_connections_per_peer} connections already",
                hint="Keep fewer connections open, or raise server.max_connections_per_peer.",
            )
        self._of[peer] += 1
        self.counters.connections += 1
        return None

    def leave(self, peer: str) -> None:
        """Counts an accepted connection as closed."""
        self.counters.connections -= 1
        self._of[peer] -= 1
        if not self._of[peer]:
            del self._of[peer]

    @property
    def ahead(self) -> int:
        """Bytes of the large heads and of the requests that wait."""
        return self._ahead

    def may_wait(self, size: int) -> bool:
        """Whether `size` more bytes of a large head, or of a request that waits, have room."""
        return self._ahead + size <= _AHEAD_BYTES

    def wait(self, size: int) -> None:
        """Counts bytes of a head or a request; a negative size is what has gone."""
        self._ahead += size

    def turn_away(self) -> bool:
        """Whether one more refused client may be sent the reason and take its time to read it."""
        if self._turned_away >= _MOST_TURNED_AWAY:
            self.counters.connections_refused += 1
            return False
        self._turned_away += 1
        return True

    def turned_away(self) -> None:
        """Counts a refused connection as closed."""
        self._turned_away -= 1


def peer_of(client: tuple[str, int] | None) -> str:
    """The key by which a client's connections are counted; `client` is its address and port."""
    if client is None:
        return ""
    host = client[0].partition("%")[0]
    if ":" not in host:
        return host
    return str(ipaddress.IPv6Network((host, 64), strict=False))
