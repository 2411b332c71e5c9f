"""Times of entries: layouts of strptime and of Go, and epochs, to microseconds since 1970.

A layout needs a year: to guess it is wrong every January, and the same bytes must always give the
same record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tailrace.logstore.patterns import LinearRegex

Parse = Callable[[Any], int | None]
"""Microseconds since 1970, or None for what is no such time."""

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WHOLE = {
    "D": "%m/%d/%y",
    "F": "%Y-%m-%d",
    "T": "%H:%M:%S",
    "r": "%l:%M:%S %p",
    "c": "%a %b %d %H:%M:%S %Y",
    "R": "%H:%M",
}
_TWO, _SPACED, _FRACTION = r"\d{1,2}", r" ?\d{1,2}", r"\d{1,9}"
_OFFSET = r"Z|[+-]\d{2}(?::?\d{2}(?::?\d{2})?)?"
_PIECES = {
    "Y": ("year", r"\d{4}"),
    "y": ("short", r"\d{2}"),
    "m": ("month", _TWO),
    "o": ("month", _SPACED),
    "q": ("month", _TWO),
    "b": ("name", r"[A-Za-z]{3}"),
    "h": ("name", r"[A-Za-z]{3}"),
    "B": ("name", r"[A-Za-z]{3,9}"),
    "d": ("day", _TWO),
    "e": ("day", _SPACED),
    "g": ("day", _TWO),
    "a": ("", r"[A-Za-z]{3}"),
    "A": ("", r"[A-Za-z]{6,9}"),
    "H": ("hour", _TWO),
    "I": ("twelve", _TWO),
    "l": ("twelve", _SPACED),
    "p": ("half", r"[AaPp][Mm]"),
    "P": ("half", r"[AaPp][Mm]"),
    "M": ("minute", _TWO),
    "S": ("second", _TWO),
    "L": ("fraction", _FRACTION),
    "f": ("fraction", _FRACTION),
    "s": ("fraction", _FRACTION),
    "z": ("offset", _OFFSET),
    "i": ("offset", _OFFSET),
    "j": ("offset", _OFFSET),
    "k": ("offset", _OFFSET),
    "Z": ("zone", r"[A-Za-z]*"),
    "n": ("", r"\n"),
    "t": ("", r"\t"),
    "%": ("", "%"),
}
# Parts of a layout of Go, longest first, in the spelling of strptime.
_GO = {
    "January": "%B", "Monday": "%A", "-07:00:00": "%k", "Z07:00:00": "%k", "Z07:00": "%j",
    "-07:00": "%j", "Z0700": "%z", "-0700": "%z", "2006": "%Y", "Jan": "%b", "Mon": "%a",
    "MST": "%Z", "Z07": "%i", "-07": "%i", "01": "%m", "02": "%d", "03": "%I", "04": "%M",
    "05": "%S", "06": "%y", "15": "%H", "PM": "%p", "pm": "%P", "_2": "%e", "1": "%q", "2": "%g",
    "3": "%I", "4": "%M", "5": "%S",
}  # fmt: skip
_GO_PART = re.compile(r"(?P<fraction>[.,](?:0+|9+)(?!\d))|" + "|".join(map(re.escape, _GO)))
_EPOCHS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0, "s.ms": -1, "s.us": -1, "s.ns": -1}
_MOST = 253_402_300_799_999_999
_NUMBERS = frozenset({"year", "month", "day", "hour", "minute", "second", "fraction", "offset"})
_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)


def zone_of(location: str) -> tzinfo | None:
    """A time zone by its name; None is the machine's. Raises `ValueError`."""
    if location in ("", "Local"):
        return None
    try:
        return ZoneInfo(location)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{location!r} is not a time zone, such as UTC or Europe/Berlin") from None


def time_parser(
    kind: str, layout: str, location: str, zones: Mapping[str, str] | None = None
) -> Parse:
    """The parser of a layout. Raises `ValueError` for one that cannot be read."""
    if kind == "epoch":
        if layout not in _EPOCHS:
            raise ValueError(f"an epoch's layout is one of {', '.join(_EPOCHS)}")
        return lambda value: _epoch(value, layout)
    if kind == "gotime":
        layout = _GO_PART.sub(_strptime_of, layout.replace("%", "%%"))
    default = zone_of(location)
    named = {name: zone_of(where) for name, where in (zones or {}).items()}
    pattern = _compiled(layout)
    has = set(pattern.groupindex)
    if not has & {"year", "short"}:
        raise ValueError("a layout needs a year: a guess is wrong every January")

    if has <= _NUMBERS and _NUMBERS - has <= {"fraction", "offset"}:
        return _of_numbers(pattern, default)

    def parse(value: Any) -> int | None:
        found = pattern.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            return None
        try:
            return _moment(found.groupdict(), default, named)
        except (ValueError, OverflowError, KeyError):  # a year 0, with no other to go by
            return None

    return parse


