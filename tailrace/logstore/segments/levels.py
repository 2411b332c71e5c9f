"""Finds the level that each line of text states, and the first word of each record.

A level is one of `tailrace.logstore.segments.file_format.LEVELS`; the tables below have its words,
letters and numbers. The first of these steps that finds a level decides:

1. A line that is a JSON object, or ends in one, has the level of its level key, wherever the key is
   in it. Without a level key it has none: words in its message are not looked at. In Docker's
   `{"log": …}` the inner text is searched.
2. A line of logfmt has the level of its level key.
3. The first word after digits, punctuation and times, if it is a level in capitals, in brackets,
   before a colon, or directly after a time of day.
4. In lines of logcat, the letter that is the first word.
5. The rules of `RULES` in order, within the first `WINDOW` bytes without colours.

All patterns are RE2's, so their time is linear. `find_first_words` settles most lines; the rules
see only the others that match one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.logstore.patterns import BytesRegex
from tailrace.logstore.segments.file_format import LEVELS

# Spellings of levels: the one table for text, JSON, logfmt and levels that a client gives.
#
# `docs/use/levels.md` shows it to users. Every name maps to one of `LEVELS`; case does not matter.
# A single letter is a level only where a rule expects one, or as the whole value of a level key.


NO_LEVEL: Final = -1

SPELLINGS: Final = {
    "TRACE": ("trace", "trc", "trce", "trac", "verbose", "vrb", "finer", "finest", "silly"),
    "DEBUG": ("debug", "dbg", "dbug", "debu", "fine", *(f"debug{step}" for step in range(1, 6))),
    "INFO": ("info", "inf", "information", "informational", "notice", "note", "ntc", "success"),
    "WARN": ("warn", "warning", "wrn", "wrng"),
    "ERROR": ("error", "err", "eror", "erro", "errr", "severe", "fail", "failure"),
    "FATAL": (
        *("fatal", "ftl", "fata", "critical", "crit", "crt", "alert", "emerg", "emergency"),
        *("panic", "pani", "pnc", "dpanic"),
    ),
}
LETTERS: Final = {
    "TRACE": "TV",
    "DEBUG": "D",
    "INFO": "IN",
    "WARN": "W",
    "ERROR": "E",
    "FATAL": "FCA",
}
NAMES: Final = {name: LEVELS.index(level) for level, all_ in SPELLINGS.items() for name in all_}
_LETTERS: Final = {
    letter: LEVELS.index(level) for level, all_ in LETTERS.items() for letter in all_
}
_OF_LETTERS: Final = np.array([_LETTERS.get(chr(byte), NO_LEVEL) for byte in range(256)], np.int8)

NUMBERS: Final = {
    "TRACE": ("10 (pino)",),
    "DEBUG": ("20 (pino)", "7 (syslog)"),
    "INFO": ("30 (pino)", "5, 6 (syslog)"),
    "WARN": ("40 (pino)", "4 (syslog)"),
    "ERROR": ("50 (pino)", "3 (syslog)"),
    "FATAL": ("60 (pino)", "0 to 2 (syslog)"),
}
"""The numbers of a level key, for `docs/use/levels.md`. OpenTelemetry's and Python's have
keys of their own."""

LEVEL_KEYS: Final = (
    *("level", "lvl", "severity", "loglevel", "log_level", "log.level", "levelname", "level_name"),
    *("severitytext", "severity_text", "@level", "@l"),
)
"""The keys of JSON and logfmt that hold a level, in lower case; earlier ones win."""
OTEL_KEYS: Final = ("severitynumber", "severity_number")
PYTHON_KEYS: Final = ("levelno",)
SYSLOG_KEYS: Final = ("priority",)

_SYSLOG = [
    LEVELS.index(name) for name in ("FATAL",) * 3 + ("ERROR", "WARN", "INFO", "INFO", "DEBUG")
]
_PINO_STEP = 10  # trace is 10, fatal 60
_PYTHON = [LEVELS.index(name) for name in ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")]


_STEPS: Final = re.compile(r"(?<=[A-Z])[+-]\d{1,3}$")  # between the levels of Go's slog


def level_of_word(word: str) -> int:
    """The index into `LEVELS` of a level's name in any case; `NO_LEVEL` if it is none."""
    return NAMES.get(word.casefold(), NO_LEVEL)


def level_of_letter(letter: str) -> int:
    """The level of a capital letter such as klog's and logcat's; `NO_LEVEL` if it is none."""
    return _LETTERS.get(letter, NO_LEVEL)


