"""Counts the matches of a search: a histogram, its fields, its values, and counts by values.

The histogram counts records by time and level, for a chart above a list of hits. Buckets begin at
multiples of the step since the epoch, so a chart that is requested again has the same edges; `from`
and `to` may cut the first and the last bucket. The time is that of the ULID, which `from` and `to`
bound, too, or with `by=ts` the line's own. Without `to` the chart ends now, by the node's clock:
the newest record's time would stretch it to the time of one wrong clock.

Fields and values serve completion. They look at a sample: the newest matches, up to a number. The
sample asks for one record more, so that it knows whether these were all.

- A field name is counted in each record of the sample in which a search for `name:*` would find it,
  except in messages that only DuckDB takes for JSON (a comma too many, `NaN`). Objects within JSON
  are fields like their members; elements of arrays are not named. A client that writes a new name
  into each record fills the list, and no more: the length and the number of names are limited.
- Values are the most frequent ones of a field. DuckDB extracts them as it does to compare them, so
  a search for a listed value finds it again.

Counts by values count all matches, not a sample. They are exact or refused: if more combinations
exist than fit, the answer is an error and not a guess.

DuckDB sums up each range of time for the histogram and the counts. So a range returns at most a row
for each bucket and level, or for each combination of values.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from service.query.request import (
    NAMES,
    SEARCH_PARAMETERS,
    QueryRequest,
    UlidRange,
    field_of,
    name_of,
    refuse_unknown,
    value_of,
    whole_number,
)
from service.query.search import Search
from service.query.sql import Scans, Statement
from tailrace.logstore import ulid
from tailrace.logstore.errors import InvalidInput, LimitReached
from tailrace.logstore.search.conditions import (
    Attribute,
    Column,
    Field,
    JsonField,
    LogfmtField,
    parse_moment,
    parse_step,
    worth_of,
)
from tailrace.logstore.segments.file_format import LEVELS

_SEARCH: Final = (*SEARCH_PARAMETERS, "by")
HISTOGRAM_PARAMETERS: Final = frozenset((*_SEARCH, "buckets", "step"))
DEFAULT_BUCKETS: Final = 60
MAX_BUCKETS: Final = 1_000

_TIME_CHARS: Final = 10
_CHAR_BITS: Final = 5
_DIGITS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LAST_MS: Final = 253_402_300_799_999  # end of the year 9999, the last that RFC 3339 can write
_DAY_MS: Final = 86_400_000
_ROUND_MS: Final[tuple[int, ...]] = (
    *(n * 10**power for power in range(3) for n in (1, 2, 5)),
    *(n * 1_000 for n in (1, 2, 5, 10, 15, 30)),
    *(n * 60_000 for n in (1, 2, 5, 10, 15, 30)),
    *(n * 3_600_000 for n in (1, 2, 3, 6, 12)),
    *(n * 10**power * _DAY_MS for power in range(7) for n in (1, 2, 5)),
)
"""Round steps for people; the longest is longer than the time of a ULID."""


@dataclass(frozen=True, slots=True)
class HistogramRequest:
    """Counts of `search` in buckets of `step_ms`, from `start_ms` to `end_ms`, inclusive.

    If `until_ms` is set, records above it count in the last bucket.
    """

    search: QueryRequest
    step_ms: int
    until_ms: int | None = None

    @property
    def start_ms(self) -> int:
        """Returns the lowest time."""
        return self.search.start_ms

    @property
    def end_ms(self) -> int:
        """Returns the highest time."""
        return ulid.time_ms(self.search.high) if self.until_ms is None else self.until_ms

    @staticmethod
    def parse(
        parameters: Mapping[str, str], *, now_ms: int, first: int | None = None
    ) -> HistogramRequest:
        """Parses the parameters. Raises `InvalidInput` with the field.

        With `from=0` the counts begin at the time `first`; without one the histogram has one
        bucket.
        """
        search = HistogramRequest.parse_search(parameters, now_ms=now_ms)
        until_ms = _until_ms(parameters, now_ms)
        if search.start_ms == 0:
            begin = until_ms if first is None else max(min(first, until_ms), 0)
            if search.times is None:
                search = replace(search, low=ulid.lowest_at(begin))
            else:
                search = replace(search, times=(begin, search.times[1]))
        step = _step(parameters, until_ms - search.start_ms)
        return HistogramRequest(search, step, until_ms)

    @staticmethod
    def parse_search(parameters: Mapping[str, str], *, now_ms: int) -> QueryRequest:
        """Parses the search alone. Raises the errors of `parse`."""
        refuse_unknown(parameters, HISTOGRAM_PARAMETERS)
        asked = {name: parameters[name] for name in _SEARCH if name in parameters}
        search = QueryRequest.parse(asked | {"to": asked.get("to") or "now"}, now_ms=now_ms)
        if _until_ms(parameters, now_ms) > _LAST_MS:
            raise InvalidInput(
                "to is after the year 9999", field="to", hint="Leave it out: then it is now."
            )
        return search


@dataclass(frozen=True, slots=True)
class HistogramBucket:
    """Records from `at_ms` on; `levels` has counts by level, None for records without one."""

    at_ms: int
    levels: Mapping[str | None, int]

    @property
    def count(self) -> int:
        """Returns the records of all levels."""
        return sum(self.levels.values())


def histogram(search: Search, request: HistogramRequest) -> list[HistogramBucket]:
    """Returns all buckets in order, also empty ones. Blocks; raises as `Search.batches`."""
    step = request.step_ms

    def summary(statement: Statement, time_range: UlidRange, scans: Scans, live: str) -> str:
        by_ts = request.search.times is not None
        records = statement.levels(scans, live, by_ts=by_ts)
        bucket = f"{'own_ms' if by_ts else f'({_time(time_range)})'} // {step:d}"
        return (
            f"SELECT {bucket} AS bucket, level, count(*) AS n"  # noqa: S608
            f" FROM ({records}) GROUP BY ALL"
        )

    found: dict[int, Counter[str]] = {}
    for batch in search.totals(summary):
        for row in batch.to_pylist():
            bucket = max(min(row["bucket"], request.end_ms // step), request.start_ms // step)
            found.setdefault(bucket, Counter())[row["level"]] += row["n"]
            search.matches += row["n"]
    numbers = range(request.start_ms // step, request.end_ms // step + 1)
    return [HistogramBucket(n * step, dict(_in_order(found.get(n, Counter())))) for n in numbers]


def oldest_ms(search: Search) -> int | None:
    """Returns the lowest own time of lines, None without any.

    Blocks; raises as `Search.batches`.
    """
    found = [
        batch.column(0)[0].as_py()
        for batch in search.totals(lambda made, _, scans, live: made.oldest(scans, live))
    ]
    return min([time for time in found if time is not None], default=None)


def _until_ms(parameters: Mapping[str, str], now_ms: int) -> int:
    return parse_moment(parameters.get("to") or "now", now_ms=now_ms, field="to")


def _in_order(counts: Counter[str]) -> Iterator[tuple[str | None, int]]:
    for level in (*LEVELS, ""):
        if counts[level]:
            yield level or None, counts[level]


def _time(time_range: UlidRange) -> str:
    """Returns SQL for the milliseconds of `ulid`, for records of the range.

    It skips the characters that all of them share: those are most of the work.
    """
    low, high = (
        ulid.encode(time_range.low)[:_TIME_CHARS],
        ulid.encode(time_range.high)[:_TIME_CHARS],
    )
    same = next((n for n in range(_TIME_CHARS) if low[n] != high[n]), _TIME_CHARS)
    bits = _CHAR_BITS * (_TIME_CHARS - same)
    terms = [str(ulid.time_ms(time_range.low) >> bits << bits)]
    for n in range(same, _TIME_CHARS):
        digit = f"(strpos('{_DIGITS}', substr(ulid, {n + 1}, 1)) - 1)"
        terms.append(f"({digit} << {_CHAR_BITS * (_TIME_CHARS - 1 - n)})")
    return " + ".join(terms)


def _step(parameters: Mapping[str, str], length_ms: int) -> int:
    text, buckets = parameters.get("step"), parameters.get("buckets")
    if not text:
        most = whole_number(parameters, "buckets", DEFAULT_BUCKETS, MAX_BUCKETS)
        return min(step for step in _ROUND_MS if step * most >= length_ms)
    if buckets:
        raise InvalidInput(
            "step and buckets are both given", field="step", hint="Give one of the two."
        )
    step = parse_step(text, field="step")
    if step * MAX_BUCKETS < length_ms:
        raise InvalidInput(
            f"the time has more than {MAX_BUCKETS} steps of {text}",
            field="step",
            hint="Ask for less time, or write a longer step.",
        )
    return step


# --- The sample ---------------------------------------------------------------------------------


DEFAULT_SAMPLE: Final = 10_000
MAX_SAMPLE: Final = 100_000


@dataclass(frozen=True, slots=True)
class Sample:
    """At most `size` records of `search`."""

    search: QueryRequest
    size: int

    @staticmethod
    def parse(
        parameters: Mapping[str, str], *own: str, now_ms: int, value: Field | None = None
    ) -> Sample:
        """Parses a sample's parameters, in addition to the caller's `own` ones.

        With `value`, the sample has only that field of each record. Raises `InvalidInput` with the
        field.
        """
        refuse_unknown(parameters, (*SEARCH_PARAMETERS, "sample", *own))
        size = whole_number(parameters, "sample", DEFAULT_SAMPLE, MAX_SAMPLE)
        asked = {name: parameters[name] for name in SEARCH_PARAMETERS if name in parameters}
        search = QueryRequest.parse(asked, now_ms=now_ms)
        return Sample(replace(search, limit=size + 1, value=value), size)

    def batches(self, search: Search) -> Generator[pa.RecordBatch]:
        """Yields the records, newest first. Blocks; raises as `Search.batches`."""
        left = self.size
        with closing(search.batches()) as batches:
            for batch in batches:
                yield batch.slice(0, left)
                left -= min(left, batch.num_rows)

    def looked_at(self, search: Search) -> Looked:
        """Returns the size of the sample, once all batches were taken."""
        return Looked(min(search.matches, self.size), search.matches <= self.size)


@dataclass(frozen=True, slots=True)
class Looked:
    """The number of records in a sample, and whether these were all matches."""

    records: int
    complete: bool


# --- Fields -------------------------------------------------------------------------------------


MAX_DEPTH: Final = 8
MAX_FIELDS: Final = 1_000
MAX_NAME_CHARS: Final = 200
_REMEMBERED: Final = 10_000

Kind: TypeAlias = Literal["text", "number"]
_Path: TypeAlias = tuple[str, ...]

_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][-+]?[0-9]{1,3})?")
# Patterns as in statements, with keys that are names: blanks are those of RE2.
_PAIR: Final = re.compile(
    r'(?:^|[\t\n\f\r ])([A-Za-z_][A-Za-z0-9_.@/-]*)=(?:"((?:[^"\\]|\\.)*)"|([^\t\n\f\r "]*))'
)
_PAIR_BEGINS: Final = re.compile(r"(?:^|[\t\n\f\r ])(?=[A-Za-z_][A-Za-z0-9_.@/-]*=)")


@dataclass(frozen=True, slots=True)
class SeenField:
    """A field, spelled as in a search, and how many records of the sample have it.

    It is a number if the language compares each of its values as one.
    """

    name: str
    records: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class SeenFields:
    """The fields that most records have, most frequent first; `complete` if none is left out."""

    looked: Looked
    fields: list[SeenField]
    complete: bool


def parse(parameters: Mapping[str, str], *, now_ms: int) -> Sample:
    """Parses the parameters. Raises `InvalidInput` with the field."""
    return Sample.parse(parameters, now_ms=now_ms)


def fields(search: Search, sample: Sample) -> SeenFields:
    """Returns the fields of the sample's records. Blocks; raises as `Search.batches`."""
    seen = _FieldCounter()
    for batch in sample.batches(search):
        seen.look_at(batch)
    found = seen.found()
    complete = seen.complete and len(found) <= MAX_FIELDS
    return SeenFields(sample.looked_at(search), found[:MAX_FIELDS], complete)


