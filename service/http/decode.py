"""A request's body to the text of a batch: every form that the append route takes.

| Content-Type | body |
| --- | --- |
| `application/json`, or none | a JSON string, or an object with `logs` |
| `text/plain` | raw lines |
| `application/x-ndjson` | records, see `records.py` |

Over each of them `Content-Encoding: gzip` or `zstd`. `logs` with `compressed` true is
base64 of gzip. `lineCount` and `timestamp` are OpenMetadata's and wrong in its own
client (one too many; taken anew on a retry), so both are read past. An object with
`connectorId` and `timestamp` and without `logs` is how its first clients open a run.

Pure functions of bytes: the append route calls them in a thread for large bodies.
"""

from __future__ import annotations

import binascii
import json
from typing import Any, NamedTuple

import orjson

from logstore.batch import RecordMeta
from logstore.errors import InvalidInput, TooLarge
from logstore.ulid import MAX_LINES
from service.http.inflate import INFLATERS, gunzip
from service.http.problems import HttpError
from service.http.records import parse_records
from service.http.text import as_lines, count_lines, encode_text, valid_utf8

# OpenMetadata's message for JSON of the wrong shape.
_FORMAT = "Invalid log data format"
_JSON_HINT = 'Send a JSON string, or an object such as {"logs": "text", "connectorId": "me"}.'


class Decoded(NamedTuple):
    """Text of whole lines (empty: nothing to store), and what came with it.

    `opens`: it is the empty call with which a gen-1 client of OpenMetadata begins.
    """

    text: bytes
    records: int
    lines: int
    connector: str | None = None
    meta: RecordMeta | None = None
    replaced: int = 0
    opens: bool = False


def prefixed(decoded: Decoded) -> Decoded:
    """The batch as OpenMetadata stores it: its first line begins with who sent it."""
    if decoded.connector is None:
        return decoded
    name = decoded.connector.replace("\n", " ")
    return decoded._replace(text=b"[%b] %b" % (name.encode(), decoded.text))


def decode(body: bytes, kind: str, encoding: bytes | None, limit: int) -> Decoded:
    """The batch in `body`; `kind` is one of `KINDS`' values.

    Raises `InvalidInput`, `TooLarge` (more than `limit` bytes of text, or too many
    lines), `HttpError` 415 (an encoding we do not know).
    """
    if encoding is not None and encoding != b"identity":
        inflate = INFLATERS.get(encoding.strip().lower())
        if inflate is None:
            raise HttpError(415, f"Content-Encoding {encoding.decode('latin-1')!r} is not known")
        body = inflate(body, limit, "body")
    if len(body) > limit and kind != "json":
        raise TooLarge(f"more than {limit} bytes of text", field="body")
    if kind == "text":
        return _lines(*as_lines(body))
    if kind == "records":
        return _records(body, limit)
    return _decode_json(body, limit, announced=kind == "json")


KINDS: dict[bytes | None, str] = {
    b"application/json": "json",
    b"application/json; charset=utf-8": "json",
    b"text/plain": "text",
    b"text/plain; charset=utf-8": "text",
    b"application/x-ndjson": "records",
    b"application/ndjson": "records",
}


def kind_of(content_type: bytes | None) -> str:
    """The form that a Content-Type announces; `sniff` without one. Raises `HttpError` 415."""
    if content_type is None:
        return "sniff"
    essence, _, parameters = content_type.partition(b";")
    kind = KINDS.get(essence.strip().lower())
    charset = parameters.strip().lower().replace(b'"', b"")
    if kind is None or (
        charset.startswith(b"charset=") and charset not in (b"charset=utf-8", b"charset=us-ascii")
    ):
        raise HttpError(415, f"Content-Type {content_type.decode('latin-1')[:100]!r} is not taken")
    return kind


def _lines(text: bytes, replaced: int, connector: str | None = None) -> Decoded:
    lines = count_lines(text)
    if lines > MAX_LINES:
        raise TooLarge(f"{lines} lines; a batch has at most {MAX_LINES}", field="logs")
    return Decoded(text, lines, lines, connector, None, replaced)


def _records(body: bytes, limit: int) -> Decoded:
    if count_lines(body) > MAX_LINES:
        raise TooLarge(f"a batch has at most {MAX_LINES} records", field="body")
    body, replaced = valid_utf8(body)
    text, meta, more = parse_records(body)
    if len(text) > limit:
        raise TooLarge(f"more than {limit} bytes of text", field="body")
    return Decoded(text, len(meta.ends), count_lines(text), None, meta, replaced + more)


def _decode_json(body: bytes, limit: int, *, announced: bool) -> Decoded:
    value, replaced = _load(body, announced=announced)
    if type(value) is dict:
        return _decode_object(value, replaced, limit)
    if type(value) is not str:
        raise InvalidInput(_FORMAT, field="body", hint=_JSON_HINT)
    return _decode_text(value, replaced, limit, None)


def _load(body: bytes, *, announced: bool) -> tuple[Any, int]:
    """The JSON value, and how many bytes of it were not UTF-8."""
    if not body:
        return "", 0
    try:
        return orjson.loads(body), 0
    except orjson.JSONDecodeError:
        pass
    # Not UTF-8, or a lone surrogate: orjson refuses both, the standard parser takes them.
    fixed, replaced = valid_utf8(body)
    try:
        return json.loads(fixed, parse_constant=_refuse), replaced
    except (ValueError, RecursionError) as error:
        if not announced:
            raise HttpError(415, "no Content-Type, and the body is not JSON") from error
        raise InvalidInput(f"not JSON: {error}", field="body", hint=_JSON_HINT) from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _decode_object(value: dict[str, Any], replaced: int, limit: int) -> Decoded:
    connector = _connector(value.get("connectorId"))
    logs = value.get("logs")
    if logs is None or logs == "":
        opens = connector is not None and "logs" not in value and "timestamp" in value
        return Decoded(b"", 0, 0, connector, None, replaced, opens)
    if type(logs) is not str:
        raise InvalidInput(f"{_FORMAT}: `logs` is not a string", field="logs", hint=_JSON_HINT)
    if not _flag(value.get("compressed")):
        return _decode_text(logs, replaced, limit, connector)
    text, more = as_lines(gunzip(_unbase64(logs), limit, "logs"))
    return _lines(text, replaced + more, connector)


def _decode_text(value: str, replaced: int, limit: int, connector: str | None) -> Decoded:
    raw, more = encode_text(value)
    if len(raw) > limit:
        raise TooLarge(f"more than {limit} bytes of text", field="logs")
    if raw and not raw.endswith(b"\n"):
        raw += b"\n"
    return _lines(raw, replaced + more, connector)


def _connector(value: object) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > 1024:
        raise InvalidInput(
            f"{_FORMAT}: `connectorId` is not a string of up to 1024 characters",
            field="connectorId",
        )
    return encode_text(value)[0].decode()


def _flag(value: object) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidInput(f"{_FORMAT}: `compressed` is neither true nor false", field="compressed")
    return value


def _unbase64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidInput(
            f"`logs` is not base64: {error}",
            field="logs",
            hint="With `compressed` true, `logs` is base64 of gzip of UTF-8 text.",
        ) from error
