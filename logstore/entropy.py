"""Randomness as a parameter, so that a simulation with a seed repeats itself."""

from __future__ import annotations

import random
from typing import Protocol


class Entropy(Protocol):
    """A source of random bits; `random.Random(seed)` is one."""

    def getrandbits(self, k: int, /) -> int:
        """A number of `k` random bits."""
        ...


def system_entropy() -> Entropy:
    """A generator seeded from the operating system."""
    return random.Random()  # noqa: S311 -- ids must be unlikely to meet, not secret
