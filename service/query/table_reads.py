"""Plans which row groups and rows of the table's files a search reads.

The files' skip indexes leave out row groups that cannot match. DuckDB gets ranges of row numbers,
each in a scan of its own, and reads no other row group. A file of which most is needed is read
whole. If a file has a copy (`scan_copies`), the copy is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from service.query.footers import FooterRowGroup, MatchedLines, TableFileFooter, batch_of
from service.query.request import HOUR_MS, MOST_RANGES, UlidRange, Weight
from service.query.scan_copies import CopyRows, ScanCopy
from service.query.skip_indexes import LineMaps
from service.query.sql import table_source
from tailrace.logstore import ulid
from tailrace.logstore.objects.store import is_remote
from tailrace.logstore.search.translate import IndexCondition
from tailrace.logstore.table.snapshot import TableFile

_WORTH: Final = 0.7
"""Share of a file's rows above which the whole file is read, in one scan by all threads."""
_RARE: Final = 0.25
"""Share of a file's rows: a text in no more row groups than that is in few lines."""
_BARE: Final = "bare"

CopyOf: TypeAlias = Callable[[TableFile], ScanCopy | None]
MapsOf: TypeAlias = Callable[[TableFile], LineMaps | None]


class RowRange(NamedTuple):
    """Rows of a file from `first` to `last`, inclusive, counted from 0.

    `source` is a name of `sql`.
    """

    path: str
    first: int
    last: int
    source: str


class TablePart(NamedTuple):
    """The rows of a file or of its copy that are read: first and last rows, or all.

    `source` is a name of `sql`. `rare`: the skip index leaves out most of the file. `rows` are
    those of a copy, `maps` those of the file's lines. In `coloured` row groups control sequences
    may split a text in a line, so only DuckDB searches them; a `plain` part has no such row group.
    """

    path: str
    source: str
    bounds: Sequence[tuple[int, int]] = ()
    rare: bool = False
    rows: CopyRows | None = None
    maps: LineMaps | None = None
    coloured: frozenset[int] = frozenset()
    plain: bool = False

    @property
    def bare(self) -> bool:
        """Returns true if none of its lines has attributes."""
        return self.source.startswith(_BARE)

    @property
    def remote(self) -> bool:
        """Returns true if it is on S3."""
        return is_remote(self.path)

    def pays(self, group: int) -> bool:
        """Returns true if a scan for a text in a row group likely costs less than to decode it."""
        if group in self.coloured:
            return False
        few = not self.remote and (self.rare or self.rows is not None)
        return few or self.mapped(group)

    def mapped(self, group: int) -> bool:
        """Returns true if a row group has a map, and no attributes, which need decoding."""
        return self.bare and self.maps is not None and self.maps.has(group)

    @property
    def group_bytes(self) -> int:
        """Returns about how many bytes of the file a row group takes, if it has maps."""
        return 0 if self.maps is None else self.maps.group_bytes

    def meets(self, first: int, end: int) -> bool:
        """Returns true if it has rows from `first` to before `end`."""
        return not self.bounds or any(low < end and first <= high for low, high in self.bounds)


@dataclass(frozen=True)
class TableReads:
    """The parts of files that are read, and lines that were `found` in other parts before.

    `shares` is the share of each file that is read, with its size as stored; `copied` are the files
    that are read as copies. `inside`: none of their lines has a ULID outside of the range.
    """

    parts: Sequence[TablePart]
    shares: Sequence[tuple[TableFile, float]]
    copied: Sequence[TableFile]
    inside: bool
    found: Sequence[pa.RecordBatch] = ()

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        """Returns files that are read whole, by source."""
        sources: dict[str, list[str]] = {}
        for part in self.parts:
            if not part.bounds:
                sources.setdefault(part.source, []).append(part.path)
        return sources

    @property
    def ranges(self) -> Sequence[RowRange]:
        """Returns ranges of rows of other files."""
        return [
            RowRange(part.path, first, last, part.source)
            for part in self.parts
            for first, last in part.bounds
        ]

    @property
    def bytes(self) -> int:
        """Returns about how many stored bytes are read."""
        return round(sum(file.size * share for file, share in self.shares))

    @property
    def coloured(self) -> bool:
        """Returns true if a line that is read may have control sequences of terminals."""
        return not all(part.plain for part in self.parts)

    @property
    def empty(self) -> bool:
        """Returns true if nothing of the table is read or was found."""
        return not self.parts and not self.found

    def prefiltered(
        self, parts: Sequence[TablePart], found: Sequence[pa.RecordBatch]
    ) -> TableReads:
        """Returns the same reads, with only these parts still to be read."""
        return replace(self, parts=parts, found=found)


def weights(
    sizes: Mapping[int, int], files: Iterable[TableFile], indexes: Mapping[str, IndexCondition]
) -> Mapping[int, Weight]:
    """Returns the reads by hour, of stored `sizes`, without row groups that indexes leave out."""
    found = {hour: Weight(size) for hour, size in sizes.items()}
    for file in files:
        index = indexes.get(file.path)
        if index is not None and index.share <= _WORTH:
            hour, left_out = file.start_ms // HOUR_MS, -round(file.size * (1 - index.share))
            found[hour] = found[hour].and_also(Weight(left_out, len(index.ranges)))
    return found


