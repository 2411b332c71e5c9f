"""Measures how far this node's clock is from the store's, which all nodes share.

ULIDs, pages by time and expiry mean something only if nodes agree on the time. A node that
is more than a minute off takes no batches until its clock is right. A store without a
clock of its own, a folder, has the machine's: there is nothing to be off from.
"""

from __future__ import annotations

from collections.abc import Callable

from logstore.objects.remote import DateSample
from service.runtime.problem import Problem

MOST_MS = 60_000


class ClockSkew:
    """The skew of this node's clock.

    `newest` gives the store's last `Date`; it is None if the store has no clock.
    """

    def __init__(self, newest: Callable[[], DateSample | None] | None) -> None:
        self._newest = newest

    @property
    def ahead_ms(self) -> int:
        """How far the clock is ahead for sure; negative if behind, 0 while nothing is known."""
        sample = None if self._newest is None else self._newest()
        return 0 if sample is None else sample.ahead_ms

    @property
    def bounds_ms(self) -> tuple[int, int]:
        """The least and the most by which the clock may be ahead; both 0 without another clock.

        Before the store has answered they are those between which a node takes batches.
        """
        if self._newest is None:
            return 0, 0
        sample = self._newest()
        return (-MOST_MS, MOST_MS) if sample is None else sample.bounds_ms

    @property
    def problem(self) -> str | None:
        """The reason why no batches are taken; None if the clock is right."""
        if self._newest is None:  # asked for every batch
            return None
        ahead_ms = self.ahead_ms
        if abs(ahead_ms) <= MOST_MS:
            return None
        way = "ahead of" if ahead_ms > 0 else "behind"
        what = f"the clock is {abs(ahead_ms) // 1000} s {way} the object store's: set it right"
        return Problem("the clock is not the object store's", what)
