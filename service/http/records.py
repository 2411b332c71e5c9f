"""Decodes ndjson records to a batch: one JSON object per line, each one record.

    {"message": "…", "ts": <RFC 3339 | epoch s | epoch ms>, "level": "…", "attributes": {…}}

`level` is any spelling that `logstore.segments.spellings` has. Another one is kept as the attribute
`level`, or `level_text` if there is one of that name, and the receipt names it.
Only `message` is required. Each message gets one newline behind it, whatever it ends
with, so its exact text can be returned; newlines inside stay.

Records are decoded some at a time, and their metadata is held encoded, so that the objects
of the parser never are those of a whole body.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NamedTuple

import orjson

from logstore.batch import RecordMeta
from logstore.errors import InvalidInput, TooLarge
from logstore.segments.schema import LEVELS
from logstore.segments.spellings import NO_LEVEL, level_of_value
from service.http.body import Bounds
from service.http.envelope import SMALL, NotJson, load
from service.http.text import encode_text, valid_utf8
from service.journal.format import MetaColumns

_HINT = 'Each line is an object such as {"message": "text", "ts": "2026-01-31T12:00:00Z"}.'
# Numbers below this are epoch seconds, above it milliseconds: 5138 in seconds, 1973 in ms.
_MILLISECONDS_FROM = 1e11
_MAX_MICROSECONDS = 253_402_300_799_999_999
_MOST_UNKNOWN = 10  # levels that a receipt names
_LONGEST_UNKNOWN = 32  # characters of one there


class Records(NamedTuple):
    """The batch's text, the records' metadata as the journal stores it, and their number."""

    text: bytes
    meta: bytes
    number: int
    replaced: int
    unknown_levels: Sequence[str]


class _Some(NamedTuple):
    """Records that were decoded together, and their messages as text."""

    values: list[dict[str, Any]]
    texts: list[bytes]
    replaced: int


def parse_records(body: bytes, bounds: Bounds) -> Records:
    """The records of a body. Raises `InvalidInput`, `TooLarge`."""
    texts: list[bytes] = []
    columns = MetaColumns()
    unknown: dict[str, None] = {}
    size = count = replaced = 0
    for window in _windows(body):
        bounds.go_on()
        if len(window) > SMALL:
            some = _read_long(window, count + 1, bounds)
        else:
            some = _read_lines(window, count + 1)
        if not some.values:
            continue
        meta = _meta(some, count + 1, size, unknown)
        try:
            columns.add(meta)
        except orjson.JSONEncodeError as error:
            raise _invalid(count + 1, f"has what cannot be kept: {error}") from error
        texts.append(b"".join(some.texts))
        size += len(texts[-1])
        count += len(some.values)
        replaced += some.replaced
        if size > bounds.text_bytes:
            raise TooLarge(f"more than {bounds.text_bytes} bytes of text", field="body")
        if columns.size > bounds.meta_bytes:
            raise TooLarge(
                f"the records carry more than {bounds.meta_bytes} bytes beside their messages",
                field="body",
            )
    return Records(b"".join(texts), columns.encoded(), count, replaced, list(unknown))


def _windows(body: bytes) -> Iterator[bytes]:
    """The body in pieces of whole lines: at most `SMALL` bytes, or one line that is longer."""
    at = 0
    while at < len(body):
        end = len(body)
        if end - at > SMALL:
            end = body.rfind(b"\n", at, at + SMALL) + 1 or body.find(b"\n", at + SMALL) + 1
        yield body[at : end or len(body)]
        at = end or len(body)


def _meta(some: _Some, first: int, base: int, unknown: dict[str, None]) -> RecordMeta:
    """The records' metadata; `base` is the offset of their text in the batch's.

    Some of the levels that are none of ours are added to `unknown`.
    """
    values = some.values
    meta = RecordMeta(
        ends=list(accumulate(map(len, some.texts), initial=base))[1:],
        ts=[_microseconds(value.get("ts"), i) for i, value in enumerate(values, first)],
        levels=[_level(value.get("level")) for value in values],
        attributes=[
            _attributes(value.get("attributes"), i) for i, value in enumerate(values, first)
        ],
    )
    if None in meta.levels:
        _keep_unknown(some.values, meta, first, unknown)
    return meta


def _keep_unknown(
    values: Sequence[Mapping[str, Any]], meta: RecordMeta, first: int, unknown: dict[str, None]
) -> None:
    """Keeps levels that are none of ours as attributes."""
    assert isinstance(meta.attributes, list)
    for place, level in enumerate(meta.levels):
        stated = values[place].get("level")
        if level is not None or stated is None or stated == "":
            continue
        try:
            text = attribute_text(stated)
        except orjson.JSONEncodeError as error:
            raise _invalid(first + place, f"has a level that cannot be kept: {error}") from error
        kept = dict(meta.attributes[place] or {})
        kept["level_text" if "level" in kept else "level"] = text
        meta.attributes[place] = kept
        if len(unknown) < _MOST_UNKNOWN:
            unknown[encode_text(text[:_LONGEST_UNKNOWN])[0].decode()] = None


def _read_lines(window: bytes, first: int) -> _Some:
    """Decodes all lines by one call of the parser.

    Only for an error line by line, to name the line.
    """
    window, replaced = valid_utf8(window)
    lines = [line for line in window.split(b"\n") if line.strip()]
    try:
        values = orjson.loads(b"[" + b",".join(lines) + b"]")
    except orjson.JSONDecodeError:
        values = []
    if len(values) != len(lines) or not all(type(value) is dict for value in values):
        values = [_load_line(line, i) for i, line in enumerate(lines, first)]
    encoded = [encode_text(_message(value, i)) for i, value in enumerate(values, first)]
    replaced += sum(more for _, more in encoded)
    return _Some(values, [piece + b"\n" for piece, _ in encoded], replaced)


def _read_long(line: bytes, number: int, bounds: Bounds) -> _Some:
    """Decodes one large line: it has a large message, or was made large to do harm."""
    if not line.strip():
        return _Some([], [], 0)
    try:
        value, long, replaced = load(line, bounds)
    except NotJson as error:
        raise _invalid(number, f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _invalid(number, "is not an object")
    if "message" in long:
        text, more = long["message"].text(bounds, f"body[{number}]")
    else:
        text, more = encode_text(_message(value, number))
    return _Some([value], [text + b"\n"], replaced + more)


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
        # Compared before it is made a whole number: 1e308 times a thousand is none.
        moment = round(value * scale) if abs(value) < _MAX_MICROSECONDS else -1
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


def _level(value: object) -> str | None:
    level = NO_LEVEL if value is None else level_of_value(value)
    return None if level == NO_LEVEL else LEVELS[level]


def _attributes(value: object, number: int) -> Mapping[str, str] | None:
    if not value:
        return None
    if not isinstance(value, dict):
        raise _invalid(number, "has `attributes` that are not an object")
    try:
        return {key: attribute_text(item) for key, item in value.items()}
    except orjson.JSONEncodeError as error:
        raise _invalid(number, f"has an attribute that cannot be kept: {error}") from error


def attribute_text(item: object) -> str:
    """An attribute's value as it is kept: a text as it is, anything else as JSON.

    Raises `orjson.JSONEncodeError`.
    """
    return item if isinstance(item, str) else orjson.dumps(item).decode()


def _invalid(number: int, message: str) -> InvalidInput:
    return InvalidInput(f"record {number} {message}", field=f"body[{number}]", hint=_HINT)
