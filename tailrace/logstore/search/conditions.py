"""The condition of a search as a tree, and the moments, levels and numbers in it.

`tailrace.logstore.search.language` parses a search to such a tree, and
`tailrace.logstore.search.translate` makes SQL of it. A comparison with a field that a record does
not have is false, and `Not` of it true.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.patterns import MOST_STARS, LinearRegex
from tailrace.logstore.segments.file_format import LEVELS
from tailrace.logstore.segments.levels import NAMES, NO_LEVEL, level_of_value

COLUMNS: Final = {
    "message": "message",
    "fqn": "fqn",
    "run": "run_id",
    "run_id": "run_id",
    "level": "level",
    "connector": "connector_id",
    "connector_id": "connector_id",
    "ulid": "ulid",
    "pos": "pos",
    "ts": "ts",
    "carried": "carried",
}
"""Fields that are columns of a record, by the names that a search may use."""

Operator: TypeAlias = Literal["=", ">", ">=", "<", "<="]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the record, by its own name."""

    name: str


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute that came with the record."""

    key: str


@dataclass(frozen=True, slots=True)
class JsonField:
    """A value within a message that is JSON; numbers in the path count in arrays, from 0.

    A condition on an array holds for the array as text, or for something in it: an element, or one
    of an array within it. A path leads into the objects of an array as well.
    """

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogfmtField:
    """The value of `key=value` or `key="a value"` in the message."""

    key: str


@dataclass(frozen=True, slots=True)
class AnyAttribute:
    """The values of all attributes; a condition holds if it holds for one of them."""


@dataclass(frozen=True, slots=True)
class StreamLabel:
    """A label of the record as clients of Loki see it (see below)."""

    name: str


Field: TypeAlias = Column | Attribute | JsonField | LogfmtField | AnyAttribute | StreamLabel
MESSAGE: Final = Column("message")
CARRIED: Final = Column("carried")
"""It exists in lines that continue the record before them."""


@dataclass(frozen=True, slots=True)
class Contains:
    """The field has the text somewhere."""

    text: str
    field: Field = MESSAGE
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class Matches:
    """The regular expression (RE2) is found in the field; linear in the length of both."""

    pattern: str
    field: Field = MESSAGE
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class StartsWith:
    """The field begins with the text."""

    text: str
    field: Field
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class Is:
    """The field is the text."""

    text: str
    field: Field
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class OneOf:
    """The field is one of the texts, or is worth one of the numbers; a message has one of them."""

    texts: tuple[str, ...]
    field: Field
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Exists:
    """The record has the field."""

    field: Field


@dataclass(frozen=True, slots=True)
class Compares:
    """The field's order to a value: with a number by what it is worth, with text by code point.

    `ts` compares with microseconds since the epoch.
    """

    field: Field
    operator: Operator
    value: str | float | int


@dataclass(frozen=True, slots=True)
class All:
    """Each of the parts holds."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of the parts holds."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not hold."""

    part: Condition


Condition: TypeAlias = (
    Contains | Matches | StartsWith | Is | OneOf | Exists | Compares | All | AnyOf | Not
)


def leaves(condition: Condition) -> Iterator[Condition]:
    """All conditions in it that have no parts."""
    waiting = [condition]
    while waiting:
        part = waiting.pop()
        if isinstance(part, All | AnyOf):
            waiting += part.parts
        elif isinstance(part, Not):
            waiting.append(part.part)
        else:
            yield part


def asks_for_text(condition: Condition | None) -> bool:
    """Returns whether a part that has to hold is about the text of a line.

    All other conditions (a level, a name, a time) hold alike for a record and the lines that
    continue it, or say where the lines are.
    """
    waiting = [] if condition is None else [(condition, True)]
    while waiting:
        part, holds = waiting.pop()
        if isinstance(part, All | AnyOf):
            waiting += [(inner, holds) for inner in part.parts]
        elif isinstance(part, Not):
            waiting.append((part.part, not holds))
        elif holds and part != Exists(MESSAGE) and _is_of_line(part.field):
            return True
    return False


def _is_of_line(field: Field) -> bool:
    return field in (MESSAGE, CARRIED) or isinstance(field, JsonField | LogfmtField)


def depth(condition: Condition) -> int:
    """Returns how many levels of conditions are nested."""
    deepest, waiting = 0, [(condition, 1)]
    while waiting:
        part, level = waiting.pop()
        deepest = max(deepest, level)
        if isinstance(part, All | AnyOf):
            waiting += [(inner, level + 1) for inner in part.parts]
        elif isinstance(part, Not):
            waiting.append((part.part, level + 1))
    return deepest


def patterns(condition: Condition | None) -> list[str]:
    """The regular expressions in it."""
    if condition is None:
        return []
    return [leaf.pattern for leaf in leaves(condition) if isinstance(leaf, Matches)]


def bounds_of_ts(condition: Condition | None) -> tuple[int | None, int | None]:
    """Returns the lowest and highest time of a record's own for which the condition may hold.

    In microseconds since the epoch, inclusive; None is no bound.
    """
    if isinstance(condition, All):
        bounds = [bounds_of_ts(part) for part in condition.parts]
        lows = [low for low, _ in bounds if low is not None]
        highs = [high for _, high in bounds if high is not None]
        return max(lows, default=None), min(highs, default=None)
    if not isinstance(condition, Compares) or condition.field != Column("ts"):
        return None, None
    value = int(condition.value)
    match condition.operator:
        case "=":
            return value, value
        case ">" | ">=":
            return value, None
    return None, value


def required(condition: Condition | None, column: str) -> str | None:
    """Returns the text that the column must equal for the condition to hold; None without one."""
    parts = condition.parts if isinstance(condition, All) else (condition,)
    for part in parts:
        if isinstance(part, Is) and not part.ignore_case and part.field == Column(column):
            return part.text
    return None


def may_hold_in(condition: Condition | None, key: RunKey) -> bool:
    """Returns false only if the condition holds for no record of the run, by its names alone."""
    return condition is None or _held_in(condition, key) is not False


def _held_in(condition: Condition, key: RunKey) -> bool | None:
    """Returns whether it holds for the records of a run; None: that is a matter of each record."""
    match condition:
        case All(parts) | AnyOf(parts):
            decisive = isinstance(condition, AnyOf)
            found = [_held_in(part, key) for part in parts]
            return decisive if decisive in found else None if None in found else not decisive
        case Not(part):
            held = _held_in(part, key)
            return None if held is None else not held
        case Contains(text, Column(name), False) if name in _OF_RUN:
            return text in _OF_RUN[name](key)
        case StartsWith(text, Column(name), False) if name in _OF_RUN:
            return _OF_RUN[name](key).startswith(text)
        case Is(text, Column(name), False) if name in _OF_RUN:
            return _OF_RUN[name](key) == text
        case OneOf(texts, Column(name), ()) if name in _OF_RUN:
            return _OF_RUN[name](key) in texts
    return None


_OF_RUN: Final[Mapping[str, Callable[[RunKey], str]]] = {
    "fqn": operator.attrgetter("fqn"),
    "run_id": operator.attrgetter("run"),
}
"""Columns that are the same in all records of a run."""


# Moments in the forms that people and programs write, as milliseconds since the epoch.
#
#   2026-11-21T10:00:00Z, 2026-11-21T11:00:00.5+01:00    RFC 3339
#   2026-11-21 10:00, 2026/11/21 10:00:30, 2026-11-21    without an offset it is UTC
#   20261121T100000Z, 20261121T1100+0100, 20261121T10    ISO 8601's basic form, with a `T`
#   10:00, 10:00:30, yesterday 10:00                     at that time of today, or of another day
#   today, yesterday                                     their midnight, UTC
#   1795255200, 1795255200.5                             epoch seconds, if below 10^11
#   1795255200000                                        epoch milliseconds, else
#   now, now-1h, now-1d+30m, now/d, now-1d/d+8h          units ms s m h d w; /d is midnight
#   5m, 1h30m, -5m, 5m ago                               that long before now
#   01KAJ7F4000000000000000000                           a ULID stands for its time
#
# `/w` is Monday's midnight, `/M` and `/y` are those of the month's and the year's first day. Finer
# digits than milliseconds are cut off; moments outside the range of a ULID are clamped. A blank
# before the offset is read as `+`, since an unquoted `+` in a query string becomes a blank.
#
# A day, an hour or a minute is also a span (`parse_span`): `yesterday` lasts until today begins.


TIME_FORMS: Final = (
    "RFC 3339, `20261121T100000Z`, `2026-11-21 10:00` (UTC), epoch seconds or milliseconds, "
    "`5m` (before now), `now-1h`, `now/d`, `yesterday`, or a ULID"
)
_HINT: Final = (
    "Write 2026-11-21T10:00:00Z, 2026-11-21 10:00 (UTC), epoch seconds or milliseconds, 5m (before "
    "now), now-1h, now/d, yesterday, or a ULID."
)
_UNITS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_UNIT: Final = "ms|s|m|h|d|w"
_NUMBER: Final = re.compile(r"[0-9]{1,16}(?:\.[0-9]{1,9})?")
_RELATIVE: Final = re.compile(rf"now((?:[-+ ][0-9]{{1,12}}(?:{_UNIT})|/(?:{_UNIT}|M|y))*)")
_STEP: Final = re.compile(rf"([-+ ])([0-9]+)({_UNIT})|/({_UNIT}|M|y)")
_AGO: Final = re.compile(rf"-?((?:[0-9]{{1,12}}(?:{_UNIT}))+)(?: ?ago)?")
_LENGTH: Final = re.compile(rf"([0-9]{{1,12}})({_UNIT})")
_MINUTES: Final = r":([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?"
_CLOCK: Final = rf"([0-9]{{2}})(?:{_MINUTES})?"
_DATED: Final = re.compile(
    r"([0-9]{4})([-/])([0-9]{2})\2([0-9]{2})"
    rf"(?:[Tt ]{_CLOCK} ?([Zz]|UTC|[-+ ][0-9]{{2}}:?[0-9]{{2}})?)?"
)
_BASIC: Final = re.compile(
    r"([0-9]{4})([0-9]{2})([0-9]{2})[Tt]"
    r"([0-9]{2})(?:([0-9]{2})(?:([0-9]{2})(?:[.,]([0-9]{1,9}))?)?)?([Zz]|[-+ ][0-9]{2}:?[0-9]{2})?"
)
_OF_DAY: Final = re.compile(rf"(today|yesterday)(?: {_CLOCK})?|([0-9]{{2}}){_MINUTES}")
_SECONDS_BELOW: Final = 100_000_000_000
_MONDAY_MS: Final = 4 * _UNITS_MS["d"]  # the first after the epoch, which was a Thursday
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class MomentRange(NamedTuple):
    """Milliseconds from `start` to before `end`."""

    start: int
    end: int


def parse_moment(text: str, *, now_ms: int, field: str) -> int:
    """Milliseconds since the epoch, within a ULID's range. Raises `InvalidInput` on `field`."""
    return parse_span(text, now_ms=now_ms, field=field).start


