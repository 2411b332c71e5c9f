"""Excludes files of the table, and deletions, that cannot concern any line of a batch.

Both are decided without reading any line, by ranges that the footers of the batch's segments give.
A time range says where text lies in time, within one hour (UTC), as a table file does. A run range
says between which ULIDs a run's lines of an hour are.

A copy of a line has the same ULID, fqn and run. A file can therefore overlap only if its ULID
bounds overlap the time of some text (`Coverage`), and if a run with lines in the file's hour is
within its bounds of all three. The first condition excludes fresh files, which have all runs of a
short time; the second excludes files of a rewritten hour, which have the whole hour and few runs
each. If a batch has one late line, one or two files are read, however many there are.

A deletion removes lines of its run, or of its pipeline, up to a ULID. There may be thousands,
because runs expire all the time, but few of them are of runs with lines in the batch.

Bounds may be wider than the content of the file, as shortened ones are, but never narrower.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from logstore import ulid
from logstore.batch import RunKey
from logstore.runs.deletions import Deletion
from logstore.table.snapshot import TableFile

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Text between two ULIDs, inclusive, of one hour; `size` in bytes."""

    low: int
    high: int
    size: int


def hour_of(value: int) -> int:
    """The hour of a ULID, counted from the epoch."""
    return ulid.time_ms(value) // HOUR_MS


class Coverage:
    """The union of thousands of time ranges, as disjoint ranges of ULIDs, to compare with files."""

    def __init__(self, time_ranges: Iterable[TimeRange]) -> None:
        self._lows: list[str] = []
        self._highs: list[str] = []
        for low, high in sorted((ulid.encode(s.low), ulid.encode(s.high)) for s in time_ranges):
            if self._highs and low <= self._highs[-1]:
                self._highs[-1] = max(self._highs[-1], high)
            else:
                self._lows.append(low)
                self._highs.append(high)

    def may_overlap(self, bounds: tuple[str, str] | None) -> bool:
        """Whether lines between two ULIDs, inclusive, may be in it; None: bounds are unknown."""
        if bounds is None:
            return True
        below = bisect_right(self._lows, bounds[1]) - 1  # the last that begins at or below the end
        return below >= 0 and self._highs[below] >= bounds[0]


MOST_RUN_RANGES: Final = 250_000
"""Run ranges that are kept apart: each takes some 300 bytes of the driver's memory."""
_ABOVE_ALL: Final = "~"  # as no ULID begins


class RunRange(NamedTuple):
    """Lines of a run in an hour (counted from the epoch), between two ULIDs, inclusive."""

    hour: int
    run: RunKey
    low: str
    high: str


Owner: TypeAlias = tuple[str, str | None]  # fqn, and run; None is all of the pipeline
Row: TypeAlias = tuple[str, str, str, str]  # fqn, run, lowest and highest ULID


@dataclass(slots=True)
class RunRanges:
    """Each run's lines in each hour, from the lowest ULID to the highest.

    An hour with too many runs for `most` in all no longer distinguishes them: it then counts as
    having every run, and more files are read.
    """

    most: int = MOST_RUN_RANGES
    _hours: dict[int, dict[RunKey, tuple[str, str]] | None] = field(default_factory=dict)
    _count: int = 0

    def add(self, run_ranges: Iterable[RunRange]) -> None:
        """Adds the ranges of further lines."""
        for run_range in run_ranges:
            runs = self._hours.setdefault(run_range.hour, {})
            if runs is None:
                continue
            known = runs.get(run_range.run)
            if known is not None:
                runs[run_range.run] = min(known[0], run_range.low), max(known[1], run_range.high)
            elif self._count < self.most:
                runs[run_range.run] = run_range.low, run_range.high
                self._count += 1
            else:
                self._hours[run_range.hour] = None
                self._count -= len(runs)

    def of(self, hour: int) -> Sequence[Row] | None:
        """The ranges of the hour, sorted; None if any run may be there."""
        runs = self._hours.get(hour, {})
        return None if runs is None else sorted((*run, *bounds) for run, bounds in runs.items())

    def lowest(self) -> Mapping[Owner, str]:
        """The lowest ULID of each known run and of each pipeline."""
        found: dict[Owner, str] = {}
        for runs in self._hours.values():
            for run, (low, _) in (runs or {}).items():
                for owner in (run, (run.fqn, None)):
                    found[owner] = min(found.get(owner, low), low)
        return found

    def lowest_of_any(self) -> int | None:
        """A lower bound of ULIDs in hours that may have any run; None if there are none."""
        hours = [hour for hour, runs in self._hours.items() if runs is None]
        return ulid.lowest_at(min(hours) * HOUR_MS) if hours else None


class BatchRanges:
    """Where the lines of a batch are: `time_ranges` of its text, `run_ranges` of each run."""

    def __init__(self, time_ranges: Iterable[TimeRange], run_ranges: RunRanges) -> None:
        self._covered = Coverage(time_ranges)
        self._run_ranges = run_ranges
        self._sorted: dict[int, Sequence[Row] | None] = {}

    def may_overlap(self, file: TableFile) -> bool:
        """False only if no line of the batch is in the file."""
        return self._covered.may_overlap(file.ulids) and self._has_run_of(file)

    def relevant_deletions(self, deletions: Sequence[Deletion]) -> list[Deletion]:
        """The deletions that may remove a line of the batch."""
        if not deletions:
            return []
        lowest, of_any = self._run_ranges.lowest(), self._run_ranges.lowest_of_any()
        return [
            one
            for one in deletions
            if (of_any is not None and of_any <= one.t)
            or lowest.get((one.fqn, one.run), _ABOVE_ALL) <= ulid.encode(one.t)
        ]

    def _has_run_of(self, file: TableFile) -> bool:
        hour = file.start_ms // HOUR_MS
        if hour not in self._sorted:
            self._sorted[hour] = self._run_ranges.of(hour)
        rows = self._sorted[hour]
        if rows is None:
            return True
        start, end = 0, len(rows)
        if file.fqns is not None:
            start = bisect_left(rows, file.fqns[0], key=_fqn)
            end = bisect_right(rows, file.fqns[1], key=_fqn)
        return any(_may_be_in(rows[index], file) for index in range(start, end))


def _fqn(row: Row) -> str:
    return row[0]


def _may_be_in(row: Row, file: TableFile) -> bool:
    _, run, low, high = row
    within = file.runs is None or file.runs[0] <= run <= file.runs[1]
    return within and (file.ulids is None or (file.ulids[0] <= high and low <= file.ulids[1]))
