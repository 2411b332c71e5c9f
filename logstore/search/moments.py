"""Moments as people and programs write them, as milliseconds since the epoch.

    2026-11-21T10:00:00Z, 2026-11-21T11:00:00.5+01:00    RFC 3339
    2026-11-21                                           a date is its midnight, UTC
    1795255200, 1795255200.5                             epoch seconds, if below 10^11
    1795255200000                                        epoch milliseconds, else
    now, now-1h, now-1d+30m                              units ms s m h d w
    01KAJ7F4000000000000000000                           a ULID stands for its time

Finer digits than milliseconds are cut off; moments outside of what a ULID can hold are
clamped. A blank before the offset is read as `+`, which is what an unquoted `+` in a
query string turns into.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from logstore import ulid
from logstore.errors import InvalidInput

_HINT: Final = (
    "Write RFC 3339 (2026-11-21T10:00:00Z), epoch seconds or milliseconds, now-1h, or a ULID."
)
_NUMBER: Final = re.compile(r"[0-9]{1,16}(?:\.[0-9]{1,9})?")
_RELATIVE: Final = re.compile(r"now((?:[-+ ][0-9]{1,12}(?:ms|s|m|h|d|w))*)")
_STEP: Final = re.compile(r"([-+ ])([0-9]+)(ms|s|m|h|d|w)")
_LENGTH: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d|w)")
_RFC3339: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?([Zz]|[-+ ][0-9]{2}:[0-9]{2}))?"
)
_UNITS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_SECONDS_BELOW: Final = 100_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_moment(text: str, *, now_ms: int, field: str) -> int:
    """Milliseconds since the epoch, within a ULID's range. Raises `InvalidInput` on `field`."""
    found = _milliseconds(text.strip(), now_ms)
    if found is None:
        raise InvalidInput(f"{field} is not a time: {text[:80]!r}", field=field, hint=_HINT)
    return min(max(found, 0), ulid.MAX_TIME_MS)


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


def _milliseconds(text: str, now_ms: int) -> int | None:
    if _NUMBER.fullmatch(text):
        return _of_number(text)
    relative = _RELATIVE.fullmatch(text)
    if relative:
        return now_ms + sum(_step(*step) for step in _STEP.findall(relative[1]))
    dated = _RFC3339.fullmatch(text)
    if dated:
        return _of_date(dated)
    return _of_ulid(text)


def _of_number(text: str) -> int:
    whole, _, fraction = text.partition(".")
    if int(whole) >= _SECONDS_BELOW:
        return int(whole)
    return int(whole) * 1_000 + int((fraction + "000")[:3])


def _step(sign: str, count: str, unit: str) -> int:
    size = int(count) * _UNITS_MS[unit]
    return -size if sign == "-" else size


def _of_date(found: re.Match[str]) -> int | None:
    year, month, day, hour, minute, second, fraction, offset = found.groups()
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0),
            tzinfo=UTC,
        )  # fmt: skip
    except ValueError:
        return None
    away = _offset_ms(offset or "Z")
    if away is None:
        return None
    # Whole numbers all the way: a float of seconds would lose the last millisecond.
    return (moment - _EPOCH) // timedelta(milliseconds=1) + int(f"{fraction or ''}000"[:3]) - away


def _offset_ms(offset: str) -> int | None:
    if offset in "Zz":
        return 0
    hours, minutes = int(offset[1:3]), int(offset[4:6])
    if hours > 23 or minutes > 59:
        return None
    size = (hours * 60 + minutes) * 60_000
    return -size if offset[0] == "-" else size


def _of_ulid(text: str) -> int | None:
    try:
        return ulid.parse(text).milliseconds
    except InvalidInput:
        return None
