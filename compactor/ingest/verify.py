"""Checks which segments are intact, and finds where their lines are.

Every byte of a segment is checked against its seal before Spark sees it. A hash runs at
gigabytes per second, so this costs a few percent of a merge; decoding the rows again would
halve its speed. There are three results:

- **Verified**: its rows may be merged;
- **Corrupt**: its complete bytes fail checksum or schema, so it is quarantined;
- **Stopped**: it could not be read, or is of a newer format. The node waits.

A quarantined segment is an alarm of every pass until somebody decides (`find_left_out`).

The check also finds where the lines are (`ranges.py`), and ends a batch that is full
(`BatchBudget`): before it only the compressed sizes are known, and a byte may stand for a
hundred of text.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from compactor.ingest.buckets import BatchBudget
from compactor.ingest.pack import SMALL_BYTES, SmallSegments
from compactor.ingest.plan import StoredSegment
from compactor.ingest.prune import RunRange, RunRanges, TimeRange
from compactor.ingest.ranges import ranges_of
from logstore import keys
from logstore.errors import Damaged, NotFound, StoreUnavailable, UnsupportedVersion
from logstore.objects.store import ObjectStore
from logstore.segments.quarantine import list_quarantined, read_reason
from logstore.segments.reader import open_segment

_AT_ONCE: Final = 8
_BYTES_AT_ONCE: Final = 128 << 20
_NAMED: Final = 20  # segments, in alarms of their own


@dataclass(frozen=True, slots=True)
class Verified:
    """An intact segment with its number of rows and where its lines are."""

    segment: StoredSegment
    rows: int
    time_ranges: tuple[TimeRange, ...]


@dataclass(frozen=True, slots=True)
class Corrupt:
    """A segment to be quarantined."""

    segment: StoredSegment
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How many segments are left out of the table as damaged, and the alarms that say so."""

    segments: int
    alarms: Sequence[str]


@dataclass(frozen=True, slots=True)
class Stopped:
    """A segment at which its node must wait."""

    segment: StoredSegment
    reason: str


Verdict: TypeAlias = "Verified | Corrupt | Stopped"
Looked: TypeAlias = tuple[Verdict, Sequence[RunRange], bytes]
"""A segment's verdict, what it has of which run, and its bytes if it is whole and small."""


@dataclass(slots=True)
class Verification:
    """Verdicts on the first segments of a batch, in their order.

    `run_ranges` has the lines of intact segments, `small` the bytes of small ones.
    """

    run_ranges: RunRanges = field(default_factory=RunRanges)
    small: SmallSegments = field(default_factory=SmallSegments)
    verdicts: list[Verdict] = field(default_factory=list)


async def verify(
    store: ObjectStore, segments: Sequence[StoredSegment], budget: BatchBudget
) -> Verification:
    """Checks segments in order as far as the budget allows, at least one."""
    found = Verification()
    async with aclosing(_looked_at(store, segments)) as looked:
        async for verdict, of_segment, body in looked:
            time_ranges = verdict.time_ranges if isinstance(verdict, Verified) else ()
            if not budget.takes(time_ranges):
                break
            found.verdicts.append(verdict)
            found.run_ranges.add(of_segment)
            if body:
                found.small.add(verdict.segment.key, body)
    return found


async def _looked_at(
    store: ObjectStore, segments: Sequence[StoredSegment]
) -> AsyncGenerator[Looked, None]:
    """Results in order. Reads several at a time, fewer of large ones, so memory is bounded."""
    behind = deque(segments)
    ahead: deque[tuple[int, asyncio.Task[Looked]]] = deque()
    try:
        while behind or ahead:
            reading = sum(size for size, _ in ahead)
            while behind and _may_read(behind[0].size, len(ahead), reading):
                segment = behind.popleft()
                ahead.append((segment.size, asyncio.create_task(_look(store, segment))))
                reading += segment.size
            looked = await ahead[0][1]
            ahead.popleft()
            yield looked
    finally:
        for _, task in ahead:
            task.cancel()
        await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)


def _may_read(size: int, count: int, reading: int) -> bool:
    return count == 0 or (count < _AT_ONCE and reading + size <= _BYTES_AT_ONCE)


async def _look(store: ObjectStore, segment: StoredSegment) -> Looked:
    if segment.quarantined:
        return Verified(segment, 0, ()), (), b""
    try:
        return await _verified(store, segment)
    except (UnsupportedVersion, StoreUnavailable, NotFound) as error:
        return Stopped(segment, str(error)), (), b""
    except Damaged as error:
        return Corrupt(segment, str(error)), (), b""


async def _verified(store: ObjectStore, segment: StoredSegment) -> Looked:
    info, body = await store.get(segment.key)
    if len(body) != info.size:
        raise StoreUnavailable(f"{segment.key}: {len(body)} of {info.size} bytes were read")
    return await asyncio.to_thread(_examine, segment, body)


def _examine(segment: StoredSegment, body: bytes) -> Looked:
    opened = open_segment(body)
    footer = opened.footer
    if (footer.node, footer.seq) != (segment.node, segment.seq):
        raise Damaged(f"{segment.key} says that it is segment {footer.seq} of {footer.node}")
    ranges = ranges_of(opened)
    small = body if len(body) <= SMALL_BYTES else b""
    return Verified(segment, footer.rows, ranges.time_ranges), ranges.run_ranges, small


async def find_left_out(store: ObjectStore) -> LeftOut:
    """The quarantined segments about which nobody has decided. Raises `StoreUnavailable`."""
    waiting = [one for one in await list_quarantined(store) if not one.given_up]
    alarms = []
    for one in waiting[:_NAMED]:
        key = keys.segment(one.node, one.seq)
        alarms.append(
            f"segment {one.seq} of {one.node} is left out, it is damaged:"
            f" {await read_reason(store, one.node, one.seq)}. Put an intact copy at {key} and run"
            f" `tailrace verify --repair`, or give its lines up:"
            f" `tailrace verify --give-up {key}`"
        )
    if len(waiting) > _NAMED:
        alarms.append(f"{len(waiting) - _NAMED} more damaged segments are left out")
    return LeftOut(len(waiting), alarms)
