"""Finds the first word of each record after its time: most programs write the level there.

Digits, punctuation and the words of a time (`Nov`, `Sun`, `T10`, `Z`, `UTC`) are skipped. The
search works on the matrix of `prefixes`, all records at once; each word is looked up in the tables
of `spellings` and in that of the words of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from logstore.segments.prefixes import WIDTH, Bools, Bytes, Ints, Prefixes
from logstore.segments.spellings import NAMES, NO_LEVEL

_SIZE: Final = 16  # bytes of a word that are compared; the longest name has 13
_REACH: Final = 56  # bytes in which the next word must begin
_FURTHEST: Final = WIDTH - _SIZE  # no word begins after this column
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)  # spreads the words that differ after eight bytes
_FIRST: Final = np.uint64(255)
_TIME: Final = NO_LEVEL - 1
_CASE: Final = np.uint8(32)  # the bit that small letters have
_UNDERSCORE: Final = 95
_INSIDE: Final = np.tril(np.full((_SIZE + 1, _SIZE), 255, np.uint8), -1)  # by size
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
)
_ZONES: Final = ("am", "pm", "utc", "gmt", "cet", "cest", "est", "edt", "pst", "pdt")
_TIME_WORDS: Final = (*_DAYS, *_MONTHS, *_ZONES, "z", *(f"t{hour:02}" for hour in range(24)))
_MOST_TIME_WORDS: Final = 4  # of "Sun Nov 29 10:00:00 PM UTC 2026"


def _number_words(words: Bytes) -> NDArray[np.uint64]:
    """A number for each word of `_SIZE` bytes in lower case, filled up with zeros."""
    halves = words.view(np.uint64)
    numbers: NDArray[np.uint64] = halves[:, 0] + halves[:, 1] * _FACTOR
    return numbers


def _table() -> tuple[NDArray[np.uint64], NDArray[np.int8]]:
    """The numbers of all words in order, and what each is: a level, or `_TIME`."""
    words = {**NAMES, **dict.fromkeys(_TIME_WORDS, _TIME)}
    texts = b"".join(word.encode().ljust(_SIZE, b"\0") for word in words)
    numbers = _number_words(np.frombuffer(texts, np.uint8).reshape(-1, _SIZE))
    order = np.argsort(numbers)
    return numbers[order], np.array(list(words.values()), np.int8)[order]


_NUMBERS, _KINDS = _table()


class FirstWords(NamedTuple):
    """The first word of each record.

    `levels` has the level that it names in any case, or `NO_LEVEL`. `capitals` says whether it has
    no small letter, `marks` the byte after it, `columns` where it begins in the prefix; column 0
    means that no word was found. `firsts` are the first bytes of the records.
    """

    levels: NDArray[np.int8]
    capitals: Bools
    marks: Bytes
    columns: Ints
    firsts: Bytes


def find_first_words(look: Prefixes) -> FirstWords:
    """The first word of each record that is not part of a time."""
    count = len(look.lengths)
    found = FirstWords(
        np.empty(count, np.int8),
        np.empty(count, np.bool_),
        np.empty(count, np.uint8),
        np.empty(count, np.int64),
        look.rows[:, 1].copy(),
    )
    rows, starts = np.arange(count), np.ones(count, np.int64)
    for _ in range(_MOST_TIME_WORDS + 1):
        rows, starts = _take_next(look, rows, starts, found)
        if len(rows) == 0:
            break
    missing = (
        (found.columns >= look.lengths) | (found.columns > _FURTHEST) | (found.levels == _TIME)
    )
    found.levels[missing] = NO_LEVEL
    found.columns[missing] = 0
    return found


def join_words(parts: Sequence[FirstWords]) -> FirstWords:
    """The first words of consecutive records."""
    return (
        parts[0] if len(parts) == 1 else FirstWords(*map(np.concatenate, zip(*parts, strict=True)))
    )


def _take_next(look: Prefixes, rows: Ints, starts: Ints, found: FirstWords) -> tuple[Ints, Ints]:
    """Puts the next word of the rows, from the columns `starts`, in `found`.

    Gives the rows whose word belongs to a time, and the columns after these words.
    """
    places = rows * WIDTH + starts
    texts = _windows(look.flat, places, _REACH)
    columns = (((texts | _CASE) - np.uint8(97)) < 26).argmax(axis=1)
    places += columns
    texts = _windows(look.flat, places, _SIZE)
    lower = texts | _CASE
    sizes = (((lower - np.uint8(97)) < 26) | ((texts - np.uint8(48)) < 10) | (texts == 95)).argmin(
        1
    )
    inside = _INSIDE[sizes]
    kinds = _look_up(lower & inside)
    small = (texts & inside & _CASE).view(np.uint64)
    columns += starts
    found.levels[rows] = kinds
    found.capitals[rows] = (small[:, 0] | small[:, 1]) == 0
    found.marks[rows] = look.flat[np.minimum(places + sizes, look.flat.size - 1)]
    found.columns[rows] = columns
    ends = columns + sizes
    timed = np.flatnonzero((kinds == _TIME) & (small[:, 0] & _FIRST == 0) & (ends < _FURTHEST))
    return rows[timed], ends[timed]


def _look_up(words: Bytes) -> NDArray[np.int8]:
    """The kind of each word, `NO_LEVEL` if it is not in the table."""
    numbers = _number_words(words)
    places = np.minimum(np.searchsorted(_NUMBERS, numbers), len(_NUMBERS) - 1)
    return np.where(_NUMBERS[places] == numbers, _KINDS[places], np.int8(NO_LEVEL))


def _windows(flat: Bytes, places: Ints, width: int) -> Bytes:
    """`width` bytes from each place; zeros follow the end of `flat`.

    The places rise by a row each, and a row has more than `width` bytes.
    """
    last = flat.size - width
    every = np.ndarray((max(last + 1, 0),), dtype=f"V{width}", buffer=flat.data, strides=(1,))
    found: Bytes = every[np.minimum(places, last)].view(np.uint8).reshape(len(places), width)
    if len(places) and places[-1] > last:
        rest = flat[places[-1] :]
        found[-1] = 0
        found[-1, : len(rest)] = rest
    return found
