"""What is wrong with the node, in the log: once when it begins, once when it is over.

`/health/ready` tells whoever asks. An operator who reads only the log must see the same:
damage that was found at the start, a store that takes nothing, a node that is not ready.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from logstore.clock import Clock

log = logging.getLogger(__name__)

EVERY_SECONDS = 1.0


class ProblemLog:
    """Compares what there is now with what was said before."""

    def __init__(self, problems: Callable[[], Iterable[str]], clock: Clock) -> None:
        self._problems = problems
        self._clock = clock
        self._said: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Looks again and again until cancelled."""
        while True:
            self.look()
            await self._clock.sleep(EVERY_SECONDS)

    def look(self) -> None:
        """Says what is new and what is over."""
        now = frozenset(self._problems())
        for problem in sorted(now - self._said):
            log.warning("%s", problem)
        for problem in sorted(self._said - now):
            log.info("over: %s", problem)
        self._said = now
