"""Work that is under way, and for how long the oldest piece of it is.

A piece that hangs fails no try and counts no error. Only its age gives it away.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from logstore.clock import Clock
from service.runtime.problem import Problem

LONG_SECONDS: Final = 300.0
"""Far more than a piece of work takes on a machine that has too much to do."""


class Ongoing:
    """The pieces of one kind of work; `what` says in a sentence what a hanging one is."""

    def __init__(self, clock: Clock, what: str, *, most_seconds: float = LONG_SECONDS) -> None:
        self._now = clock.monotonic
        self._what = what
        self._most = most_seconds
        self._begun: dict[int, float] = {}
        self._numbers = itertools.count()

    @contextmanager
    def piece(self) -> Iterator[None]:
        """Counts what is done in the block as a piece."""
        number = self._begin()
        try:
            yield
        finally:
            del self._begun[number]

    def follow(self, work: asyncio.Future[Any]) -> None:
        """Counts work that a thread does as a piece, until the thread has ended it."""
        number = self._begin()
        work.add_done_callback(lambda _: self._begun.pop(number, None))

    def _begin(self) -> int:
        number = next(self._numbers)
        self._begun[number] = self._now()
        return number

    @property
    def under_way(self) -> int:
        """How many pieces there are now."""
        return len(self._begun)

    @property
    def oldest_seconds(self) -> float:
        """For how long the oldest piece is under way; 0 without any."""
        return self._now() - min(self._begun.values()) if self._begun else 0.0

    @property
    def overdue_seconds(self) -> float:
        """For how long the oldest piece takes longer than any should; 0 without one."""
        return max(self.oldest_seconds - self._most, 0.0)

    def problems(self) -> list[str]:
        """That a piece does not end, as a sentence."""
        if not self.overdue_seconds:
            return []
        return [Problem(self._what, f"{self._what}: for {self.oldest_seconds:.0f} s by now")]
