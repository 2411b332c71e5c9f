"""What a search asks for, validated: `QueryRequest.parse` takes the parameters of the URL.

`q` is plain text that the message must hold; with `regex=true` it is one regular
expression (RE2, linear time). The query language will take the place of
`Matcher` and nothing else.

Moments as people and programs write them, as milliseconds since the epoch.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from logstore import ulid
from logstore.errors import InvalidInput, TooLarge
from logstore.names import check_name
from logstore.segments.schema import LEVELS
from service.query import cursor
from service.query.cursor import RecordKey

_HINT: Final = (
    "Write RFC 3339 (2026-11-21T10:00:00Z), epoch seconds or milliseconds, now-1h, or a ULID."
)
_EXPRESSION_CHARS: Final = 10_000
_NUMBER: Final = re.compile(r"[0-9]{1,16}(?:\.[0-9]{1,9})?")
_RELATIVE: Final = re.compile(r"now((?:[-+ ][0-9]{1,12}(?:ms|s|m|h|d|w))*)")
_STEP: Final = re.compile(r"([-+ ])([0-9]+)(ms|s|m|h|d|w)")
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


PARAMETERS: Final = frozenset(
    (
        *("q", "regex", "from", "to", "fqn", "run", "level"),
        *("limit", "order", "after", "format", "stats_only"),
    )
)
_BOOLEANS: Final = {"true": True, "1": True, "": True, "false": False, "0": False}
_DEFAULT_FROM: Final = "now-1h"
_HIGHEST: Final = (1 << 128) - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Matcher:
    """What the message must look like; an empty text matches everything."""

    text: str = ""
    regex: bool = False


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """`low` and `high` bound the ULID, inclusive. `limit` None means all."""

    low: int = 0
    high: int = _HIGHEST
    matcher: Matcher = Matcher()
    fqn: str | None = None
    run: str | None = None
    levels: tuple[str, ...] = ()
    limit: int | None = None
    descending: bool = True
    after: RecordKey | None = None
    stats_only: bool = False

    @staticmethod
    def parse(parameters: Mapping[str, str], *, now_ms: int) -> QueryRequest:
        """The request that the parameters make. Raises `InvalidInput` with the field."""
        _refuse_unknown(parameters)
        low, high = _bounds(parameters, now_ms)
        return QueryRequest(
            low=low,
            high=high,
            matcher=_matcher(parameters),
            fqn=_name(parameters, "fqn"),
            run=_name(parameters, "run"),
            levels=_given(parameters, "level", _levels) or (),
            limit=_given(parameters, "limit", _limit),
            descending=_given(parameters, "order", _descending) is not False,
            after=_given(parameters, "after", cursor.decode),
            stats_only=_boolean(parameters, "stats_only"),
        )


def _refuse_unknown(parameters: Mapping[str, str]) -> None:
    for name in parameters:
        if name not in PARAMETERS:
            raise InvalidInput(
                f"there is no parameter {name[:80]!r}",
                field=name[:80],
                hint=f"Parameters are {', '.join(sorted(PARAMETERS))}.",
            )


def _given(parameters: Mapping[str, str], name: str, read: Callable[[str], T]) -> T | None:
    """The parameter as `read` understands it; None if it is missing or empty."""
    value = parameters.get(name)
    return read(value) if value else None


def _bounds(parameters: Mapping[str, str], now_ms: int) -> tuple[int, int]:
    start = parse_moment(parameters.get("from") or _DEFAULT_FROM, now_ms=now_ms, field="from")
    to = parameters.get("to")
    if not to:
        return ulid.lowest_at(start), _HIGHEST
    end = parse_moment(to, now_ms=now_ms, field="to")
    if end < start:
        raise InvalidInput(
            "from is after to",
            field="from",
            hint="from is the earlier end, also with order=desc. Without it, it is 1 h ago.",
        )
    return ulid.lowest_at(start), ulid.highest_at(end)


def _matcher(parameters: Mapping[str, str]) -> Matcher:
    text = parameters.get("q", "")
    if len(text) > _EXPRESSION_CHARS:
        raise TooLarge(
            f"q has {len(text)} characters", field="q", hint=f"Use at most {_EXPRESSION_CHARS}."
        )
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInput("q is not text", field="q", hint="Send q as valid UTF-8.")
    return Matcher(text, _boolean(parameters, "regex"))


def _boolean(parameters: Mapping[str, str], name: str) -> bool:
    """A bare `name` is true, as in OK Log; `name=false` is false, unlike there."""
    text = parameters.get(name, "false")
    found = _BOOLEANS.get(text.lower())
    if found is None:
        raise InvalidInput(f"{name} is {text[:80]!r}", field=name, hint="Write true or false.")
    return found


def _name(parameters: Mapping[str, str], field: str) -> str | None:
    name = parameters.get(field)
    if name is not None:
        check_name(name, field)
    return name


def _levels(text: str) -> tuple[str, ...]:
    levels = tuple(level.strip().upper() for level in text.split(","))
    for level in levels:
        if level not in LEVELS:
            raise InvalidInput(
                f"there is no level {level[:80]!r}",
                field="level",
                hint=f"Levels are {', '.join(LEVELS)}; several are separated by commas.",
            )
    return levels


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 15 or int(text) == 0:
        raise InvalidInput(
            f"limit is {text[:80]!r}",
            field="limit",
            hint="Write a whole number above zero, or leave it out to get everything.",
        )
    return int(text)


def _descending(text: str) -> bool:
    if text not in ("asc", "desc"):
        raise InvalidInput(f"order is {text[:80]!r}", field="order", hint="Write asc or desc.")
    return text == "desc"
