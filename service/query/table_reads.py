"""What a search reads of the table's files: all of a file, or ranges of its rows.

Row groups that cannot match are left out by the files' skip indexes. DuckDB is told ranges of row
numbers, each in a scan of its own, and reads no other row group. Of a file of which most is needed
anyway all is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from logstore import ulid
from logstore.table.skip_index import SkipIndex, ranges
from logstore.table.snapshot import TableFile
from service.query.needs import Needs, may_hold
from service.query.tiles import Tile

_MOST_RANGES: Final = 64
"""In a statement. Each takes DuckDB about 0.5 ms to plan."""
_WORTH: Final = 0.7
"""Of a file's rows: above it all of the file is read, in one scan by all threads."""


class RowRange(NamedTuple):
    """Rows of a file from `first` to `last`, inclusive, counted from 0."""

    uri: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TableReads:
    """Files to be read whole, and ranges of others; `bytes` are about what that is as stored.

    `inside`: none of their lines has a ULID outside of the tile.
    """

    files: Sequence[str]
    ranges: Sequence[RowRange]
    bytes: int
    inside: bool


def table_reads(
    tile: Tile,
    files: Sequence[TableFile],
    needs: Needs | None,
    indexes: Mapping[str, SkipIndex],
) -> TableReads:
    """What may hold a match, by the indexes that there are, by path."""
    whole: list[TableFile] = []
    parts: list[tuple[TableFile, list[RowRange], float]] = []
    for file in files:
        index = indexes.get(file.path)
        if needs is None or index is None:
            whole.append(file)
            continue
        wanted = may_hold(needs, index)
        share = float(index.rows[wanted].sum()) / max(file.rows, 1)
        if share > _WORTH:
            whole.append(file)
        elif share > 0:
            found = [RowRange(file.uri, *bounds) for bounds in ranges(index.rows, wanted)]
            parts.append((file, found, share))
    parts.sort(key=lambda one: len(one[1]))
    while sum(len(found) for _, found, _ in parts) > _MOST_RANGES:
        whole.append(parts.pop()[0])
    size = sum(file.size for file in whole) + sum(file.size * share for file, _, share in parts)
    found = [one for _, some, _ in parts for one in some]
    low, high = ulid.encode(tile.low), ulid.encode(tile.high)
    inside = all(f.ulids is not None and low <= f.ulids[0] and f.ulids[1] <= high for f in files)
    return TableReads([file.uri for file in whole], found, round(size), inside)
