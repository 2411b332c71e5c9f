"""Receives logs by OTLP/HTTP: `POST /v1/logs`, protobuf or JSON, as OpenTelemetry specifies it.

A record becomes:

| of the record | becomes |
| --- | --- |
| body | the message; a value that is not a string is JSON, bytes are base64 |
| time, or the observed time if there is none | its time, in microseconds |
| severity number, or the text without a number | its level |
| trace id, span id, flags, event name | attributes `trace_id`, `span_id`, `flags`, `event_name` |
| observed time; time with nanoseconds | `observed_time_unix_nano`, `time_unix_nano` |
| severity text and number that the level does not say | `severity_text`, `severity_number` |
| attributes of record, scope and resource | attributes, see `service.doors.records` |
| name and version of the scope | `otel.scope.name`, `otel.scope.version` |

The answer is 200 with `partial_success` if records were refused for good. It is 503 or 429 if the
node cannot store them now: the client sends the request again. Errors are a `google.rpc.Status` in
the encoding of the request.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

import numpy as np
import orjson

from service.doors.door import (
    Door,
    DoorRequest,
    Outcome,
    Reply,
    media_type,
    message_of,
    status_of,
)
from service.doors.records import (
    MOST_DEPTH,
    Attributes,
    DoorRecords,
    Place,
    RecordSorter,
    RunRule,
    level_of,
    parse_json,
    value_text,
    with_outer,
)
from service.doors.wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    WIDE_WINDOW,
    FieldColumn,
    FieldSpans,
    FieldWalker,
    Ints,
    decode_columns,
    encode_size,
    encode_varint,
)
from service.http.body import Bounds
from service.http.errors import HttpError
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.segments.file_format import LEVELS

PATH: Final = "/v1/logs"
_PROTOBUF: Final = b"application/x-protobuf"
_JSON: Final = b"application/json"
# Codes of gRPC: what `google.rpc.Status` says.
_CODES: Final = {400: 3, 401: 16, 403: 7, 404: 5, 409: 9, 413: 8, 415: 3, 429: 8, 503: 14}
_INTERNAL: Final = 13
_STEP: Final = 4
_INT64: Final = 1 << 63
_EXACT, _SEEN = "time_unix_nano", "observed_time_unix_nano"
_SAID: Final = frozenset({_EXACT, _SEEN, "severity_text", "severity_number"})
"""Attributes of a record that has none of its own."""

Severity: TypeAlias = tuple[int, str]
"""The number and the text of a severity."""


class OtlpDoor(Door):
    """The door of OpenTelemetry."""

    name = "otlp"

    def __init__(self, rule: RunRule) -> None:
        self._rule = rule

    def path_of(self, method: str, path: str) -> str | None:
        return PATH if method == "POST" and path == PATH else None

    def decode(self, request: DoorRequest, bounds: Bounds, now: int) -> DoorRecords:
        sorter = RecordSorter(bounds, now)
        kind = media_type(request.header(b"content-type"))
        if kind == _PROTOBUF:
            walker = FieldWalker(request.body, bounds.go_on)
            _read_protobuf(walker, _RecordWriter(sorter, self._rule))
        elif kind == _JSON:
            _read_json(request.body, _RecordWriter(sorter, self._rule))
        else:
            raise HttpError(
                415,
                f"Content-Type {kind.decode('latin-1')[:100]!r} is not taken",
                hint="Send application/x-protobuf or application/json.",
            )
        return sorter.records()

    def reply(self, request: DoorRequest, records: DoorRecords, outcome: Outcome) -> Reply:
        error = outcome.of_whole(records.count)
        if error is not None:
            return self.refusal(request, status_of(error), error)
        if not outcome.refused:
            return _answer(request, 200, b"", {})
        why, count = outcome.reasons(), outcome.refusals
        partial = _number(1, count) + _text(2, why)
        value = {"partialSuccess": {"rejectedLogRecords": str(count), "errorMessage": why}}
        return _answer(request, 200, _field(1, partial), value)

    def refusal(self, request: DoorRequest, status: int, error: BaseException) -> Reply:
        code, message = _CODES.get(status, _INTERNAL), message_of(error)
        body = _number(1, code) + _text(2, message)
        return _answer(request, status, body, {"code": code, "message": message})


def _answer(request: DoorRequest, status: int, body: bytes, value: Mapping[str, Any]) -> Reply:
    """Returns a reply in the encoding of the request."""
    if media_type(request.header(b"content-type")) == _JSON:
        return Reply(status, [(b"content-type", _JSON)], orjson.dumps(value))
    return Reply(status, [(b"content-type", _PROTOBUF)], body)


def _field(number: int, value: bytes) -> bytes:
    return encode_size(number, len(value)) + value


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode("utf-8", "replace"))


def _number(number: int, value: int) -> bytes:
    return bytes((number << 3,)) + encode_varint(value)


class _RecordWriter:
    """Gives records to the sorter: those of one resource and scope after another."""

    def __init__(self, sorter: RecordSorter, rule: RunRule) -> None:
        self._sorter = sorter
        self._rule = rule
        self._resource: Attributes = {}
        self._outer: Attributes = {}
        self._scope: Attributes = {}
        self._place = rule.place({})

    def begin(self, resource: Attributes, scope: Attributes) -> None:
        """Takes the attributes of the records that follow."""
        self._resource, self._scope = resource, scope
        self._outer = with_outer(resource, "resource", scope)
        self._place = self._rule.place(self._outer)

    def _place_of(self, own: Attributes) -> Place:
        if self._rule.names.isdisjoint(own):
            return self._place
        return self._rule.place({**self._outer, **own})

    def add_all(
        self,
        texts: Sequence[bytes],
        times: Ints,
        observed: Ints,
        severities: Sequence[Severity],
        own: Mapping[int, Attributes],
        said: Mapping[int, Attributes],
    ) -> None:
        """Adds records whose messages are UTF-8; `own` and `said` as in `add`, by their number.

        All of them have a time, or none has.
        """
        kinds = {kind: self._kind(*kind) for kind in set(severities)}
        levels = [kinds[kind][0] for kind in severities]
        moments = np.where(times, times, observed)
        seen = np.where(observed == times, 0, observed)
        exact = np.where(times % 1000, times, 0)
        attributes = self._shared(kinds, severities, exact.tolist(), seen.tolist())
        strays: list[int] = []
        for number in {*own, *said}:
            named = {**said.get(number, {}), **kinds[severities[number]][1]}
            _state_times(named, int(times[number]), int(observed[number]))
            mine = own.get(number, {})
            if not self._rule.names.isdisjoint(mine):
                strays.append(number)
            attributes[number] = self._merged(named, mine)
        stated: list[int] | None = (moments // 1000).tolist() if moments.any() else None
        if not strays:
            self._sorter.add_all(self._place, texts, stated, levels, attributes)
            return
        for number, text in enumerate(texts):
            place = self._place_of(own.get(number, {}))
            moment = None if stated is None else stated[number]
            self._sorter.add(place, text, moment, levels[number], attributes[number])

    def _shared(
        self,
        kinds: Mapping[Severity, tuple[str | None, Attributes]],
        severities: Sequence[Severity],
        exact: Sequence[int],
        seen: Sequence[int],
    ) -> list[Attributes]:
        """Returns the attributes of records that have none of their own."""
        if not any(exact) and not any(seen):
            made = {kind: self._merged({**stated}, {}) for kind, (_, stated) in kinds.items()}
            return [made[kind] for kind in severities]
        outer, found = self._outer, []
        taken = not outer.keys().isdisjoint(_SAID)
        for kind, time, observed in zip(severities, exact, seen, strict=True):
            said = {**kinds[kind][1]}
            if time:
                said[_EXACT] = str(time)
            if observed:
                said[_SEEN] = str(observed)
            if taken:
                said = self._merged(said, {})
            else:
                said.update(outer)
            found.append(said)
        return found

    def add(
        self,
        body: object,
        time: int,
        observed: int,
        number: int,
        text: str,
        own: Attributes,
        said: Attributes,
    ) -> None:
        """Adds a record; `said` are fields of it that become attributes."""
        level, stated = self._kind(number, text)
        said.update(stated)
        _state_times(said, time, observed)
        moment = time or observed
        place = self._place_of(own)
        moment_us = moment // 1000 if moment else None
        self._sorter.add(place, as_text(body), moment_us, level, self._merged(said, own))

    def _kind(self, number: int, text: str) -> tuple[str | None, Attributes]:
        """Returns the level of a severity, and what the level does not say of it."""
        level = level_of(number, "severitynumber") if number else level_of(text or None)
        said: Attributes = {}
        if text and text.upper() != level:
            said["severity_text"] = text
        if number and (level is None or (number - 1) % _STEP):
            said["severity_number"] = str(number)
        return level, said

    def _merged(self, said: Attributes, own: Attributes) -> Attributes:
        """Returns all attributes of a record; `said` or `own` may become them."""
        own = with_outer(said, "log", own)
        if self._outer.keys().isdisjoint(own):
            own.update(self._outer)
            return own
        return with_outer(self._resource, "resource", with_outer(self._scope, "scope", own))


def _state_times(said: Attributes, time: int, observed: int) -> None:
    if time % 1000:
        said[_EXACT] = str(time)
    if observed and observed != time:
        said[_SEEN] = str(observed)


def as_text(value: object) -> str:
    """Returns a value as a message or an attribute; no value is an empty text."""
    return "" if value is None else value_text(value)


# --- Protobuf -----------------------------------------------------------------------------------


def _read_protobuf(walker: FieldWalker, writer: _RecordWriter) -> None:
    # Loaded with the first request: 5 MB and 70 ms that a node without this door does not need.
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
    from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    try:
        for outer in walker.fields(1, 0, len(walker.data)):
            resource = Resource.FromString(walker.joined(1, outer.start, outer.end))
            attributes = _pairs(resource.attributes, walker)
            for inner in walker.fields(2, outer.start, outer.end):
                described, records = walker.split(1, 2, inner.start, inner.end)
                scope = InstrumentationScope.FromString(described)
                own = _pairs(scope.attributes, walker)
                writer.begin(attributes, _scope(scope.name, scope.version, own))
                for wide in records.windows(WIDE_WINDOW):
                    if _read_columns(wide, walker, writer):
                        continue
                    for window in wide.windows():
                        for record in ScopeLogs.FromString(window.message()).log_records:
                            _read_record(record, walker, writer)
    except DecodeError as error:
        raise InvalidInput(
            f"the body is no ExportLogsServiceRequest: {error}",
            field="body",
            hint="Check that it was compressed as announced and arrived whole.",
        ) from error


_TIME, _SEVERITY, _SEVERITY_TEXT, _BODY, _ATTRIBUTES = 1, 2, 3, 5, 6
_DROPPED, _FLAGS, _TRACE, _SPAN, _OBSERVED, _EVENT = 7, 8, 9, 10, 11, 12
_RECORD: Final = {
    **dict.fromkeys((_TIME, _OBSERVED), FIXED64),
    **dict.fromkeys((_SEVERITY, _DROPPED), VARINT),
    **dict.fromkeys((_SEVERITY_TEXT, _BODY, _ATTRIBUTES, _TRACE, _SPAN, _EVENT), BYTES),
    _FLAGS: FIXED32,
}
_OTHER_VALUES: Final = {2: VARINT, 3: VARINT, 4: FIXED64, 5: BYTES, 6: BYTES, 7: BYTES}
"""Members of `AnyValue` that are no string."""
_VALUE: Final = {1: BYTES, **_OTHER_VALUES}
_SMALL_NUMBER: Final = 1 << 31
_UINT32: Final = (1 << 32) - 1


def _read_columns(window: FieldSpans, walker: FieldWalker, writer: _RecordWriter) -> bool:
    """Reads records side by side; returns false if they need a parser, which also names faults.

    Their bodies are strings, and all of them have a time or none has.
    """
    from google.protobuf.message import DecodeError

    data, count = window.data, len(window.starts)
    record = decode_columns(data, window.starts, window.ends, _RECORD, _ATTRIBUTES)
    if record is None:
        return False
    body = record[_BODY]
    string = decode_columns(data, body.starts, body.ends, _VALUE)
    if string is None or any(len(string[number].rows) for number in _OTHER_VALUES):
        return False
    starts, ends = string[1]._replace(rows=body.rows[string[1].rows]).spans(count)
    texts = [data[start:end] for start, end in zip(starts, ends, strict=True)]
    times, observed = record[_TIME].values(count), record[_OBSERVED].values(count)
    timed = (times | observed) != 0
    numbers = record[_SEVERITY].values(count)
    if timed.any() != timed.all() or (numbers >= _SMALL_NUMBER).any():
        return False
    walker.spend(len(record[_ATTRIBUTES].rows))
    try:
        b"\n".join(texts).decode()
        names = _texts(data, record[_SEVERITY_TEXT], count)
        said = _stated(data, record)
        own = _own_pairs(data, record[_ATTRIBUTES], walker)
    except (UnicodeDecodeError, DecodeError):
        return False
    severities = list(zip(numbers.tolist(), names, strict=True))
    writer.add_all(texts, times, observed, severities, own, said)
    return True


def _texts(data: bytes, column: FieldColumn, count: int) -> list[str]:
    starts, ends = column.spans(count)
    return [data[start:end].decode() for start, end in zip(starts, ends, strict=True)]


def _stated(data: bytes, record: Mapping[int, FieldColumn]) -> dict[int, Attributes]:
    """Returns the fields of records that become attributes, by the number of the record."""
    found: dict[int, Attributes] = {}
    for field, name, shown in (
        (_TRACE, "trace_id", bytes.hex),
        (_SPAN, "span_id", bytes.hex),
        (_FLAGS, "flags", None),
        (_EVENT, "event_name", bytes.decode),
        (_DROPPED, "dropped_attributes_count", None),
    ):
        column = record[field]
        rows, starts, ends, numbers = (each.tolist() for each in column)
        for row, start, end, number in zip(rows, starts, ends, numbers, strict=True):
            if shown is None:
                value = str(number & _UINT32) if number & _UINT32 else ""
            else:
                value = shown(data[start:end])
            if value:
                found.setdefault(row, {})[name] = value
    return found


def _own_pairs(data: bytes, column: FieldColumn, walker: FieldWalker) -> dict[int, Attributes]:
    """Returns the attributes of records by the number of the record; equal ones are parsed once."""
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    found: dict[int, Attributes] = {}
    known: dict[bytes, tuple[str, str]] = {}
    spans = zip(column.rows.tolist(), column.starts.tolist(), column.ends.tolist(), strict=True)
    for row, start, end in spans:
        raw = data[start:end]
        pair = known.get(raw)
        if pair is None:
            [pair] = _pairs((KeyValue.FromString(raw),), walker).items()
            known[raw] = pair
        found.setdefault(row, {})[pair[0]] = pair[1]
    return found


def _read_record(record: Any, walker: FieldWalker, writer: _RecordWriter) -> None:
    said: Attributes = {}
    if record.trace_id:
        said["trace_id"] = record.trace_id.hex()
    if record.span_id:
        said["span_id"] = record.span_id.hex()
    if record.flags:
        said["flags"] = str(record.flags)
    if record.event_name:
        said["event_name"] = record.event_name
    if record.dropped_attributes_count:
        said["dropped_attributes_count"] = str(record.dropped_attributes_count)
    writer.add(
        _value(record.body, walker),
        record.time_unix_nano,
        record.observed_time_unix_nano,
        record.severity_number,
        record.severity_text,
        _pairs(record.attributes, walker),
        said,
    )


def _scope(name: str, version: str, attributes: Attributes) -> Attributes:
    said = {"otel.scope.name": name, "otel.scope.version": version}
    return {**{key: value for key, value in said.items() if value}, **attributes}


def _pairs(pairs: Any, walker: FieldWalker) -> Attributes:
    walker.spend(len(pairs))
    found: Attributes = {}
    for pair in pairs:
        value = pair.value
        if value.HasField("string_value"):
            found[pair.key] = value.string_value
        else:
            found[pair.key] = as_text(_value(value, walker))
    return found


def _value(value: Any, walker: FieldWalker) -> object:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        walker.spend(len(value.array_value.values))
        return [_value(each, walker) for each in value.array_value.values]
    if kind == "kvlist_value":
        walker.spend(len(value.kvlist_value.values))
        return {pair.key: _value(pair.value, walker) for pair in value.kvlist_value.values}
    found = getattr(value, kind)
    if kind == "bytes_value":
        return base64.b64encode(found).decode()
    return _finite(found) if kind == "double_value" else found


def _finite(number: float) -> float | str:
    """Returns a number that JSON has; protobuf writes the others as strings."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


