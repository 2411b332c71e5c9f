"""The budget of one batch, by the footers of its segments.

The limit on the bytes of segments bounds how much is read. The budget bounds how much is sorted,
and how much of that the driver keeps: the text (`most_tasks` buckets of it), the time ranges that
say where the text lies, and the hours, each of which is a file and an action of the commit.

A first segment always fits. A segment that adds no hour is never refused for its hours: if all
segments had lines of all hours, ingesting one at a time would write each hour again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from compactor.ingest.time_range import TimeRange, hour_of

MOST_TASKS: Final = 512
MOST_HOURS: Final = 10_000
MOST_TIME_RANGES: Final = 250_000


@dataclass(slots=True)
class BatchBudget:
    """What is left for a batch; `bucket_bytes` of text are one task's."""

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
