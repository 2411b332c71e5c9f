"""Which segments are whole, and how their lines lie in time.

Every byte of a segment is checked against its seal before Spark sees it: a hash runs at
gigabytes per second, so this costs a few percent of a merge, where decoding the rows
again would halve its speed. Three things can come of it:

- **Verified**: its rows may be merged;
- **Corrupt**: its complete bytes fail checksum or schema, so it is set aside;
- **Stopped**: it could not be read, or is of a newer format. The node waits.

Beside the check, each row group says where its text lies in time (`Span`). A group that
crosses an hour is looked into, so that no hour is planned that holds nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from compactor.intake.plan import StoredSegment
from logstore import ulid
from logstore.errors import Damaged, NotFound, StoreUnavailable, UnsupportedVersion
from logstore.objects.store import ObjectStore
from logstore.segments.reader import SegmentFile, open_segment

HOUR_MS = 3_600_000
_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Span:
    """Text between two ULIDs, inclusive, of one hour; `size` in bytes."""

    low: int
    high: int
    size: int


@dataclass(frozen=True, slots=True)
class Verified:
    """A whole segment with its rows and where they lie."""

    segment: StoredSegment
    rows: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Corrupt:
    """A segment to be set aside."""

    segment: StoredSegment
    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """A segment at which its node must wait."""

    segment: StoredSegment
    reason: str


Verdict: TypeAlias = "Verified | Corrupt | Stopped"


async def verify(store: ObjectStore, segments: Sequence[StoredSegment]) -> list[Verdict]:
    """A verdict for each, in their order; two at a time, so memory is bounded."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(segment: StoredSegment) -> Verdict:
        async with turns:
            return await _verdict(store, segment)

    return await asyncio.gather(*(one(segment) for segment in segments))


async def _verdict(store: ObjectStore, segment: StoredSegment) -> Verdict:
    if segment.aside:
        return Verified(segment, 0, ())
    try:
        return await _verified(store, segment)
    except (UnsupportedVersion, StoreUnavailable, NotFound) as error:
        return Stopped(segment, str(error))
    except Damaged as error:
        return Corrupt(segment, str(error))


async def _verified(store: ObjectStore, segment: StoredSegment) -> Verified:
    info, body = await store.get(segment.key)
    if len(body) != info.size:
        raise StoreUnavailable(f"{segment.key}: {len(body)} of {info.size} bytes were read")
    return await asyncio.to_thread(_examine, segment, body)


def _examine(segment: StoredSegment, body: bytes) -> Verified:
    opened = open_segment(body)
    footer = opened.footer
    if (footer.node, footer.seq) != (segment.node, segment.seq):
        raise Damaged(f"{segment.key} says that it is segment {footer.seq} of {footer.node}")
    groups = range(opened.parquet.num_row_groups)
    return Verified(segment, footer.rows, tuple(s for g in groups for s in _spans(opened, g)))


def _spans(opened: SegmentFile, index: int) -> Iterator[Span]:
    group = opened.parquet.metadata.row_group(index)
    chunks = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
    bounds, size = chunks["ulid"].statistics, chunks["message"].total_uncompressed_size
    low, high = ulid.decode(bounds.min), ulid.decode(bounds.max)
    if _hour(low) == _hour(high):
        yield Span(low, high, size)
    else:
        yield from _by_hour(opened.group(index, ["ulid"]), size)


def _by_hour(rows: Any, size: int) -> Iterator[Span]:
    """The rows of one group by the hour of their batch's time."""
    texts: list[str] = rows.column("ulid").to_pylist()
    batches = Counter(text[:21] for text in texts)
    ids = sorted(ulid.decode(f"{prefix}00000") for prefix in batches)
    hours: dict[int, list[int]] = {}
    for batch in ids:
        hours.setdefault(_hour(batch), []).append(batch)
    for members in hours.values():
        count = sum(batches[ulid.encode(batch)[:21]] for batch in members)
        yield Span(members[0], members[-1] | ulid.LINE_MASK, size * count // len(texts))


def _hour(value: int) -> int:
    return ulid.time_ms(value) // HOUR_MS
