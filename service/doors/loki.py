r"""Receives logs by Loki's push: `POST /loki/api/v1/push`, as JSON or as protobuf in snappy.

    {"streams": [{"stream": {"job": "x"}, "values": [["<ns since 1970>", "line", {"k": "v"}]]}]}

The protobuf message is Loki's `logproto.PushRequest`. Its content is always in snappy's block
format, whatever `Content-Encoding` says. A line that is not UTF-8 is stored with U+FFFD.

Labels and structured metadata become attributes; where both have a name, the label becomes
`label.<name>`. `level`, `detected_level`, `severity` or `severity_text` is also the level. Time is
kept in microseconds, and as `time_unix_nano` if it has nanoseconds. A stream without the labels of
`doors.pipeline` belongs to the pipeline that Loki would take for its `service_name`.

Answers are Loki's: 204 without content, errors as text. Valid entries are stored also if others of
the request are refused, and the answer is 400. `X-Scope-OrgID` is refused: anyone could set it.
Pipelines are separated by tokens and their rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from service.doors.door import (
    Door,
    DoorRequest,
    Inflate,
    Outcome,
    Reply,
    media_type,
    message_of,
    status_of,
)
from service.doors.records import (
    Attributes,
    DoorRecords,
    RecordSorter,
    RunRule,
    level_of,
    parse_json,
    with_outer,
)
from service.doors.wire import (
    BYTES,
    VARINT,
    WIDE_WINDOW,
    FieldSpans,
    FieldWalker,
    Ints,
    decode_columns,
)
from service.http.body import Bounds
from service.http.decode import INFLATERS
from service.http.errors import HttpError
from service.http.json_body import valid_utf8
from tailrace.logstore.errors import InvalidInput, TooLarge

PATH: Final = "/loki/api/v1/push"
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
# Loki's own list, in its order.
_SERVICE_LABELS: Final = (
    *("service", "app", "application", "name", "app_kubernetes_io_name", "container"),
    *("container_name", "k8s_container_name", "component", "workload", "job", "k8s_job_name"),
)
_LEVELS: Final = ("level", "detected_level", "severity", "severity_text")
_LABEL: Final = re.compile(
    r"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*(\"(?:[^\"\\]|\\.)*+\"|`[^`]*`)\s*(,|\Z)", re.DOTALL
)
_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv\\\"'])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))",
    re.DOTALL,
)
_PLAIN: Final = dict(zip("abfnrtv\\\"'", "\a\b\f\n\r\t\v\\\"'", strict=True))
_NANOSECONDS: Final = 1_000_000_000
_MICROSECOND: Final = 1_000
_MOST_DIGITS: Final = 20
_LAST_SECOND: Final = 9_000_000_000
_EXACT: Final = "time_unix_nano"


class LokiDoor(Door):
    """The door of Loki's clients."""

    name = "loki"

    def __init__(self, rule: RunRule) -> None:
        self._rule = rule

    def path_of(self, method: str, path: str) -> str | None:
        return PATH if method == "POST" and path == PATH else None

    def inflater(self, request: DoorRequest) -> Inflate | None:
        if not _is_json(request):
            return _unsnap
        encoding = (request.header(b"content-encoding") or b"").strip().lower()
        if encoding in (b"", b"identity"):
            return None
        if encoding != b"gzip":
            shown = encoding.decode("latin-1")[:100]
            raise HttpError(400, f'Content-Encoding "{shown}" not supported', hint="Send gzip.")
        return INFLATERS[encoding]

    def probe(self, request: DoorRequest) -> Reply | None:
        refuse_tenant(request.header(b"x-scope-orgid"))
        return None

    def decode(self, request: DoorRequest, bounds: Bounds, now: int) -> DoorRecords:
        writer = _EntryWriter(RecordSorter(bounds, now), self._rule)
        if _is_json(request):
            _read_json(request.body, writer)
        else:
            _read_protobuf(FieldWalker(request.body, bounds.go_on), writer)
        return writer.sorter.records()

    def reply(self, request: DoorRequest, records: DoorRecords, outcome: Outcome) -> Reply:
        error = outcome.of_whole(records.count)
        if error is not None:
            return self.refusal(request, status_of(error), error)
        if not outcome.refused:
            return Reply(204, [], b"")
        message = f"{outcome.refusals} of {records.count} entries were refused: {outcome.reasons()}"
        return Reply(400, [_TEXT], f"{message}\n".encode("utf-8", "replace"))

    def refusal(self, request: DoorRequest, status: int, error: BaseException) -> Reply:  # noqa: ARG002
        return Reply(status, [_TEXT], f"{message_of(error)}\n".encode("utf-8", "replace"))


def refuse_tenant(given: bytes | None) -> None:
    """Raises `HttpError` 400 if a request names a tenant of Loki."""
    if given is not None:
        raise HttpError(
            400,
            "X-Scope-OrgID is not taken: a header that anyone can set separates nobody",
            hint="Leave out the tenant. Give each tenant a token for its own pipelines.",
        )


def _is_json(request: DoorRequest) -> bool:
    return media_type(request.header(b"content-type")) == b"application/json"