class _FieldCounter:
    """Counts fields; `complete` as long as none had to be left out."""

    def __init__(self) -> None:
        self._records: Counter[Field] = Counter()
        self._texts: set[Field] = set()
        self._too_long: set[Field] = set()
        self.complete = True

    def look_at(self, batch: pa.RecordBatch) -> None:
        """Counts the fields of each of the records."""
        for name in NAMES:
            column = batch.column(name)
            if held := batch.num_rows - column.null_count:
                self._count(Column(name), held, number=name == "pos")
        for pairs in batch.column("attributes").to_pylist():
            for key, value in dict(pairs or ()).items():
                if value is not None:
                    self._count(Attribute(key), 1, number=_is_number(value))
        for message in batch.column("message").to_pylist():
            for path, number in _in_json(message):
                self._count(JsonField(path), 1, number=number)
            for key, number in _in_logfmt(message).items():
                self._count(LogfmtField(key), 1, number=number)

    def found(self) -> list[SeenField]:
        """Returns all fields, most frequent first."""
        named = [
            SeenField(name_of(field), records, "text" if field in self._texts else "number")
            for field, records in self._records.items()
        ]
        return sorted(named, key=lambda field: (-field.records, field.name))

    def _count(self, field: Field, records: int, *, number: bool) -> None:
        if field not in self._records and not self._has_room_for(field):
            self.complete = False
            return
        self._records[field] += records
        if not number:
            self._texts.add(field)

    def _has_room_for(self, field: Field) -> bool:
        return len(self._records) < _REMEMBERED and len(name_of(field)) <= MAX_NAME_CHARS