def parse_span(text: str, *, now_ms: int, field: str) -> MomentRange:
    """The day, hour or minute that the text names, else a millisecond. Raises `InvalidInput`."""
    found = _span(text.strip(), now_ms)
    if found is None:
        raise InvalidInput(f"{field} is not a time: {text[:80]!r}", field=field, hint=_HINT)
    start, size = found
    start = min(max(start, 0), ulid.MAX_TIME_MS)
    return MomentRange(start, start + size)


def parse_step(text: str, *, field: str) -> int:
    """A length of time with its unit (`5m`), in milliseconds. Raises `InvalidInput` on `field`."""
    found = _LENGTH.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise InvalidInput(
            f"{field} is not a length of time: {text[:80]!r}",
            field=field,
            hint=f"Write a whole number above zero and a unit: {', '.join(_UNITS_MS)}.",
        )
    return int(found[1]) * _UNITS_MS[found[2]]


def _span(text: str, now_ms: int) -> tuple[int, int] | None:
    """Where the moment is, and the length of what it names."""
    if _NUMBER.fullmatch(text):
        return _of_number(text), 1
    if relative := _RELATIVE.fullmatch(text):
        return _moved(relative[1], now_ms), 1
    if ago := _AGO.fullmatch(text):
        return now_ms - sum(int(n) * _UNITS_MS[unit] for n, unit in _LENGTH.findall(ago[1])), 1
    if dated := _DATED.fullmatch(text):
        year, _, *rest = dated.groups()
        return _of_date(year, *rest)
    if basic := _BASIC.fullmatch(text):
        return _of_date(*basic.groups())
    if of_day := _OF_DAY.fullmatch(text):
        return _of_day(of_day, now_ms)
    moment = _of_ulid(text)
    return None if moment is None else (moment, 1)


