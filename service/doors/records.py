"""Sorts the records of a request into runs, and makes a batch of the records of each run.

The pipeline and the run of a record follow from its attributes (`doors.pipeline`, `doors.run`). A
record without an attribute of `doors.run` belongs to the day (UTC) of its time, one run for each
instance (`doors.instance`):

    service.namespace=shop service.name=cart tailrace.run.id=42       shop/cart, 42
    service.namespace=shop service.name=cart service.instance.id=a1   shop/cart, 2026-11-30-a1

An attribute is also found under its name with `_` for each `.`, since labels of Loki have no dots.
A part of the pipeline's name that is missing is left out; without any the door says what to take.

Attributes of several levels (resource, scope, record) become one mapping. Where a name is taken,
the record's value keeps the name, and the other one gets its level before it: `resource.host.name`.

Invariants: a record that cannot be stored is refused alone, with its reason. Metadata is held
encoded, in pieces, so that the objects of a parser never cover a whole body.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import accumulate, count
from operator import add
from typing import Any, Final, NamedTuple

import orjson

from service.doors.settings import DoorSettings
from service.http.body import Bounds
from service.http.json_body import NotJson, count_lines, encode_text, parse, structure
from service.http.targets import check_new_run
from service.journal.format import MetaColumns
from tailrace.logstore.batch import RecordMeta, RunKey
from tailrace.logstore.errors import InvalidInput, InvalidName, TooLarge
from tailrace.logstore.segments.file_format import LEVELS
from tailrace.logstore.segments.levels import NO_LEVEL, level_of_value
from tailrace.logstore.settings import items

MOST_DEPTH: Final = 100
MOST_VALUES: Final = 500_000
"""Values in a body of JSON, which become objects of the parser."""
_MOST_JSON: Final = 16 << 20
"""Bytes of such a body: no parser holds the interpreter's lock for longer."""
_MOST_RUNS: Final = 1000
_LONGEST_CLIENT: Final = 200
_GROUP: Final = 512
_MOST_PENDING: Final = 20_000
"""Attributes that are held as objects; those of a label count again in each of its records."""
_DAY: Final = 86_400 * 1_000_000
_LAST_MICROSECOND: Final = 253_402_300_799_999_999
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNKNOWN: Final = "unknown_service"

Attributes = dict[str, str]


class RunRule:
    """Decides from attributes to which pipeline and run a record belongs."""

    def __init__(self, settings: DoorSettings) -> None:
        self._pipeline = _spellings(settings.pipeline)
        self._run = _spellings(settings.run)
        self._instance = _spellings(settings.instance)
        self.names = frozenset(
            name
            for part in (self._pipeline, self._run, self._instance)
            for both in part
            for name in both
        )
        """The attributes that decide, in all spellings."""

    def place(self, attributes: Mapping[str, str], fallback: str = _UNKNOWN) -> Place:
        """Returns where records with these attributes belong; `fallback` names their pipeline."""
        if self.names.isdisjoint(attributes):
            return Place(fallback, "", "")
        parts = [value for names in self._pipeline if (value := _first(attributes, names))]
        run = _first_of(attributes, self._run)
        instance = "" if run else _first_of(attributes, self._instance)
        return Place("/".join(parts) or fallback, run, instance)


