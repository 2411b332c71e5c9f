"""The time of the store, which all who share it agree on, as far as it can be known.

A store answers with its `Date`, in whole seconds. Between answers time is carried on with
the machine's own running clock. What a program knows is an interval:

    sent ───────► the store reads its clock, cuts it to seconds ───────► arrived

so at `sent` it was at most `date` + 1 s, at `arrived` at least `date`. Who holds a lease
must not think it is earlier than it is, who takes one not that it is later; each reckons
with its end. Answers that took longer than 2 s are not used; before the first that is, no
time is known and nothing is held or taken. A store without a clock of its own, a folder,
has the machine's.
"""

from __future__ import annotations

from collections.abc import Callable

from logstore.clock import Clock
from logstore.objects.dates import DateSample

SLOWEST_SECONDS = 2.0
_NEVER_MS = 1 << 62


class StoreTime:
    """`newest` gives the last answer's `Date`; it is None if the store has no clock of its own."""

    def __init__(self, clock: Clock, newest: Callable[[], DateSample | None] | None) -> None:
        self._clock = clock
        self._newest = newest
        self._used: DateSample | None = None

    @property
    def known(self) -> bool:
        """Whether there is any idea of it."""
        return self._newest is None or self._sample() is not None

    def at_most_ms(self) -> int:
        """The store's clock is not beyond this: what a holder reckons with."""
        if self._newest is None:
            return self._clock.now_ms()
        sample = self._sample()
        if sample is None:
            return _NEVER_MS
        return sample.date_ms + 1000 + self._passed_ms(sample.sent)

    def at_least_ms(self) -> int:
        """The store's clock is there or beyond: what a taker reckons with."""
        if self._newest is None:
            return self._clock.now_ms()
        sample = self._sample()
        if sample is None:
            return 0
        return sample.date_ms + self._passed_ms(sample.arrived)

    def _sample(self) -> DateSample | None:
        newest = None if self._newest is None else self._newest()
        if newest is not None and newest.arrived - newest.sent <= SLOWEST_SECONDS:
            self._used = newest
        return self._used

    def _passed_ms(self, since: float) -> int:
        return round((self._clock.monotonic() - since) * 1000)
