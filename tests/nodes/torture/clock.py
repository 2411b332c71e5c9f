"""Tailrace on a machine whose clock is wrong: `python -m tests.nodes.torture.clock VERB …`.

`CLOCK_AHEAD_MS` says by how much it is ahead of the true one; it may be negative. The program is
the real one; what it asks the machine for the time of day is told so much more.
"""

from __future__ import annotations

import os
import sys
import time

from tailrace.cli.main import main

AHEAD = "CLOCK_AHEAD_MS"


def set_clock(ahead_ms: int) -> None:
    """From here on this process sees the other time."""
    true_ns, true_seconds = time.time_ns, time.time
    time.time_ns = lambda: true_ns() + ahead_ms * 1_000_000
    time.time = lambda: true_seconds() + ahead_ms / 1000


if __name__ == "__main__":
    set_clock(int(os.environ[AHEAD]))
    sys.exit(main())
