"""ndjson records to a batch: one JSON object per line, each one record.

    {"message": "…", "ts": <RFC 3339 | epoch s | epoch ms>, "level": "…", "attributes": {…}}

Only `message` is needed. Each message gets one newline behind it, whatever it ends
with, so what a record said comes back exactly; newlines inside stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

import orjson

from logstore.batch import RecordMeta
from logstore.errors import InvalidInput
from service.http.text import encode_text

_HINT = 'Each line is an object such as {"message": "text", "ts": "2026-01-31T12:00:00Z"}.'
# Numbers below this are epoch seconds, above it milliseconds: 5138 in seconds, 1973 in ms.
_MILLISECONDS_FROM = 1e11
_MAX_MICROSECONDS = 253_402_300_799_999_999


def parse_records(body: bytes) -> tuple[bytes, RecordMeta, int]:
    """Text, metadata, and the number of characters replaced. Raises `InvalidInput`."""
    values = _load(body)
    messages = [_message(value, i) for i, value in enumerate(values, 1)]
    encoded = [encode_text(message) for message in messages]
    text = b"".join([piece + b"\n" for piece, _ in encoded])
    meta = RecordMeta(
        ends=list(accumulate(len(piece) + 1 for piece, _ in encoded)),
        ts=[_microseconds(value.get("ts"), i) for i, value in enumerate(values, 1)],
        levels=[_level(value.get("level"), i) for i, value in enumerate(values, 1)],
        attributes=[_attributes(value.get("attributes"), i) for i, value in enumerate(values, 1)],
    )
    return text, meta, sum(replaced for _, replaced in encoded)


def _load(body: bytes) -> list[dict[str, Any]]:
    """All lines by one call of the parser; line by line only to say which one is wrong."""
    lines = [line for line in body.split(b"\n") if line.strip()]
    try:
        values = orjson.loads(b"[" + b",".join(lines) + b"]")
    except orjson.JSONDecodeError:
        values = []
    if len(values) != len(lines) or not all(type(value) is dict for value in values):
        values = [_load_line(line, i) for i, line in enumerate(lines, 1)]
    return values  # type: ignore[no-any-return]


def _load_line(line: bytes, number: int) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _invalid(number, f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _invalid(number, "is not an object")
    return value


def _message(value: Mapping[str, Any], number: int) -> str:
    message = value.get("message")
    if not isinstance(message, str):
        raise _invalid(number, "has no `message` that is a string")
    return message


def _microseconds(value: object, number: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        scale = 1_000_000 if abs(value) < _MILLISECONDS_FROM else 1_000
        moment = round(value * scale)
    elif isinstance(value, str):
        moment = _parse_time(value, number)
    else:
        raise _invalid(number, "has a `ts` that is neither a number nor a time")
    if not 0 <= moment <= _MAX_MICROSECONDS:
        raise _invalid(number, "has a `ts` outside the years 1970 to 9999")
    return moment


def _parse_time(text: str, number: int) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise _invalid(number, f"has a `ts` that is not RFC 3339: {text[:40]!r}") from error
    since = moment.replace(tzinfo=moment.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _level(value: object, number: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > 32:
        raise _invalid(number, "has a `level` that is not a short string")
    return encode_text(value.upper())[0].decode() or None


def _attributes(value: object, number: int) -> Mapping[str, str] | None:
    if not value:
        return None
    if not isinstance(value, dict):
        raise _invalid(number, "has `attributes` that are not an object")
    return {_plain(key): _plain(item) for key, item in value.items()}


def _plain(item: object) -> str:
    return item if isinstance(item, str) else orjson.dumps(item).decode()


def _invalid(number: int, message: str) -> InvalidInput:
    return InvalidInput(f"record {number} {message}", field=f"body[{number}]", hint=_HINT)
