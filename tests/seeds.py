"""Seeds for simulated crashes: a few fixed ones, or others by `make sim SEED=… COUNT=…`.

COUNT is of each test that takes seeds. A history of compactors takes about two seconds; many of
those alone, in a quarter of an hour: `make sim COUNT=400 ARGS="-k 'ends_as_the or each_step'"`.

Where a suite has time for some of many cases only, `some` says which: every `stride`-th, others
in each run, so that all of them have their turn. A whole test has its turn by the mark `in_turn`.
A run prints its number, and takes that of
SIM_CHOICE. `SIM_ALL=1` takes every case, in any run of pytest; so does `make sim`, and whoever
sets TAILRACE_SIM_SEED or TAILRACE_SIM_COUNT. Of the thousands of cases of whole nodes
(`tests/service/test_node_power_cut.py`, `tests/service/test_node_faults.py`) only
`make sim SEED=…` takes all.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")
# Not with the prefix of settings: a service refuses to start with one that it does not know.
CHOICE = "SIM_CHOICE"
ALL = frozenset({"SIM_ALL", "TAILRACE_SIM_SEED", "TAILRACE_SIM_COUNT"})


def seeds(count: int) -> range:
    """`count` seeds from 0, or from TAILRACE_SIM_SEED; TAILRACE_SIM_COUNT asks for more."""
    first = int(os.environ.get("TAILRACE_SIM_SEED", "0"))
    return range(first, first + max(count, int(os.environ.get("TAILRACE_SIM_COUNT", "0"))))


def choose() -> str:
    """Settles the choice of this run, for its processes too; how to make the same one again."""
    os.environ.setdefault(CHOICE, str(secrets.randbelow(10**6)))
    return f"{CHOICE}={os.environ[CHOICE]}"


def first_of(stride: int, seed: int | str) -> int:
    """With which of `stride` cases this run begins, to take each `stride`th from there."""
    return Random(f"{seed} {os.environ[CHOICE]}").randrange(stride)


def some(cases: Sequence[T], stride: int, name: int | str) -> Sequence[T]:
    """Every `stride`-th of `cases`, from another one in each run; all, where all are asked for.

    Tests of different `name` begin at different cases. Of fewer cases than `stride` it may be none.
    """
    step = 1 if ALL & os.environ.keys() else stride
    return cases[first_of(step, name) :: step]


def chosen(name: str, stride: int) -> bool:
    """Whether the case `name` is among those of this run, as one in `stride` is; or all are."""
    return bool(ALL & os.environ.keys()) or first_of(stride, name) == 0
