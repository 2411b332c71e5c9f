"""Which segments are whole, and how their lines lie in time.

Every byte of a segment is checked against its seal before Spark sees it: a hash runs at
gigabytes per second, so this costs a few percent of a merge, where decoding the rows
again would halve its speed. Three things can come of it:

- **Verified**: its rows may be merged;
- **Corrupt**: its complete bytes fail checksum or schema, so it is set aside;
- **Stopped**: it could not be read, or is of a newer format. The node waits.

Beside the check, each row group says where its text lies in time (`Span`). A group that
crosses an hour is looked into, so that no hour is planned that holds nothing; and so is one of
more than a minute: where some lines are late, most of the others are nowhere near them.

What the footers say also ends a batch (`Room`): before them only the segments' bytes are known,
and a byte may be a hundred of text.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow.compute as pc

from compactor.intake.plan import StoredSegment
from compactor.intake.room import Room
from compactor.intake.span import Span, hour_of
from logstore import ulid
from logstore.errors import Damaged, NotFound, StoreUnavailable, UnsupportedVersion
from logstore.objects.store import ObjectStore
from logstore.segments.reader import SegmentFile, open_segment

_AT_ONCE: Final = 2
_SLICE_MS: Final = 60_000  # an hour has a whole number of them
_SHORTEST: Final = 64  # bytes that a line counts for at least: its ids are sorted with it
_BATCH_CHARACTERS: Final = 21  # of a ULID's 26: the last five are the line number


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


async def verify(
    store: ObjectStore, segments: Sequence[StoredSegment], room: Room
) -> list[Verdict]:
    """A verdict for each, in their order, up to where a batch has room; at least one.

    Two are read at a time, so memory is bounded.
    """
    ahead: deque[asyncio.Task[Verdict]] = deque()
    behind = iter(segments)
    found: list[Verdict] = []
    try:
        while True:
            while len(ahead) < _AT_ONCE and (segment := next(behind, None)) is not None:
                ahead.append(asyncio.create_task(_verdict(store, segment)))
            if not ahead:
                return found
            verdict = await ahead[0]
            ahead.popleft()
            if not room.takes(verdict.spans if isinstance(verdict, Verified) else ()):
                return found
            found.append(verdict)
    finally:
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)


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
    bounds, text = chunks["ulid"].statistics, chunks["message"].total_uncompressed_size
    low, high = ulid.decode(bounds.min), ulid.decode(bounds.max)
    size = max(text, group.num_rows * _SHORTEST)
    if ulid.time_ms(high) - ulid.time_ms(low) < _SLICE_MS and hour_of(low) == hour_of(high):
        yield Span(low, high, size)
    else:
        yield from _sliced(opened.group(index, ["ulid"]), size)


def _sliced(rows: Any, size: int) -> Iterator[Span]:
    """The rows of one group by the minute of their batch's time."""
    prefixes = pc.utf8_slice_codeunits(rows.column("ulid"), 0, _BATCH_CHARACTERS)
    counts = {one["values"]: one["counts"] for one in prefixes.value_counts().to_pylist()}
    slices: dict[int, list[tuple[int, int]]] = {}
    for prefix, count in sorted(counts.items()):
        batch = ulid.decode(f"{prefix}00000")
        slices.setdefault(ulid.time_ms(batch) // _SLICE_MS, []).append((batch, count))
    for batches in slices.values():
        share = sum(count for _, count in batches)
        high = batches[-1][0] | ulid.LINE_MASK
        yield Span(batches[0][0], high, size * share // rows.num_rows)
