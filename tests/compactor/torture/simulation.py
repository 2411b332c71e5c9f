"""What a store gets while compactors come and die: work for every step of a pass.

Each two chapters have an hour, which is over, and to be written anew once both are ingested:

- segments of three nodes, with copies of batches of this chapter and of earlier ones;
- lines of an hour that is beyond the retention, and the deletion of their run, which is
  forgotten a minute later;
- every segment's lines are in texts, so it goes when the table has it;
- where it is wide, forty hours in one segment: Spark's tasks then have several files each.

Beside that, runs and pipelines that earlier chapters brought are deleted, and consumer groups
hold segments back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tailrace.coordination.groups import ConsumerGroup, GroupStart, State, group_document
from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.runs.deletions import Deletion
from tailrace.logstore.runs.report import raise_watermark
from tests.compactor.histories.model import Model
from tests.compactor.lake import HOUR, Batch, Lake, batch, records

NODES = ("a", "b", "c")
KEPT_DAYS = 10
_WIDE_HOURS = 40
_PARTS = 6


@dataclass
class Simulation:
    """What was written so far to the lake, and what the table must hold of it."""

    lake: Lake
    dice: Random
    lines: int
    model: Model = field(default_factory=Model)
    chapters: int = 0
    _gone: int = 0
    _groups: int = 0
    _sent: list[Batch] = field(default_factory=list)
    _base: int = 0

    def __post_init__(self) -> None:
        self._base = self.lake.clock.now_ms() // HOUR * HOUR

    def write(self, *, wide: bool = False) -> None:
        """A chapter: segments of every node."""
        self.chapters += 1
        fresh = self._fresh()
        extra = {"a": self._expired(), "b": self._wide() if wide else []}
        for i, node in enumerate(NODES):
            again = self.dice.sample([*self._sent, *fresh], 1)
            self._put(node, [*fresh[i :: len(NODES)], *again, *extra.get(node, [])])
        self._sent += fresh

    def delete(self) -> None:
        """Deletes a run, or a pipeline, of the oldest chapter that is whole."""
        self._gone += 1
        end = ulid.highest_at(self._hour(self._gone) + HOUR)
        if self.dice.random() < 0.5:
            self._deleted("f", f"r{self._gone}-0", end)
        else:
            self._deleted(f"g{self._gone}", None, end)

    def delete_to_the_line(self, *, but: int = 0) -> None:
        """Deletes all runs of the newest chapter but one, each to its last line `but` so many."""
        last: dict[RunKey, int] = {}
        for key, first, text in self._sent[-_PARTS:]:
            last[key] = max(last.get(key, 0), first + text.count(b"\n") - 1)
        for key in sorted(last)[:-1]:
            self._deleted(key.fqn, key.run, last[key] - but)

    def send_again(self) -> None:
        """All batches of the newest chapter, in a segment of another node."""
        self._put(NODES[-1], self._sent[-_PARTS:])

    @property
    def deletable(self) -> bool:
        """Whether a chapter before the last is whole."""
        return self._gone + 1 < self.chapters

    def make_group(self) -> None:
        """A consumer group that keeps all segments, and is late."""
        self._groups += 1
        name = f"late-{self._groups}"
        group = ConsumerGroup(name, State.ACTIVE, GroupStart.OLDEST, 1, 1, version=self._fresh_id())
        self.lake.run(group_document(self.lake.store, name).write(group, None))

    def _fresh(self) -> list[Batch]:
        hour, number = self._hour(self.chapters), self.chapters
        names = [("f", f"r{number}-0"), ("f", f"r{number}-1"), (f"g{number}", "r")]
        return [
            batch(*names[i % 3], hour + i * 60_000, self.lines, salt=number) for i in range(_PARTS)
        ]

    def _expired(self) -> list[Batch]:
        """Lines of an hour that the retention takes, also once their deletion is forgotten."""
        at = self._base - (KEPT_DAYS * 24 + 1 + self.chapters) * HOUR
        name, t = f"r{self.chapters}", ulid.highest_at(at + HOUR)
        self.lake.delete("old", name, t)
        self.model.ever["old", name] = t
        return [batch("old", name, at, 3), batch("older", name, at + 1, 3)]

    def _wide(self) -> list[Batch]:
        first = self._base - (KEPT_DAYS * 24 - 20) * HOUR + self.chapters * 1_000
        return [batch("w", f"r{i % 3}", first + i * HOUR, 3) for i in range(_WIDE_HOURS)]

    def _deleted(self, fqn: str, run: str | None, t: int) -> None:
        self.lake.delete(fqn, run, t)
        told = Deletion(fqn, run, t, ulid.encode(1))
        self.model.deletions[told.key] = (told, self.lake.clock.now_ms())

    def _put(self, node: str, batches: Sequence[Batch]) -> None:
        self.lake.put(node, batches)
        of_node = self.model.segments.setdefault(node, [])
        of_node.append(records(batches))
        mark = raise_watermark(self.lake.store, node, fresh_id=self._fresh_id, seq=len(of_node))
        self.lake.run(mark)

    def _fresh_id(self) -> str:
        return ulid.encode(ulid.lowest_at(self.lake.clock.now_ms()) | self.dice.getrandbits(60))

    def _hour(self, chapter: int) -> int:
        return self._base - (chapter // 2 + 1) * HOUR
