"""Requests and bytes per second of one token: two token buckets that may be in debt.

A bucket holds what is allowed in `BURST_SECONDS`. A request is admitted while both have something
left, and what it turns out to cost is taken then, also below zero: the next one waits for that.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Final

from logstore.errors import OverQuota

BURST_SECONDS: Final = 5.0
_LONGEST_SECONDS: Final = 3600


class Quota:
    """The use of one token; times are monotonic seconds, and 0 of a rate is no limit."""

    __slots__ = ("_bytes", "_requests", "_seen", "per_second")

    def __init__(self, requests: float, size: float) -> None:
        self.per_second = requests, size
        self._requests = max(1, requests * BURST_SECONDS) if requests else inf
        self._bytes = size * BURST_SECONDS or inf
        self._seen: float | None = None

    def has_room(self, now: float) -> bool:
        """Whether a request is admitted."""
        self._fill(now)
        return self._requests >= 1 and self._bytes > 0

    def take(self, requests: int, size: int) -> None:
        """Counts what was used."""
        self._requests -= requests
        self._bytes -= size

    def check(self, now: float, name: str) -> None:
        """Raises `OverQuota` with the time after which there is room."""
        if self.has_room(now):
            return
        requests, size = self.per_second
        waits = [
            (1 - self._requests) / requests if requests and self._requests < 1 else 0.0,
            -self._bytes / size if size and self._bytes <= 0 else 0.0,
        ]
        which = "requests" if waits[0] >= waits[1] else "bytes"
        raise OverQuota(
            f"{name} has used up its {which} per second",
            retry_after_seconds=min(max(1, ceil(max(waits))), _LONGEST_SECONDS),
            hint="Wait as Retry-After says; the quota is in the rules of access.",
        )

    def _fill(self, now: float) -> None:
        passed = 0.0 if self._seen is None else now - self._seen
        self._seen = now
        requests, size = self.per_second
        if requests:
            self._requests = min(
                self._requests + passed * requests, max(1, requests * BURST_SECONDS)
            )
        if size:
            self._bytes = min(self._bytes + passed * size, size * BURST_SECONDS)