def _of_number(text: str) -> int:
    whole, _, fraction = text.partition(".")
    if int(whole) >= _SECONDS_BELOW:
        return int(whole)
    return int(whole) * 1_000 + int((fraction + "000")[:3])


def _moved(steps: str, moment: int) -> int:
    """The moment after each step: some time on or back, or down to where a unit begins."""
    for sign, count, unit, rounded in _STEP.findall(steps):
        if rounded:
            moment = _beginning(min(max(moment, 0), ulid.MAX_TIME_MS), rounded)
        else:
            size = int(count) * _UNITS_MS[unit]
            moment += -size if sign == "-" else size
    return moment


def _beginning(moment: int, unit: str) -> int:
    if unit in "My":
        days = (moment // _UNITS_MS["d"]) * _UNITS_MS["d"]
        try:
            date = _EPOCH + timedelta(milliseconds=days)
        except OverflowError:  # after the year 9999
            return moment
        first = date.replace(day=1) if unit == "M" else date.replace(month=1, day=1)
        return (first - _EPOCH) // timedelta(milliseconds=1)
    size, offset = _UNITS_MS[unit], _MONDAY_MS if unit == "w" else 0
    return (moment - offset) // size * size + offset


def _of_date(
    year: str, month: str, day: str, *clock_and_offset: str | None
) -> tuple[int, int] | None:
    hour, minute, second, fraction, offset = clock_and_offset
    try:
        date = datetime(int(year), int(month), int(day), tzinfo=UTC)
    except ValueError:
        return None
    # Whole numbers all the way: a float of seconds would lose the last millisecond.
    midnight = (date - _EPOCH) // timedelta(milliseconds=1)
    clock, away = _clock(hour, minute, second, fraction), _offset_ms(offset or "Z")
    if clock is None or away is None:
        return None
    return midnight + clock[0] - away, clock[1]


def _of_day(found: re.Match[str], now_ms: int) -> tuple[int, int] | None:
    name, *of_named, hour, minute, second, fraction = found.groups()
    clock = _clock(*of_named) if name else _clock(hour, minute, second, fraction)
    if clock is None:
        return None
    day = _beginning(now_ms, "d") - (_UNITS_MS["d"] if name == "yesterday" else 0)
    return day + clock[0], clock[1]


def _clock(
    hour: str | None, minute: str | None, second: str | None, fraction: str | None
) -> tuple[int, int] | None:
    """Milliseconds since midnight, and the length of what is named: a day without an hour."""
    hours, minutes, seconds = (int(text or 0) for text in (hour, minute, second))
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    at = (hours * 3600 + minutes * 60 + seconds) * 1_000 + int(f"{fraction or ''}000"[:3])
    unit = "d" if hour is None else "h" if minute is None else "m" if second is None else "ms"
    return at, _UNITS_MS[unit]


def _offset_ms(offset: str) -> int | None:
    if offset in ("Z", "z", "UTC"):
        return 0
    hours, minutes = int(offset[1:3]), int(offset[-2:])
    if hours > 23 or minutes > 59:
        return None
    size = (hours * 60 + minutes) * 60_000
    return -size if offset[0] == "-" else size


def _of_ulid(text: str) -> int | None:
    try:
        return ulid.parse(text).milliseconds
    except InvalidInput:
        return None


# Values of a search: text with `*` for anything, levels, numbers.
#
# Parameters of a URL and the language of `q` use these functions, so they mean the same in both.


LEVEL: Final = Column("level")
LEVEL_HINT: Final = f"Levels are {', '.join(LEVELS)}, and other spellings of them such as warning."

_NUMERIC_TEXT: Final = re.compile(r"[-+]?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][-+]?[0-9]{1,3})?")
_EXACT_DIGITS: Final = 15
"""Digits of a number that a float of 64 bits tells from its neighbours."""
_ANYTHING: Final = r"[\s\S]*"


def level_named(text: str) -> str | None:
    """The level that the text spells, as ingest reads it; None if it is none."""
    number = level_of_value(text)
    return None if number == NO_LEVEL else LEVELS[number]


def number_in(text: str) -> float | None:
    """The number that the text is, None if it is none."""
    if not _NUMERIC_TEXT.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def is_exact(text: str) -> bool:
    """Returns whether the number, as a float, differs from every other number that people write."""
    digits = re.sub(r"[eE].*|[^0-9]", "", text).lstrip("0")
    return len(digits) <= _EXACT_DIGITS


def worth_of(text: str, field: Field) -> str | float:
    """What the field's value is to a condition: of a number its worth, so 503 and 503.0 are one."""
    number = None if isinstance(field, Column) or not is_exact(text) else number_in(text)
    return text if number is None else number


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


# Labels of a record as clients of Loki see them.
#
#   pipeline         the fqn
#   run              the run's id
#   service_name     the attribute `service_name` or `service.name`, else the fqn
#   detected_level   the record's level in small letters, `unknown` without one
#   others           the record's attributes; signs that no label may have become `_`
#
# The first three identify a stream. An attribute that is called as a label that it cannot replace
# gets `_extracted` behind its name, as in Loki.


PIPELINE: Final = "pipeline"
RUN: Final = "run"
SERVICE: Final = "service_name"
DETECTED_LEVEL: Final = "detected_level"
UNKNOWN_LEVEL: Final = "unknown"
STREAM_LABELS: Final = (PIPELINE, RUN, SERVICE)
EXTRACTED: Final = "_extracted"
EXACT_TIME: Final = "time_unix_nano"
"""The attribute of a pushed line whose time has nanoseconds; it is no label."""
_OWN: Final = {PIPELINE: Column("fqn"), RUN: Column("run_id")}
_FIXED: Final = (PIPELINE, RUN, DETECTED_LEVEL)
_LONGEST_KEPT: Final = 100  # characters: the cache of names, which clients choose, counts entries


def label_name(key: str) -> str:
    """Returns the name of an attribute, or of a key in a line, as a label; empty for a blank."""
    return _short_label(key) if len(key) <= _LONGEST_KEPT else _label(key)


@lru_cache(maxsize=4096)
def _short_label(key: str) -> str:
    return _label(key)


def _label(key: str) -> str:
    key = key.strip()
    if key[:1].isdigit() and key.isascii():
        key = f"_{key}"
    return re.sub(r"[^a-zA-Z0-9_]", "_", key)


def attribute_label(key: str) -> str:
    """Returns the label that shows the attribute; empty if none does."""
    name = label_name(key)
    if name == EXACT_TIME:
        return ""
    return name + EXTRACTED if name in _FIXED else name


def attribute_name(label: str) -> str:
    """Returns the name of the attribute that the label shows, as far as the label has its signs."""
    stem = label.removesuffix(EXTRACTED)
    return stem if stem in _FIXED else label


def field_of_label(name: str) -> Field:
    """Returns the field of a record that the label shows."""
    return _OWN.get(name) or StreamLabel(name)