def _unsnap(data: bytes, bounds: Bounds, field: str) -> bytes:
    """Returns the content of a block of snappy, whose size is stated in front."""
    from cramjam import DecompressionError, snappy

    try:
        size = snappy.decompress_raw_len(data)
        if size > bounds.text_bytes:
            raise TooLarge(f"more than {bounds.text_bytes} bytes once decompressed", field=field)
        return bytes(snappy.decompress_raw(data))
    except (DecompressionError, ValueError, OverflowError) as error:
        raise InvalidInput(
            f"not snappy: {error}",
            field=field,
            hint="Send protobuf in snappy's block format, or JSON as application/json.",
        ) from error


class _EntryWriter:
    """Gives entries to the sorter, those of one stream after another."""

    def __init__(self, sorter: RecordSorter, rule: RunRule) -> None:
        self.sorter = sorter
        self._rule = rule
        self._labels: Attributes = {}
        self._fallback = ""
        self._level: str | None = None
        self._place = rule.place({})

    def begin(self, labels: Attributes) -> None:
        """Takes the labels of the entries that follow."""
        self._labels = labels
        found = (labels[name] for name in _SERVICE_LABELS if labels.get(name))
        self._fallback = next(found, "unknown_service")
        self._level = _level(labels)
        self._place = self._rule.place(labels, self._fallback)

    def add(self, nanoseconds: int, line: str, metadata: Attributes) -> None:
        """Adds an entry of the stream."""
        if not self._labels:
            self.sorter.refuse("error at least one label pair is required per stream")
            return
        place = self._place
        if not self._rule.names.isdisjoint(metadata):
            place = self._rule.place({**self._labels, **metadata}, self._fallback)
        level = (_level(metadata) or self._level) if metadata else self._level
        microseconds, rest = divmod(nanoseconds, _MICROSECOND)
        if rest:
            metadata = with_outer({_EXACT: str(nanoseconds)}, "entry", metadata)
        attributes = with_outer(self._labels, "label", metadata)
        self.sorter.add(place, line, microseconds, level, attributes)

    def add_all(self, nanoseconds: Ints, lines: Sequence[bytes]) -> None:
        """Adds entries of the stream that have no metadata, as `add` does for each."""
        labels = self._labels
        if not labels:
            for _ in lines:
                self.add(0, "", {})
            return
        attributes = [labels] * len(lines)
        if (nanoseconds % _MICROSECOND).any():
            outer = with_outer(labels, "label", {_EXACT: ""})
            given = nanoseconds.tolist()
            attributes = [
                {**outer, _EXACT: str(time)} if time % _MICROSECOND else labels for time in given
            ]
        times: list[int] = (nanoseconds // _MICROSECOND).tolist()
        self.sorter.add_all(self._place, lines, times, [self._level] * len(lines), attributes)


def _level(attributes: Mapping[str, str]) -> str | None:
    for name in _LEVELS:
        if (value := attributes.get(name)) and (found := level_of(value)):
            return found
    return None


# --- Protobuf -----------------------------------------------------------------------------------


def _read_protobuf(walker: FieldWalker, writer: _EntryWriter) -> None:
    from google.protobuf.message import DecodeError

    stream_type = _stream_type()
    try:
        for outer in walker.fields(1, 0, len(walker.data)):
            spelled, entries = walker.split(1, 2, outer.start, outer.end)
            writer.begin(parse_labels(valid_utf8(spelled)[0].decode()))
            for wide in entries.windows(WIDE_WINDOW):
                if _read_columns(wide, writer):
                    continue
                for window in wide.windows():
                    for entry in stream_type.FromString(window.message()).entries:
                        _read_entry(entry, walker, writer)
    except DecodeError as error:
        raise InvalidInput(
            f"the body is no PushRequest: {error}",
            field="body",
            hint="Check that it was compressed as announced and arrived whole.",
        ) from error


def _read_columns(window: FieldSpans, writer: _EntryWriter) -> bool:
    """Reads entries side by side; returns false if they need a parser, which also names faults.

    They are UTF-8 and have no metadata.
    """
    data, count = window.data, len(window.starts)
    entry = decode_columns(data, window.starts, window.ends, {1: BYTES, 2: BYTES, 3: BYTES})
    if entry is None or len(entry[3].rows):
        return False
    time = decode_columns(data, entry[1].starts, entry[1].ends, {1: VARINT, 2: VARINT})
    if time is None:
        return False
    of_rows = [time[part].values(len(entry[1].rows)) for part in (1, 2)]
    seconds, rest = np.zeros(count, np.int64), np.zeros(count, np.int64)
    seconds[entry[1].rows], rest[entry[1].rows] = of_rows
    if (seconds >= _LAST_SECOND).any() or (rest >= _NANOSECONDS).any():
        return False
    starts, ends = entry[2].spans(count)
    lines = [data[start:end] for start, end in zip(starts, ends, strict=True)]
    try:
        b"\n".join(lines).decode()
    except UnicodeDecodeError:
        return False
    writer.add_all(seconds * _NANOSECONDS + rest, lines)
    return True


def _read_entry(entry: Any, walker: FieldWalker, writer: _EntryWriter) -> None:
    try:
        line = entry.line.decode()
    except UnicodeDecodeError:
        whole, replaced = valid_utf8(entry.line)
        line, writer.sorter.replaced = whole.decode(), writer.sorter.replaced + replaced
    walker.spend(len(entry.metadata))
    metadata = {pair.name: pair.value for pair in entry.metadata}
    at = entry.timestamp
    writer.add(at.seconds * _NANOSECONDS + at.nanos, line, metadata)


@cache
def _stream_type() -> Any:
    """Returns the class of Loki's `logproto.StreamAdapter`, as far as we read it."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    file = FileDescriptorProto(name="push.proto", package="logproto", syntax="proto3")
    for message, members in {
        "Time": [("seconds", 1, 3, ""), ("nanos", 2, 5, "")],
        "Pair": [("name", 1, 9, ""), ("value", 2, 9, "")],
        "Entry": [("timestamp", 1, 11, "Time"), ("line", 2, 12, ""), ("metadata", 3, 11, "Pair")],
        "Stream": [("entries", 2, 11, "Entry")],
    }.items():
        made = file.message_type.add(name=message)
        for name, number, kind, of in members:
            label = 3 if name in ("entries", "metadata") else 1
            field = made.field.add(name=name, number=number, type=kind, label=label)
            if of:
                field.type_name = f".logproto.{of}"
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("logproto.Stream"))


def parse_labels(spelled: str) -> Attributes:
    """Returns the labels in `{name="value", …}`. Raises `InvalidInput`."""
    inner = spelled.strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        raise _bad_labels(spelled)
    inner = inner[1:-1].strip()
    labels: Attributes = {}
    at = 0
    while at < len(inner):
        found = _LABEL.match(inner, at)
        if found is None:
            raise _bad_labels(spelled)
        value = found[2][1:-1]
        labels[found[1]] = _unescaped(value, spelled) if found[2][0] == '"' else value
        at = found.end()
    return labels


def _unescaped(value: str, spelled: str) -> str:
    """Undoes the escapes of a string of Go."""
    if "\\" not in value:
        return value

    def plain(found: re.Match[str]) -> str:
        simple, hexa, short, long, octal, other = found.groups()
        if other is not None:
            raise _bad_labels(spelled)
        if simple is not None:
            return _PLAIN[simple]
        code = int(octal, 8) if octal else int(hexa or short or long, 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise _bad_labels(spelled)
        return chr(code)

    return _ESCAPE.sub(plain, value)


def _bad_labels(spelled: str) -> InvalidInput:
    return InvalidInput(
        f"error parsing labels {spelled[:200]!r}", field="body", hint='Labels are {name="value"}.'
    )


# --- JSON ---------------------------------------------------------------------------------------


def _read_json(body: bytes, writer: _EntryWriter) -> None:
    request = parse_json(body)
    if not isinstance(request, dict):
        raise _wrong("the body is not an object")
    for stream in _list(request.get("streams"), "streams"):
        if not isinstance(stream, dict):
            raise _wrong("a stream is not an object")
        writer.begin(_strings(stream.get("stream"), "stream"))
        values = _list(stream.get("values"), "values")
        if _read_plain(values, writer):
            continue
        for value in values:
            if not isinstance(value, list) or len(value) not in (2, 3):
                raise _wrong("a value is not [time, line] or [time, line, metadata]")
            if not isinstance(value[1], str):
                raise _wrong("a line is not a string")
            metadata = _strings(value[2], "metadata") if len(value) > 2 else {}
            writer.add(_time(value[0]), value[1], metadata)


def _read_plain(values: Sequence[Any], writer: _EntryWriter) -> bool:
    """Reads entries that are pairs of strings; returns false if others are among them."""
    if set(map(type, values)) != {list} or set(map(len, values)) != {2}:
        return False
    times, lines = zip(*values, strict=True)
    if {*map(type, times), *map(type, lines)} != {str} or not all(map(str.isdigit, times)):
        return False
    if max(map(len, times)) > _MOST_DIGITS or not "".join(times).isascii():
        return False
    try:
        encoded = list(map(str.encode, lines))
        nanoseconds = np.array(list(map(int, times)), np.int64)
    except (UnicodeEncodeError, OverflowError):
        return False
    writer.add_all(nanoseconds, encoded)
    return True


def _time(value: object) -> int:
    if (
        isinstance(value, str)
        and len(value) <= _MOST_DIGITS
        and value.isascii()
        and value.isdigit()
    ):
        return int(value)
    raise _wrong("a time is not a string of nanoseconds since 1970")


def _list(value: object, name: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(f"{name} is not an array")
    return value


def _strings(value: object, name: str) -> Attributes:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise _wrong(f"{name} is not an object of strings")
    return value


def _wrong(what: str) -> InvalidInput:
    return InvalidInput(
        what,
        field="body",
        hint='Send {"streams": [{"stream": {"job": "x"}, "values": [["<ns>", "line"]]}]}.',
    )