# --- JSON ---------------------------------------------------------------------------------------


def _read_json(body: bytes, writer: _RecordWriter) -> None:
    request = _object(parse_json(body), "the body")
    for outer in _objects(request, "resourceLogs", "resource_logs"):
        attributes = _json_pairs(_inner(outer, "resource"), "attributes")
        for group in _objects(outer, "scopeLogs", "scope_logs"):
            scope = _inner(group, "scope")
            name, version = _string(scope, "name"), _string(scope, "version")
            writer.begin(attributes, _scope(name, version, _json_pairs(scope, "attributes")))
            for record in _objects(group, "logRecords", "log_records"):
                _read_json_record(record, writer)


def _read_json_record(record: Mapping[str, Any], writer: _RecordWriter) -> None:
    said: Attributes = {}
    for name, other, size in (("traceId", "trace_id", 32), ("spanId", "span_id", 16)):
        if value := _string(record, name, other):
            said[other] = _hex(value, size, name)
    for name, other in (("flags", ""), ("droppedAttributesCount", "dropped_attributes_count")):
        if count := _integer(record, name, other):
            said[other or name] = str(count)
    if event := _string(record, "eventName", "event_name"):
        said["event_name"] = event
    writer.add(
        _json_value(record.get("body"), 0),
        _integer(record, "timeUnixNano", "time_unix_nano"),
        _integer(record, "observedTimeUnixNano", "observed_time_unix_nano"),
        _severity(record),
        _string(record, "severityText", "severity_text"),
        _json_pairs(record, "attributes"),
        said,
    )


