"""Validates a search: parameters to a request, its cursor, its fields, and its ranges of time.

`QueryRequest.parse` takes the parameters of the URL. `q` is in the language of searches
(`tailrace.logstore.search.language`); with `regex=true` all of it is one regular expression (RE2,
linear time).

The cursor of a search names the last returned record, (ulid, fqn, run). It is opaque to clients:
`q1.` and base64url of a JSON list, so that it is never mistaken for a cursor of positions or a line
number.

Fields and values are formatted as the language spells them:

    attributes."a key"   json.user."first.name"   logfmt.status   "a \\"quoted\\" value"

Names and values of letters, digits and a few harmless signs need no quotes.

A search works through ranges of time one after another (`TimeRanges`). Hours of the table are
disjoint in ULID time, so ranges in order return all records in order, with a sort of one range at a
time: the newest 1,000 records of a year are found in its last hour, and an unlimited search holds
one range. A range reaches from one hour's edge to another's, and ranges leave no gap. So records in
unexpected places (a segment with records of many hours) fall into one as well.

A search for only the next few records cuts a range into slices (`slices`). To return the last 1,000
records of an hour, DuckDB reads all their keys, sorts, and reads again. With a bound on the time it
reads one column, and of the other columns only the values after the bound. The right bound is
unknown: records are assumed to be spread evenly over the time between the first and the last of the
table's files. If a slice has too few records, the next slice is larger.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, TypeVar

import pyarrow as pa

from tailrace.logstore import ulid
from tailrace.logstore.errors import InvalidCursor, InvalidInput, TailraceError, TooLarge
from tailrace.logstore.keys import check_name
from tailrace.logstore.position import decode_cursor, encode_cursor
from tailrace.logstore.search.conditions import (
    LEVEL_HINT,
    MESSAGE,
    All,
    AnyAttribute,
    Attribute,
    Column,
    Compares,
    Condition,
    Exists,
    Field,
    JsonField,
    LogfmtField,
    Matches,
    StreamLabel,
    level_named,
    parse_moment,
    required,
    wildcard,
)
from tailrace.logstore.segments.file_format import KEY_COLUMNS, keys_of
from tailrace.logstore.table.snapshot import TableFile

# --- Cursor -------------------------------------------------------------------------------------


_PREFIX = "q1."


class RecordKey(NamedTuple):
    """The identity of a record; `ulid` is its text."""

    ulid: str
    fqn: str
    run: str

    @classmethod
    def of(cls, records: pa.Table | pa.RecordBatch) -> list[Self]:
        """Returns the keys of records with `KEY_COLUMNS`."""
        return [cls(*key) for key in keys_of(records)]

    @classmethod
    def last_of(cls, batch: pa.RecordBatch) -> Self:
        """Returns the key of the last record of a batch that is not empty."""
        return cls(*(batch.column(name)[-1].as_py() for name in KEY_COLUMNS))

    def encode(self) -> str:
        """Returns the cursor after this record."""
        return encode_cursor(_PREFIX, list(self))


def decode(text: str, field: str = "after") -> RecordKey:
    """Decodes a cursor to the record before it. Raises `InvalidCursor`."""
    try:
        return _record_key(decode_cursor(_PREFIX, text))
    except (ValueError, TypeError, InvalidInput) as error:
        raise InvalidCursor(f"not a cursor of a query: {text[:80]!r}", field=field) from error


def _record_key(value: object) -> RecordKey:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("a cursor has three parts")
    text, fqn, run = value
    if not (isinstance(text, str) and isinstance(fqn, str) and isinstance(run, str)):
        raise TypeError("the parts are strings")
    return RecordKey(str(ulid.parse(text)), fqn, run)


# --- Fields and values --------------------------------------------------------------------------


NAMES: Final = {
    **{name: name for name in ("fqn", "level", "ulid", "ts", "pos", "message", "carried")},
    "run_id": "run",
    "connector_id": "connector",
}
"""The names of columns in a search, by their own names."""
_PART: Final = re.compile(r"[\w-]+")
_KEY: Final = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_VALUE: Final = re.compile(r"(?!(?i:and|or|not)$)[\w-][\w.:/@+-]*")
_HINT: Final = (
    f"Write one of {', '.join(NAMES.values())}, attributes.x, json.x or logfmt.x; "
    "GET /query/fields tells which ones records have."
)


def field_of(text: str, parameter: str = "field") -> Field:
    """Parses the name of a field. Raises `InvalidInput` on the parameter."""
    # Imported here: a node without searches runs without the parser.
    from tailrace.logstore.search.language import parse

    if text.strip() == MESSAGE.name:
        return MESSAGE
    try:
        asked = parse(f"{text}:*", now_ms=0)
    except TailraceError as error:
        raise _no_field(text, parameter) from error
    if not isinstance(asked, Exists) or text.strip() == "*":
        raise _no_field(text, parameter)
    return asked.field


def name_of(field: Field) -> str:
    """Formats the field as it stands before the colon."""
    match field:
        case Column(name):
            return NAMES[name]
        case Attribute(key):
            return f"attributes.{_quoted_unless(_KEY, key)}"
        case LogfmtField(key):
            return f"logfmt.{_quoted_unless(_KEY, key)}"
        case JsonField(path):
            return ".".join(["json", *(_quoted_unless(_PART, part) for part in path)])
        case AnyAttribute():
            return "*"
        case StreamLabel(name):
            return name


def value_of(text: str) -> str:
    """Formats the value as it stands after the colon."""
    return _quoted_unless(_VALUE, text)


def _quoted_unless(plain: re.Pattern[str], text: str) -> str:
    if plain.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _no_field(text: str, parameter: str) -> InvalidInput:
    return InvalidInput(f"there is no field {text[:80]!r}", field=parameter, hint=_HINT)


# --- Ranges of time -----------------------------------------------------------------------------


HOUR_MS = 3_600_000
MOST_RANGES: Final = 64
"""In a range of time, and so in a statement. DuckDB plans each in about 0.5 ms."""


class UlidRange(NamedTuple):
    """A range of ULIDs, both ends inclusive."""

    low: int
    high: int


class Weight(NamedTuple):
    """The reads of an hour: bytes as stored, and ranges of rows of its files."""

    bytes: int
    ranges: int = 0

    def and_also(self, other: Weight) -> Weight:
        """Returns the sum of both."""
        return Weight(self.bytes + other.bytes, self.ranges + other.ranges)


def hour_of(value: int) -> int:
    """Returns the hours since the epoch of a ULID's time."""
    return ulid.time_ms(value) // HOUR_MS


