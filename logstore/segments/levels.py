"""Severity found in text.

A level is one of `schema.LEVELS`. The first of these within a record's prefix counts:

- one of the words below in capitals, with no letter, digit or `_` at its sides;
- one of them in any case as `[word]`, or as the value of a key that ends in `level`,
  `lvl` or `severity` (`level=word`, `level="word"`, `"level": "word"`);
- one of them in any case behind a number and a comma (`2016-09-28 04:30:30, Info`);
- the letter of a logcat line (`MM-DD HH:MM:SS.mmm  PID  TID L`), which goes first.

WARNING is WARN, NOTICE is INFO, SEVERE is ERROR, CRITICAL is FATAL. A word in lower case
in the middle of a message ("no error") is none.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from logstore.segments.prefixes import WIDTH, Bools, Ints, Prefixes, first_of_rows, is_word
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
_LOWER = np.uint64(0x2020202020202020)
_FOUR = np.uint64(0xFFFFFFFF)
_LOGCAT = {"V": "TRACE", "D": "DEBUG", "I": "INFO", "W": "WARN", "E": "ERROR", "F": "FATAL"}
_LOGCAT_LEVEL = np.full(256, NO_LEVEL, dtype=np.int8)
for _letter, _name in _LOGCAT.items():
    _LOGCAT_LEVEL[ord(_letter)] = LEVELS.index(_name)


def _word(text: str) -> int:
    return int.from_bytes(text.lower().encode()[:8], "little")


# Sorted by the first four letters, which tell all but WARN and WARNING apart.
_ENTRIES = sorted((_word(name[:4]), name) for name in NAMES if name != "WARNING")
_KEYS: Words = np.array([key for key, _ in _ENTRIES], dtype=np.uint64)
_TEXTS: Words = np.array([_word(name) for _, name in _ENTRIES], dtype=np.uint64)
_SIZES = np.array([len(name) for _, name in _ENTRIES])
_MASKS: Words = np.array([(1 << 8 * len(name)) - 1 for _, name in _ENTRIES], dtype=np.uint64)
_VALUES: Levels = np.array([NAMES[name] for _, name in _ENTRIES], dtype=np.int8)
_WARNING, _WARNING_MASK = np.uint64(_word("warning")), np.uint64((1 << 56) - 1)
_LEVEL, _LVL, _SEVERITY = (np.uint64(_word(key)) for key in ("level", "lvl", "severity"))


def find_levels(prefixes: Prefixes) -> Levels:
    """The index into `LEVELS` for each record, `NO_LEVEL` where none is found."""
    levels = np.full(len(prefixes.lengths), NO_LEVEL, dtype=np.int8)
    if len(levels) == 0:
        return levels
    found, value = _merged(_capitals(prefixes), _marked(prefixes))
    row, column = prefixes.place(found)
    inside = column < prefixes.lengths[row]
    row, value = row[inside], value[inside]
    first = first_of_rows(row)
    levels[row[first]] = value[first]
    _logcat(prefixes, levels)
    return levels


def _merged(one: tuple[Ints, Levels], two: tuple[Ints, Levels]) -> tuple[Ints, Levels]:
    """Both lists of (position, level), in order of position."""
    found = np.concatenate((one[0], two[0]))
    order = np.argsort(found, kind="stable")
    return found[order], np.concatenate((one[1], two[1]))[order]


def _lookup(prefixes: Prefixes, found: Ints) -> tuple[Ints, NDArray[np.intp], Levels]:
    """The positions at which a level's word stands in any case, its length and level."""
    found = found[found % WIDTH <= WIDTH - 9]
    words = prefixes.words[found] | _LOWER
    entry = np.searchsorted(_KEYS, words & _FOUR)
    entry[entry == len(_KEYS)] = 0
    good = (words & _MASKS[entry]) == _TEXTS[entry]
    found, words, entry = found[good], words[good], entry[good]
    sizes = _SIZES[entry].copy()
    sizes[(words & _WARNING_MASK) == _WARNING] = 7
    whole = ~is_word(prefixes.flat[found + sizes])
    return found[whole], sizes[whole], _VALUES[entry][whole]


def _capitals(prefixes: Prefixes) -> tuple[Ints, Levels]:
    """Words in capitals: where four capitals stand in a row behind something else."""
    capital = (prefixes.flat - np.uint8(65)) < 26
    mask = capital[1:-3] & capital[2:-2]
    mask &= capital[3:-1] & capital[4:]
    mask &= ~capital[:-4]
    found = np.flatnonzero(mask) + 1
    found = found[found % WIDTH > 0]
    found = found[~is_word(prefixes.flat[found - 1])]
    found, sizes, value = _lookup(prefixes, found)
    pure = _all_capitals(prefixes.words[found], sizes)
    return found[pure], value[pure]


def _all_capitals(words: Words, sizes: NDArray[np.intp]) -> Bools:
    """Whether none of the first `sizes` letters of each word is in lower case."""
    mask = _LOWER >> (np.uint64(64) - sizes.astype(np.uint64) * np.uint64(8))
    pure: Bools = (words & mask) == 0
    return pure


def _marked(prefixes: Prefixes) -> tuple[Ints, Levels]:
    """Words in any case that brackets or a key mark as a level."""
    flat = prefixes.flat
    found = np.flatnonzero((flat == 91) | (flat == 61) | (flat == 34) | (flat == 44)) + 1
    found += flat[np.minimum(found, flat.size - 1) - 1] == 44
    found = found[found % WIDTH > 0]
    found, sizes, value = _lookup(prefixes, found)
    mark = flat[found - 1]
    good = (mark == 91) & (flat[found + sizes] == 93)
    good |= ((mark == 61) | (mark == 34)) & _has_key(prefixes, found)
    number = flat[found - 3] - np.uint8(48)
    good |= (mark == 32) & (flat[found - 2] == 44) & (number < 10)
    return found[good], value[good]


def _has_key(prefixes: Prefixes, found: Ints) -> Bools:
    """Whether a key like `level` stands before each position, behind `=`, `:`, quotes."""
    flat = prefixes.flat
    last = found - 1
    for marks in (b'"', b" ", b":=", b'"'):
        last = last - np.isin(flat[np.maximum(last, 0)], list(marks))
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
    """Puts the level of each line that logcat wrote into `levels`."""
    rows = prefixes.rows
    which = np.flatnonzero((rows[:, 3] == 45) & (rows[:, 33] == 32) & (rows[:, 31] == 32))
    for column, byte in ((6, 32), (9, 58), (12, 58), (15, 46), (19, 32)):
        which = which[rows[which, column] == byte]
    which = which[prefixes.lengths[which] > 33]
    value = _LOGCAT_LEVEL[rows[which, 32]]
    levels[which[value >= 0]] = value[value >= 0]