def _severity(record: Mapping[str, Any]) -> int:
    given = _either(record, "severityNumber", "severity_number")
    if isinstance(given, str) and given.startswith("SEVERITY_NUMBER_"):
        name = given.removeprefix("SEVERITY_NUMBER_")
        base, step = name.rstrip("234"), name[-1] if name[-1] in "234" else "1"
        return LEVELS.index(base) * _STEP + int(step) if base in LEVELS else 0
    return _integer(record, "severityNumber", "severity_number")


def _hex(value: str, size: int, name: str) -> str:
    try:
        whole = len(bytes.fromhex(value)) * 2 == len(value) == size
    except ValueError:
        whole = False
    if not whole:
        raise _wrong(f"{name} is not {size} hexadecimal digits")
    return value.lower()


def _json_pairs(holder: Mapping[str, Any], name: str) -> Attributes:
    found: Attributes = {}
    for pair in _objects(holder, name):
        found[_string(pair, "key")] = as_text(_json_value(pair.get("value"), 0))
    return found


def _json_value(given: object, depth: int) -> object:
    """Returns the value in an AnyValue of JSON."""
    if depth > MOST_DEPTH:
        raise _wrong(f"a value is nested more than {MOST_DEPTH} deep")
    if given is None:
        return None
    for name, value in _object(given, "a value").items():
        reads = _VALUES.get(name)
        if reads is not None and value is not None:
            return reads(value, depth)
    return None