@dataclass(frozen=True, slots=True)
class TimeRangeSizes:
    """How much a range holds at most, and when the next one is larger; in stored bytes."""

    first_bytes: int = 16 << 20
    largest_bytes: int = 1 << 30
    busy_rows: int = 50_000
    """Matches of a range that the next one aims at, unless it is the largest."""
    sliced_rows: int = 20_000
    """A range of the table with as many is not read at once if a few records are enough."""


class TimeRanges:
    """The ranges of `bounds`, nearest end first. `weights` are those of the hours."""

    def __init__(
        self, weights: Mapping[int, Weight], bounds: UlidRange, *, descending: bool
    ) -> None:
        first, last = hour_of(bounds.low), hour_of(bounds.high)
        self._weights: dict[int, Weight] = {}
        for hour, weight in weights.items():
            kept = min(max(hour, first), last)
            self._weights[kept] = self._weights.get(kept, Weight(0)).and_also(weight)
        # The next hour is at the end of the list.
        self._hours = sorted(self._weights, reverse=not descending)
        self._rest = bounds
        self._descending = descending

    @property
    def empty(self) -> bool:
        """Returns true if all ranges were taken."""
        return not self._hours

    def take(self, budget: int) -> UlidRange | None:
        """Returns the next range: at least one hour, more hours within `budget` bytes."""
        if not self._hours:
            return None
        taken = self._hours.pop()
        total = self._weights[taken]
        while self._hours:
            total = total.and_also(self._weights[self._hours[-1]])
            if total.bytes > budget or total.ranges > MOST_RANGES:
                break
            taken = self._hours.pop()
        return self._cut(taken)

    def _cut(self, hour: int) -> UlidRange:
        """Returns everything up to the far edge of `hour`.

        The last range takes all that is left.
        """
        time_range = self._rest
        if not self._hours:
            return time_range
        if self._descending:
            edge = ulid.lowest_at(hour * HOUR_MS)
            self._rest = UlidRange(time_range.low, edge - 1)
            return UlidRange(edge, time_range.high)
        edge = ulid.lowest_at((hour + 1) * HOUR_MS)
        self._rest = UlidRange(edge, time_range.high)
        return UlidRange(time_range.low, edge - 1)


