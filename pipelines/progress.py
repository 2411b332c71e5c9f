"""Between two checkpoints of an appender: how far each node was read, and what waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pipelines.appenders.contract import Appender, State
from pipelines.checkpoint import Checkpoint, Reading
from pipelines.config import PipelineSettings
from pipelines.events import EventBuffer
from pipelines.source import Node

_END_OF_TIME: Final = 1 << 62


class Next(NamedTuple):
    """The segment that is to be read next, and how many before it were removed unread."""

    high_ms: int
    node: str
    seq: int
    lost: int


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
    read_at: dict[str, float] = field(default_factory=dict)
    saved_at: float = 0.0
    changed: bool = False
    given: int = 0
    lost: int = 0

    def enter(self, nodes: Mapping[str, Node], start: str) -> None:
        """The first start: where the pipeline begins in each node."""
        for name, node in nodes.items():
            first = max(node.sizes, default=0) + 1 if start == "now" else node.low
            self.nodes[name] = Reading(first, first)

    def following(self, nodes: Mapping[str, Node]) -> Next | None:
        """The next segment of the node that is furthest behind; None: there is none."""
        waiting = []
        for name, node in nodes.items():
            reading = self.nodes.get(name, Reading(1, 1))
            seq, lost = node.following(reading.next)
            if seq in node.sizes:
                waiting.append(Next(reading.high_ms, name, seq, lost if name in self.nodes else 0))
        return min(waiting, default=None)

    def until(self, nodes: Mapping[str, Node], settings: PipelineSettings, now: float) -> int:
        """The time up to which events may go, in microseconds; `now` in monotonic seconds."""
        lowest = None
        for name, reading in self.nodes.items():
            node = nodes.get(name)
            unread = node is not None and node.following(reading.next)[0] in node.sizes
            quiet = now - self.read_at.get(name, now)
            if unread or quiet * 1000 < settings.idle_node_ms:
                lowest = reading.high_ms if lowest is None else min(lowest, reading.high_ms)
        return _END_OF_TIME if lowest is None else (lowest - settings.event_delay_ms) * 1000

    def checkpoint(self, state: State) -> Checkpoint:
        """The checkpoint of now; `state` is what the appender's `sync` gave."""
        nodes = {}
        for name, reading in self.nodes.items():
            oldest = self.buffer.oldest(name)
            nodes[name] = reading._replace(low=reading.next if oldest is None else oldest)
        ours, old = self.buffer.counts, self.begun.counts
        new = {
            "events": ours.events,
            "late": ours.late,
            "forced": ours.forced,
            "copies": ours.copies,
            "lost": self.lost,
            "dead": ours.events if self.dead else 0,
        }
        return Checkpoint(
            nodes,
            self.buffer.frontier,
            self.begun.appender if self.dead else state,
            state if self.dead else self.begun.dead_letter,
            {name: old.get(name, 0) + count for name, count in new.items()},
        )
