"""The progress of an appender between two checkpoints: segments read, waiting events, a replay.

`AppenderProgress` makes the next checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.coordination.groups import PipelineReplay
from tailrace.coordination.partitions import Partition
from tailrace.coordination.pipelines import (
    Checkpoint,
    EventKey,
    Reading,
    Redelivery,
    Replaying,
    TableReading,
    decode,
)
from tailrace.logstore import ulid
from tailrace.logstore.errors import Damaged, NotFound
from tailrace.logstore.segments.file_format import KEY_COLUMNS
from tailrace.pipelines.appenders.contract import PipelineAppender, State
from tailrace.pipelines.definition import PipelineDefinition
from tailrace.pipelines.events import EVENTS, EventBuffer, EventCounts, Origin, moments_of
from tailrace.pipelines.sources.segments import NodeSegments, SegmentSource
from tailrace.pipelines.sources.table import TableSource

# A replay: an appender goes back to a ULID, gets the table from there on, then the segments.
#
#   table: records of segments up to its marks ──┐                     already delivered
#                                                ├──► in order of time ──┬────────────► its copy
#   segments above the marks ────────────────────┘                       └────────────► the appender
#                                                                      not delivered yet
#
# The appender's own output never gets a record twice. Records that it had when the replay began go
# to a copy of the appender, which gets the replay's id: a rolling file writes new files with it.
# Records that it did not have, because the pipeline was evicted or behind, continue the appender's
# own output. The records that it had are known exactly: of the segments that were read, and of the
# table, the events up to the frontier.
#
# The place in the table is a **time** of ULIDs. It is in the checkpoint, as is the state of the
# copy, so a replay continues after a crash, and in another process. It is over once the table's
# records, and those of the segments that were read before it, have all been given.


TABLE: Final = ""
"""The name of the table among the nodes; no node has it."""
_AGAIN: Final = "again"


def is_due(checkpoint: Checkpoint, asked: PipelineReplay | None) -> bool:
    """Whether the checkpoint does not know of the replay yet."""
    return asked is not None and asked.id > checkpoint.replayed


def begun(partition: Partition, asked: PipelineReplay | None) -> Checkpoint:
    """The checkpoint of a partition; one that is new has no part in replays before its time."""
    checkpoint = decode(partition.progress)
    new = partition.progress is None and asked is not None
    if new and asked is not None and asked.asked_ms < partition.created_ms:
        return replace(checkpoint, replayed=asked.id)
    return checkpoint


async def rewound(
    checkpoint: Checkpoint, asked: PipelineReplay, segments: SegmentSource, table: TableSource
) -> Checkpoint:
    """The checkpoint from which the replay goes on. Raises `StoreUnavailable`."""
    await segments.refresh()
    if asked.low is None:
        return replace(_skipped(checkpoint, segments), replayed=asked.id)
    marks, end_ms = await table.begin()
    nodes: dict[str, Reading] = {}
    for name, node in segments.nodes.items():
        first = marks.get(name, 0) + 1
        before = checkpoint.nodes.get(name, Reading(1, 1))
        high_ms = before.high_ms
        seq, _ = node.following(first)
        if seq in node.sizes:
            high_ms = await _before(segments, Origin(name, seq))
        nodes[name] = Reading(first, first, high_ms)
    start_ms = ulid.time_ms(ulid.decode(asked.low))
    # A replay that begins while one goes on: what was given before that one was.
    old = checkpoint.replay
    frontier = checkpoint.frontier
    if old is not None and old.frontier is not None:
        frontier = max(old.frontier, frontier or old.frontier)
    read = {name: one.next for name, one in checkpoint.nodes.items()}
    if old is not None:
        read = {name: max(seq, old.read.get(name, 1)) for name, seq in {**old.read, **read}.items()}
    began = Replaying(
        asked.low, dict(marks), TableReading(start_ms, start_ms, end_ms), read, frontier
    )
    return replace(checkpoint, nodes=nodes, frontier=None, replayed=asked.id, replay=began)


async def _before(segments: SegmentSource, origin: Origin) -> int:
    """The time before the first ULID of a segment: until then nothing of its node comes."""
    try:
        low = (await segments.held(origin)).low
    except (NotFound, Damaged):
        return 0
    return ulid.time_ms(ulid.decode(low)) - 1 if low else 0


def _skipped(checkpoint: Checkpoint, segments: SegmentSource) -> Checkpoint:
    """Behind all segments that are there."""
    nodes = {}
    for name, node in segments.nodes.items():
        before = checkpoint.nodes.get(name, Reading(1, 1))
        behind = max(max(node.sizes, default=0) + 1, before.next)
        nodes[name] = Reading(behind, behind, before.high_ms)
    return replace(checkpoint, nodes=nodes, replay=None)


def from_low(events: pa.Table, low: str) -> pa.Table:
    """The events with ULIDs from `low` on."""
    return events.filter(pc.greater_equal(events.column("ulid"), low))


def marked(events: pa.Table, frontier: EventKey | None, *, before: bool) -> pa.Table:
    """The events with a column that says whether the appender had them.

    `before`: they are of the table, or of a segment that was read before the replay began.
    """
    if not before or frontier is None or events.num_rows == 0:
        return events.append_column(_AGAIN, pa.array(np.zeros(events.num_rows, dtype=np.bool_)))
    moments = moments_of(events)
    had = moments < frontier.moment
    for row in np.flatnonzero(moments == frontier.moment):
        names = (events.column(name)[int(row)].as_py() for name in KEY_COLUMNS)
        had[row] = EventKey(frontier.moment, *names) <= frontier
    return events.append_column(_AGAIN, pa.array(had))


def split(events: pa.Table) -> tuple[pa.Table, pa.Table]:
    """What the appender had, and what it had not, without the mark."""
    if _AGAIN not in events.column_names:
        return EVENTS.empty_table(), events
    had, rest = events.column(_AGAIN), events.drop_columns([_AGAIN])
    return rest.filter(had), rest.filter(pc.invert(had))


_END_OF_TIME: Final = 1 << 62


class Next(NamedTuple):
    """The segment that is to be read next, and how many before it were removed unread."""

    high_ms: int
    node: str
    seq: int
    lost: int


class Delay(NamedTuple):
    """Ages of the oldest and the newest of some events by their own times, in seconds."""

    oldest: float = 0.0
    newest: float = 0.0


def delay_of(events: pa.Table, now_ms: int) -> Delay:
    """The ages of these events."""
    times = pc.min_max(events.column("ts"))
    found = (times[name].cast(pa.int64()).as_py() for name in ("min", "max"))
    return Delay(*[max(now_ms - time / 1000, 0) / 1000 for time in found])


@dataclass(slots=True)
class AppenderProgress:
    """The progress of an appender since the checkpoint `begun`.

    `dead` says that the dead-letter file takes the events now.
    """

    begun: Checkpoint
    appender: PipelineAppender
    dead: bool
    nodes: dict[str, Reading]
    buffer: EventBuffer
    replay: Replaying | None = None
    copy: PipelineAppender | None = None
    """Takes what a replay gives again; None while that goes to the dead-letter file."""
    read_at: dict[str, float] = field(default_factory=dict)
    saved_at: float = 0.0
    changed: bool = False
    urgent: bool = False
    """Whether the change is to be in a checkpoint soon."""
    counted: EventCounts = field(default_factory=EventCounts)
    given: int = 0
    again: int = 0
    lost: int = 0
    deleted: int = 0
    refused: int = 0
    redelivered: int = 0
    redelivery: Redelivery | None = None

    def enter(self, nodes: Mapping[str, NodeSegments], start: str) -> None:
        """The first start: where the pipeline begins in each node."""
        for name, node in nodes.items():
            first = max(node.sizes, default=0) + 1 if start == "now" else node.low
            self.nodes[name] = Reading(first, first)

    @property
    def table_read(self) -> bool:
        """Whether the replay has read all of the table."""
        return self.replay is None or self.replay.table.next >= self.replay.table.end

    @property
    def all_given_again(self) -> bool:
        """Whether a replay is over: nothing waits, or is to be read, that the appender may have."""
        if self.replay is None or not self.table_read or self.buffer.oldest(TABLE) is not None:
            return False
        return all(
            (self.nodes.get(name, Reading(1, 1)).next >= seq)
            and (self.buffer.oldest(name) or seq) >= seq
            for name, seq in self.replay.read.items()
            if name in self.nodes
        )

    def following(self, nodes: Mapping[str, NodeSegments]) -> Next | None:
        """The next segment of the node that is furthest behind; None if all were read."""
        waiting = []
        if self.replay is not None and not self.table_read:
            waiting.append(Next(self.replay.table.next, TABLE, self.replay.table.next, 0))
        for name, node in nodes.items():
            reading = self.nodes.get(name, Reading(1, 1))
            seq, lost = node.following(reading.next)
            if seq in node.sizes:
                waiting.append(Next(reading.high_ms, name, seq, lost if name in self.nodes else 0))
        return min(waiting, default=None)

    def unread(self, nodes: Mapping[str, NodeSegments]) -> tuple[int, int | None]:
        """How many segments were not read, and how far the node is that is furthest behind, in ms.

        The latter is None if none is behind.
        """
        count, lowest = 0, None
        for name, node in nodes.items():
            reading = self.nodes.get(name, Reading(1, 1))
            behind = sum(seq >= reading.next for seq in list(node.sizes))
            if behind:
                count += behind
                lowest = reading.high_ms if lowest is None else min(lowest, reading.high_ms)
        return count, lowest

    def until(
        self, nodes: Mapping[str, NodeSegments], settings: PipelineDefinition, now: float
    ) -> int:
        """The time up to which events may go, in microseconds; `now` in monotonic seconds."""
        lowest = None
        if self.replay is not None and not self.table_read:
            lowest = self.replay.table.next
        for name, reading in self.nodes.items():
            node = nodes.get(name)
            unread = node is not None and node.following(reading.next)[0] in node.sizes
            quiet = now - self.read_at.get(name, now)
            if unread or quiet * 1000 < settings.idle_node_ms:
                lowest = reading.high_ms if lowest is None else min(lowest, reading.high_ms)
        return _END_OF_TIME if lowest is None else (lowest - settings.event_delay_ms) * 1000

    def checkpoint(
        self, state: State, copied: State | None, letters: State | None, now_ms: int
    ) -> Checkpoint:
        """The checkpoint of now; `state` is what the appender's `sync` gave, `copied` its copy's.

        `letters` is that of its dead letters, None for as before.

        A replay that is over is not in it.
        """
        replay = self.replay
        if self.all_given_again:
            replay = None
        elif replay is not None:
            oldest = self.buffer.oldest(TABLE)
            place = replay.table._replace(low=replay.table.next if oldest is None else oldest)
            copy = replay.appender if copied is None else copied
            replay = replace(replay, table=place, appender=copy)
        nodes = {}
        for name, reading in self.nodes.items():
            oldest = self.buffer.oldest(name)
            nodes[name] = reading._replace(low=reading.next if oldest is None else oldest)
        ours, old = self.buffer.counts, self.begun.counts
        new = {
            "events": self.given,
            "late": ours.late,
            "forced": ours.forced,
            "clamped": ours.clamped,
            "copies": ours.copies,
            "deleted": self.deleted,
            "lost": self.lost,
            "dead": self.given if self.dead else 0,
            "again": self.again,
            "refused": self.refused,
            "redelivered": self.redelivered,
        }
        return Checkpoint(
            nodes,
            self.buffer.frontier,
            self.begun.appender if self.dead else state,
            state if self.dead else self.begun.dead_letter if letters is None else letters,
            {name: old.get(name, 0) + count for name, count in new.items()},
            self.begun.replayed,
            replay,
            now_ms,
            self.redelivery,
        )