def _json_list(value: object, depth: int) -> object:
    values = _object(value, "arrayValue").get("values") or []
    return [_json_value(each, depth + 1) for each in _list(values, "values")]


def _json_map(value: object, depth: int) -> object:
    pairs = _objects(_object(value, "kvlistValue"), "values")
    return {_string(pair, "key"): _json_value(pair.get("value"), depth + 1) for pair in pairs}


def _json_string(value: object, _: int) -> object:
    if not isinstance(value, str):
        raise _wrong("stringValue is not a string")
    return value


def _json_integer(value: object, _: int) -> object:
    return _whole(value, "intValue")


def _json_double(value: object, _: int) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _wrong("doubleValue is not a number")
    try:
        return _finite(float(value))
    except (ValueError, OverflowError) as error:
        raise _wrong("doubleValue is not a number") from error


def _json_boolean(value: object, _: int) -> object:
    if not isinstance(value, bool):
        raise _wrong("boolValue is neither true nor false")
    return value


_VALUES: Final[Mapping[str, Callable[[object, int], object]]] = {
    spelling: reads
    for spellings, reads in (
        (("stringValue", "string_value", "bytesValue", "bytes_value"), _json_string),
        (("intValue", "int_value"), _json_integer),
        (("doubleValue", "double_value"), _json_double),
        (("boolValue", "bool_value"), _json_boolean),
        (("arrayValue", "array_value"), _json_list),
        (("kvlistValue", "kvlist_value"), _json_map),
    )
    for spelling in spellings
}


