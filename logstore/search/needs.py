"""What a message must hold for a condition to be true, as far as a skip index can tell.

A condition becomes pieces of text that are there in every message for which it holds. What says
nothing for certain (a negation, a comparison of numbers, JSON, which may be escaped) is left out.
So a row group that lacks what is needed has no match, and one that has it may have none either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from logstore.search.conditions import (
    MESSAGE,
    All,
    AnyOf,
    Compares,
    Condition,
    Contains,
    Exists,
    Is,
    Logfmt,
    Matches,
    Not,
    OneOf,
    StartsWith,
)
from logstore.search.values import digits_of
from logstore.table.ngrams import Grams, grams_of
from logstore.table.skip_index import SkipIndex, ranges


@dataclass(frozen=True, slots=True)
class AllNeeded:
    """Each of the parts is needed."""

    parts: Sequence[Needs]


@dataclass(frozen=True, slots=True)
class AnyNeeded:
    """One of the parts is needed."""

    parts: Sequence[Needs]


Needs: TypeAlias = Grams | AllNeeded | AnyNeeded


@dataclass(frozen=True)
class Wanted:
    """What an index says of its file for a search.

    `rows` of each row group, and which `groups` may hold a match; `bare`: no line has attributes.
    `coloured` row groups have lines that differ from what is seen of them.
    """

    rows: NDArray[np.int64]
    groups: NDArray[np.bool_]
    bare: bool
    coloured: frozenset[int] = frozenset()

    @cached_property
    def share(self) -> float:
        """The part of the file's rows that may match."""
        return float(self.rows[self.groups].sum()) / max(int(self.rows.sum()), 1)

    @cached_property
    def ranges(self) -> Sequence[tuple[int, int]]:
        """Their numbers, first and last."""
        return tuple(ranges(self.rows, self.groups))


_MOST_TEXTS: Final = 8
_MOST_ALTERNATIVES: Final = 64  # each reads pages of the index


def wanted(needs: Needs, index: SkipIndex) -> Wanted:
    """What the index says. Raises `Damaged`, and what reading the index raises."""
    return Wanted(index.rows, may_hold(needs, index), index.bare, index.head.coloured)


def may_hold(needs: Needs, index: SkipIndex) -> NDArray[np.bool_]:
    """For each row group of the index, False only if none of its messages has what is needed.

    Raises `Damaged`, and what reading the index raises.
    """
    match needs:
        case AllNeeded(parts):
            return reduce(np.logical_and, (may_hold(part, index) for part in parts))
        case AnyNeeded(parts):
            return reduce(np.logical_or, (may_hold(part, index) for part in parts))
        case _:
            return index.may_hold(needs)


def pages_for(needs: Needs, index: SkipIndex) -> Iterator[tuple[int, int]]:
    """The pages of the index that `may_hold` reads at most: place in the index, and bytes."""
    if isinstance(needs, Grams):
        yield from index.pages(needs)
    else:
        for part in needs.parts:
            yield from pages_for(part, index)


def needs_of(condition: Condition | None) -> Needs | None:
    """What the condition needs of a message; None if that is nothing for certain."""
    match condition:
        case All(parts):
            return _all(*map(needs_of, parts))
        case AnyOf(parts):
            known = [needs for part in parts if (needs := needs_of(part)) is not None]
            return AnyNeeded(known) if len(known) == len(parts) > 0 else None
        case Matches(pattern, field, ignore_case) if field == MESSAGE:
            return _all(*(_text(text, ignore_case) for text in literals(pattern)))
        case Contains() | Is() | StartsWith() if condition.field == MESSAGE:
            return _text(condition.text, condition.ignore_case)
        case OneOf(texts, field) if field == MESSAGE:
            needed = [needs for text in texts if (needs := _text(text, False)) is not None]
            few = len(needed) == len(texts) <= _MOST_ALTERNATIVES
            return AnyNeeded(needed) if few and needed else None
        case None | Not():
            return None
    return _logfmt(condition) if isinstance(condition.field, Logfmt) else None


def _all(*parts: Needs | None) -> Needs | None:
    known = [part for part in parts if part is not None]
    return AllNeeded(known) if known else None


