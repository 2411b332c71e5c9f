"""Time buckets: how the lines of a merge are spread over Spark's tasks and files.

A bucket is a range of ULIDs inside one hour (UTC) and becomes one file of the table. Records
with the same identity are therefore always in the same bucket. The bounds come from the
segments' footers; a sampling pass would read the data twice.

A task has one bucket, unless there are many hours with few rows: then it has as many buckets as
are worth a task, and writes one file after another. The buckets of an hour that is cut into
several have tasks of their own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from compactor.ingest.time_range import HOUR_MS, TimeRange, hour_of
from logstore import ulid

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
