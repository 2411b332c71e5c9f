"""The report of a pass: its state while the pass runs, and the line of JSON at its end.

A pass has one report, which its parts add to as they go. The listeners (`compactor/listeners.py`)
read it from time to time and at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Final

import orjson

from tailrace.coordination.work_queue import WorkQueue
from tailrace.logstore.clock import Clock


def duration_text(seconds: float) -> str:
    """Seconds as in `0:01:05`."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


BATCHES_SHOWN: Final = 100
_LIVE: Final = {"live": True}


def counted(text: str, *, metric: str = "", alias: str = "") -> Any:
    """A count of the report that is also a counter of Prometheus with the help `text`.

    The counter is called `metric`, by default like the field; `alias` is its name in the
    previous version.
    """
    return field(default=0, metadata={"counted": text, "metric": metric, "alias": alias})


@dataclass(frozen=True, slots=True)
class Lag:
    """The segments that the table does not have: number, bytes as stored, age of the oldest."""

    segments: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The segments that one commit is planned to ingest. Bytes as stored.

    A task writes one file, or one for each of several hours that have few rows.
    """

    segments: int
    bytes: int
    rows: int
    hours: int
    tasks: int


@dataclass
class PassReport:
    """Counts of rows and bytes; `seconds` per phase. Any alarm makes the exit code non-zero.

    `lag` has the waiting segments of all nodes at the last look: at the end, the remaining ones;
    None before the first look. `left_out` are damaged segments that await a decision. `batches` are
    the plans of the first hundred commits that were tried. `error` is the reason if the pass broke
    off. `held_elsewhere` are nodes with segments to ingest that another driver works on, `leases`
    the counters of this driver's leases, by Data Prepper's names of its counters.
    `files_rewritten` files of the table were replaced by `bytes_rewritten` bytes of new ones;
    `hours_held_elsewhere` and `hour_leases` are of hours to be rewritten. `began` is in RFC 3339,
    `took_seconds` is the duration of the whole pass.

    `phase` and `batch` are the current ones, and `works` the queues whose leases count; they are
    not part of the line.
    """

    began: str = ""
    took_seconds: float = 0.0
    error: str | None = None
    segments: int = counted("Segments ingested into the table.")
    set_aside: int = counted(
        "Segments quarantined because their bytes are damaged.",
        metric="segments_quarantined",
        alias="set_aside",
    )
    left_out: int = 0
    commits: int = counted("Commits that ingested segments.")
    rows_in: int = counted("Rows of the segments that were ingested.")
    rows_out: int = counted("Rows of these that were added to the table.")
    duplicates: int = counted("Rows left out because the table, or the same batch, had them.")
    deleted: int = counted("Rows left out because their run or pipeline was deleted.")
    segment_bytes: int = counted("Bytes of the segments that were ingested, as stored.")
    table_bytes: int = counted("Bytes of table files written from segments.")
    files: int = counted("Table files written from segments.")
    hours: int = counted("Hours that commits added files to.")
    files_rewritten: int = counted("Table files that were replaced when an hour was rewritten.")
    bytes_rewritten: int = counted("Bytes of table files written in their place.")
    hours_rewritten: int = counted("Rewrites of an hour.")
    files_indexed: int = counted("Skip indexes made for files of the table.")
    hours_held_elsewhere: int = 0
    hours_expired: int = counted("Hours that the retention removed from the table.")
    rows_expired: int = counted("Rows of the hours that the retention removed.")
    bytes_expired: int = counted("Bytes of table files of the hours that the retention removed.")
    rows_purged: int = counted("Deleted rows removed from table files.")
    files_purged: int = counted("Table files with deleted rows that were removed or rewritten.")
    deletions_waiting: int = 0
    deletions_removed: int = counted(
        "Records of deletions removed because nothing needs them any more."
    )
    segments_removed: int = counted("Segments removed that nobody needs any more.")
    orphans_removed: int = counted(
        "Files removed that no version of the table names, or that killed jobs left."
    )
    writes_swept: int = counted("Uploads that were begun, never completed, and aborted.")
    held_elsewhere: int = 0
    leases: dict[str, int] = field(default_factory=dict)
    hour_leases: dict[str, int] = field(default_factory=dict)
    lag: Lag | None = None
    batches: list[BatchReport] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    phase: str = field(default="", metadata=_LIVE)
    batch: BatchReport | None = field(default=None, metadata=_LIVE)
    works: list[WorkQueue] = field(default_factory=list, metadata=_LIVE)

    @contextmanager
    def timed(self, phase: str, clock: Clock) -> Iterator[None]:
        """Adds the time of the block to the phase, which is the current one meanwhile."""
        start, outer = clock.monotonic(), self.phase
        self.phase = phase
        try:
            yield
        finally:
            spent = clock.monotonic() - start
            self.seconds[phase] = round(self.seconds.get(phase, 0.0) + spent, 3)
            self.phase = outer

    def planned(self, batch: BatchReport) -> None:
        """Records the plan of the next commit."""
        self.batch = batch
        if len(self.batches) < BATCHES_SHOWN:
            self.batches.append(batch)

    def alarm(self, text: str) -> None:
        """Records a condition that needs a person, once."""
        if text not in self.alarms:
            self.alarms.append(text)

    @property
    def busy(self) -> bool:
        """Whether the pass has changed anything so far."""
        counts = [one.name for one in fields(self) if "counted" in one.metadata]
        return any(getattr(self, name) for name in counts)

    @property
    def worth_reporting(self) -> bool:
        """Whether the pass changed something, failed, raised an alarm, or left work to others."""
        return bool(self.busy or self.error or self.alarms or self.held)

    @property
    def held(self) -> bool:
        """Whether other drivers have some of the work."""
        return bool(self.held_elsewhere or self.hours_held_elsewhere)

    def summary(self) -> dict[str, Any]:
        """The fields of the line of JSON: all but those of the current state."""
        names = [one.name for one in fields(self) if one.metadata != _LIVE]
        return {name: getattr(self, name) for name in names}

    def line(self) -> str:
        """The report as one line of JSON."""
        return orjson.dumps(self.summary()).decode()
