"""What a store's answers say of its clock.

A store that has a clock of its own, S3, says in every answer what time it was, cut to whole
seconds. Between sending and arrival the store's time was once between `date_ms` and
`date_ms` + 1 s.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DateSample:
    """A `Date` (ms since the epoch), and when its request was sent and answered.

    `sent` and `arrived` are seconds of `Clock.monotonic`, `now_ms` is our clock at the arrival.
    """

    date_ms: int
    sent: float
    arrived: float
    now_ms: int

    @property
    def ahead_ms(self) -> int:
        """How far our clock is ahead of the store's at least; negative if it is behind."""
        slow_ms = round((self.arrived - self.sent) * 1000)
        early, late = self.now_ms - slow_ms - (self.date_ms + 1000), self.now_ms - self.date_ms
        if early > 0:
            return early
        return min(late, 0)
