"""Pauses between the tries of one operation, and a loop that tries until the store is available."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import OutcomeUnknown, Unavailable

_BITS: Final = 16
_MOST_DOUBLINGS: Final = 60
_RETRY_SECONDS: Final = 1.0


def doubled(first: float, times: int, longest: float) -> float:
    """Returns `first`, doubled so many times, but at most `longest`."""
    return min(first * 2.0 ** min(times, _MOST_DOUBLINGS), longest)


def spread(seconds: float, entropy: Entropy, least: float = 0.0) -> float:
    """Returns a random part of the seconds, at least the part `least`.

    Callers that failed at the same time thus do not try again at the same time.
    """
    return seconds * (least + (1 - least) * entropy.getrandbits(_BITS) / (1 << _BITS))


class Backoff:
    """Pauses in seconds that double from `first` to `longest`."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._given = 0

    def next(self) -> float:
        """Returns the pause before the next try; the one after it is twice as long."""
        self._given += 1
        return doubled(self._first, self._given - 1, self._longest)

    def reset(self) -> None:
        """Begins again with the first pause, after a success."""
        self._given = 0


@dataclass(frozen=True, slots=True)
class Tries:
    """How often a request is tried, and the pause before the second try.

    Each pause is a random part of its longest, at least `least_part` of it.
    """

    count: int = 4
    pause_seconds: float = 0.1
    longest_seconds: float = 5.0
    least_part: float = 0.5

    def pauses(self, entropy: Entropy) -> Iterator[float]:
        """Seconds to wait before each try."""
        yield 0.0
        for times in range(self.count - 1):
            longest = doubled(self.pause_seconds, times, self.longest_seconds)
            yield spread(longest, entropy, self.least_part)


async def retry_until_available(
    step: Callable[[], Awaitable[None]], clock: Clock, report: Callable[[Exception | None], None]
) -> None:
    """Repeats `step` until it succeeds. `report` gets each failure, finally None."""
    while True:
        try:
            await step()
        except (Unavailable, OutcomeUnknown) as error:
            report(error)
            await clock.sleep(_RETRY_SECONDS)
        else:
            report(None)
            return
