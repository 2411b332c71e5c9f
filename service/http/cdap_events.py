"""Records as CDAP's log events: objects of the same shape, or lines of text.

    json    {"log": {"timestamp", "logLevel", "threadName", …}, "offset": "<ULID>"}
    text    {"log": "the message", "offset": "<ULID>"}, or the message alone

What a record has no field for is taken from its attributes by CDAP's name, else empty. The other
attributes are its `mdc`. An offset is the record's ULID.
"""

from __future__ import annotations

import html
from collections.abc import Container, Iterator
from typing import Any, Final

import orjson
import pyarrow as pa

from service.http.cdap_filter import Event

FIELDS: Final = (
    *("timestamp", "logLevel", "threadName", "className", "simpleClassName", "lineNumber"),
    *("message", "stackTrace", "loggerName", "mdc", "isNativeMethod"),
)
_TEXTS: Final = ("threadName", "className", "simpleClassName", "stackTrace", "loggerName")
_NAMED: Final = frozenset((*_TEXTS, "lineNumber", "isNativeMethod"))


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