SEARCH_PARAMETERS: Final = ("q", "regex", "from", "to", "time", "fqn", "run", "level")
"""Parameters that select records, for all kinds of searches."""
CONTEXT_PARAMETERS: Final = ("context", "context_before", "context_after")
"""Parameters for the records around hits, see `service.query.context`."""
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
    """A search; `low` and `high` bound the ULID, inclusive. `limit` None means all.

    With `value`, a record is returned as its key and the text of this field, as `value`. With
    `times`, from and to bound the line's own time, in milliseconds, and not the ULID.
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
        """Returns the lowest requested time, of arrival or of the lines themselves."""
        return ulid.time_ms(self.low) if self.times is None else self.times[0]

    @property
    def time(self) -> str:
        """Returns which time from and to bound."""
        return "arrival" if self.times is None else "ts"

    @property
    def bounds(self) -> UlidRange:
        """Returns the requested range of ULIDs."""
        return UlidRange(self.low, self.high)

    @property
    def unconditional(self) -> bool:
        """Returns true if the request only bounds the time of records."""
        return (self.condition, self.fqn, self.run, self.levels) == (None, None, None, ())

    @staticmethod
    def parse(parameters: Mapping[str, str], *, now_ms: int, long: bool = False) -> QueryRequest:
        """Parses the parameters; `long`: `q` came in a body, with long lists.

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
            after=_given(parameters, "after", decode),
            stats_only=_boolean(parameters, "stats_only"),
            times=times,
        )


def refuse_unknown(parameters: Mapping[str, str], known: Collection[str]) -> None:
    """Raises `InvalidInput` for an unknown parameter."""
    for name in parameters:
        if name not in known:
            raise InvalidInput(
                f"there is no parameter {name[:80]!r}",
                field=name[:80],
                hint=f"Parameters are {', '.join(sorted(known))}.",
            )


def whole_number(parameters: Mapping[str, str], name: str, default: int, most: int) -> int:
    """Returns the parameter's number, from 1 to `most`; `default` if it is missing or empty."""
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
    """Returns the parameter as `read` parses it; None if it is missing or empty."""
    value = parameters.get(name)
    return read(value) if value else None


def _bounds(parameters: Mapping[str, str], now_ms: int) -> tuple[int, int]:
    start = parse_moment(parameters.get("from") or _DEFAULT_FROM, now_ms=now_ms, field="from")
    to = parameters.get("to")
    if not to:
        return ulid.lowest_at(start), _HIGHEST
    end = parse_moment(to, now_ms=now_ms, field="to")
    # Ids may be ahead of the clock: a search up to now finds all records that exist now.
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
    # Imported here: a node without searches runs without the parser, 9 MB.
    from tailrace.logstore.search.language import parse

    return parse(text, now_ms=now_ms)


def _boolean(parameters: Mapping[str, str], name: str) -> bool:
    """Parses a flag: a bare `name` is true, as in OK Log.

    `name=false` is false, unlike in OK Log.
    """
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
    """Returns true if from and to bound the line's own time; false: its arrival."""
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
    """Returns the condition for a name with `*`, as in `q`.

    Raises `InvalidInput` with the field.
    """
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


# --- Slices of a range --------------------------------------------------------------------------


_SPARE: Final = 2
_GROWTH: Final = 8
_LARGEST_SHARE: Final = 0.25  # of a range: a bound with a larger share does not help


def slices(
    time_range: UlidRange,
    files: Iterable[TableFile],
    limit: int,
    fewest_rows: int,
    *,
    descending: bool,
) -> Iterator[UlidRange]:
    """Yields slices, nearest end first; the whole range if `files` have fewer than `fewest_rows`.

    All other records of the range are in the slice of their time.
    """
    known = list(files)
    rows = sum(file.rows for file in known)
    bounds = [file.ulids for file in known if file.ulids is not None]
    if rows < max(fewest_rows, 1) or len(bounds) < len(known):
        yield time_range
        return
    first = max(time_range.low, ulid.decode(min(low for low, _ in bounds))) >> 80
    last = min(time_range.high, ulid.decode(max(high for _, high in bounds))) >> 80
    share = _SPARE * limit / rows
    while share < _LARGEST_SHARE:
        width = max(int((last - first) * share), 1)
        edge = last - width if descending else first + width
        if not time_range.low >> 80 < edge < time_range.high >> 80:
            break
        near, time_range = _cut(time_range, edge, descending=descending)
        yield near
        share *= _GROWTH
    yield time_range


def _cut(time_range: UlidRange, edge_ms: int, *, descending: bool) -> tuple[UlidRange, UlidRange]:
    """Splits the range at the time: the near end, and the rest."""
    edge = ulid.lowest_at(edge_ms)
    older, newer = UlidRange(time_range.low, edge - 1), UlidRange(edge, time_range.high)
    return (newer, older) if descending else (older, newer)
