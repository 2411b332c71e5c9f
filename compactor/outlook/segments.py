"""Segments by their footers alone: enough to plan with, some kilobytes each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from compactor.intake.extent import text_of
from compactor.intake.plan import StoredSegment
from compactor.intake.span import HOUR_MS, Span, hour_of
from logstore import ulid
from logstore.errors import Damaged, NotFound, StoreUnavailable, UnsupportedVersion
from logstore.objects.store import ObjectStore
from logstore.segments.reader import SegmentFile, fetch_statistics

_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Looked:
    """What a footer says; nothing of a segment that is, or would be, set aside."""

    rows: int
    spans: tuple[Span, ...]


Found: TypeAlias = Looked | str
"""Or why the node would wait at the segment."""


async def look(store: ObjectStore, segments: Sequence[StoredSegment]) -> list[Found]:
    """At each, in their order."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(segment: StoredSegment) -> Found:
        async with turns:
            return await _look(store, segment)

    return await asyncio.gather(*(one(segment) for segment in segments))


async def _look(store: ObjectStore, segment: StoredSegment) -> Found:
    if segment.aside:
        return Looked(0, ())
    try:
        opened = await fetch_statistics(store, segment.key)
    except (UnsupportedVersion, StoreUnavailable, NotFound) as error:
        return str(error)
    except Damaged:
        return Looked(0, ())
    groups = range(opened.parquet.num_row_groups)
    return Looked(opened.footer.rows, tuple(s for g in groups for s in _spans(opened, g)))


def _spans(opened: SegmentFile, index: int) -> Iterator[Span]:
    """Where the group's text lies; of one that crosses hours, half is taken to be at each end."""
    group = opened.parquet.metadata.row_group(index)
    chunks = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
    bounds, size = chunks["ulid"].statistics, text_of(group.num_rows, chunks["message"])
    low, high = ulid.decode(bounds.min), ulid.decode(bounds.max)
    first, last = hour_of(low), hour_of(high)
    if first == last:
        yield Span(low, high, size)
    else:
        yield Span(low, ulid.lowest_at((first + 1) * HOUR_MS) - 1, size // 2)
        yield Span(ulid.lowest_at(last * HOUR_MS), high, size // 2)