class Place(NamedTuple):
    """A pipeline and a run; without a run, records belong to the days of an instance."""

    fqn: str
    run: str
    instance: str

    def key(self, microseconds: int) -> RunKey:
        """Returns the run of a record of this time."""
        if self.run:
            return RunKey(self.fqn, self.run)
        day = _day(microseconds // _DAY)
        return RunKey(self.fqn, f"{day}-{self.instance}" if self.instance else day)


@lru_cache(maxsize=64)
def _day(number: int) -> str:
    return (_EPOCH + timedelta(days=number)).date().isoformat()


def _spellings(listed: str) -> list[tuple[str, ...]]:
    return [tuple(dict.fromkeys((name, name.replace(".", "_")))) for name in items(listed)]


def _first(attributes: Mapping[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        if value := attributes.get(name):
            return value
    return ""


def _first_of(attributes: Mapping[str, str], several: Sequence[tuple[str, ...]]) -> str:
    for names in several:
        if value := _first(attributes, names):
            return value
    return ""


@dataclass(slots=True)
class RunRecords:
    """The records of one run in one request, as one batch."""

    key: RunKey
    text: bytes
    meta: bytes
    lines: int
    places: Sequence[int]
    """The number of each record in the request."""
    timed: bool
    """A record states its time, so that equal bytes are a repeat."""


@dataclass(slots=True)
class RefusedRecords:
    """Records that are never stored, and why."""

    error: InvalidInput
    places: array[int] = field(default_factory=lambda: array("I"))


@dataclass(slots=True)
class DoorRecords:
    """All records of a request: one batch for each run, and refused ones."""

    runs: list[RunRecords]
    refused: list[RefusedRecords]
    count: int
    replaced: int = 0
    items: Any = None
    """What the door needs for its reply."""
    reply_bytes: int = 0
    """About the size of the reply, if it may be large."""


class _Columns:
    """The growing columns of one run: pieces of bytes, and objects of the latest records only."""

    __slots__ = ("attributes", "levels", "meta", "places", "size", "text", "texts", "timed", "ts")

    def __init__(self) -> None:
        self.meta = MetaColumns()
        self.text: list[bytes] = []
        self.texts: list[bytes] = []
        self.ts: list[int | None] = []
        self.levels: list[str | None] = []
        self.attributes: list[Attributes | None] = []
        self.places = array("I")
        self.size = 0
        self.timed = False

    def encode(self) -> int:
        """Encodes the metadata that is held as objects; returns its bytes."""
        before = self.meta.size
        if self.ts:
            ends = list(map(add, accumulate(map(len, self.texts)), count(self.size + 1)))
            try:
                self.meta.add(RecordMeta(ends, self.ts, self.levels, self.attributes))
            except orjson.JSONEncodeError:  # half of a surrogate pair
                whole = [_encodable(each) for each in self.attributes]
                self.meta.add(RecordMeta(ends, self.ts, self.levels, whole))
            self.size = ends[-1]
            self.texts.append(b"")
            self.text.append(b"\n".join(self.texts))
            self.texts, self.ts, self.levels, self.attributes = [], [], [], []
        return self.meta.size - before


def _encodable(attributes: Attributes | None) -> Attributes | None:
    if attributes is None:
        return None
    return {_whole(name): _whole(value) for name, value in attributes.items()}


def _whole(text: str) -> str:
    return encode_text(text)[0].decode()


class RecordSorter:
    """Collects the records of one request. `now` is the time of records without one, in µs."""

    def __init__(self, bounds: Bounds, now: int) -> None:
        self._bounds = bounds
        self.now = now
        self._runs: dict[RunKey, _Columns] = {}
        self._refused: dict[str, RefusedRecords] = {}
        self._last: tuple[Place, int, _Columns] | None = None
        self._size = self._meta = self._pending = self.replaced = 0
        self.count = 0
        """Records so far; it is the number of the next one."""

    def add(
        self,
        place: Place,
        text: str | bytes,
        microseconds: int | None,
        level: str | None,
        attributes: Attributes,
    ) -> None:
        """Adds the next record; bytes are UTF-8. Raises `TooLarge` if the request has too much."""
        number = self.count
        self.count = number + 1
        if microseconds is not None and not 0 <= microseconds <= _LAST_MICROSECOND:
            self._refuse(number, "a record's time is outside the years 1970 to 9999")
            return
        try:
            columns = self._columns(place, self.now if microseconds is None else microseconds)
        except InvalidName as error:
            self._refuse(number, str(error))
            return
        try:
            encoded = text if isinstance(text, bytes) else text.encode()
        except UnicodeEncodeError:
            encoded, more = encode_text(str(text))
            self.replaced += more
        columns.texts.append(encoded)
        columns.ts.append(microseconds)
        columns.levels.append(level)
        columns.attributes.append(attributes or None)
        columns.places.append(number)
        if microseconds is not None:
            columns.timed = True
        self._pending += len(attributes)
        if self._pending >= _MOST_PENDING:
            self._encode_all()
        elif len(columns.ts) >= _GROUP:
            self._encode(columns)

    def add_all(
        self,
        place: Place,
        texts: Sequence[bytes],
        microseconds: Sequence[int] | None,
        levels: Sequence[str | None],
        attributes: Sequence[Attributes],
    ) -> None:
        """Adds records of one place as `add` does, the usual ones all at once.

        The texts are UTF-8. Without `microseconds` no record has a time. Raises `TooLarge`.
        """
        times: Sequence[int | None] = microseconds or [None] * len(texts)
        columns = self._columns_between(place, microseconds or (self.now,))
        if columns is None:
            for text, moment, level, own in zip(texts, times, levels, attributes, strict=True):
                self.add(place, text, moment, level, own)
            return
        widest = max(map(len, attributes))
        step = max(min(_GROUP, _MOST_PENDING // max(widest, 1)), 1)
        for start in range(0, len(texts), step):
            part = slice(start, start + step)
            columns.texts += texts[part]
            columns.ts += times[part]
            columns.levels += levels[part]
            columns.attributes += [each or None for each in attributes[part]]
            self._encode(columns)
        columns.places.extend(range(self.count, self.count + len(texts)))
        columns.timed = columns.timed or microseconds is not None
        self.count += len(texts)

    def refuse(self, why: str) -> None:
        """Counts the next record as one that cannot be stored."""
        self._refuse(self.count, why)
        self.count += 1

    def records(self, items: Any = None) -> DoorRecords:
        """Returns all records. Raises `TooLarge`."""
        self._encode_all()
        runs = []
        for key, columns in self._runs.items():
            text = b"".join(columns.text)
            columns.text = []
            lines = count_lines(text)
            runs.append(
                RunRecords(key, text, columns.meta.encoded(), lines, columns.places, columns.timed)
            )
        return DoorRecords(runs, list(self._refused.values()), self.count, self.replaced, items)

    def _columns(self, place: Place, microseconds: int) -> _Columns:
        day = microseconds // _DAY
        if self._last is not None and self._last[1] == day and self._last[0] == place:
            return self._last[2]
        key = place.key(microseconds)
        found = self._runs.get(key)
        if found is None:
            check_new_run(key)
            if len(self._runs) >= _MOST_RUNS:
                raise TooLarge(
                    f"a request has records of more than {_MOST_RUNS} runs", field="body"
                )
            found = self._runs[key] = _Columns()
        self._last = place, day, found
        return found

    def _columns_between(self, place: Place, microseconds: Sequence[int]) -> _Columns | None:
        """Returns the columns of all these times; None if they are of several runs, or wrong."""
        low, high = min(microseconds), max(microseconds)
        if low < 0 or high > _LAST_MICROSECOND or (not place.run and low // _DAY != high // _DAY):
            return None
        try:
            return self._columns(place, low)
        except InvalidName:
            return None

    def _encode_all(self) -> None:
        for columns in self._runs.values():
            self._encode(columns)
        self._pending = 0

    def _encode(self, columns: _Columns) -> None:
        self._bounds.go_on()
        before = columns.size
        self._meta += columns.encode()
        self._size += columns.size - before
        if self._meta > self._bounds.meta_bytes:
            raise TooLarge(
                f"more than {self._bounds.meta_bytes} bytes beside the messages",
                field="body",
            )
        if self._size > self._bounds.text_bytes:
            raise TooLarge(f"more than {self._bounds.text_bytes} bytes of text", field="body")

    def _refuse(self, number: int, why: str) -> None:
        found = self._refused.get(why)
        if found is None:
            if len(self._refused) >= _MOST_RUNS:
                raise TooLarge("a request has too many different faults", field="body", hint=why)
            found = self._refused[why] = RefusedRecords(InvalidInput(why, field="body"))
        found.places.append(number)


def with_outer(outer: Mapping[str, str], level: str, inner: Attributes) -> Attributes:
    """Returns the attributes of two levels; an outer one whose name is taken gets its level."""
    if not outer:
        return inner
    if outer.keys().isdisjoint(inner):
        return {**outer, **inner}
    merged = {(f"{level}.{name}" if name in inner else name): outer[name] for name in outer}
    return {**merged, **inner}


def level_of(value: object, key: str = "level") -> str | None:
    """Returns the level that a value states, by the one table of spellings."""
    level = NO_LEVEL if value is None else level_of_value(value, key)
    return None if level == NO_LEVEL else LEVELS[level]


def parse_json(body: bytes) -> Any:
    """Returns the value in a body of JSON. Raises `InvalidInput`, `TooLarge`."""
    if len(body) > _MOST_JSON:
        raise TooLarge(
            f"the JSON has more than {_MOST_JSON} bytes",
            field="body",
            hint="Send less of it, or send protobuf.",
        )
    if structure(body) > MOST_VALUES:
        raise TooLarge(
            f"the JSON has more than {MOST_VALUES} values", field="body", hint="Send less of it."
        )
    try:
        return parse(body)[0]
    except NotJson as error:
        raise InvalidInput(
            str(error), field="body", hint="Check that the body is JSON and arrived whole."
        ) from error


def value_text(value: object) -> str:
    """Returns a parsed JSON value as an attribute or a message. Raises `InvalidInput`."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise InvalidInput(f"a value cannot be kept: {error}", field="body") from error


def time_of(value: object, *, seconds: bool = False) -> int | None:
    """Returns a time in microseconds: RFC 3339, or a number of milliseconds or `seconds`.

    None without a value. Raises `InvalidInput`.
    """
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) < _LAST_MICROSECOND:
            return round(value * (1_000_000 if seconds else 1000))
    elif isinstance(value, str) and not seconds:
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // timedelta(
                microseconds=1
            )
    raise InvalidInput(f"a time cannot be read: {value_text(value)[:80]!r}", field="body")


def client_name(name: str) -> str:
    """Returns the name of a client as it stands in `connector_id`."""
    return _whole(name)[:_LONGEST_CLIENT]
