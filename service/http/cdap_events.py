"""Records as CDAP's log events, and CDAP's filter of them.

An event is an object of CDAP's shape, or a line of text:

    json    {"log": {"timestamp", "logLevel", "threadName", …}, "offset": "<ULID>"}
    text    {"log": "the message", "offset": "<ULID>"}, or the message alone

A field that a record does not have is taken from its attributes by CDAP's name, else it is empty.
The other attributes are its `mdc`. An offset is the record's ULID.

A filter is written as `loglevel=ERROR AND .origin=plugin OR MDC:user=ann`:

    filter    = condition [("AND" | "OR") filter]
    condition = key "=" value          neither holds a blank
    key       = "loglevel" | "." tag | "MDC:" name

There are no parentheses, no NOT, and one operator binds as the other: `a AND b OR c` is
`a AND (b OR c)`. A condition is equality; levels are compared whatever their case. A tag is an
attribute of the record, with its dot or without; `.fqn`, `.runId` and `.connectorId` are the
record's own. An `MDC` name is an attribute.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, Final

import orjson
import pyarrow as pa

from logstore.errors import InvalidInput

Event = Mapping[str, Any]
"""A record with the fields of `/query`; its attributes are a mapping, or None."""

Matches = Callable[[Event], bool]

_WORD: Final = re.compile(r"\S+")
_OWN: Final = {".fqn": "fqn", ".runId": "run_id", ".connectorId": "connector_id"}
_HINT: Final = "Write key=value, with AND or OR between; keys are loglevel, .tag and MDC:name."

FIELDS: Final = (
    *("timestamp", "logLevel", "threadName", "className", "simpleClassName", "lineNumber"),
    *("message", "stackTrace", "loggerName", "mdc", "isNativeMethod"),
)
_TEXTS: Final = ("threadName", "className", "simpleClassName", "stackTrace", "loggerName")
_NAMED: Final = frozenset((*_TEXTS, "lineNumber", "isNativeMethod"))


def parse_filter(text: str) -> Matches:
    """What the filter matches; one without a condition matches all. Raises `InvalidInput`."""
    words = list(_WORD.finditer(text))
    if not words:
        return lambda _: True
    if len(words) % 2 == 0:
        raise _wrong(f"it ends behind {words[-1][0][:80]!r}", words[-1].start())
    matches = _condition(words[-1])
    for number in range(len(words) - 3, -1, -2):
        matches = _joined(_condition(words[number]), words[number + 1], matches)
    return matches


def _joined(first: Matches, operator: re.Match[str], rest: Matches) -> Matches:
    if operator[0] == "AND":
        return lambda event: first(event) and rest(event)
    if operator[0] == "OR":
        return lambda event: first(event) or rest(event)
    raise _wrong(f"{operator[0][:80]!r} is neither AND nor OR", operator.start())


def _condition(word: re.Match[str]) -> Matches:
    key, equals, value = word[0].partition("=")
    if not equals:
        raise _wrong(f"{word[0][:80]!r} is no key=value", word.start())
    if key == "loglevel":
        return lambda event: (event["level"] or "") == value.upper()
    if key in _OWN:
        field = _OWN[key]
        return lambda event: event[field] == value
    if key.startswith(".") and len(key) > 1:
        return lambda event: value in (_attribute(event, key), _attribute(event, key[1:]))
    if key.startswith("MDC:") and len(key) > len("MDC:"):
        name = key.removeprefix("MDC:")
        return lambda event: _attribute(event, name) == value
    raise _wrong(f"there is no key {key[:80]!r}", word.start())


def _attribute(event: Event, name: str) -> str | None:
    attributes: Mapping[str, str] = event["attributes"] or {}
    return attributes.get(name)


def _wrong(what: str, place: int) -> InvalidInput:
    return InvalidInput(f"filter: {what}, at character {place + 1}", field="filter", hint=_HINT)


def events_of(batch: pa.RecordBatch) -> Iterator[Event]:
    """The records one by one; `ts` in milliseconds since the epoch."""
    times = batch.column("ts").cast(pa.int64()).to_pylist()
    names = [name for name in batch.schema.names if name not in ("ts", "attributes")]
    columns = [batch.column(name).to_pylist() for name in names]
    attributes = batch.column("attributes").to_pylist()
    for number, time in enumerate(times):
        event: dict[str, Any] = {
            name: column[number] for name, column in zip(names, columns, strict=True)
        }
        carried = attributes[number]
        yield event | {
            "ts": time // 1000,
            "attributes": None if carried is None else dict(carried),
        }


class EventEncoder:
    """Makes bytes of events."""

    def __init__(self, *, as_json: bool, escape: bool, suppressed: Container[str]) -> None:
        self._as_json = as_json
        self._escape = escape
        self._suppressed = suppressed

    def with_offset(self, event: Event) -> bytes:
        """The event as an element of an array, with its offset."""
        log = self._log(event) if self._as_json else self._text(event["message"])
        return orjson.dumps({"log": log, "offset": event["ulid"]})

    def line(self, event: Event) -> bytes:
        """The event as a line of text."""
        return f"{self._text(event['message'])}\n".encode()

    def _log(self, event: Event) -> dict[str, Any]:
        said: dict[str, str] = event["attributes"] or {}
        number = said.get("lineNumber", "")
        log: dict[str, Any] = {
            "timestamp": event["ts"],
            "logLevel": event["level"],
            "lineNumber": int(number) if number.isascii() and number.isdigit() else 0,
            "message": self._text(event["message"]),
            "mdc": {name: value for name, value in said.items() if name not in _NAMED},
            "isNativeMethod": said.get("isNativeMethod") == "true",
            **{name: said.get(name, "") for name in _TEXTS},
        }
        return {name: log[name] for name in FIELDS if name not in self._suppressed}

    def _text(self, message: str) -> str:
        if not self._escape:
            return message
        return html.escape(message, quote=False).replace('"', "&quot;")
