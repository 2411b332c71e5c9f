"""Foreseeing a pass: the same planning, on a snapshot that is moved on in memory alone.

Nothing is written, no lease is asked for, and no Spark is started. Segments are known by
their footers, where a pass reads all of their bytes first: of a row group that crosses hours
the footer names the first and the last alone, so a pass may find hours between, and end a
batch sooner for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from compactor.compactor import Compactor
from compactor.intake.buckets import buckets_of
from compactor.intake.plan import StoredSegment, choose, nodes_of, segments_of
from compactor.intake.room import Room
from compactor.intake.span import hour_of
from compactor.outlook.outlook import ExpiryOutlook, HourOutlook, NodeOutlook, Outlook
from compactor.outlook.segments import Looked, look
from compactor.report import Batch, Lag
from compactor.rewrite.hours import plan_hours
from compactor.telling.times import rfc3339
from compactor.upkeep.retention import expiring
from logstore.table.snapshot import Snapshot

Waiting: TypeAlias = Mapping[str, Sequence[StoredSegment]]


@dataclass(frozen=True)
class Ahead(Snapshot):
    """A snapshot as its marks would be after some commits."""

    taken: Mapping[str, int] = field(default_factory=dict)

    def mark(self, node: str) -> int:
        return self.taken[node]


async def foresee(compactor: Compactor) -> Outlook:
    """What a pass would do now. Raises `StoreUnavailable`, `Damaged`."""
    snapshot = await compactor.newest()
    nodes = await nodes_of(compactor.store)
    marks = await asyncio.to_thread(snapshot.marks, nodes)
    waiting = {
        node: await segments_of(compactor.store, node, above=mark) for node, mark in marks.items()
    }
    alarms: list[str] = []
    batches = [one async for one in _batches(compactor, snapshot, marks, waiting, alarms)]
    hours = await plan_hours(compactor)
    return Outlook(
        version=snapshot.version,
        lag=_lag(compactor, waiting),
        nodes=tuple(_nodes(marks, waiting)),
        batches=tuple(batches),
        rewrites=tuple(HourOutlook(one.hour, len(one.files), one.size) for one in hours),
        expiry=await asyncio.to_thread(_expiry, compactor, snapshot),
        deletions=await _fresh_deletions(compactor, snapshot),
        alarms=tuple(alarms),
    )


async def _batches(
    compactor: Compactor,
    snapshot: Snapshot,
    marks: Mapping[str, int],
    waiting: Waiting,
    alarms: list[str],
) -> AsyncIterator[Batch]:
    """What the commits would take in, one after the other, as if each were made."""
    limits, taken, going = compactor.limits, dict(marks), dict(waiting)
    before = compactor.clock.now_ms() - int(limits.gap_alarm_seconds * 1000)
    while True:
        ahead = Ahead(snapshot.uri, snapshot.version, taken=taken)
        plan = choose(ahead, going, batch_bytes=limits.batch_bytes, gap_before_ms=before)
        alarms += [alarm for alarm in plan.alarms if alarm not in alarms]
        if not plan.segments:
            return
        whole, room = [], Room(limits.bucket_bytes)
        found = await look(compactor.store, plan.segments)
        for segment, looked in zip(plan.segments, found, strict=True):
            if not room.takes(() if isinstance(looked, str) else looked.spans):
                break
            if segment.node not in going:
                continue
            if isinstance(looked, str):
                del going[segment.node]
                alarms.append(f"{segment.node} would wait at segment {segment.seq}: {looked}")
            else:
                taken[segment.node] = segment.seq
                whole.append((segment, looked))
        if whole:
            yield _batch(compactor, whole)


def _batch(compactor: Compactor, whole: Sequence[tuple[StoredSegment, Looked]]) -> Batch:
    spans = [span for _, looked in whole for span in looked.spans]
    # Of how many cores there are only Spark knows: with more of them there may be more tasks.
    buckets = buckets_of(spans, bucket_bytes=compactor.limits.bucket_bytes, cores=1)
    return Batch(
        segments=len(whole),
        bytes=sum(segment.size for segment, _ in whole),
        rows=sum(looked.rows for _, looked in whole),
        hours=len(set(map(hour_of, buckets.bounds))),
        tasks=max(buckets.tasks, default=-1) + 1,
    )


def _nodes(marks: Mapping[str, int], waiting: Waiting) -> list[NodeOutlook]:
    return [
        NodeOutlook(node, marks[node], len(some), sum(one.size for one in some))
        for node, some in sorted(waiting.items())
        if some
    ]


def _lag(compactor: Compactor, waiting: Waiting) -> Lag:
    listed = [segment for some in waiting.values() for segment in some]
    now = compactor.clock.now_ms()
    oldest = min([segment.modified_ms for segment in listed], default=now)
    return Lag(len(listed), sum(one.size for one in listed), max(now - oldest, 0) / 1000)


async def _fresh_deletions(compactor: Compactor, snapshot: Snapshot) -> int:
    """How many are not known to be done in all files."""
    done = await asyncio.to_thread(lambda: snapshot.purged_ms)
    stored = await compactor.deletions.all(compactor.store)
    return sum(one.modified_ms > done for one in stored)


def _expiry(compactor: Compactor, snapshot: Snapshot) -> ExpiryOutlook:
    gone = expiring(compactor, snapshot)
    return ExpiryOutlook(
        until=rfc3339(gone.until_ms),
        hours=gone.hours,
        files=len(gone.files),
        rows=sum(file.rows for file in gone.files),
        bytes=sum(file.size for file in gone.files),
    )