def _text(text: str, ignore_case: bool) -> Needs | None:
    grams = grams_of(text, ignore_case=ignore_case)
    return None if grams.empty else grams


def _logfmt(leaf: Contains | Is | StartsWith | Matches | OneOf | Compares | Exists) -> Needs | None:
    """The key, and its value unless that may be written with escapes."""
    assert isinstance(leaf.field, Logfmt)
    key = _text(f"{leaf.field.key}=", ignore_case=False)
    if isinstance(leaf, Compares) and leaf.operator == "=" and not isinstance(leaf.value, str):
        return _all(key, _number(leaf.value))
    if (
        isinstance(leaf, Matches | OneOf | Compares | Exists)
        or '"' in leaf.text
        or "\\" in leaf.text
    ):
        return key
    return _all(key, _text(leaf.text, leaf.ignore_case))


def _number(number: float) -> Needs | None:
    """The digits of a number, wherever its dot stands."""
    digits = digits_of(number)
    spellings = [digits, *(f"{digits[:at]}.{digits[at:]}" for at in range(1, len(digits)))]
    known = [needs for text in spellings if (needs := _text(text, ignore_case=False)) is not None]
    return AnyNeeded(known) if len(known) == len(spellings) else None


def sure_texts(condition: Condition | None) -> tuple[str, ...]:
    """Texts of which each message has one, as it is written, for which the condition holds.

    The longest for which that is certain, none if it is for no text.
    """
    match condition:
        case All():
            return max(needed_texts(condition), key=_narrowness, default=())
        case AnyOf(parts):
            each = [sure_texts(part) for part in parts]
            texts = {text for some in each for text in some}
            return tuple(sorted(texts)) if all(each) and len(texts) <= _MOST_TEXTS else ()
        case Matches(pattern, field, False) if field == MESSAGE:
            return tuple(sorted(literals(pattern), key=len)[-1:])
        case Contains(text, field, False) | Is(text, field, False) | StartsWith(text, field, False):
            if field == MESSAGE:
                return (text,) if text else ()
        case OneOf(texts, field) if field == MESSAGE:
            return tuple(sorted(set(texts))) if len(texts) <= _MOST_TEXTS else ()
        case None | Not():
            return ()
    at = condition.field
    return (f"{at.key}=",) if isinstance(at, Logfmt) else ()


def needed_texts(condition: Condition | None) -> list[tuple[str, ...]]:
    """Groups of texts: of each of them every message for which the condition holds has one."""
    if isinstance(condition, All):
        return [texts for part in condition.parts for texts in needed_texts(part)]
    texts = sure_texts(condition)
    return [texts] if texts else []


def _narrowness(texts: tuple[str, ...]) -> int:
    """How much a choice of texts is likely to leave out."""
    return min(map(len, texts), default=0)


_TOKEN: Final = re.compile(
    r"""
      (?P<open>  \( (?: \?: | \?P?<[A-Za-z_][A-Za-z0-9_]*> | (?!\?) ) )
    | (?P<close> \) )
    | (?P<or>    \| )
    | (?P<zero>  [*?] | \{0+(?:,[0-9]*)?\} )
    | (?P<more>  \+ | \{[0-9]+(?:,[0-9]*)?\} )
    | (?P<any>   [.^$] | \\[dDwWsSbBAzntrfva] | \[\^?\]?(?:\[:\^?[a-z]+:\]|\\.|[^\]\\])*\] )
    | \\(?P<escaped> [^A-Za-z0-9\x80-\U0010ffff] )
    | (?P<plain> [^\\()\[\]{}*+?|.^$] )
    """,
    re.VERBOSE | re.DOTALL,
)


def literals(pattern: str) -> list[str]:
    """Texts that every match of the regular expression (RE2) has, none if that is not certain.

    Those that stand outside of groups and classes, and are not optional. Flags, characters by
    number and classes by name are not understood, and then nothing is certain.
    """
    parts, at, depth = [""], 0, 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None or (token["or"] and not depth):
            return []
        depth += bool(token["open"]) - bool(token["close"])
        character = token["escaped"] or token["plain"]
        if token["zero"]:
            parts[-1] = parts[-1][:-1]
        if character is None:
            parts.append("")
        elif not depth:
            parts[-1] += character
        at = token.end()
    return [part for part in parts if part]
