"""Receives events by Splunk's HTTP Event Collector (HEC).

    POST /services/collector, /services/collector/event, …/event/1.0   events as JSON objects
    POST /services/collector/raw, …/raw/1.0                            lines of text
    POST /services/collector/ack?channel=…                             {"acks": [0, 1]}
    GET  /services/collector/health, …/health/1.0

Events follow one another, with or without white space between them. `event` is the text; one that
is not a string is JSON. `time` is in seconds since 1970. `host`, `source`, `sourcetype`, `index`
and `fields` become attributes. The pipeline is the `index`, else the `sourcetype`, unless `fields`
has attributes of `doors.pipeline`; of raw lines the parameters of the URL say it.

A request is answered when its events are durable, so every `ackId` that was given out is `true`.
`Authorization: Splunk <token>` is taken.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Final

import orjson

from service.doors.door import Door, DoorRequest, Outcome, Reply, message_of, status_of
from service.doors.records import (
    Attributes,
    DoorRecords,
    RecordSorter,
    RunRule,
    level_of,
    time_of,
    value_text,
)
from service.doors.wire import MOST_FIELD
from service.http.body import Bounds
from service.http.json_body import (
    SMALL,
    NotJson,
    line_windows,
    parse,
    string_end,
    valid_utf8,
    whole_before,
)
from tailrace.logstore.errors import InvalidInput, TooLarge
from tailrace.logstore.segments.levels import LEVEL_KEYS

BASE: Final = "/services/collector"
_EVENTS: Final = (BASE, f"{BASE}/event", f"{BASE}/event/1.0")
_RAW: Final = (f"{BASE}/raw", f"{BASE}/raw/1.0")
_HEALTH: Final = (f"{BASE}/health", f"{BASE}/health/1.0")
_ACK: Final = f"{BASE}/ack"
_JSON: Final = (b"content-type", b"application/json")
_ORIGIN: Final = ("host", "source", "sourcetype", "index")
_CHANNEL: Final = b"x-splunk-request-channel"
_MOST_ACKS: Final = 10_000
_MOST_EVENTS: Final = 100_000
_MOST_IN_EVENT: Final = 20_000
_DECODER: Final = json.JSONDecoder()
_BLANK: Final = b" \t\r\n"
_BLANKS: Final = re.compile(r"[ \t\r\n]*+")
_SIGN: Final = re.compile(rb'["{}\[\],]')
# Splunk's codes: what its clients compare.
_CODES: Final = {401: 2, 403: 4, 429: 9, 503: 9, 413: 27}
_NO_DATA, _INVALID, _INTERNAL = 5, 6, 8


class SplunkDoor(Door):
    """The door of Splunk's clients."""

    name = "splunk"

    def __init__(self, rule: RunRule) -> None:
        self._rule = rule
        self._acks = count()

    def path_of(self, method: str, path: str) -> str | None:
        if method == "POST" and (path in _EVENTS or path in _RAW or path == _ACK):
            return path.removesuffix("/1.0")
        return _HEALTH[0] if method in ("GET", "HEAD") and path in _HEALTH else None

    def probe(self, request: DoorRequest) -> Reply | None:
        if request.path in _HEALTH:
            return _answer(200, {"text": "HEC is healthy", "code": 17})
        return None

    def decode(self, request: DoorRequest, bounds: Bounds, now: int) -> DoorRecords:
        sorter = RecordSorter(bounds, now)
        if request.path == _ACK:
            return sorter.records(_acks(request.body))
        if request.path in _RAW:
            self._read_raw(request.body, request.parameters, sorter)
        else:
            body, sorter.replaced = valid_utf8(request.body)
            for number, event in enumerate(_events(body, bounds)):
                if number >= _MOST_EVENTS:
                    raise TooLarge(f"more than {_MOST_EVENTS} events", field="body")
                if number % 1024 == 0:
                    bounds.go_on()
                self._add(event, number, sorter)
        if not sorter.count:
            raise InvalidInput("No data", field="body")
        return sorter.records()

    def _read_raw(self, body: bytes, said: Mapping[str, str], sorter: RecordSorter) -> None:
        attributes = {name: said[name] for name in _ORIGIN if said.get(name)}
        place = self._rule.place(attributes, _fallback(attributes))
        for window in line_windows(body):
            text, replaced = valid_utf8(window)
            sorter.replaced += replaced
            for line in text.split(b"\n"):
                if line:
                    sorter.add(place, line, None, None, attributes)

    def _add(self, event: Mapping[str, Any], number: int, sorter: RecordSorter) -> None:
        given = event.get("event")
        if given is None or given == "":
            raise _wrong(f"event {number} has no `event`")
        fields = {} if event.get("fields") is None else event["fields"]
        if not isinstance(fields, dict):
            raise _wrong(f"event {number} has `fields` that are not an object")
        attributes: Attributes = {}
        for name in _ORIGIN:
            if (value := event.get(name)) is not None:
                attributes[name] = value_text(value)
        own = {name: value_text(item) for name, item in fields.items() if item is not None}
        attributes.update(own)
        level = next((f for k in LEVEL_KEYS if (f := level_of(own.get(k)))), None)
        time = event.get("time")
        if isinstance(time, str):
            time = _number(time, number)
        place = self._rule.place(attributes, _fallback(attributes))
        sorter.add(place, value_text(given), time_of(time, seconds=True), level, attributes)

    def reply(self, request: DoorRequest, records: DoorRecords, outcome: Outcome) -> Reply:
        if request.path == _ACK:
            return _answer(200, {"acks": records.items})
        if outcome.refused:
            error = outcome.for_now() or outcome.refused[0][1]
            return self.refusal(request, status_of(error), error)
        done: dict[str, Any] = {"text": "Success", "code": 0}
        if request.header(_CHANNEL) or request.parameters.get("channel"):
            done["ackId"] = next(self._acks)
        return _answer(200, done)

    def refusal(self, request: DoorRequest, status: int, error: BaseException) -> Reply:  # noqa: ARG002
        message = message_of(error)
        code = _CODES.get(status, _INVALID if status < 500 else _INTERNAL)
        if message.startswith("No data"):
            code = _NO_DATA
        return _answer(status, {"text": message, "code": code})


