"""Time buckets of a merge, and the budget of the batch that is merged.

A bucket is a range of ULIDs inside one hour (UTC) and becomes one file of the table. Records
with the same identity are therefore always in the same bucket. The bounds come from the
segments' footers; a sampling pass would read the data twice.

A task has one bucket, unless there are many hours with few rows: then it has as many buckets as
are worth a task, and writes one file after another. The buckets of an hour that is cut into
several have tasks of their own.

The limit on the bytes of segments bounds how much a batch reads. Its budget bounds how much is
sorted, and how much of that the driver keeps: the text (`most_tasks` buckets of it), the time
ranges that say where the text lies, and the hours, each of which is a file and an action of the
commit. A first segment always fits. A segment that adds no hour is never refused for its hours: if
all segments had lines of all hours, ingesting one at a time would write each hour again and again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from compactor.ingest.prune import HOUR_MS, TimeRange, hour_of
from logstore import ulid

MOST_TASKS: Final = 512
MOST_HOURS: Final = 10_000
MOST_TIME_RANGES: Final = 250_000
_STEPS: Final = 16  # points at which a time range's text is taken to lie, at most
_FINENESS: Final = 64  # of a bucket: no point need be lighter
_SMALLEST: Final = 32 << 20  # bytes of text: smaller files are not worth another task
_FEW: Final = 32  # buckets that have a task each, however small
_HOURS_A_TASK: Final = 256  # files that one task writes, at most


@dataclass(frozen=True, slots=True)
class Buckets:
    """`bounds` has the lowest ULID of each bucket, rising: bucket i ends where i + 1 begins.

    `tasks` has the task of each, from 0 on, rising too.
    """

    bounds: tuple[int, ...]
    tasks: tuple[int, ...]


def buckets_of(time_ranges: Sequence[TimeRange], *, bucket_bytes: int, cores: int) -> Buckets:
    """Buckets for the text of the time ranges.

    Each has about `bucket_bytes` of text, less where that keeps `cores` busy, and lies in
    one hour.
    """
    target = _target(sum(time_range.size for time_range in time_ranges), bucket_bytes, cores)
    hours: dict[int, list[TimeRange]] = defaultdict(list)
    for time_range in time_ranges:
        hours[hour_of(time_range.low)].append(time_range)
    cut = [_cut(hour, hours[hour], target) for hour in sorted(hours)]
    bounds = tuple(bound for of_hour in cut for bound in of_hour)
    if len(bounds) <= _FEW:
        return Buckets(bounds, tuple(range(len(bounds))))
    weights = [sum(time_range.size for time_range in hours[hour]) for hour in sorted(hours)]
    counts = [len(of_hour) for of_hour in cut]
    return Buckets(bounds, tuple(_tasks(weights, counts, target)))


def _target(total: int, bucket_bytes: int, cores: int) -> int:
    return min(bucket_bytes, max(math.ceil(total / max(cores, 1)), _SMALLEST))


def _tasks(weights: Sequence[int], counts: Sequence[int], target: int) -> Iterator[int]:
    """The task of each bucket: one for each bucket of a cut hour, else as many as fit."""
    task, weight, held = -1, 0, _HOURS_A_TASK
    for of_hour, count in zip(weights, counts, strict=True):
        weight, held = weight + of_hour, held + 1
        if count > 1 or weight > target or held > _HOURS_A_TASK:
            task, weight, held = task + 1, of_hour, 1
        yield task
        for _ in range(count - 1):
            task, held = task + 1, _HOURS_A_TASK
            yield task


def _cut(hour: int, time_ranges: Sequence[TimeRange], target: int) -> list[int]:
    """The hour's start, and where to cut its text into equal parts of about `target`."""
    start = ulid.lowest_at(hour * HOUR_MS)
    total = sum(time_range.size for time_range in time_ranges)
    parts = round(total / target)
    return [start] if parts < 2 else _cuts(start, time_ranges, parts, target)


def _cuts(start: int, time_ranges: Iterable[TimeRange], parts: int, target: int) -> list[int]:
    points = sorted(point for time_range in time_ranges for point in _points(time_range, target))
    total = sum(size for _, size in points)
    cuts, seen = [start], 0.0
    for at, size in points:
        if len(cuts) < parts and seen >= total * len(cuts) / parts and at > cuts[-1]:
            cuts.append(at)
        seen += size
    return cuts


def _points(time_range: TimeRange, target: int) -> list[tuple[int, float]]:
    """Where the hour's text lies, just fine enough for the target."""
    steps = min(max(time_range.size * _FINENESS // target, 1), _STEPS)
    width = time_range.high - time_range.low
    return [
        (time_range.low + width * step // steps, time_range.size / steps) for step in range(steps)
    ]


@dataclass(slots=True)
class BatchBudget:
    """The rest of a batch's budget; a task sorts `bucket_bytes` of text."""

    bucket_bytes: int
    most_tasks: int = MOST_TASKS
    most_hours: int = MOST_HOURS
    most_time_ranges: int = MOST_TIME_RANGES
    _segments: int = 0
    _text: int = 0
    _time_ranges: int = 0
    _hours: set[int] = field(default_factory=set)

    def takes(self, time_ranges: Sequence[TimeRange]) -> bool:
        """Whether one more segment, with these time ranges, fits; if so, it is counted."""
        text = self._text + sum(time_range.size for time_range in time_ranges)
        hours = self._hours.union(hour_of(time_range.low) for time_range in time_ranges)
        if self._segments and not self._fits(
            text, self._time_ranges + len(time_ranges), len(hours)
        ):
            return False
        self._segments += 1
        self._text, self._time_ranges, self._hours = (
            text,
            self._time_ranges + len(time_ranges),
            hours,
        )
        return True

    def _fits(self, text: int, time_ranges: int, hours: int) -> bool:
        return (
            text <= self.most_tasks * self.bucket_bytes
            and time_ranges <= self.most_time_ranges
            and hours <= max(self.most_hours, len(self._hours))
        )