def _in_json(message: str) -> Iterator[tuple[_Path, bool]]:
    """Yields each path of the message that has a value, and whether that is a number."""
    if not message.lstrip(" \t\r\n").startswith("{"):
        return
    try:
        orjson.loads(message)  # refuses lone surrogates, as DuckDB does
        waiting: list[tuple[_Path, Any]] = [((), json.loads(message, object_pairs_hook=_first))]
    except (ValueError, RecursionError):
        return
    while waiting:
        path, value = waiting.pop()
        if path and value is not None:
            yield path, _is_number(value)
        if isinstance(value, dict) and len(path) < MAX_DEPTH:
            waiting += [((*path, key), inner) for key, inner in value.items()]


def _first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Keeps the first value of a repeated key, as a search does."""
    return dict(reversed(pairs))


def _in_logfmt(message: str) -> dict[str, bool]:
    """Returns each key of the message, and whether its first value is a number."""
    found: dict[str, bool] = {}
    if "=" not in message:
        return found
    for begin in _PAIR_BEGINS.finditer(message):
        pair = _PAIR.match(message, begin.start())
        if pair is not None and pair[1] not in found:
            found[pair[1]] = _is_number(pair[2] or pair[3] or "")
    return found


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- Values -------------------------------------------------------------------------------------


DEFAULT_VALUES: Final = 20
MAX_VALUES: Final = 1_000
MAX_VALUE_CHARS: Final = 500
_OWN: Final = ("field", "prefix", "limit")
_UPPER: Final = {Column("level"), Column("ulid")}
"""Fields whose values are compared without case."""


@dataclass(frozen=True, slots=True)
class ValuesRequest:
    """At most `limit` values that begin with `prefix`, of the sample's field `name`."""

    sample: Sample
    name: str
    prefix: str
    limit: int

    @staticmethod
    def parse(parameters: Mapping[str, str], *, now_ms: int) -> ValuesRequest:
        """Parses the parameters. Raises `InvalidInput` with the field."""
        field = field_of(parameters["field"]) if parameters.get("field") else None
        sample = Sample.parse(parameters, *_OWN, now_ms=now_ms, value=field)
        if field is None:
            raise InvalidInput(
                "field is missing",
                field="field",
                hint="Write for example field=level; GET /query/fields lists fields.",
            )
        prefix = parameters.get("prefix", "")
        return ValuesRequest(
            sample,
            name_of(field),
            prefix.upper() if field in _UPPER else prefix,
            whole_number(parameters, "limit", DEFAULT_VALUES, MAX_VALUES),
        )


