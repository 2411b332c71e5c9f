"""What a pass did: the line of JSON that it ends with, and what is seen of it meanwhile.

A pass has one report, which its parts add to as they go. Whoever tells about the pass
(`compactor/telling`) looks at it from time to time and at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

import orjson

from logstore.clock import Clock

BATCHES_SHOWN: Final = 100
_LIVE: Final = {"live": True}


@dataclass(frozen=True, slots=True)
class Lag:
    """What waits for the table: segments, their bytes as stored, the oldest one's age."""

    segments: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit is planned to take in; a task writes one file. Bytes as stored."""

    segments: int
    bytes: int
    rows: int
    hours: int
    tasks: int


@dataclass
class Report:
    """Counts of rows and bytes; `seconds` per phase. Any alarm makes the exit code non-zero.

    `lag` is what waits for the table, of all nodes, as of the last look: at the end, what is
    left. `batches` are the plans of the first hundred commits that were tried. `error` is
    why the pass broke off. `held_elsewhere` are nodes with segments to take in that another
    driver works on, `leases` what became of this driver's, by Data Prepper's names of its
    counters. `began` is in RFC 3339, `took_seconds` the whole of it.

    `phase` and `batch` are what goes on now, and not part of the line.
    """

    began: str = ""
    took_seconds: float = 0.0
    error: str | None = None
    segments: int = 0
    set_aside: int = 0
    commits: int = 0
    rows_in: int = 0
    rows_out: int = 0
    duplicates: int = 0
    deleted: int = 0
    segment_bytes: int = 0
    table_bytes: int = 0
    files: int = 0
    hours: int = 0
    segments_removed: int = 0
    orphans_removed: int = 0
    writes_swept: int = 0
    held_elsewhere: int = 0
    leases: dict[str, int] = field(default_factory=dict)
    lag: Lag = field(default_factory=Lag)
    batches: list[Batch] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    phase: str = field(default="", metadata=_LIVE)
    batch: Batch | None = field(default=None, metadata=_LIVE)

    @contextmanager
    def timed(self, phase: str, clock: Clock) -> Iterator[None]:
        """Adds the time of the block to the phase, which is the one that goes on meanwhile."""
        start, outer = clock.monotonic(), self.phase
        self.phase = phase
        try:
            yield
        finally:
            spent = clock.monotonic() - start
            self.seconds[phase] = round(self.seconds.get(phase, 0.0) + spent, 3)
            self.phase = outer

    def planned(self, batch: Batch) -> None:
        """Notes what the next commit is to take in."""
        self.batch = batch
        if len(self.batches) < BATCHES_SHOWN:
            self.batches.append(batch)

    def alarm(self, text: str) -> None:
        """Notes a condition that needs a person, once."""
        if text not in self.alarms:
            self.alarms.append(text)

    def summary(self) -> dict[str, Any]:
        """The report as it is told: all but what goes on now."""
        live = {one.name for one in fields(self) if one.metadata == _LIVE}
        return {name: value for name, value in asdict(self).items() if name not in live}

    def line(self) -> str:
        """The report as one line of JSON."""
        return orjson.dumps(self.summary()).decode()
