"""Seeds for simulated crashes: a few fixed ones, or others by `make sim SEED=… COUNT=…`.

COUNT is of each test that takes seeds. A history of compactors takes about two seconds; many of
those alone, in a quarter of an hour: `make sim COUNT=400 ARGS="-k 'ends_as_the or each_step'"`.

Where a suite has time for some of many cases only, `choice` says which: others in each run, so
that all of them have their turn. A run prints its number, and takes that of SIM_CHOICE.
"""

from __future__ import annotations

import os
import secrets
from random import Random

# Not with the prefix of settings: a service refuses to start with one that it does not know.
CHOICE = "SIM_CHOICE"


def seeds(count: int) -> range:
    """`count` seeds from 0, or from TAILRACE_SIM_SEED; TAILRACE_SIM_COUNT asks for more."""
    first = int(os.environ.get("TAILRACE_SIM_SEED", "0"))
    return range(first, first + max(count, int(os.environ.get("TAILRACE_SIM_COUNT", "0"))))


def choose() -> str:
    """Settles the choice of this run, for its processes too; how to make the same one again."""
    os.environ.setdefault(CHOICE, str(secrets.randbelow(10**6)))
    return f"{CHOICE}={os.environ[CHOICE]}"


def first_of(stride: int, seed: int) -> int:
    """With which of `stride` cases this run begins, to take each `stride`th from there."""
    return Random(f"{seed} {os.environ[CHOICE]}").randrange(stride)
