"""Time ranges: where text lies in time, by the footers of segments, and which files may overlap.

A time range is within one hour (UTC), as a table file is. Planning knows only these of the input.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from logstore import ulid

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Text between two ULIDs, inclusive, of one hour; `size` in bytes."""

    low: int
    high: int
    size: int


def hour_of(value: int) -> int:
    """The hour of a ULID, counted from the epoch."""
    return ulid.time_ms(value) // HOUR_MS


class Coverage:
    """The union of thousands of time ranges, as disjoint ranges of ULIDs, to compare with files."""

    def __init__(self, time_ranges: Iterable[TimeRange]) -> None:
        self._lows: list[str] = []
        self._highs: list[str] = []
        for low, high in sorted((ulid.encode(s.low), ulid.encode(s.high)) for s in time_ranges):
            if self._highs and low <= self._highs[-1]:
                self._highs[-1] = max(self._highs[-1], high)
            else:
                self._lows.append(low)
                self._highs.append(high)

    def may_overlap(self, bounds: tuple[str, str] | None) -> bool:
        """Whether lines between two ULIDs, inclusive, may be in it; None: bounds are unknown."""
        if bounds is None:
            return True
        below = bisect_right(self._lows, bounds[1]) - 1  # the last that begins at or below the end
        return below >= 0 and self._highs[below] >= bounds[0]
