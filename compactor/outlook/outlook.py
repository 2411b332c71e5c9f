"""What a pass would do: the plan that `--dry-run` prints, for people or as a line of JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from compactor.report import Batch, Lag
from compactor.telling.progress import size
from compactor.telling.times import span


@dataclass(frozen=True, slots=True)
class NodeOutlook:
    """What waits of a node: the table has its segments up to `mark`."""

    node: str
    mark: int
    segments: int
    bytes: int


@dataclass(frozen=True, slots=True)
class HourOutlook:
    """Files of an hour that would be written anew; bytes are those to be read."""

    hour: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ExpiryOutlook:
    """What the retention would take: all hours that ended by `until`, if there are any."""

    until: str
    hours: int
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """The plan. `version` is the table's, -1 where there is none yet.

    Hours and tasks of `batches` are by the segments' footers; what a batch would find to be a
    duplicate, or deleted, is known only to who reads it. `rewrites` are planned without what
    `batches` would bring.
    """

    version: int
    lag: Lag
    nodes: tuple[NodeOutlook, ...]
    batches: tuple[Batch, ...]
    rewrites: tuple[HourOutlook, ...]
    expiry: ExpiryOutlook
    deletions: int
    alarms: tuple[str, ...]

    def line(self) -> str:
        """As one line of JSON."""
        return orjson.dumps(self).decode()

    def text(self) -> str:
        """For people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        waiting = self.lag
        yield f"The table is at version {self.version}." if self.version >= 0 else "No table yet."
        yield (
            f"{waiting.segments} segments wait, {size(waiting.bytes)},"
            f" the oldest for {span(waiting.seconds)}."
        )
        for of_node in self.nodes:
            yield (
                f"  {of_node.node}: {of_node.segments} behind segment {of_node.mark},"
                f" {size(of_node.bytes)}"
            )
        yield f"{len(self.batches)} commits would take them in."
        for number, batch in enumerate(self.batches, 1):
            yield (
                f"  {number}: {batch.segments} segments, {size(batch.bytes)}, {batch.rows} rows"
                f" into {batch.hours} hours by {batch.tasks} tasks"
            )
        yield f"{len(self.rewrites)} hours would be written anew."
        for hour in self.rewrites:
            yield f"  {hour.hour}: {hour.files} files, {size(hour.bytes)}"
        yield f"{self.deletions} deletions would be looked for in files of the table."
        gone = self.expiry
        yield (
            f"{gone.hours} hours would expire: {gone.files} files, {gone.rows} rows,"
            f" {size(gone.bytes)}{f', up to {gone.until}' if gone.hours else ''}."
        )
        for alarm in self.alarms:
            yield f"ALARM {alarm}"