Values: TypeAlias = tuple[str | None, ...]


class _Counts:
    """Counts records by values of fields; spellings of one number are one value.

    The shortest spelling stands for the others.
    """

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self._fields = fields
        self._records: Counter[tuple[str | float | None, ...]] = Counter()
        self._spelled: dict[tuple[str | float | None, ...], Values] = {}

    def __len__(self) -> int:
        return len(self._records)

    def add(self, values: Values, records: int) -> None:
        """Counts records that have these values."""
        key = tuple(
            None if text is None else worth_of(text, field)
            for text, field in zip(values, self._fields, strict=True)
        )
        self._records[key] += records
        known = self._spelled.setdefault(key, values)
        if known != values:
            pairs = zip(known, values, strict=True)
            self._spelled[key] = tuple(min(pair, key=_length) for pair in pairs)

    def most_frequent(self) -> list[tuple[Values, int]]:
        """Returns all values, those of most records first."""
        found = [(self._spelled[key], records) for key, records in self._records.items()]
        return sorted(found, key=lambda one: (-one[1], [text or "" for text in one[0]]))


def _length(text: str | None) -> tuple[int, str]:
    return len(text or ""), text or ""


@dataclass(frozen=True, slots=True)
class SeenValue:
    """A value, and how many records of the sample have it."""

    text: str
    records: int

    @property
    def value(self) -> str:
        """Returns the value as it is spelled in a search."""
        return value_of(self.text)


