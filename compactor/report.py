"""What a pass did: the line of JSON that it ends with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import orjson

from logstore.clock import Clock


@dataclass
class Report:
    """Counts of rows and bytes; `seconds` per phase. Any alarm makes the exit code non-zero.

    `held_elsewhere` are nodes with segments to take in that another driver works on, `leases`
    what became of this driver's, by Data Prepper's names of its counters.
    """

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
    alarms: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, phase: str, clock: Clock) -> Iterator[None]:
        """Adds the time of the block to the phase."""
        start = clock.monotonic()
        try:
            yield
        finally:
            spent = clock.monotonic() - start
            self.seconds[phase] = round(self.seconds.get(phase, 0.0) + spent, 3)

    def alarm(self, text: str) -> None:
        """Notes a condition that needs a person, once."""
        if text not in self.alarms:
            self.alarms.append(text)

    def line(self) -> str:
        """The report as one line of JSON."""
        return orjson.dumps(asdict(self)).decode()
