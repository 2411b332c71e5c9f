"""How long to wait before the next attempt."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Callable, Optional

from tailrace_client import system

_BITS = 32


class Backoff:
    """Pauses that double up to `longest` seconds, each a random part of at least a half.

    A pause is never shorter than what the service asked for.
    """

    def __init__(
        self,
        first: float = 0.2,
        longest: float = 30.0,
        random_bits: Callable[[int], int] = system.random_bits,
    ) -> None:
        self._first = first
        self._longest = longest
        self._next = first
        self._random_bits = random_bits

    def pause(self, retry_after: Optional[float] = None) -> float:
        """Seconds until the next attempt."""
        part = self._random_bits(_BITS) / (1 << _BITS)
        pause = self._next * (0.5 + part / 2)
        self._next = min(self._next * 2, self._longest)
        # Those who were told the same time do not all come back at the same moment.
        return pause if retry_after is None else max(pause, retry_after * (1 + part / 10))

    def reset(self) -> None:
        """After a success."""
        self._next = self._first


def parse_retry_after(
    text: Optional[str], now_ms: Callable[[], int] = system.now_ms
) -> Optional[float]:
    """Seconds that a `Retry-After` header asks for; None if it is missing or unreadable."""
    if not text:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    moment = parse_http_date(text)
    return None if moment is None else max((moment - now_ms()) / 1000, 0.0)


def parse_http_date(text: Optional[str]) -> Optional[int]:
    """A `Date` header in milliseconds since 1970; None if it is missing or unreadable."""
    try:
        return int(parsedate_to_datetime(text or "").timestamp() * 1000)
    except (TypeError, ValueError, IndexError):
        return None
