"""Moments as people and programs write them, as milliseconds since the epoch.

    2026-11-21T10:00:00Z, 2026-11-21T11:00:00.5+01:00    RFC 3339
    2026-11-21 10:00, 2026/11/21 10:00:30, 2026-11-21    without an offset it is UTC
    10:00, 10:00:30, yesterday 10:00                     at that time of today, or of another day
    today, yesterday                                     their midnight, UTC
    1795255200, 1795255200.5                             epoch seconds, if below 10^11
    1795255200000                                        epoch milliseconds, else
    now, now-1h, now-1d+30m, now/d, now-1d/d+8h          units ms s m h d w; /d is midnight
    5m, 1h30m, -5m, 5m ago                               so long before now
    01KAJ7F4000000000000000000                           a ULID stands for its time

`/w` is Monday's midnight, `/M` and `/y` are those of the month's and the year's first day. Finer
digits than milliseconds are cut off; moments outside of what a ULID can hold are clamped. A blank
before the offset is read as `+`, which is what an unquoted `+` in a query string turns into.

A day, an hour or a minute is also a span (`parse_span`): `yesterday` lasts until today begins.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from logstore import ulid
from logstore.errors import InvalidInput

TIME_FORMS: Final = (
    "RFC 3339, `2026-11-21 10:00` (UTC), epoch seconds or milliseconds, `5m` (before now), "
    "`now-1h`, `now/d`, `yesterday`, or a ULID"
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
_OF_DAY: Final = re.compile(rf"(today|yesterday)(?: {_CLOCK})?|([0-9]{{2}}){_MINUTES}")
_SECONDS_BELOW: Final = 100_000_000_000
_MONDAY_MS: Final = 4 * _UNITS_MS["d"]  # the first after the epoch, which was a Thursday
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Span(NamedTuple):
    """Milliseconds from `start` to before `end`."""

    start: int
    end: int


def parse_moment(text: str, *, now_ms: int, field: str) -> int:
    """Milliseconds since the epoch, within a ULID's range. Raises `InvalidInput` on `field`."""
    return parse_span(text, now_ms=now_ms, field=field).start


def parse_span(text: str, *, now_ms: int, field: str) -> Span:
    """The day, hour or minute that the text names, else a millisecond. Raises `InvalidInput`."""
    found = _span(text.strip(), now_ms)
    if found is None:
        raise InvalidInput(f"{field} is not a time: {text[:80]!r}", field=field, hint=_HINT)
    start, size = found
    start = min(max(start, 0), ulid.MAX_TIME_MS)
    return Span(start, start + size)


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
        return _of_date(dated)
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


def _of_date(found: re.Match[str]) -> tuple[int, int] | None:
    year, _, month, day, hour, minute, second, fraction, offset = found.groups()
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