def level_of_value(value: object, key: str = "level") -> int:
    """The level in the value of a level key: a name, a letter or a number.

    `key` decides which scale a number is on: OpenTelemetry's severity number (1 to 24), Python's
    `levelno` (10 to 50), syslog's (0 to 7), or by default syslog's below 8 and pino's and bunyan's
    from 10 on (10 to 60). `NO_LEVEL` if the value is no level.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.isascii() and text.isdigit() and len(text) <= 3:
            return _level_of_number(int(text), key)
        found = level_of_word(_STEPS.sub("", text))
        return found if found != NO_LEVEL or len(text) != 1 else level_of_letter(text.upper())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NO_LEVEL
    return _level_of_number(int(value), key)


def level_of_syslog(severity: int) -> int:
    """The level of a syslog severity, 0 (emergency) to 7 (debug)."""
    return _SYSLOG[severity]


def _level_of_number(number: int, key: str) -> int:
    if key in OTEL_KEYS:
        return (number - 1) // 4 if 1 <= number <= 24 else NO_LEVEL
    if key in PYTHON_KEYS:
        return _PYTHON[min(number // 10, 5)] if number >= 5 else NO_LEVEL
    if 0 <= number < len(_SYSLOG):
        return level_of_syslog(number)
    if number < _PINO_STEP or number >= 100 or key in SYSLOG_KEYS:
        return NO_LEVEL
    return min(number // _PINO_STEP, len(LEVELS)) - 1


# The first bytes of every record as a matrix, in which levels and times are searched.
#
# Each record has a row of `WIDTH` bytes. Column 0 is the newline before the record (the first
# record gets one), and column `1 + i` is byte `i` of the record. The row of a shorter record
# continues with the bytes of the next record, so a caller compares the column of each match with
# `lengths`. Callers search the flattened matrix, where NumPy is as fast as memory, and get
# positions in it.
#
# A prefix contains no colours and no other control sequences of terminals (`ESC [ … letter`):
# `ESC[32mINFO ESC[0m` is searched as `INFO `. Records with such sequences are prepared one by one,
# in Python.


WIDTH = 96
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_ALL = slice(None)
_ESCAPE = b"\x1b"
_COLON = b":"[0]
_CONTROL = re.compile(rb"\x1b\[[0-9;:?]*[A-Za-z]")  # ECMA-48's CSI, as terminals get them
_COLOURED_WIDTH = 4 * WIDTH  # bytes of a record in which control sequences are removed


@dataclass(frozen=True)
class Prefixes:
    """The matrix (`rows`), and the length of each record with its newline, in bytes.

    The length is without control sequences within the first bytes of the record.
    """

    rows: Bytes
    lengths: Ints

    @cached_property
    def flat(self) -> Bytes:
        """All rows as one array."""
        return self.rows.reshape(-1)

    @cached_property
    def clocks(self) -> Ints:
        """The flat positions two bytes before a colon that has another one three bytes after it."""
        colons = self.flat == _COLON
        found: Ints = np.flatnonzero(colons[2:-3] & colons[5:])
        return found

    def place(self, found: Ints) -> tuple[Ints, Ints]:
        """Row and column of flat positions."""
        row = found // WIDTH
        return row, found - row * WIDTH


def prefixes(text: bytes, ends: Ints, part: slice = _ALL) -> Prefixes:
    """Returns the prefixes of the records in `part`; `ends` are the offsets after each newline."""
    first, stop, _ = part.indices(len(ends))
    starts = np.empty(stop - first, dtype=ends.dtype)
    starts[:1] = ends[first - 1] if first else 0
    starts[1:] = ends[first : stop - 1]
    look = Prefixes(_rows(text, starts), ends[first:stop] - starts)
    if len(starts) and text.find(_ESCAPE, int(starts[0]), int(ends[stop - 1])) >= 0:
        _without_control_sequences(look, text, starts)
    return look


def _without_control_sequences(look: Prefixes, text: bytes, starts: Ints) -> None:
    """Removes control sequences from the rows that have some; later bytes of the record move up."""
    coloured = np.flatnonzero((look.rows == _ESCAPE[0]).any(axis=1))
    lengths = np.minimum(look.lengths[coloured], _COLOURED_WIDTH)
    windows: list[bytes] = []
    removed: list[int] = []
    for start, length in zip(starts[coloured].tolist(), lengths.tolist(), strict=True):
        end = start + length
        plain = _CONTROL.sub(b"", text[start:end])
        removed.append(length - len(plain))
        if len(plain) < WIDTH:
            plain += text[end : end + WIDTH]
        windows.append(plain[: WIDTH - 1].ljust(WIDTH - 1, b"\n"))
    look.rows[coloured, 1:] = np.frombuffer(b"".join(windows), np.uint8).reshape(-1, WIDTH - 1)
    look.lengths[coloured] -= np.array(removed, np.int64)


def _rows(text: bytes, starts: Ints) -> Bytes:
    """Copies `WIDTH` bytes of the text for each start, beginning one byte before it."""
    last_start = len(text) - WIDTH
    inside = (starts > 0) & (starts <= last_start + 1)
    if last_start < 0:
        rows = np.empty((len(starts), WIDTH), dtype=np.uint8)
    else:
        windows = np.ndarray((last_start + 1,), dtype=f"V{WIDTH}", buffer=text, strides=(1,))
        found = windows[np.clip(starts - 1, 0, last_start)]
        rows = found.view(np.uint8).reshape(len(starts), WIDTH)
    for row in np.flatnonzero(~inside).tolist():
        start = int(starts[row])
        window = text[max(start - 1, 0) : start + WIDTH - 1] if start else b"\n" + text[: WIDTH - 1]
        rows[row] = np.frombuffer(window.ljust(WIDTH, b"\n"), dtype=np.uint8)
    return rows


def first_of_rows(row: Ints) -> Bools:
    """For ascending row numbers: which entries are the first of their row."""
    first = np.ones(len(row), dtype=np.bool_)
    first[1:] = row[1:] != row[:-1]
    return first


def is_word(byte: Bytes) -> Bools:
    """Whether each byte is a letter, a digit or `_`."""
    return _WORD[byte]


_WORD: Bools = np.array([(chr(b).isalnum() and b < 128) or b == 95 for b in range(256)])


# The first word of each record after its time: most programs write the level as that word.
#
# Digits, punctuation and the words of a time (`Nov`, `Sun`, `T10`, `Z`, `UTC`) are skipped. The
# search works on the matrix of `prefixes`, all records at once; each word is looked up in the table
# of level names and in that of the words of times.


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

    `levels` has the level that it names in any case, or `NO_LEVEL`. `capitals` tells whether it has
    no small letter, `marks` is the byte after it, `columns` its column in the prefix; column 0
    means that no word was found. `letters` has the word if it is a single letter, or else 0.
    `firsts` are the first bytes of the records.
    """

    levels: NDArray[np.int8]
    capitals: Bools
    marks: Bytes
    columns: Ints
    letters: Bytes
    firsts: Bytes


