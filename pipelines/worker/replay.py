"""A replay: an appender goes back to a ULID, gets the table from there on, then the segments.

    table: what segments up to its marks had ──┐                       what it had
                                               ├──► in order of time ──┬────────────► its copy
    segments above the marks ──────────────────┘                       └────────────► the appender
                                                                       what it had not

The appender's own output never gets a record twice. What it had when the replay began goes to a
copy of the appender, which is told the replay's id: a rolling file writes new files with it. What
it had not, because the pipeline was evicted or behind, goes on where the appender was. What it had
is known exactly: of the segments that were read, and of the table, the events up to the frontier.

The place in the table is a **time** of ULIDs. It is in the checkpoint, as is the state of the copy,
so a replay goes on where it was after a crash, and in another process. It is over once
the table's records, and those of the segments that were read before it, have all been given.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coordination.partitions.partition import Partition
from coordination.pipelines.checkpoint import (
    Checkpoint,
    EventKey,
    Reading,
    Replaying,
    TableReading,
    decode,
)
from coordination.pipelines.replay import Replay
from logstore import ulid
from logstore.errors import Damaged, NotFound
from logstore.segments.record_keys import KEY_COLUMNS
from pipelines.events import EVENTS, Origin, moments_of
from pipelines.sources.segments import SegmentSource
from pipelines.sources.table import TableSource

TABLE: Final = ""
"""The name of the table among the nodes; no node has it."""
_AGAIN: Final = "again"


def is_due(checkpoint: Checkpoint, asked: Replay | None) -> bool:
    """Whether the checkpoint does not know of the replay yet."""
    return asked is not None and asked.id > checkpoint.replayed


def begun(partition: Partition, asked: Replay | None) -> Checkpoint:
    """The checkpoint of a partition; one that is new has no part in replays before its time."""
    checkpoint = decode(partition.progress)
    new = partition.progress is None and asked is not None
    if new and asked is not None and asked.asked_ms < partition.created_ms:
        return replace(checkpoint, replayed=asked.id)
    return checkpoint


async def rewound(
    checkpoint: Checkpoint, asked: Replay, segments: SegmentSource, table: TableSource
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
