"""Values as people write them in a search: text with `*` for anything, levels, numbers.

Parameters of a URL and the language of `q` read them here, so they mean the same in both.
"""

from __future__ import annotations

import math
import re
from typing import Final

from logstore.errors import InvalidInput
from logstore.patterns import MOST_STARS, LinearRegex
from logstore.search.conditions import (
    AnyOf,
    Column,
    Condition,
    Contains,
    Exists,
    Field,
    Is,
    Matches,
    StartsWith,
)
from logstore.segments.schema import LEVELS
from logstore.segments.spellings import NAMES, NO_LEVEL, level_of_value

LEVEL: Final = Column("level")
LEVEL_HINT: Final = f"Levels are {', '.join(LEVELS)}, and other spellings of them such as warning."

_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][-+]?[0-9]{1,3})?")
_EXACT_DIGITS: Final = 15
"""Digits of a number that a float of 64 bits tells from its neighbours."""
_ANYTHING: Final = r"[\s\S]*"


def level_named(text: str) -> str | None:
    """The level that the text spells, as ingest reads it; None if it is none."""
    number = level_of_value(text)
    return None if number == NO_LEVEL else LEVELS[number]


def number_in(text: str) -> float | None:
    """The number that the text is, None if it is none."""
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def is_exact(text: str) -> bool:
    """Whether a number of the text differs, as a float, from each other one that people write."""
    digits = re.sub(r"[eE].*|[^0-9]", "", text).lstrip("0")
    return len(digits) <= _EXACT_DIGITS


def digits_of(number: float) -> str:
    """The digits that each spelling of the number has, with a dot among them at most: 503 of 503.0.

    What a float only rounds to the number is not counted as a spelling of it.
    """
    return re.sub(r"e.*|[^0-9]", "", repr(number)).strip("0")


def wildcard(text: str, field: Field, *, within: bool = False) -> Condition:
    """The condition of a text in which `*` stands for anything, also for nothing.

    The field is the whole of it, or has it `within`. Raises `InvalidInput` for too many `*`.
    """
    parts = text.split("*")
    if len(parts) > MOST_STARS + 1:
        raise InvalidInput(
            f"{text[:80]!r} has more than {MOST_STARS} *", field="q", hint="Write fewer of them."
        )
    if not any(parts):
        return Exists(field)
    if field == LEVEL:
        return _levels_like(text.upper())
    if field == Column("ulid"):
        parts = [part.upper() for part in parts]
    if within:
        parts = [part for part in parts if part]
        if len(parts) == 1:
            return Contains(parts[0], field)
        return Matches(_ANYTHING.join(map(re.escape, parts)), field)
    if not any(parts[1:]):
        return StartsWith(parts[0], field)
    return Matches(rf"\A{_ANYTHING.join(map(re.escape, parts))}\z", field)


def _levels_like(text: str) -> Condition:
    """One of the levels of this name; of another spelling, if no level is called so."""
    pattern = LinearRegex(".*".join(map(re.escape, text.split("*"))))
    found = [level for level in LEVELS if pattern.fullmatch(level)]
    spelled = {LEVELS[n] for name, n in NAMES.items() if pattern.fullmatch(name.upper())}
    chosen = found or [level for level in LEVELS if level in spelled]
    return AnyOf(tuple([Is(level, LEVEL) for level in chosen]))