def _either(holder: Mapping[str, Any], name: str, other: str = "") -> Any:
    found = holder.get(name)
    return holder.get(other) if found is None and other else found


def _objects(holder: Mapping[str, Any], name: str, other: str = "") -> Iterator[Mapping[str, Any]]:
    values = _either(holder, name, other)
    for value in _list([] if values is None else values, name):
        yield _object(value, f"an element of {name}")


def _inner(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = holder.get(name)
    return {} if value is None else _object(value, name)


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(f"{what} is not an object")
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(f"{what} is not an array")
    return value


def _string(holder: Mapping[str, Any], name: str, other: str = "") -> str:
    value = _either(holder, name, other)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(f"{name} is not a string")
    return value


def _integer(holder: Mapping[str, Any], name: str, other: str = "") -> int:
    value = _either(holder, name, other)
    number = 0 if value is None else _whole(value, name)
    if number < 0:
        raise _wrong(f"{name} is negative")
    return number


def _whole(value: object, name: str) -> int:
    """Returns an int64 or uint64, which JSON may write as a string."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and len(value) <= 20 and value.isascii():
        with suppress(ValueError):
            value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -_INT64 <= value < 2 * _INT64:
        raise _wrong(f"{name} is not an integer")
    return value


def _wrong(what: str) -> InvalidInput:
    return InvalidInput(what, field="body", hint="The body is an ExportLogsServiceRequest of OTLP.")