def find_first_words(look: Prefixes) -> FirstWords:
    """The first word of each record that is not part of a time."""
    count = len(look.lengths)
    found = FirstWords(
        np.empty(count, np.int8),
        np.empty(count, np.bool_),
        np.empty(count, np.uint8),
        np.empty(count, np.int64),
        np.empty(count, np.uint8),
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
    found.letters[missing] = 0
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
    found.letters[rows] = np.where(sizes == 1, texts[:, 0], np.uint8(0))
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


WINDOW: Final = 128
"""Bytes of a line in which the rules for text look, without colours."""
_COLOURED: Final = 4 * WINDOW  # bytes of a line in which control sequences are removed
_INFO, _ERROR, _FATAL = (LEVELS.index(name) for name in ("INFO", "ERROR", "FATAL"))
_PATTERN_PER_LINE: Final = 2  # characters of a pattern that Arrow compiles while a line is searched
_CONTROL_SEQUENCE = r"\x1b\[[0-9;:?]*[A-Za-z]"  # ECMA-48's CSI, as terminals get them
_LESS, _EQUALS, _DOT, _MINUS, _SLASH, _BRACE, _RETURN, _BLANK = b"<=.-/}\r "

Levels = NDArray[np.int8]
Rows = NDArray[np.int64]


def _any_of(names: Mapping[str, int] | tuple[str, ...]) -> str:
    """An alternation of names, longer ones first."""
    return "|".join(sorted(map(re.escape, names), key=lambda name: (-len(name), name)))


class LevelRule(NamedTuple):
    """A pattern, and the level of what its group `level` matched; of any match without a group."""

    pattern: str
    level: Callable[[str], int]


# In the middle of a line only these count, and only in capitals: "no error" is not a level.
_CAPITALS = (
    r"TRACE|DEBUG[1-5]?|INFO|NOTICE|WARNING|WARN|ERROR|ERR|SEVERE|CRITICAL|CRIT|FATAL|PANIC|EMERG"
)
_WORDS = (
    r"trace|trce|verbose|debug[1-5]?|dbug|dbg|information|info|inf|notice|warning|warn|wrn|error|eror|err"
    r"|severe|critical|crit|fatal|ftl|alert|emergency|emerg|panic"
)
_TIME_ONLY = r"(?:\[[^\]]*\] ?|[-\d:.,/ TZ+])*"
_PROSE = (
    r"(?i:no|any|an|a|the|without|zero|0|not|of|for|on|if|as|with|to|this|that|each|every|and|or"
    r"|is|was|got|said|logs|returns|raises|into|at|from|after|before|by|in|level|levels|all|more|than|their|its|our|your)"
)
_SETTING: Final = rf"^(?i:{_WORDS}): +(?:\d+|on|off|true|false|yes|no|none|[0-9a-f-]{{16,}})\s*$"
_VERBS = r"(?:is|was|are|were|when|has|if)"  # of which a level is the subject
_BEGIN = (  # of what a program writes; before it are those of others
    r"(?:^|^\S+ (?:stdout|stderr) [FP] |^[\w.-]+ +\| |^\d{4}-\d\d-\d\dT[\d:.]+Z |\w\[\d+\]: )"
)
_KEYED = r"(?:\b|[a-z][._]?)(?i:level|lvl|severity)"  # not `LOG_LEVEL`, which is a setting

_LOGCAT: Final = r"^(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d\.\d+ +\d+ +\d+ [VDIWEFA] "

RULES: Final = (
    # An access log states a status, not a level; paths and agents hold any word. So do commands
    # that a shell shows.
    LevelRule(r"^(?:\S+ ){3,5}\[\d\d?/[A-Z][a-z][a-z]/\d{4}:\d\d:", lambda _: NO_LEVEL),
    LevelRule(r"^(?:\++|\$) [a-z./]", lambda _: NO_LEVEL),
    LevelRule(_SETTING, lambda _: NO_LEVEL),
    # Syslog's priority: facility * 8 + severity.
    LevelRule(
        r"^<(?P<level>1[0-8]\d|19[01]|[1-9]?\d)>", lambda text: level_of_syslog(int(text) % 8)
    ),
    LevelRule(
        r" (?:kern|user|mail|daemon|auth|authpriv|syslog|lpr|news|uucp|cron|ftp|local[0-7])"
        r"\.(?P<level>emerg|alert|crit|err|error|warn|warning|notice|info|debug) ",
        level_of_word,
    ),
    LevelRule(  # Cisco, Xorg, WebSphere
        r"%[A-Z][A-Z0-9_]*-(?:[A-Z0-9_]+-)?(?P<level>[0-7])-[A-Z0-9_]+: ",
        lambda text: level_of_syslog(int(text)),
    ),
    LevelRule(
        r"^(?:\[ *\d+\.\d+\] )?\((?P<level>EE|WW|II)\) ", lambda text: level_of_letter(text[0])
    ),
    LevelRule(
        r"^\[[\d/]+ [\d:.]+ [A-Z]{3,4}\] [0-9a-f]{8} \S+ +(?P<level>[FEWAIOD]) ",
        lambda text: _INFO if text in "AO" else level_of_letter(text),
    ),
    # klog, glog and absl, CockroachDB, PyTorch, TensorFlow, etcd, brief logcat, one letter in
    # brackets, Tornado, MongoDB 4, apt, Kotlin.
    LevelRule(
        r"(?:^|[ :\[])(?P<level>[IWEFD])"
        r"(?:(?:\d{4}|\d{6}|\d{8}) \d\d:\d\d:\d\d\.|0000 00:00:\d+\.\d)",
        level_of_letter,
    ),
    LevelRule(r"^[-\d]+ [\d:.]+: (?P<level>[IWEF]) \S+:\d+\] ", level_of_letter),
    LevelRule(r"^[-\d]+ [\d:.]+ (?P<level>[CEWNIDT]) \| ", level_of_letter),
    LevelRule(r"^(?P<level>[VDIWEFA])/[^(]{1,60}\( *\d+\): ", level_of_letter),
    LevelRule(
        r"(?:^|^[-\d:. ]+ |/[\w.]+ )(?P<level>[VDIWEFA])/[\w.$-]{2,60}(?:\( *\d+\))?: ",
        level_of_letter,
    ),
    LevelRule(
        rf"^(?:\d|\[\d[^\]]*\])(?:{_TIME_ONLY}(?:\d|\[[^\]]*\]))? *\[(?P<level>[TVDINWEFCA])\]"
        r"|^\[(?:[\d:.]+ )?(?P<bare>[VDIWEF])\]",
        level_of_letter,
    ),
    LevelRule(r"^\[(?P<level>[DIWEC]) (?:[-\d]{6,10} )?\d\d:\d\d:\d\d", level_of_letter),
    LevelRule(
        r"^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[-+]\d\d:?\d\d) (?P<level>[IWEFD])\d? +[A-Z]+ +\[",
        level_of_letter,
    ),
    LevelRule(r"^(?P<level>[EWNewi]): ", lambda text: level_of_letter(text.upper())),
    # Exceptions that nobody caught, and their kind: Go, Python, Java, Rust, JavaScript, PHP, .NET.
    LevelRule(
        rf"{_BEGIN}(?:panic|fatal error|fatal runtime error): |^Fatal Python error: "
        r"|[\]:] Kernel panic - ",
        lambda _: _FATAL,
    ),
    LevelRule(
        rf"{_BEGIN}(?:(?: +\+ Exception Group )?Traceback \(most recent call last\):"
        r"|Exception (?:in thread |in Tkinter callback|ignored in: )"
        r"|thread '.*'.* (?:panicked at|has overflowed its stack)"
        r"|\[?Uncaught (?:\(in promise\)|['\"]|(?:[\w$]+[.\\])*[A-Z]?\w*(?:[Ee]rror|[Ee]xception))"
        r"|\[?Unhandled ?(?i:exception|rejection|error|promise)"
        r"|\(node:\d+\) Unhandled|make(?:\[\d+\])?: \*\*\* "
        r"|(?:terminate called after throwing|libc\+\+abi: terminating)"
        r"|(?:uncaughtException|unhandledRejection): "
        r"|\*\* \([A-Z][\w.]*\) |\S+:\d+:in .*\([\w:]*Error\)"
        r"|(?:[\w$]+\.)*[A-Z][\w$]*(?:Error|Exception)(?: \[[A-Z_]+\]| \(0x\w+\))?(?::|$)"
        r"|Exception: "
        r"|(?:[\d/]+ [\d:.]+ )?http: panic serving "
        r"|(?:docker: )?Error(?: response from daemon| from server(?: \(\w+\))?| \[[A-Z_]+\])?: "
        r"|Error in .+ :(?: |$))",  # R
        lambda _: _ERROR,
    ),
    LevelRule(
        r"^(?:\S+:\d+: |\(node:\d+\) (?:\[\w+\] )?)?\w*Warning: |^(?:OpenJDK|Java) .* VM warning: ",
        lambda _: level_of_word("warn"),
    ),
    LevelRule(r"^PHP (?P<level>Fatal|Parse|Warning|Notice|Deprecated)", lambda text: _php(text)),
    # Commands of GitHub and Azure, npm and its like, logrus on a terminal, BGL's last column.
    LevelRule(
        r"^(?:::|##\[|##vso\[task\.logissue type=)(?P<level>error|warning|notice|debug)\b",
        level_of_word,
    ),
    LevelRule(
        r"^(?:npm|pnpm|yarn) "
        r"(?P<level>ERR|error|WARN|warn|notice|info|http|verb|verbose|sill|silly)\b",
        lambda text: _npm(text),
    ),
    LevelRule(r"^(?P<level>error|warning|info) [A-Z\"]", level_of_word),  # yarn
    LevelRule(r"^dpkg: (?P<level>error|warning) ", level_of_word),
    LevelRule(r"(?:^|: )at=(?P<level>info|warning|error) ", level_of_word),  # Heroku
    LevelRule(r"^(?P<level>TRAC|DEBU|ERRO|FATA|PANI)\[\d+\]", level_of_word),
    LevelRule(r" RAS [A-Z]+ (?P<level>INFO|WARNING|SEVERE|ERROR|FAILURE|FATAL) ", level_of_word),
    LevelRule(
        r"^(?:CMake|!? ?LaTeX|(?:Package|Class|LaTeX) \w+) (?P<level>Error|Warning|Info)\b",
        level_of_word,
    ),
    LevelRule(r"^(?P<level>Warning) messages?:\s*$", level_of_word),  # R
    LevelRule(r" (?P<level>Error): \d+, Severity: \d+, State: ", level_of_word),  # SQL Server
    LevelRule(r"^=(?P<level>CRASH|SUPERVISOR|PROGRESS) REPORT====", lambda text: _erlang(text)),
    LevelRule(r" \d+ \[System\] \[MY-|^\[AUDIT +\] ", lambda _: _INFO),  # MySQL, Open Liberty
    # NetworkManager, ClickHouse, WebLogic, `dmesg -x`, Locust.
    LevelRule(r": <(?P<level>trace|debug|info|warn|error)> +\[", level_of_word),
    LevelRule(
        r"^(?:[\d.]+ [\d:.]+ \[ \d+ \] \{[^}]*\} |(?:####)?<[^<>]+> )"
        rf"<(?P<level>(?i:{_WORDS}))> ",
        level_of_word,
    ),
    LevelRule(
        r"^(?:kern|user|daemon|syslog|auth\w*) *:"
        r"(?P<level>emerg|alert|crit|err|warn|notice|info|debug) *: ",
        level_of_word,
    ),
    LevelRule(rf"^\[[^\]]+\] \S+/(?P<level>{_CAPITALS})/[\w.]+: ", level_of_word),
    # A word in any case before a colon: syslog's tags, compilers.
    LevelRule(
        rf"(?:^\W{{0,3}}|[:)\]|] |- )(?P<level>(?i:{_WORDS}|fail|note))(?: error)?"
        r"(?:\[\w+\]| [A-Z]+\d+)?:(?:\s|$)",
        level_of_word,
    ),
    # Postgres.
    LevelRule(r"(?:^|[\s\]>:])LOG:  ", lambda _: level_of_word("info")),
    # The leftmost of: a key, a word in brackets, a word in capitals that is not part of a sentence.
    LevelRule(
        rf'{_KEYED}="?(?P<level>(?i:{_WORDS}))\b|{_KEYED}"\s*[:=]\s*"(?P<quoted>(?i:{_WORDS}))\b'
        rf"|\[(?:[\w.-]+:)?(?P<bracketed>(?i:{_WORDS}|note)) {{0,8}}\]"
        rf"|\b{_PROSE}\s+(?:{_CAPITALS})\b|[<>=]= (?:{_CAPITALS})\b"
        rf"|[^\w](?:{_CAPITALS})(?:, (?:{_CAPITALS})\b| {_VERBS}\b)"
        rf"|\w\.(?P<channel>{_CAPITALS}): "
        rf"|(?:^|[^\w/\"'$.=])(?P<capitals>{_CAPITALS})(?:[^\w=<./-]|[./-](?:\W|$)|$)",
        level_of_word,
    ),
)


def _php(text: str) -> int:
    return {"Fatal": _FATAL, "Parse": _ERROR, "Deprecated": level_of_word("warn")}.get(
        text, level_of_word(text)
    )


def _erlang(text: str) -> int:
    return _INFO if text == "PROGRESS" else _ERROR


def _npm(text: str) -> int:
    known = {"http": "info", "verb": "trace", "sill": "trace"}
    return level_of_word(known.get(text, text))


_LEVEL_GROUPS = re.compile(r"\(\?P<\w+>")
_ANY_RULE: Final = "|".join(_LEVEL_GROUPS.sub("(?:", rule.pattern) for rule in RULES)
_ENDS_OF_STATED: Final = np.zeros(256, np.bool_)
_ENDS_OF_STATED[list(b"]:|")] = True
_JOINTS: Final = np.zeros(256, np.bool_)  # behind a word in capitals: `ERROR=0`, `INFO.plist`
_JOINTS[list(b"=.-<")] = True
_CLOCK: Final = (
    r"^(?:[^A-Za-z]|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
    r"\b|T\d)*:\d\d[^A-Za-z]*(?:(?:Z|[AP]M|[A-Z]{3,4})\W+)?"
)
_AFTER_CLOCK: Final = rf"{_CLOCK}[A-Za-z]"
_SENTENCE: Final = (  # that begins with the name of a level, and states none
    rf"{_CLOCK}(?:(?:[A-Z][a-z]+|alert|emergency|fail|failure|fine|information|note|notice|panic"
    r"|success) [a-z]|[a-z]+ (?:budget|count|handl|level|log|page|rate))"
)
_LOGFMT: Final = (
    r'^(?:[^\s="]+=(?:"(?:[^"\\]|\\.)*"|[^\s"]*)\s+)*?'
    # `LOG_LEVEL` is a setting.
    rf"(?:(?i:{_any_of(tuple(key for key in LEVEL_KEYS if key != 'log_level'))})|log_level)="
    r'"?(?P<level>\w+)'
)


_OBJECT_LEVELS: Final = (*LEVEL_KEYS, *OTEL_KEYS, *PYTHON_KEYS, *SYSLOG_KEYS)


class FoundLevels(NamedTuple):
    """The index into `LEVELS` for each line, `NO_LEVEL` where none is found.

    `leading` marks the lines that begin with their level, or are JSON.
    """

    levels: Levels
    leading: NDArray[np.bool_]


def find_levels(lines: TextRecords, words: FirstWords) -> FoundLevels:
    """Finds the level of each record; `words` are the first words of the records."""
    levels = np.full(len(words.levels), NO_LEVEL, dtype=np.int8)
    leading = _put_first_words(lines, words, levels)
    _put_objects(lines, leading, levels)
    left = np.flatnonzero(~leading & ~_put_letters(lines, words, leading, levels))
    left = _apply_logfmt(lines, words, left, levels)
    window = lines.take_window(left)
    some = matches(window, _ANY_RULE)
    _apply_rules(window.filter(pa.array(some)), left[some], levels)
    return FoundLevels(levels, leading)


def find_levels_of(lines: Sequence[bytes]) -> FoundLevels:
    """Finds the level of each line, given without its newline."""
    text = b"\n".join((*lines, b""))
    ends = np.fromiter(accumulate(len(line) + 1 for line in lines), np.int64, len(lines))
    return find_levels(TextRecords(text, ends), find_first_words(prefixes(text, ends)))


class TextRecords:
    """The records of a text as columns of Arrow, made only of the rows that are asked for."""

    def __init__(self, text: bytes, ends: Rows) -> None:
        self._text = text
        self._bytes = np.frombuffer(text, np.uint8)
        self._ends = ends
        self._coloured = _ESCAPE in text

    def take(self, rows: Rows) -> pa.Array:
        """The whole lines, without their newlines."""
        return self._lines.take(pa.array(rows * 2))

    def take_window(self, rows: Rows) -> pa.Array:
        """The first `WINDOW` bytes of each line, without control sequences."""
        heads = self._heads.take(pa.array(rows * 2))
        if not self._coloured:
            return heads
        return pc.binary_slice(pc.replace_substring_regex(heads, _CONTROL_SEQUENCE, b""), 0, WINDOW)

    @cached_property
    def _lines(self) -> pa.Array:
        return self._split(len(self._text))

    @cached_property
    def _heads(self) -> pa.Array:
        return self._split(_COLOURED if self._coloured else WINDOW)

    def _split(self, width: int) -> pa.Array:
        """Two values of each line: up to `width` bytes, and the rest with the newline."""
        offsets = np.zeros(2 * len(self._ends) + 1, np.int64)
        offsets[2::2] = self._ends
        offsets[1::2] = np.minimum(offsets[:-1:2] + width, self._ends - 1)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._text)]
        return pa.Array.from_buffers(pa.large_binary(), 2 * len(self._ends), buffers)

    def find_last(self, byte: int) -> Bools:
        """Which lines end with a byte, before `\\n` or `\\r\\n`."""
        last = self._bytes[np.maximum(self._ends - 2, 0)]
        before = self._bytes[np.maximum(self._ends - 3, 0)]
        found: Bools = (last == byte) | ((last == _RETURN) & (before == byte))
        return found


