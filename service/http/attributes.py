"""Decodes `Tailrace-Attributes`: the attributes that each line of a text batch has.

    Tailrace-Attributes: {"log.file.name": "app.log", "region": "eu"}

The value is one JSON object in ASCII; other characters are written as JSON escapes. A value that is
not a string is kept as its JSON, as it is in records.

A service that does not know the header would store the lines without it. So a client that must know
sends them as `text/plain; charset=utf-8; attributes=header`, which such a service answers with 415;
so does this one where the header did not arrive. The lines may then be sent as records.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from logstore.errors import InvalidInput, TooLarge
from service.http.errors import HttpError
from service.http.records import attribute_text

FIELD: Final = "Tailrace-Attributes"
MOST_BYTES: Final = 8 << 10
MOST_ATTRIBUTES: Final = 64
TEXT_AND_ATTRIBUTES: Final = b"text/plain; charset=utf-8; attributes=header"
_ASKS: Final = TEXT_AND_ATTRIBUTES.replace(b" ", b"")
_HINT = 'One JSON object in ASCII, such as {"region": "eu", "name": "M\\u00fcller"}.'


def parse_attributes(value: bytes, kind: str) -> dict[str, str]:
    """The attributes in a header of a request whose body is of this kind; `KINDS` has the kinds.

    Raises `InvalidInput`, `TooLarge`.
    """
    if kind != "text":
        raise InvalidInput(
            f"{FIELD} is there, and the body is no text",
            field=FIELD,
            hint="Send the lines as text/plain, or each record's attributes in the record.",
        )
    if len(value) > MOST_BYTES:
        raise TooLarge(
            f"{FIELD} has {len(value)} bytes; {MOST_BYTES} are taken",
            field=FIELD,
            hint="Send larger attributes in records, as application/x-ndjson.",
        )
    given = _object(value)
    if len(given) > MOST_ATTRIBUTES:
        raise TooLarge(
            f"{FIELD} has {len(given)} attributes; {MOST_ATTRIBUTES} are taken", field=FIELD
        )
    try:
        return {name: attribute_text(item) for name, item in given.items()}
    except orjson.JSONEncodeError as error:
        raise _invalid(f"has a value that cannot be kept: {error}") from error


def asks_for_attributes(content_type: bytes) -> bool:
    """Whether a Content-Type says that the header is there, as well as the lines."""
    if len(content_type) < len(_ASKS):
        return False
    plain = content_type.lower().replace(b" ", b"").replace(b'"', b"")
    return plain == _ASKS


def check_not_announced(content_type: bytes | None) -> None:
    """Raises `HttpError` 415 for a Content-Type that speaks of a header which is not there."""
    if content_type is not None and asks_for_attributes(content_type):
        raise HttpError(
            415,
            f"the Content-Type speaks of {FIELD}, and that did not arrive",
            hint="Let proxies pass it on, or send the lines as application/x-ndjson.",
        )


def _object(value: bytes) -> dict[str, Any]:
    if not value.isascii():
        raise _invalid("is not ASCII")
    try:
        given = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise _invalid(f"is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise _invalid("is not a JSON object")
    return given


def _invalid(message: str) -> InvalidInput:
    return InvalidInput(f"{FIELD} {message}", field=FIELD, hint=_HINT)