@dataclass(frozen=True, slots=True)
class SeenValues:
    """The most frequent values, most frequent first; `complete` if none was left out."""

    looked: Looked
    values: list[SeenValue]
    complete: bool


def values(search: Search, asked: ValuesRequest) -> SeenValues:
    """Returns the values in the sample's records. Blocks; raises as `Search.batches`."""
    counts = _Counts((field_of(asked.name),))
    complete = True
    for batch in asked.sample.batches(search):
        column = batch.column("value")
        column = column.filter(pc.starts_with(column, asked.prefix)).drop_null()
        short = column.filter(pc.less_equal(pc.utf8_length(column), MAX_VALUE_CHARS))
        complete = complete and len(short) == len(column)
        for row in pc.value_counts(short).to_pylist():
            counts.add((row["values"],), row["counts"])
    found = counts.most_frequent()
    first = [SeenValue(text or "", records) for (text,), records in found[: asked.limit]]
    return SeenValues(asked.sample.looked_at(search), first, complete and len(found) <= asked.limit)


# --- Counts by values ---------------------------------------------------------------------------


DEFAULT_ROWS: Final = 100
MAX_ROWS: Final = 10_000
MOST_COUNTED_FIELDS: Final = 4
MAX_GROUPS: Final = 200_000
COUNT_PARAMETERS: Final = frozenset((*SEARCH_PARAMETERS, "by", "limit"))

_FIELD: Final = re.compile(r'((?:[^,"]++|"(?:[^"\\]++|\\.)*+")++)(?:,|$)')


@dataclass(frozen=True, slots=True)
class CountRequest:
    """The `rows` most frequent combinations of the fields' values in the matches of `search`."""

    search: QueryRequest
    fields: tuple[Field, ...]
    rows: int

    @staticmethod
    def parse(parameters: Mapping[str, str], *, now_ms: int, long: bool = False) -> CountRequest:
        """Parses the parameters. Raises `InvalidInput` with the field."""
        refuse_unknown(parameters, COUNT_PARAMETERS)
        asked = {name: parameters[name] for name in SEARCH_PARAMETERS if name in parameters}
        search = QueryRequest.parse(asked, now_ms=now_ms, long=long)
        rows = whole_number(parameters, "limit", DEFAULT_ROWS, MAX_ROWS)
        return CountRequest(search, _fields(parameters.get("by", "")), rows)

    @property
    def names(self) -> list[str]:
        """Returns the fields as `q` spells them."""
        return [name_of(field) for field in self.fields]


@dataclass(frozen=True, slots=True)
class ValueCount:
    """A combination of values, None if a record has none, and how many records have it."""

    values: Values
    records: int


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """The most frequent combinations, most frequent first; `complete` if none is left out."""

    counts: list[ValueCount]
    complete: bool


def count_by(search: Search, request: CountRequest) -> ValueCounts:
    """Counts all matches; sets `search.matches`. Blocks.

    Raises `LimitReached` for more than `MAX_GROUPS` combinations, and as `Search.batches`.
    """
    if not request.fields:
        search.count()
        return ValueCounts([], complete=True)

    def summary(statement: Statement, _: UlidRange, scans: Scans, live: str) -> str:
        return statement.groups(request.fields, scans, live)

    found = _Counts(request.fields)
    for batch in search.totals(summary):
        *columns, counts = (column.to_pylist() for column in batch.columns)
        for values, records in zip(zip(*columns, strict=True), counts, strict=True):
            found.add(values, records)
            search.matches += records
        if len(found) > MAX_GROUPS:
            raise LimitReached(
                f"there are more than {MAX_GROUPS} different values",
                hint="Ask for less time, for fewer fields, or for fields with fewer values.",
            )
    first = found.most_frequent()[: request.rows]
    rows = [ValueCount(values, records) for values, records in first]
    return ValueCounts(rows, len(found) <= request.rows)


def _fields(text: str) -> tuple[Field, ...]:
    names, at = list[str](), 0
    while at < len(text):
        found = _FIELD.match(text, at)
        if found is None or not found[1].strip():
            raise InvalidInput(
                f"by is {text[:80]!r}", field="by", hint="Write by=level,json.status."
            )
        names.append(found[1])
        at = found.end()
    if len(names) > MOST_COUNTED_FIELDS:
        raise InvalidInput(
            f"by has {len(names)} fields", field="by", hint=f"Use at most {MOST_COUNTED_FIELDS}."
        )
    return tuple([field_of(name, "by") for name in names])