def matches(lines: pa.Array, pattern: str) -> Bools:
    """Which lines hold a match of RE2's pattern."""
    if are_few(lines, pattern):
        finds = regex_of(pattern).finds
        return np.fromiter(map(finds, lines.to_pylist()), np.bool_, len(lines))
    found: Bools = pc.match_substring_regex(lines, pattern).to_numpy(zero_copy_only=False)
    return found


def are_few(lines: pa.Array, pattern: str) -> bool:
    """Returns whether to search the lines one by one: Arrow compiles the pattern in each call."""
    return len(lines) <= len(pattern) // _PATTERN_PER_LINE


@cache
def regex_of(pattern: str) -> BytesRegex:
    """The pattern, which is one of this program's, compiled once."""
    return BytesRegex(pattern)


def _put_first_words(lines: TextRecords, words: FirstWords, levels: Levels) -> Bools:
    """Sets the level of lines whose first word states it; gives which they are.

    A word states a level in capitals, in brackets, before a colon, or directly after a time.
    """
    named: Bools = words.levels != NO_LEVEL
    if not named.any():
        return named
    named &= ~(words.firsts == _LESS)  # syslog's priority
    named &= ~(words.capitals & _JOINTS[words.marks])
    stated: Bools = named & (words.capitals | _ENDS_OF_STATED[words.marks])
    bare = np.flatnonzero(named & ~stated & ~_JOINTS[words.marks])
    if len(bare):
        window = lines.take_window(bare)
        stated[bare[matches(window, _AFTER_CLOCK) & ~matches(window, _SENTENCE)]] = True
    keys = np.flatnonzero(stated & ~words.capitals & (words.columns == 1))
    if len(keys):
        stated[keys[matches(lines.take_window(keys), _SETTING)]] = False
    levels[stated] = words.levels[stated]
    return stated


