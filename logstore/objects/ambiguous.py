"""Patience with a store that does not say what became of a write.

A write whose outcome is unknown is looked for and, if it is not there, made again. A
store that never says anything else must not be asked for ever without a pause: after a
few times the caller hears of it, and waits its own back-off.
"""

from __future__ import annotations

from logstore.errors import OutcomeUnknown


class Unclear:
    """Counts unknown outcomes of one operation; the last one that is borne is raised."""

    def __init__(self, borne: int = 3) -> None:
        self._left = borne

    def bear(self, error: OutcomeUnknown) -> None:
        """Returns if the caller should look again. Raises `error` when it is enough."""
        self._left -= 1
        if self._left <= 0:
            raise error
