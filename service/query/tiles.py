"""Time cut into tiles: the pieces that a search works through one after another.

Hours of the table are disjoint in ULID time, so tiles that are worked through in order
give all records in order, with a sort of one tile at a time: the newest 1,000 records
of a year are found in its last hour, and an unlimited search holds one tile.

A tile reaches from one hour's edge to another's and tiles leave no gap, so what lies
where nobody expected it (a segment with records of many hours) falls into one as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from logstore import ulid

HOUR_MS = 3_600_000
MOST_RANGES: Final = 64
"""In a tile, and so in a statement. Each takes DuckDB about 0.5 ms to plan."""


class Tile(NamedTuple):
    """A range of ULIDs, both ends inclusive."""

    low: int
    high: int


class Weight(NamedTuple):
    """What is read of an hour: bytes as stored, and ranges of rows of its files."""

    bytes: int
    ranges: int = 0

    def and_also(self, other: Weight) -> Weight:
        """Both together."""
        return Weight(self.bytes + other.bytes, self.ranges + other.ranges)


def hour_of(value: int) -> int:
    """Hours since the epoch of a ULID's time."""
    return ulid.time_ms(value) // HOUR_MS


@dataclass(frozen=True, slots=True)
class TileSizes:
    """How much a tile holds at most, and when the next one is larger; bytes are stored ones."""

    first_bytes: int = 16 << 20
    largest_bytes: int = 1 << 30
    busy_rows: int = 50_000
    """Matches of a tile that the next one aims at, if it is not to be the largest."""
    sliced_rows: int = 20_000
    """A tile of the table with as many is not asked for at once where a few records do."""


class Tiles:
    """The tiles of `bounds`, nearest end first. `weights` are those of the hours."""

    def __init__(self, weights: Mapping[int, Weight], bounds: Tile, *, descending: bool) -> None:
        first, last = hour_of(bounds.low), hour_of(bounds.high)
        self._weights: dict[int, Weight] = {}
        for hour, weight in weights.items():
            kept = min(max(hour, first), last)
            self._weights[kept] = self._weights.get(kept, Weight(0)).and_also(weight)
        # The next hour is at the end of the list.
        self._hours = sorted(self._weights, reverse=not descending)
        self._rest = bounds
        self._descending = descending

    @property
    def empty(self) -> bool:
        """Whether all were taken."""
        return not self._hours

    def take(self, budget: int) -> Tile | None:
        """The next tile: at least one hour, and more while they are within `budget` bytes."""
        if not self._hours:
            return None
        taken = self._hours.pop()
        total = self._weights[taken]
        while self._hours:
            total = total.and_also(self._weights[self._hours[-1]])
            if total.bytes > budget or total.ranges > MOST_RANGES:
                break
            taken = self._hours.pop()
        return self._cut(taken)

    def _cut(self, hour: int) -> Tile:
        """Everything up to the far edge of `hour`; the last tile takes all that is left."""
        tile = self._rest
        if not self._hours:
            return tile
        if self._descending:
            edge = ulid.lowest_at(hour * HOUR_MS)
            self._rest = Tile(tile.low, edge - 1)
            return Tile(edge, tile.high)
        edge = ulid.lowest_at((hour + 1) * HOUR_MS)
        self._rest = Tile(edge, tile.high)
        return Tile(tile.low, edge - 1)
