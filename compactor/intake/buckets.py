"""Time buckets: how the lines of a merge are spread over Spark's tasks.

A bucket is a range of ULIDs inside one hour (UTC) and becomes one file of the table, so
records with the same identity always meet in one bucket. Bounds come from the segments'
own footers: a sampling pass over the data would read it twice.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from compactor.intake.verify import HOUR_MS, Span
from logstore import ulid

_STEPS = 16  # points at which a span's text is taken to lie
_SMALLEST = 32 << 20  # bytes of text: smaller files are not worth another task


def bucket_bounds(spans: Sequence[Span], *, bucket_bytes: int, cores: int) -> list[int]:
    """The lowest ULID of each bucket, rising. Bucket i ends where i + 1 begins.

    Each has about `bucket_bytes` of text, less where that keeps `cores` busy, and lies in
    one hour.
    """
    total = sum(span.size for span in spans)
    target = min(bucket_bytes, max(math.ceil(total / max(cores, 1)), _SMALLEST))
    hours: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        hours[ulid.time_ms(span.low) // HOUR_MS].append(span)
    bounds: list[int] = []
    for hour in sorted(hours):
        bounds += _cut(ulid.lowest_at(hour * HOUR_MS), hours[hour], target)
    return bounds


def _cut(start: int, spans: Iterable[Span], target: int) -> list[int]:
    """`start`, and where the text of an hour is to be cut into equal parts of about `target`."""
    points = sorted(point for span in spans for point in _points(span))
    total = sum(size for _, size in points)
    parts = max(round(total / target), 1)
    cuts, seen = [start], 0.0
    for at, size in points:
        if len(cuts) < parts and seen >= total * len(cuts) / parts and at > cuts[-1]:
            cuts.append(at)
        seen += size
    return cuts


def _points(span: Span) -> list[tuple[int, float]]:
    width = span.high - span.low
    return [(span.low + width * step // _STEPS, span.size / _STEPS) for step in range(_STEPS)]
