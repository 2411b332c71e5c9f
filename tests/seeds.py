"""Seeds for simulated crashes: a few fixed ones, or others by `make sim SEED=…`."""

from __future__ import annotations

import os


def seeds(count: int) -> range:
    """`count` seeds from 0, or from the one that TAILRACE_SIM_SEED names."""
    first = int(os.environ.get("TAILRACE_SIM_SEED", "0"))
    return range(first, first + count)
