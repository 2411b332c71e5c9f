"""What a store on a server has beyond the seam: a clock, requests that cost, rules to ask for.

Here so that who asks for these needs none of the vendor's modules, which are loaded only
where a bucket is opened: they cost 35 MB that a store in a folder does without.

A store that has a clock of its own, S3, says in every answer what time it was, cut to whole
seconds. Between sending and arrival the store's time was once between `date_ms` and
`date_ms` + 1 s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from logstore.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class DateSample:
    """A `Date` (ms since the epoch), and when its request was sent and answered.

    `sent` and `arrived` are seconds of `Clock.monotonic`, `now_ms` is our clock at the arrival.
    """

    date_ms: int
    sent: float
    arrived: float
    now_ms: int

    @property
    def ahead_ms(self) -> int:
        """How far our clock is ahead of the store's at least; negative if it is behind."""
        slow_ms = round((self.arrived - self.sent) * 1000)
        early, late = self.now_ms - slow_ms - (self.date_ms + 1000), self.now_ms - self.date_ms
        if early > 0:
            return early
        return min(late, 0)


class Requesting(Protocol):
    """What makes the requests."""

    @property
    def made(self) -> Mapping[str, int]:
        """Requests by operation, tries included; it goes on counting."""
        ...


@runtime_checkable
class RemoteStore(Protocol):
    """The further side of an object store on a server."""

    @property
    def requests(self) -> Requesting: ...

    @property
    def newest_date(self) -> DateSample | None:
        """What the last answer said of the store's clock."""
        ...

    async def check(self) -> None:
        """Asks for all that is relied on. Raises `InvalidInput`, `StoreUnavailable`."""
        ...

    async def expire(self, prefix: str, days: int) -> bool:
        """Lets the server remove what is below `prefix/` and older. Raises `StoreUnavailable`."""
        ...


def requests_of(store: ObjectStore) -> Mapping[str, int]:
    """The requests that it has made, counted on, by operation; none of a folder."""
    return store.requests.made if isinstance(store, RemoteStore) else {}


def newest_date_of(store: ObjectStore) -> Callable[[], DateSample | None] | None:
    """Asks for the last sample of the store's clock; None if it has none, as a folder."""
    return (lambda: store.newest_date) if isinstance(store, RemoteStore) else None
