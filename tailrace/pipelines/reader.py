"""Reads segments, and in a replay the table, into the buffer of an appender.

Nodes are read so that the one that is furthest behind comes first.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.coordination.pipelines import Reading
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import Damaged, NotFound
from tailrace.pipelines.appenders.contract import AppenderMetrics
from tailrace.pipelines.definition import AppenderConfig, PipelineConfig
from tailrace.pipelines.events import Origin
from tailrace.pipelines.progress import TABLE, AppenderProgress, from_low, marked
from tailrace.pipelines.sources.segments import SHARED, Prefetch, SegmentSource
from tailrace.pipelines.sources.table import Copies, TableSource
from tailrace.pipelines.waiting import OwnThread, TurnLimiter

log: Final = logging.getLogger("tailrace.pipelines")

Patiently: TypeAlias = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Makes a call again until the store answers."""


@dataclass(slots=True)
class PartCounts:
    """Counters of a part in this process, which only grow; `own` are those of its appender."""

    given: int = 0
    late: int = 0
    forced: int = 0
    clamped: int = 0
    copies: int = 0
    again: int = 0
    dead_letters: int = 0
    refused: int = 0
    redelivered: int = 0
    deleted: int = 0
    lost: int = 0
    damaged: int = 0
    failures: int = 0
    checkpoints: int = 0
    own: AppenderMetrics = field(default_factory=AppenderMetrics)


class PartReader:
    """Reads for one part of one appender."""

    def __init__(
        self,
        pipeline: PipelineConfig,
        appender: AppenderConfig,
        part: int,
        source: SegmentSource,
        table: TableSource,
        *,
        clock: Clock,
        thread: OwnThread,
        counts: PartCounts,
        patiently: Patiently,
    ) -> None:
        self._settings = pipeline.settings
        self._name = f"{pipeline.name}/{appender.name}/{part}"
        own = pipeline.settings.prefetch_bytes
        self._prefetch = SHARED if own is None else Prefetch(pipeline.name, own)
        self._filter = appender.part.filter
        self._part = part
        self._source = source
        self._table = table
        self._copies = Copies(source)
        self._clock = clock
        self._thread = thread
        self._counts = counts
        self._patiently = patiently

    async def read_again(self, progress: AppenderProgress, gate: TurnLimiter) -> None:
        """Reads what waited when the checkpoint was made, from which `progress` goes on."""
        now = self._clock.monotonic()
        for node, reading in progress.begun.nodes.items():
            progress.read_at[node] = now
            for seq in range(reading.low, reading.next):
                async with gate.turn():
                    await self._add(progress, node, seq, known=True)
        replay = progress.replay
        if replay is not None and replay.table.low < replay.table.next:
            start, end = replay.table.low, replay.table.next
            while (at := await self._add_table(progress, start, end, known=True)) is not None:
                start = at

    async def read(self, progress: AppenderProgress) -> bool:
        """Reads the next segment, or piece of the table; False: there is none.

        Raises `StoreUnavailable`.
        """
        found = progress.following(self._source.nodes)
        if found is None:
            return False
        if found.node == TABLE:
            await self._read_table(progress)
            return True
        if found.lost:
            self._lose(progress, found.lost, found.node)
        await self._add(progress, found.node, found.seq, known=False)
        return True

    def _lose(self, progress: AppenderProgress, segments: int, node: str) -> None:
        progress.lost += segments
        self._counts.lost += segments
        log.warning("%s: %d segments of %s were removed unread", self._name, segments, node)

    # --- the table -------------------------------------------------------------------------

    async def _read_table(self, progress: AppenderProgress) -> None:
        replay = progress.replay
        assert replay is not None
        place = replay.table
        at = await self._add_table(progress, place.next, place.end, known=False)
        place = place._replace(next=place.end if at is None else at)
        progress.replay = replace(replay, table=place)
        progress.changed = True

    async def _add_table(
        self, progress: AppenderProgress, start_ms: int, end_ms: int, *, known: bool
    ) -> int | None:
        """Adds the next piece of the table before `end_ms`; where it ends, None without any."""
        replay = progress.replay
        assert replay is not None
        found = await self._patiently(
            lambda: self._table.read(replay.low, start_ms, end_ms, replay.marks)
        )
        if found is None:
            return None
        events = await self._thread.run(self._wanted, found.events)
        events = await self._thread.run(partial(marked, before=True), events, replay.frontier)
        origin = Origin(TABLE, start_ms)
        await self._thread.run(partial(progress.buffer.add, known=known), origin, events)
        return int(found.until_ms)

    # --- segments --------------------------------------------------------------------------

    async def _add(self, progress: AppenderProgress, node: str, seq: int, *, known: bool) -> None:
        """Puts the wanted events of a segment into the buffer."""
        try:
            segment = await self._patiently(lambda: self._source.read(node, seq, self._prefetch))
        except NotFound:
            if not known:
                return  # removed since it was listed; the next listing says how many are lost
            self._lose(progress, 1, node)
            return
        except Damaged as error:
            self._counts.damaged += 1
            log.warning("%s: segment %d of %s is skipped: %s", self._name, seq, node, error)
            events, high_ms = None, 0
        else:
            events = await self._thread.run(self._wanted, segment.events)
            high_ms = segment.high_ms
        if events is not None:
            origin, buffer = Origin(node, seq), progress.buffer
            if not known:
                events = await self._without_copies(progress, origin, events)
            events = await self._thread.run(self._marked, progress, origin, events)
            await self._thread.run(partial(buffer.add, known=known), origin, events)
        if not known:
            before = progress.nodes.get(node, Reading(seq, seq))
            progress.nodes[node] = Reading(before.low, seq + 1, max(before.high_ms, high_ms))
            progress.read_at[node] = self._clock.monotonic()
            progress.changed = True

    def _marked(self, progress: AppenderProgress, origin: Origin, events: pa.Table) -> pa.Table:
        """In a replay, the events that it is to give; with a mark, see `replay`.

        Of a segment that was not read before these are all.
        """
        replay = progress.begun.replay
        if replay is None:
            return events
        before = origin.seq < replay.read.get(origin.node, 1)
        events = from_low(events, replay.low) if before else events
        return marked(events, replay.frontier, before=before)

    async def _without_copies(
        self, progress: AppenderProgress, origin: Origin, events: pa.Table
    ) -> pa.Table:
        """The events without those that another node sent, and that were given out then."""
        if not progress.nodes.keys() - {origin.node}:
            return events
        late = progress.buffer.late_of(events)
        found = await self._patiently(lambda: self._copies.among(late, origin, progress.nodes))
        if found is None:
            return events
        rows = late.column("row").filter(found)
        progress.buffer.counts.copies += len(rows)
        kept = np.ones(events.num_rows, dtype=np.bool_)
        kept[rows.to_numpy()] = False
        return events.filter(pa.array(kept))

    def _wanted(self, events: pa.Table) -> pa.Table:
        """The events of this appender and part."""
        if self._settings.parts > 1:
            names = pc.unique(events.column("fqn")).to_pylist()
            ours = [name for name in names if part_of(name, self._settings.parts) == self._part]
            events = events.filter(pc.is_in(events.column("fqn"), pa.array(ours, pa.string())))
        return self._filter.of(self._settings.filter.of(events))


def part_of(fqn: str, parts: int) -> int:
    """Which part a pipeline's name belongs to."""
    return crc32(fqn.encode()) % parts
