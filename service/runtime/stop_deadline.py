"""The end of a stop that takes too long.

A thread that waits for a store which hangs cannot be ended, and Python waits for it at its exit.
Once a stop has begun, the process therefore ends at its deadline, whatever hangs: the journal has
everything that was acknowledged, and the next start goes on from there.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import Final

log = logging.getLogger(__name__)

MARGIN_SECONDS: Final = 10.0
"""What a stop may take beyond `server.stop_seconds`: for replies, leases and child processes."""
_EXIT_SECONDS: Final = 3.0


class StopDeadline:
    """The deadline of one process; `status` is its exit status if it is ended."""

    def __init__(self, status: int) -> None:
        self.status = status
        self._until = 0.0
        self._sooner = threading.Event()
        self._watching: threading.Thread | None = None

    def begin(self, seconds: float) -> None:
        """Ends the process in so many seconds, unless it has ended by itself."""
        self._until = time.monotonic() + seconds
        if self._watching is None:
            watching = threading.Thread(target=self._watch, name="stop deadline", daemon=True)
            self._watching = watching
            watching.start()

    def stopped(self, status: int) -> None:
        """All parts have stopped: only threads can still hold the process up."""
        self.status = status
        self._until = min(self._until, time.monotonic() + _EXIT_SECONDS)
        self._sooner.set()

    def _watch(self) -> None:
        while (left := self._until - time.monotonic()) > 0:
            self._sooner.wait(left)
            self._sooner.clear()
        waiting = sorted({t.name for t in threading.enumerate() if not t.daemon})
        log.error("the stop is over, and threads still wait: %s", ", ".join(waiting))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(self.status)
