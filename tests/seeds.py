"""Seeds for simulated crashes: a few fixed ones, or others by `make sim SEED=… COUNT=…`.

COUNT is of each test that takes seeds. A history of compactors takes about two seconds; many of
those alone, in a quarter of an hour: `make sim COUNT=400 ARGS="-k 'ends_as_the or each_step'"`.
"""

from __future__ import annotations

import os


def seeds(count: int) -> range:
    """`count` seeds from 0, or from TAILRACE_SIM_SEED; TAILRACE_SIM_COUNT asks for more."""
    first = int(os.environ.get("TAILRACE_SIM_SEED", "0"))
    return range(first, first + max(count, int(os.environ.get("TAILRACE_SIM_COUNT", "0"))))
