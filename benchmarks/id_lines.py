"""Made lines that are full of ids, the same for the same seed: no line is like another."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from uuid import UUID

_WORDS: Final = [
    *("block", "fetch", "session", "task", "table", "commit", "retry"),
    *("slot", "queue", "lease", "worker", "cache", "flush", "append"),
    *("index", "merge", "opened", "closed", "received", "deleted", "from"),
    *("for", "after", "timeout", "refused", "replica", "terminating"),
]
_LEVELS: Final = ["INFO"] * 12 + ["WARN"] * 3 + ["ERROR"]


def _hex(dice: random.Random, digits: int) -> str:
    return f"{dice.getrandbits(4 * digits):0{digits}x}"


def _digits(dice: random.Random, digits: int) -> str:
    return f"{dice.randrange(10**digits):0{digits}}"


IDS: Final[Mapping[str, Callable[[random.Random], str]]] = {
    "blk_ and 19 digits": lambda dice: f"blk_{_digits(dice, 19)}",
    "UUID": lambda dice: str(UUID(int=dice.getrandbits(128))),
    "8 hex digits": lambda dice: _hex(dice, 8),
    "12 hex digits": lambda dice: _hex(dice, 12),
    "16 hex digits": lambda dice: _hex(dice, 16),
    "32 hex digits": lambda dice: _hex(dice, 32),
    "10 digits": lambda dice: _digits(dice, 10),
    "16 digits": lambda dice: _digits(dice, 16),
    "word of 6 letters": lambda dice: "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=6)),
    "word of 8 letters": lambda dice: "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=8)),
    "address and port": lambda dice: (
        f"10.{dice.randrange(256)}.{dice.randrange(256)}.{dice.randrange(256)}"
        f":{dice.randrange(1024, 65536)}"
    ),
}
"""Makers of texts to look for, by their names."""


def lines(seed: int) -> Iterator[str]:
    """Lines of logs without end and without newlines; every second one has no id."""
    dice, seconds = random.Random(seed), 0.0
    kinds = [make for name, make in IDS.items() if not name.startswith("word")]
    while True:
        seconds += dice.random() / 20
        minutes, second = divmod(seconds, 60)
        clock = f"2026-03-0{1 + seed % 9} {int(minutes) // 60 % 24:02}:{int(minutes) % 60:02}"
        text = " ".join(dice.choices(_WORDS, k=dice.randrange(3, 12)))
        ids = dice.choices(kinds, k=dice.choice([0, 0, 1, 2]))
        named = " ".join(f"{dice.choice(_WORDS)}={make(dice)}" for make in ids)
        yield f"{clock}:{second:06.3f} {dice.choice(_LEVELS)} {text} {named}"
