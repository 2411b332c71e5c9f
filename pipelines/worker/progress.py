"""Between two checkpoints of an appender: how far each node was read, and what waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from coordination.pipelines.checkpoint import Checkpoint, Reading, Redelivery, Replaying
from pipelines.appenders.contract import Appender, State
from pipelines.definition.config import PipelineSettings
from pipelines.events import Counts, EventBuffer
from pipelines.sources.contract import Node
from pipelines.worker.replay import TABLE

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
class Progress:
    """How far an appender is; `begun` is the checkpoint that it went on from.

    `dead` says that it is the dead-letter file that takes the events now.
    """

    begun: Checkpoint
    appender: Appender
    dead: bool
    nodes: dict[str, Reading]
    buffer: EventBuffer
    replay: Replaying | None = None
    copy: Appender | None = None
    """Takes what a replay gives again; None while that goes to the dead-letter file."""
    read_at: dict[str, float] = field(default_factory=dict)
    saved_at: float = 0.0
    changed: bool = False
    urgent: bool = False
    """Whether the change is to be in a checkpoint soon."""
    counted: Counts = field(default_factory=Counts)
    given: int = 0
    again: int = 0
    lost: int = 0
    deleted: int = 0
    refused: int = 0
    redelivered: int = 0
    redelivery: Redelivery | None = None

    def enter(self, nodes: Mapping[str, Node], start: str) -> None:
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

    def following(self, nodes: Mapping[str, Node]) -> Next | None:
        """The next segment of the node that is furthest behind; None: there is none."""
        waiting = []
        if self.replay is not None and not self.table_read:
            waiting.append(Next(self.replay.table.next, TABLE, self.replay.table.next, 0))
        for name, node in nodes.items():
            reading = self.nodes.get(name, Reading(1, 1))
            seq, lost = node.following(reading.next)
            if seq in node.sizes:
                waiting.append(Next(reading.high_ms, name, seq, lost if name in self.nodes else 0))
        return min(waiting, default=None)

    def unread(self, nodes: Mapping[str, Node]) -> tuple[int, int | None]:
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

    def until(self, nodes: Mapping[str, Node], settings: PipelineSettings, now: float) -> int:
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
