"""Row groups in which a search looks for a text, and what was found in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import pyarrow as pa

from service.query.footers import Footer, Group
from service.query.found_rows import Found, batch_of
from service.query.table_reads import Part

_BATCH_LINES: Final = 4_096  # candidates that become a batch together

Candidates: TypeAlias = pa.RecordBatch | Found
"""Lines of a row group that may match."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a part of the table; `footer` is that of its file, if it was needed."""

    part: Part
    group: Group
    footer: Footer | None = None

    @property
    def number(self) -> int:
        """In its file."""
        return self.group.number

    @property
    def mapped(self) -> bool:
        """Whether its lines are found by a map."""
        return self.part.mapped(self.group.number)

    def follows(self, other: RowGroup) -> bool:
        """Whether it is the one behind the other in the same file."""
        return self.part is other.part and self.number == other.number + 1


def mapped_groups(part: Part) -> list[RowGroup] | None:
    """The row groups of the part, if each has a map, so that the file's footer is not needed."""
    if part.maps is None:
        return None
    found, first = list[RowGroup](), 0
    for number, rows in enumerate(part.maps.head.rows.tolist()):
        if part.meets(first, first + rows):
            # How long its text is, is not known: it is looked through page by page.
            found.append(RowGroup(part, Group(number, first, first + rows, 0)))
        first += rows
    return found if all(one.mapped for one in found) else None


@dataclass
class Seen:
    """What came of the row groups of a tile: those that are `left`, and candidates."""

    left: list[RowGroup] = field(default_factory=list)
    bytes: int = 0
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _rows: list[Found] = field(default_factory=list)
    _lines: int = 0  # of `_rows`

    def add(self, one: RowGroup, found: Candidates | None) -> None:
        """The candidates of a row group; None: it was given up."""
        if found is None:
            self.left.append(one)
        elif isinstance(found, Found):
            self._rows.append(found)
            self._lines += len(found.numbers)
            self.bytes += found.nbytes
            if self._lines >= _BATCH_LINES:  # while other threads look through what follows
                self._make_batch()
        elif found.num_rows:
            self._batches.append(found)
            self.bytes += found.nbytes

    def found(self) -> list[pa.RecordBatch]:
        """All candidates."""
        self._make_batch()
        return self._batches

    def _make_batch(self) -> None:
        if self._rows:
            self._batches.append(batch_of(self._rows))
            self._rows, self._lines = [], 0


def parts_of(left: Sequence[RowGroup], planned: Mapping[Part, int]) -> list[Part]:
    """What is left for DuckDB: parts as they were, or some of their `planned` row groups."""
    groups: dict[Part, list[Group]] = {}
    for one in left:
        groups.setdefault(one.part, []).append(one.group)
    return [
        part if len(found) == planned[part] else part._replace(bounds=_bounds(found))
        for part, found in groups.items()
    ]


def _bounds(groups: Sequence[Group]) -> tuple[tuple[int, int], ...]:
    """First and last rows, of neighbours together."""
    bounds: list[tuple[int, int]] = []
    for group in sorted(groups, key=lambda g: g.first):
        first = group.first
        if bounds and bounds[-1][1] + 1 == first:
            first = bounds.pop()[0]
        bounds.append((first, group.end - 1))
    return tuple(bounds)