def _put_objects(lines: TextRecords, done: Bools, levels: Levels) -> None:
    """Sets the level of lines that are JSON objects, or end in one, and marks them as done."""
    rows = np.flatnonzero(lines.find_last(_BRACE) & ~done)
    texts: list[tuple[int, bytes]] = []
    for row, line in zip(rows.tolist(), lines.take(rows).to_pylist(), strict=True):
        start = _start_of_object(line)
        record = _record(line[start:]) if start >= 0 else None
        if record is None:
            continue
        level = _level_of_record(record)
        if level == NO_LEVEL and line[:start].strip():
            continue
        done[row] = True
        levels[row] = level
        text = record.get("log")
        if level == NO_LEVEL and isinstance(text, str) and "stream" in record:
            texts.append((row, text.rstrip("\n").encode(errors="surrogatepass")))
    if texts:  # Docker's json-file
        levels[[row for row, _ in texts]] = find_levels_of([text for _, text in texts]).levels


def _put_letters(lines: TextRecords, words: FirstWords, done: Bools, levels: Levels) -> Bools:
    """Sets the level of lines of logcat, whose first word is a letter; gives which they are."""
    found: Bools = (_OF_LETTERS[words.letters] != NO_LEVEL) & (words.marks == _BLANK) & ~done
    rows = np.flatnonzero(found)
    if len(rows):
        rows = rows[matches(lines.take_window(rows), _LOGCAT)]
        levels[rows] = _OF_LETTERS[words.letters[rows]]
        found[:] = False
        found[rows] = True
    return found


