"""Seeds for simulated crashes: a few fixed ones, or others by `make sim SEED=… COUNT=…`."""

from __future__ import annotations

import os


def seeds(count: int) -> range:
    """`count` seeds from 0, or from TAILRACE_SIM_SEED; TAILRACE_SIM_COUNT asks for more."""
    first = int(os.environ.get("TAILRACE_SIM_SEED", "0"))
    return range(first, first + max(count, int(os.environ.get("TAILRACE_SIM_COUNT", "0"))))
