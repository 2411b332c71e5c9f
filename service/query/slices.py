"""A tile in slices of time, for a search that asks for nothing but the next few records.

To give the last 1,000 records of an hour, DuckDB reads all their keys, sorts, and reads again.
With a bound on the time it reads one column, and of the others what lies behind the bound. Where
the bound is, nobody knows: records are taken to be spread evenly over the time between the
first and the last of the table's files. If that gives too few, the next slice is larger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from logstore import ulid
from logstore.table.snapshot import TableFile
from service.query.tiles import Tile

_SPARE: Final = 2
_GROWTH: Final = 8
_LARGEST_SHARE: Final = 0.25  # beyond which a bound is no help


def slices(
    tile: Tile, files: Iterable[TableFile], limit: int, fewest_rows: int, *, descending: bool
) -> Iterator[Tile]:
    """The tile, nearest end first; in one piece if `files` have fewer rows than `fewest_rows`.

    Whatever else lies in the tile is in the slice of its time.
    """
    known = list(files)
    rows = sum(file.rows for file in known)
    bounds = [file.ulids for file in known if file.ulids is not None]
    if rows < max(fewest_rows, 1) or len(bounds) < len(known):
        yield tile
        return
    first = max(tile.low, ulid.decode(min(low for low, _ in bounds))) >> 80
    last = min(tile.high, ulid.decode(max(high for _, high in bounds))) >> 80
    share = _SPARE * limit / rows
    while share < _LARGEST_SHARE:
        width = max(int((last - first) * share), 1)
        edge = last - width if descending else first + width
        if not tile.low >> 80 < edge < tile.high >> 80:
            break
        near, tile = _cut(tile, edge, descending=descending)
        yield near
        share *= _GROWTH
    yield tile


def _cut(tile: Tile, edge_ms: int, *, descending: bool) -> tuple[Tile, Tile]:
    """What is at the near end up to the time, and the rest."""
    edge = ulid.lowest_at(edge_ms)
    older, newer = Tile(tile.low, edge - 1), Tile(edge, tile.high)
    return (newer, older) if descending else (older, newer)