def _answer(status: int, value: Mapping[str, Any]) -> Reply:
    return Reply(status, [_JSON], orjson.dumps(value))


def _fallback(attributes: Mapping[str, str]) -> str:
    return attributes.get("index") or attributes.get("sourcetype") or "unknown_service"


def _acks(body: bytes) -> dict[str, bool]:
    try:
        value = orjson.loads(body) if len(body) <= SMALL else None
    except orjson.JSONDecodeError:
        value = None
    acks = value.get("acks") if isinstance(value, dict) else None
    if (
        not isinstance(acks, list)
        or len(acks) > _MOST_ACKS
        or not all(isinstance(each, int) and not isinstance(each, bool) for each in acks)
    ):
        raise _wrong("the body is not an object with the array `acks`")
    return {str(each): True for each in acks}


def _events(body: bytes, bounds: Bounds) -> Iterator[Mapping[str, Any]]:
    """Yields the objects that follow one another.

    The parser holds the interpreter's lock, so it gets windows: the next one begins with the event
    that did not fit. An event that is larger than a window is measured before it is parsed.
    """
    at = len(codecs.BOM_UTF8) if body.startswith(codecs.BOM_UTF8) else 0
    while (at := _after_blanks(body, at)) < len(body):
        bounds.go_on()
        window = body[at : whole_before(body, min(at + SMALL, len(body)))].decode()
        end = 0
        with suppress(ValueError, RecursionError):  # at the end of the window
            while True:
                value, end = _DECODER.raw_decode(window, _first(window, end))
                yield _event(value, at)
        if end:
            at += len(window[:end].encode())
        else:
            stop = _end_of_event(body, at)
            try:
                yield _event(parse(body[at:stop])[0], at)
            except NotJson as error:
                raise _wrong(f"the body is not JSON at byte {at + 1}: {error}") from error
            at = stop


def _event(value: object, at: int) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(f"after byte {at} is no object")
    return value


def _first(window: str, at: int) -> int:
    found = _BLANKS.match(window, at)
    return at if found is None else found.end()


def _after_blanks(body: bytes, at: int) -> int:
    while True:
        end = at + SMALL
        at = len(body[at:end]) - len(body[at:end].lstrip(_BLANK)) + at
        if at < end:
            return at


def _end_of_event(body: bytes, start: int) -> int:
    """Returns where the object that begins at `start` ends. Raises `InvalidInput`."""
    if body[start] != ord("{"):
        raise _wrong(f"the body is not JSON at byte {start + 1}: no object begins here")
    depth = values = 0
    at, most = start, start + MOST_FIELD
    while (found := _SIGN.search(body, at, most)) is not None:
        sign, at = found[0], found.end()
        if sign == b'"':
            at = string_end(body, at) + 1
        depth += (sign in b"{[") - (sign in b"}]")
        if not depth:
            return at
        values += sign not in b"}]"
        if values > _MOST_IN_EVENT:
            raise _wrong(f"an event has more than {_MOST_IN_EVENT} values")
    if most < len(body):
        raise _wrong(f"an event has more than {MOST_FIELD} bytes")
    raise _wrong(f"the body is not JSON at byte {start + 1}: the object does not end")


def _number(text: str, number: int) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise _wrong(f"event {number} has a `time` that is not a number") from error


def _wrong(what: str) -> InvalidInput:
    return InvalidInput(what, field="body", hint='Send {"event": "text", "time": 1700000000.5}.')