def _of_numbers(pattern: LinearRegex, default: tzinfo | None) -> Parse:
    """The parser of a layout such as ISO 8601: the minute, of which lines share many, is kept."""
    minute = ["year", "month", "day", "hour", "minute"]
    has_fraction, has_offset = ("fraction" in pattern.groupindex, "offset" in pattern.groupindex)

    @lru_cache(maxsize=1024)
    def begin(parts: tuple[str, ...], offset: str) -> int:
        year, month, day, hour, minutes = map(int, parts)
        return _seconds(year, month, day, hour, minutes, _offset(offset) if offset else default)

    def parse(value: Any) -> int | None:
        found = pattern.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            return None
        fraction = (found["fraction"] if has_fraction else None) or "0"
        try:
            offset = (found["offset"] or "") if has_offset else ""
            since = begin(tuple(found[part] or "" for part in minute), offset)
            since += int(found["second"] or "")
            moment = since * 1_000_000 + int(fraction[:6].ljust(6, "0"))
        except (ValueError, OverflowError):
            return None
        return moment if 0 <= moment <= _MOST else None

    return parse


def _strptime_of(found: re.Match[str]) -> str:
    return "%L" if found["fraction"] else _GO[found[0]]


def _compiled(layout: str) -> LinearRegex:
    parts: list[str] = []
    used: set[str] = set()
    layout = re.sub(r"%([DFTrcR])", lambda found: _WHOLE[found[1]], layout)
    for literal, name in re.findall(r"([^%]+)|%(.?)", layout):
        if literal:
            parts.append(re.escape(literal).replace(r"\ ", r"\s+"))
            continue
        if name not in _PIECES:
            raise ValueError(f"%{name} is not a known part of a layout")
        group, pattern = _PIECES[name]
        if name in "Lfs" and parts:
            # Seconds may be followed by a comma where the layout has a point, or by nothing.
            parts[-1] = re.sub(r"(?:\\\.|,)$", "", parts[-1])
            pattern = rf"[.,]?(?P<{group}>{pattern})?" if group not in used else ""
        elif group:
            pattern = rf"(?P<{group}>{pattern})" if group not in used else rf"(?:{pattern})"
        used.add(group)
        parts.append(pattern)
    return LinearRegex("".join(parts))


def _moment(
    parts: Mapping[str, str | None], default: tzinfo | None, named: Mapping[str, tzinfo | None]
) -> int:
    year = int(parts.get("year") or 0)
    if not year:
        short = int(parts["short"] or 0)
        year = short + (1900 if short >= 69 else 2000)
    month = int(parts.get("month") or 1)
    if name := parts.get("name"):
        month = _MONTHS.index(name[:3].lower()) + 1
    hour = int(parts.get("hour") or 0)
    if twelve := parts.get("twelve"):
        hour = int(twelve) % 12 + 12 * ((parts.get("half") or "").lower() == "pm")
    zone = _zone(parts, default, named)
    second = _seconds(
        year, month, int(parts.get("day") or 1), hour, int(parts.get("minute") or 0), zone
    )
    fraction = (parts.get("fraction") or "0")[:6].ljust(6, "0")
    moment = (second + int(parts.get("second") or 0)) * 1_000_000 + int(fraction)
    if not 0 <= moment <= _MOST:
        raise ValueError("outside the years 1970 to 9999")
    return moment


@lru_cache(maxsize=1024)
def _seconds(year: int, month: int, day: int, hour: int, minute: int, zone: tzinfo | None) -> int:
    """Of a minute: times of lines that follow one another share it."""
    moment = datetime(year, month, day, hour, minute, tzinfo=zone)
    since = (moment if zone else moment.astimezone()) - _ORIGIN
    return since.days * 86_400 + since.seconds


def _zone(
    parts: Mapping[str, str | None], default: tzinfo | None, named: Mapping[str, tzinfo | None]
) -> tzinfo | None:
    if offset := parts.get("offset"):
        return _offset(offset)
    zone = parts.get("zone")
    if not zone:
        return default
    if zone in named:
        return named[zone]
    return UTC if zone.upper() in ("UTC", "GMT", "Z") else default


@lru_cache(maxsize=64)
def _offset(text: str) -> tzinfo:
    if text == "Z":
        return UTC
    digits = text[1:].replace(":", "").ljust(6, "0")
    delta = timedelta(hours=int(digits[:2]), minutes=int(digits[2:4]), seconds=int(digits[4:6]))
    return timezone(-delta if text[0] == "-" else delta)


def _epoch(value: Any, layout: str) -> int | None:
    scale = _EPOCHS[layout]
    try:
        if scale > 0:
            moment = int(float(value) * scale) if "." in str(value) else int(value) * scale
        elif layout == "ns":
            moment = int(value) // 1_000
        else:
            seconds, _, fraction = str(value).partition(".")
            moment = int(seconds) * 1_000_000 + int(fraction[:6].ljust(6, "0"))
    except (TypeError, ValueError, OverflowError):
        return None
    return moment if 0 <= moment <= _MOST else None
