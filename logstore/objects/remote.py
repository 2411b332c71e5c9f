"""The further operations of a store on a server: a clock, request counts, rules and checks.

Callers of these need none of the vendor's modules, which cost 35 MB of memory and are loaded only
where a bucket is opened; a store in a folder does without them.

A store with a clock of its own, S3, sends its time in every answer, cut to whole
seconds. At some moment between sending and arrival the store's time was between `date_ms` and
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

    `sent` and `arrived` are seconds of `Clock.monotonic`; `now_ms` is our wall clock at arrival.
    """

    date_ms: int
    sent: float
    arrived: float
    now_ms: int

    @property
    def bounds_ms(self) -> tuple[int, int]:
        """The least and the most ms by which our clock was ahead of the store's."""
        slow_ms = round((self.arrived - self.sent) * 1000)
        return self.now_ms - slow_ms - (self.date_ms + 1000), self.now_ms - self.date_ms

    @property
    def ahead_ms(self) -> int:
        """The ms by which our clock is ahead of the store's for sure; negative if behind."""
        least, most = self.bounds_ms
        return least if least > 0 else min(most, 0)


class Requesting(Protocol):
    """The part of a store that makes requests."""

    @property
    def made(self) -> Mapping[str, int]:
        """The number of requests by operation, including retries.

        The mapping is updated in place.
        """
        ...


@runtime_checkable
class RemoteStore(Protocol):
    """An object store on a server, with its further operations."""

    @property
    def requests(self) -> Requesting: ...

    @property
    def newest_date(self) -> DateSample | None:
        """The last sample of the store's clock."""
        ...

    async def check(self) -> None:
        """Checks all features that we rely on. Raises `InvalidInput`, `StoreUnavailable`."""
        ...

    async def expire(self, prefix: str, days: int) -> bool:
        """Makes the server remove older objects below `prefix/`. Raises `StoreUnavailable`."""
        ...


def requests_of(store: ObjectStore) -> Mapping[str, int]:
    """The live counts of the store's requests by operation; empty for a folder."""
    return store.requests.made if isinstance(store, RemoteStore) else {}


def newest_date_of(store: ObjectStore) -> Callable[[], DateSample | None] | None:
    """A function for the last sample of the store's clock; None for a store without one."""
    return (lambda: store.newest_date) if isinstance(store, RemoteStore) else None
