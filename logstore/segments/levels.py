"""Finds the level of each record in its text.

A level is one of `schema.LEVELS`. Their names are level words, and so are WARNING (WARN), NOTICE
(INFO), SEVERE (ERROR) and CRITICAL (FATAL). The level of a record is the first of these in its
prefix (`prefixes`, which has no colours):

- a level word in capitals, with no letter, digit or `_` on either side;
- a level word in any case as `[word]` or `[word   ]`, or as the value of a key that ends in
`level`,
  `lvl` or `severity` (`level=word`, `level="word"`, `"level": "word"`);
- a level word in any case after a number and a comma (`2016-09-28 04:30:30, Info`).

The letter of a logcat line (`MM-DD HH:MM:SS.mmm  PID  TID L`) precedes all of them. A word in lower
case in the middle of a message ("no error") is not a level.

The search works on all records at once. `_starts` finds positions where a word may begin, `_lookup`
keeps those where a level word stands, and `_in_capitals` and `_marked` apply the rules above.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from logstore.segments.prefixes import WIDTH, Bools, Bytes, Ints, Prefixes, first_of_rows, is_word
from logstore.segments.schema import LEVELS

NO_LEVEL: Final = -1
Levels = NDArray[np.int8]
Words = NDArray[np.uint64]

NAMES: Final = {name: index for index, name in enumerate(LEVELS)} | {
    "WARNING": LEVELS.index("WARN"),
    "NOTICE": LEVELS.index("INFO"),
    "SEVERE": LEVELS.index("ERROR"),
    "CRITICAL": LEVELS.index("FATAL"),
}
_MOST_PADDING = 8
_LOWER = np.uint64(0x2020202020202020)
_FOUR = np.uint64(0xFFFFFFFF)
_LOGCAT = {"V": "TRACE", "D": "DEBUG", "I": "INFO", "W": "WARN", "E": "ERROR", "F": "FATAL"}
_LOGCAT_LEVEL = np.full(256, NO_LEVEL, dtype=np.int8)
for _letter, _name in _LOGCAT.items():
    _LOGCAT_LEVEL[ord(_letter)] = LEVELS.index(_name)


def _word(text: str) -> int:
    return int.from_bytes(text.lower().encode()[:8], "little")


# Hash tables of the level words by their first four letters, which only WARN and WARNING share.
_FACTOR, _SHIFT = np.uint64(143), np.uint64(28)  # no two of them have the same hash
_KEYS: Words = np.zeros(16, dtype=np.uint64)
_TEXTS: Words = np.zeros(16, dtype=np.uint64)
_MASKS: Words = np.zeros(16, dtype=np.uint64)
_SIZES = np.zeros(16, dtype=np.intp)
_VALUES: Levels = np.zeros(16, dtype=np.int8)
_WARNING, _WARNING_MASK = np.uint64(_word("warning")), np.uint64((1 << 56) - 1)
_LEVEL, _LVL, _SEVERITY = (np.uint64(_word(key)) for key in ("level", "lvl", "severity"))


def _slots(four: Words) -> Words:
    """The slots of the tables for words that begin with these four letters."""
    return (four * _FACTOR & _FOUR) >> _SHIFT


def _fill_tables() -> None:
    for name in NAMES.keys() - {"WARNING"}:
        slot = int(_slots(np.array([_word(name[:4])], dtype=np.uint64))[0])
        _KEYS[slot], _TEXTS[slot] = _word(name[:4]), _word(name)
        _MASKS[slot], _SIZES[slot] = (1 << 8 * len(name)) - 1, len(name)
        _VALUES[slot] = NAMES[name]


_fill_tables()


def find_levels(prefixes: Prefixes) -> Levels:
    """The index into `LEVELS` for each record, `NO_LEVEL` where none is found."""
    levels = np.full(len(prefixes.lengths), NO_LEVEL, dtype=np.int8)
    if len(levels) == 0:
        return levels
    found, sizes, value = _lookup(prefixes, _starts(prefixes.flat))
    good = _in_capitals(prefixes, found, sizes) | _marked(prefixes, found, sizes)
    found, value = found[good], value[good]
    row, column = prefixes.place(found)
    inside = column < prefixes.lengths[row]
    row, value = row[inside], value[inside]
    first = first_of_rows(row)
    levels[row[first]] = value[first]
    _logcat(prefixes, levels)
    return levels


def _starts(flat: Bytes) -> Ints:
    """Positions at which a level word may begin.

    These are four capitals after another character, or four letters after `[`, `=`, `"`, `, `.
    """
    capital = (flat - np.uint8(65)) < 26
    letter = ((flat | np.uint8(32)) - np.uint8(97)) < 26
    mark = (flat == 91) | (flat == 61) | (flat == 34)
    mark[1:] |= flat[:-1] == 44  # there a space follows
    start = _four(capital)[1:] & ~capital[:-4]
    start |= _four(letter)[1:] & mark[:-4]
    return np.flatnonzero(start) + 1


def _four(mask: Bools) -> Bools:
    """Positions at which four true values in a row begin."""
    two = mask[:-1] & mask[1:]
    four: Bools = two[:-2] & two[2:]
    return four


def _lookup(prefixes: Prefixes, found: Ints) -> tuple[Ints, NDArray[np.intp], Levels]:
    """The positions at which a level's word stands in any case, its length and level.

    `found` ascends. Most positions hold other words, which the first four letters exclude.
    """
    found = found[: np.searchsorted(found, prefixes.words.size)]
    words = prefixes.words[found] | _LOWER
    four = words & _FOUR
    like = np.flatnonzero(_KEYS[_slots(four)] == four)
    found, words = found[like], words[like]
    slot = _slots(words & _FOUR)
    column = found % WIDTH
    good = (words & _MASKS[slot]) == _TEXTS[slot]
    good &= (column > 0) & (column <= WIDTH - 9)
    found, words, slot = found[good], words[good], slot[good]
    sizes = _SIZES[slot]
    sizes[(words & _WARNING_MASK) == _WARNING] = 7
    whole = ~is_word(prefixes.flat[found + sizes])
    return found[whole], sizes[whole], _VALUES[slot][whole]


def _in_capitals(prefixes: Prefixes, found: Ints, sizes: NDArray[np.intp]) -> Bools:
    """Which words are in capitals throughout, with no word character before them."""
    lower = _LOWER >> (np.uint64(64) - sizes.astype(np.uint64) * np.uint64(8))
    pure = (prefixes.words[found] & lower) == 0
    good: Bools = pure & ~is_word(prefixes.flat[found - 1])
    return good


def _marked(prefixes: Prefixes, found: Ints, sizes: NDArray[np.intp]) -> Bools:
    """Which words are marked as a level by brackets, a key, or a number and a comma before them."""
    flat = prefixes.flat
    mark = flat[found - 1]
    good: Bools = mark == 91
    bracketed = np.flatnonzero(good)
    good[bracketed] = flat[_behind_padding(prefixes, (found + sizes)[bracketed])] == 93
    valued = np.flatnonzero((mark == 61) | (mark == 34))
    good[valued] = _has_key(prefixes, found[valued])
    number = flat[found - 3] - np.uint8(48)
    good |= (mark == 32) & (flat[found - 2] == 44) & (number < 10)
    return good


def _behind_padding(prefixes: Prefixes, found: Ints) -> Ints:
    """The positions after the blanks that pad a level to the length of the longest."""
    last = prefixes.flat.size - 1
    for _ in range(_MOST_PADDING):
        blank = _SPACE[prefixes.flat[np.minimum(found, last)]]
        if not blank.any():
            break
        found = found + blank
    return np.minimum(found, last)


def _one_of(marks: bytes) -> Bools:
    """A table of 256 entries: whether a byte is one of `marks`."""
    table = np.zeros(256, dtype=np.bool_)
    table[list(marks)] = True
    return table


_QUOTE, _SPACE, _SIGN = _one_of(b'"'), _one_of(b" "), _one_of(b":=")


def _has_key(prefixes: Prefixes, found: Ints) -> Bools:
    """Whether a key like `level`, then `=` or `:`, stands before each position; quotes may too."""
    flat = prefixes.flat
    last = found - 1
    for marks in (_QUOTE, _SPACE, _SIGN, _QUOTE):
        last = last - marks[flat[np.maximum(last, 0)]]
    # The eight bytes that end at `last`; row 0 has nothing before it to read.
    missing = np.maximum(7 - last, 0).astype(np.uint64) * np.uint64(8)
    words = (prefixes.words[np.maximum(last - 7, 0)] << missing) | _LOWER
    column = last % WIDTH
    key: Bools = ((words >> np.uint64(24)) == _LEVEL) & (column >= 5)
    key |= ((words >> np.uint64(40)) == _LVL) & (column >= 3)
    key |= (words == _SEVERITY) & (column >= 8)
    key &= (last > 0) & (column < found % WIDTH)
    return key


def _logcat(prefixes: Prefixes, levels: Levels) -> None:
    """Sets the level of each line of logcat in `levels`."""
    rows = prefixes.rows
    which = np.flatnonzero((rows[:, 3] == 45) & (rows[:, 33] == 32) & (rows[:, 31] == 32))
    for column, byte in ((6, 32), (9, 58), (12, 58), (15, 46), (19, 32)):
        which = which[rows[which, column] == byte]
    which = which[prefixes.lengths[which] > 33]
    value = _LOGCAT_LEVEL[rows[which, 32]]
    levels[which[value >= 0]] = value[value >= 0]