def _start_of_object(line: bytes) -> int:
    return line.find(b"{" if line.lstrip().startswith(b"{") else b'{"')


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _level_of_record(record: Mapping[str, Any]) -> int:
    """The level of a JSON object: of a level key in any case, or of ECS, Loguru, dbt or MongoDB.

    One that leaves the level out states none, though Serilog means Information by that.
    """
    keys = {key.lower(): key for key in record}
    for name in _OBJECT_LEVELS:
        key = keys.get(name)
        if key is not None:
            level = level_of_value(record[key], name)
            if level != NO_LEVEL:
                return level
    for name in ("log", "record", "info"):
        nested = record.get(name)
        if isinstance(nested, dict) and "level" in nested:
            level = nested["level"]
            return level_of_value(level.get("name") if isinstance(level, dict) else level)
    if "s" in record and "c" in record:
        return level_of_letter(str(record["s"])[:1])
    return NO_LEVEL


def _apply_logfmt(lines: TextRecords, words: FirstWords, left: Rows, levels: Levels) -> Rows:
    """Sets the level of lines of logfmt among the rows `left`; gives the others."""
    mark = words.marks[left]
    keyed = (mark == _EQUALS) | (mark == _DOT) | (mark == _MINUS) | (mark == _SLASH)
    keyed &= words.columns[left] == 1
    if not keyed.any():
        return left
    found = _put_rule(
        LevelRule(_LOGFMT, level_of_word), lines.take(left[keyed]), left[keyed], levels
    )
    keyed[keyed] = found
    others: Rows = left[~keyed]
    return others


