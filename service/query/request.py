"""What a search asks for, validated: `QueryRequest.parse` takes the parameters of the URL.

`q` is in the language of searches (`language`); with `regex=true` all of it is one regular
expression (RE2, linear time).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from logstore import ulid
from logstore.errors import InvalidInput, TooLarge
from logstore.names import check_name
from logstore.search.conditions import All, Column, Compares, Condition, Field, Matches, required
from logstore.search.moments import parse_moment
from logstore.search.values import LEVEL_HINT, level_named, wildcard
from service.query import cursor
from service.query.cursor import RecordKey
from service.query.tiles import Tile

SEARCH_PARAMETERS: Final = ("q", "regex", "from", "to", "time", "fqn", "run", "level")
"""What says which records are meant, wherever records are searched."""
CONTEXT_PARAMETERS: Final = ("context", "context_before", "context_after")
"""What says how much around the hits is given, see `context`."""
PARAMETERS: Final = frozenset(
    (
        *SEARCH_PARAMETERS,
        *CONTEXT_PARAMETERS,
        "by",
        "limit",
        "order",
        "after",
        "format",
        "stats_only",
    )
)
_BOOLEANS: Final = {"true": True, "1": True, "": True, "false": False, "0": False}
_DEFAULT_FROM: Final = "now-1h"
_EXPRESSION_CHARS: Final = 10_000
_LONG_CHARS: Final = 1_000_000
_TS: Final = Column("ts")
_HIGHEST: Final = (1 << 128) - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """`low` and `high` bound the ULID, inclusive. `limit` None means all.

    With `value`, a record is given as its key and the text of this field, as `value`. With `times`,
    from and to bound the line's own time, in milliseconds, and not the ULID.
    """

    low: int = 0
    high: int = _HIGHEST
    condition: Condition | None = None
    fqn: str | None = None
    run: str | None = None
    levels: tuple[str, ...] = ()
    limit: int | None = None
    descending: bool = True
    after: RecordKey | None = None
    stats_only: bool = False
    value: Field | None = None
    times: tuple[int, int | None] | None = None

    @property
    def start_ms(self) -> int:
        """The lowest time that is asked for, of arrival or of the lines themselves."""
        return ulid.time_ms(self.low) if self.times is None else self.times[0]

    @property
    def time(self) -> str:
        """Which time from and to bound."""
        return "arrival" if self.times is None else "ts"

    @property
    def bounds(self) -> Tile:
        """The times that it asks for."""
        return Tile(self.low, self.high)

    @property
    def unconditional(self) -> bool:
        """Whether it asks for no more than records of some time."""
        return (self.condition, self.fqn, self.run, self.levels) == (None, None, None, ())

    @staticmethod
    def parse(parameters: Mapping[str, str], *, now_ms: int, long: bool = False) -> QueryRequest:
        """The request that the parameters make; `long`: `q` came in a body, with long lists.

        Raises `InvalidInput` with the field.
        """
        refuse_unknown(parameters, PARAMETERS)
        low, high = _bounds(parameters, now_ms)
        condition = _condition(parameters, now_ms, _LONG_CHARS if long else _EXPRESSION_CHARS)
        times = None
        if _by_ts(parameters):
            times = (ulid.time_ms(low), None if high == _HIGHEST else ulid.time_ms(high))
            low, high = 0, _HIGHEST
        fqn, run = _name(parameters, "fqn"), _name(parameters, "run")
        parts = [_within(times), _named(fqn, "fqn", "fqn"), _named(run, "run_id", "run"), condition]
        return QueryRequest(
            low=low,
            high=high,
            condition=_all([part for part in parts if part is not None]),
            fqn=_exact(fqn) or required(condition, "fqn"),
            run=_exact(run) or required(condition, "run_id"),
            levels=_given(parameters, "level", _levels) or (),
            limit=_given(parameters, "limit", _limit),
            descending=_given(parameters, "order", _descending) is not False,
            after=_given(parameters, "after", cursor.decode),
            stats_only=_boolean(parameters, "stats_only"),
            times=times,
        )


def refuse_unknown(parameters: Mapping[str, str], known: Collection[str]) -> None:
    """Raises `InvalidInput` if one of the parameters is none of the known ones."""
    for name in parameters:
        if name not in known:
            raise InvalidInput(
                f"there is no parameter {name[:80]!r}",
                field=name[:80],
                hint=f"Parameters are {', '.join(sorted(known))}.",
            )


def whole_number(parameters: Mapping[str, str], name: str, default: int, most: int) -> int:
    """The parameter's number, from 1 to `most`; `default` if it is missing or empty."""
    text = parameters.get(name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise InvalidInput(
            f"{name} is {text[:80]!r}",
            field=name,
            hint=f"Write a whole number from 1 to {most}.",
        )
    return int(text)


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
    # Ids may be ahead of the clock: what is there now is found by what goes up to now.
    high = ulid.highest_at(end) if end < now_ms else _HIGHEST
    if end < start:
        raise InvalidInput(
            "from is after to",
            field="from",
            hint="from is the earlier end, also with order=desc. Without it, it is 1 h ago.",
        )
    return ulid.lowest_at(start), high


def _condition(parameters: Mapping[str, str], now_ms: int, most: int) -> Condition | None:
    text = parameters.get("q", "")
    if len(text) > most:
        hint = f"Use at most {most}; POST /query takes a q of up to {_LONG_CHARS}."
        raise TooLarge(f"q has {len(text)} characters", field="q", hint=hint)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInput("q is not text", field="q", hint="Send q as valid UTF-8.")
    if _boolean(parameters, "regex"):
        return Matches(text) if text else None
    # Here: a node that nobody searches does without the parser, 9 MB.
    from logstore.search.language import parse

    return parse(text, now_ms=now_ms)


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


def _by_ts(parameters: Mapping[str, str]) -> bool:
    """Whether from and to bound the line's own time; else they bound its arrival."""
    given = {name: text for name in ("time", "by") if (text := parameters.get(name))}
    for name, text in given.items():
        if text not in ("ts", "arrival"):
            raise InvalidInput(f"{name} is {text[:80]!r}", field=name, hint="Write ts or arrival.")
    if len(set(given.values())) > 1:
        raise InvalidInput("time and by differ", field="by", hint="Give one of the two.")
    return "ts" in given.values()


def _within(times: tuple[int, int | None] | None) -> Condition | None:
    if times is None:
        return None
    first, last = times
    parts: list[Condition] = [Compares(_TS, ">=", first * 1000)] if first else []
    if last is not None:
        parts.append(Compares(_TS, "<", (last + 1) * 1000))
    return _all(parts)


def _exact(name: str | None) -> str | None:
    return None if name is None or "*" in name else name


def _named(name: str | None, column: str, field: str) -> Condition | None:
    """What a name with `*` asks for, as in `q`. Raises `InvalidInput` with the parameter."""
    if name is None or "*" not in name:
        return None
    try:
        return wildcard(name, Column(column))
    except InvalidInput as error:
        raise InvalidInput(str(error), field=field, hint=error.hint) from None


def _all(parts: list[Condition]) -> Condition | None:
    return All(tuple(parts)) if len(parts) > 1 else next(iter(parts), None)


def _levels(text: str) -> tuple[str, ...]:
    levels = []
    for name in text.split(","):
        level = level_named(name)
        if level is None:
            hint = f"{LEVEL_HINT} Several are separated by commas; q=level>=WARN has an order."
            raise InvalidInput(f"there is no level {name[:80]!r}", field="level", hint=hint)
        levels.append(level)
    return tuple(levels)


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
