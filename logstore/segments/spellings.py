"""The spellings of levels: the one table for text, JSON, logfmt and levels that a client gives.

`docs/levels.md` shows it to users. Every name maps to one of `schema.LEVELS`; case does not matter.
A single letter is a level only where a rule of `levels` expects one, or as the whole value of a
level key.
"""

from __future__ import annotations

from typing import Final

from logstore.segments.schema import LEVELS

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

NUMBERS: Final = {
    "TRACE": ("10 (pino)",),
    "DEBUG": ("20 (pino)", "7 (syslog)"),
    "INFO": ("30 (pino)", "5, 6 (syslog)"),
    "WARN": ("40 (pino)", "4 (syslog)"),
    "ERROR": ("50 (pino)", "3 (syslog)"),
    "FATAL": ("60 (pino)", "0 to 2 (syslog)"),
}
"""The numbers of a level key, for `docs/levels.md`. Those of OpenTelemetry and Python have keys."""

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
        found = level_of_word(text)
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