def table_reads(
    time_range: UlidRange,
    files: Sequence[TableFile],
    indexes: Mapping[str, IndexCondition],
    copy_of: CopyOf,
    maps_of: MapsOf,
) -> TableReads:
    """Returns the reads that may hold a match, by the answers of available indexes, by path."""
    whole: list[TableFile] = []
    parts: list[tuple[TableFile, Sequence[tuple[int, int]], float]] = []
    for file in files:
        index = indexes.get(file.path)
        if index is None:
            whole.append(file)
            continue
        if index.share > _WORTH:
            whole.append(file)
        elif index.share > 0:
            parts.append((file, index.ranges, index.share))
    parts.sort(key=lambda one: len(one[1]))
    while sum(len(found) for _, found, _ in parts) > MOST_RANGES:
        whole.append(parts.pop()[0])
    shares = [*((file, 1.0) for file in whole), *((file, share) for file, _, share in parts)]
    copies = {file.path: copy for file, _ in shares if (copy := copy_of(file)) is not None}
    bounds = {file.path: found for file, found, _ in parts}
    read = [
        _part(file, copies.get(file.path), indexes.get(file.path), maps_of)._replace(
            bounds=bounds.get(file.path, ()), rare=share <= _RARE
        )
        for file, share in shares
    ]
    low, high = ulid.encode(time_range.low), ulid.encode(time_range.high)
    inside = all(f.ulids is not None and low <= f.ulids[0] and f.ulids[1] <= high for f in files)
    copied = [file for file, _ in shares if file.path in copies]
    return TableReads(read, shares, copied, inside)


def _part(
    file: TableFile, copy: ScanCopy | None, index: IndexCondition | None, maps_of: MapsOf
) -> TablePart:
    """Returns all of the file, or of its copy."""
    coloured = frozenset[int]() if index is None else index.coloured
    if copy is not None:
        if copy.rows is not None:
            coloured |= copy.rows.coloured
        plain = not coloured and (index is not None or copy.rows is not None)
        source = _BARE if copy.bare else "copies"
        return TablePart(copy.path, source, rows=copy.rows, coloured=coloured, plain=plain)
    source = table_source(bare=index is not None and index.bare, marked=file.marked)
    plain = index is not None and not coloured
    return TablePart(file.uri, source, maps=maps_of(file), coloured=coloured, plain=plain)


# --- Row groups of a scan for a text ------------------------------------------------------------


_BATCH_LINES: Final = 4_096  # candidates that become a batch together

Candidates: TypeAlias = pa.RecordBatch | MatchedLines
"""Lines of a row group that may match."""


@dataclass(frozen=True, slots=True)
class TableRowGroup:
    """A row group of a part of the table; `footer` is its file's footer, if it was needed."""

    part: TablePart
    group: FooterRowGroup
    footer: TableFileFooter | None = None

    @property
    def number(self) -> int:
        """Returns its number in its file."""
        return self.group.number

    @property
    def mapped(self) -> bool:
        """Returns true if a map finds its lines."""
        return self.part.mapped(self.group.number)

    def follows(self, other: TableRowGroup) -> bool:
        """Returns true if it directly follows the other in the same file."""
        return self.part is other.part and self.number == other.number + 1


def mapped_groups(part: TablePart) -> list[TableRowGroup] | None:
    """Returns the row groups of the part if each has a map, so that no footer is needed."""
    if part.maps is None:
        return None
    found, first = list[TableRowGroup](), 0
    for number, rows in enumerate(part.maps.head.rows.tolist()):
        if part.meets(first, first + rows):
            # The size of its text is unknown: it is scanned page by page.
            found.append(TableRowGroup(part, FooterRowGroup(number, first, first + rows, 0)))
        first += rows
    return found if all(one.mapped for one in found) else None


@dataclass
class Seen:
    """The results of a range's row groups: those that are `left` to DuckDB, and candidates."""

    left: list[TableRowGroup] = field(default_factory=list)
    bytes: int = 0
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _rows: list[MatchedLines] = field(default_factory=list)
    _lines: int = 0  # of `_rows`

    def add(self, one: TableRowGroup, found: Candidates | None) -> None:
        """Adds the candidates of a row group; None: the scan gave up."""
        if found is None:
            self.left.append(one)
        elif isinstance(found, MatchedLines):
            self._rows.append(found)
            self._lines += len(found.numbers)
            self.bytes += found.nbytes
            if self._lines >= _BATCH_LINES:  # while other threads scan later row groups
                self._make_batch()
        elif found.num_rows:
            self._batches.append(found)
            self.bytes += found.nbytes

    def found(self) -> list[pa.RecordBatch]:
        """Returns all candidates."""
        self._make_batch()
        return self._batches

    def _make_batch(self) -> None:
        if self._rows:
            self._batches.append(batch_of(self._rows))
            self._rows, self._lines = [], 0


def parts_of(left: Sequence[TableRowGroup], planned: Mapping[TablePart, int]) -> list[TablePart]:
    """Returns the parts left for DuckDB: unchanged, or some of their `planned` row groups."""
    groups: dict[TablePart, list[FooterRowGroup]] = {}
    for one in left:
        groups.setdefault(one.part, []).append(one.group)
    return [
        part if len(found) == planned[part] else part._replace(bounds=_bounds(found))
        for part, found in groups.items()
    ]


def _bounds(groups: Sequence[FooterRowGroup]) -> tuple[tuple[int, int], ...]:
    """Returns first and last rows; neighbouring row groups are joined."""
    bounds: list[tuple[int, int]] = []
    for group in sorted(groups, key=lambda g: g.first):
        first = group.first
        if bounds and bounds[-1][1] + 1 == first:
            first = bounds.pop()[0]
        bounds.append((first, group.end - 1))
    return tuple(bounds)