def _apply_rules(window: pa.Array, left: Rows, levels: Levels) -> None:
    """Sets the levels of the rows `left`, whose beginnings are `window`, by the first rule."""
    for rule in RULES:
        if len(left) == 0:
            return
        found = _put_rule(rule, window, left, levels)
        if found.any():
            left, window = left[~found], window.filter(pa.array(~found))


def _put_rule(rule: LevelRule, window: pa.Array, rows: Rows, levels: Levels) -> Bools:
    """Sets the levels of the rows in which the rule's pattern is found; gives which they are."""
    found = matches(window, rule.pattern)
    if not found.any():
        return found
    if "(?P<" not in rule.pattern:
        levels[rows[found]] = rule.level("")
        return found
    texts = _first_groups(window.filter(pa.array(found)), rule.pattern).dictionary_encode()
    names = [text.decode("latin-1") for text in texts.dictionary.to_pylist()]
    values = np.array([rule.level(name) if name else NO_LEVEL for name in names], dtype=np.int8)
    levels[rows[found]] = values[texts.indices.to_numpy()]
    return found


def _first_groups(lines: pa.Array, pattern: str) -> pa.Array:
    """Of each line, which matches, the text of the group that took part: the others are empty."""
    if are_few(lines, pattern):
        found = map(regex_of(pattern).groups, lines.to_pylist())
        return pa.array([next(filter(None, texts), b"") for texts in found], lines.type)
    groups = pc.extract_regex(lines, pattern)
    names = [field.name for field in groups.type]
    columns = [pc.fill_null(pc.struct_field(groups, name), b"") for name in names]
    if len(columns) == 1:
        return columns[0]
    return pc.binary_join_element_wise(*columns, pa.scalar(b"", columns[0].type))
