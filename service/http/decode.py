"""Decodes a request's body to the text of a batch, in every form that the append route accepts.

| Content-Type | body |
| --- | --- |
| `application/json`, or none | a JSON string, or an object with `logs` |
| `text/plain` | raw lines |
| `text/plain; charset=utf-8; attributes=header` | raw lines, see `attributes.py` |
| `application/x-ndjson` | records, see `records.py` |

Each may have `Content-Encoding: gzip` or `zstd`, and a `charset`, from which it is turned into
UTF-8. `logs` with `compressed` true is base64 of gzip. OpenMetadata's `lineCount` and
`timestamp` are wrong in its own client (one too many; renewed on a retry), so both are ignored. An
object with `connectorId` and `timestamp` and without `logs` is how its first clients open a run.

All are pure functions of bytes: the append route calls them in a thread for large bodies.
"""

from __future__ import annotations

import binascii
import codecs
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from logstore.errors import InvalidInput, TooLarge
from logstore.ulid import MAX_LINES
from service.http.attributes import TEXT_AND_ATTRIBUTES, asks_for_attributes
from service.http.body import Bounds
from service.http.envelope import LongString, NotJson, ParsedBody, load, parse
from service.http.errors import HttpError
from service.http.inflate import INFLATERS, gunzip, windows
from service.http.records import parse_records
from service.http.text import as_lines, count_lines, encode_text, without_mark

# OpenMetadata's message for JSON of the wrong shape.
_FORMAT = "Invalid log data format"
_JSON_HINT = 'Send a JSON string, or an object such as {"logs": "text", "connectorId": "me"}.'


class Decoded(NamedTuple):
    """Text of whole lines (empty: nothing to store), and its metadata.

    `meta` is what records carry, as the journal stores it, or nothing for plain lines.
    `unknown_levels` are some levels that records state and that are none of ours.
    `opens` marks the empty call with which a gen-1 client of OpenMetadata begins.
    """

    text: bytes
    records: int
    lines: int
    connector: str | None = None
    meta: bytes = b""
    replaced: int = 0
    opens: bool = False
    unknown_levels: Sequence[str] = ()


def prefixed(decoded: Decoded) -> Decoded:
    """The batch as OpenMetadata stores it: its first line begins with who sent it."""
    if decoded.connector is None:
        return decoded
    name = decoded.connector.replace("\n", " ")
    return decoded._replace(text=b"[%b] %b" % (name.encode(), decoded.text))


def decode(
    body: bytes, kind: str, encoding: bytes | None, bounds: Bounds, charset: str | None = None
) -> Decoded:
    """Decodes the batch in `body`; `kind` is one of the values of `KINDS`, `charset` not UTF-8.

    Raises `InvalidInput`, `TooLarge` (more text than `bounds` allow, or too many lines),
    `HttpError` 415 (an unknown encoding), and what `bounds.go_on` raises.
    """
    if encoding is not None and encoding != b"identity":
        inflate = INFLATERS.get(encoding.strip().lower())
        if inflate is None:
            raise HttpError(415, f"Content-Encoding {encoding.decode('latin-1')!r} is not known")
        body = inflate(body, bounds, "body")
    replaced = 0
    if charset is not None:
        body, replaced = _transcoded(body, charset)
    decoded = _decode(without_mark(body, "body"), kind, bounds)
    return decoded._replace(replaced=decoded.replaced + replaced) if replaced else decoded


def _decode(body: bytes, kind: str, bounds: Bounds) -> Decoded:
    """Decodes what is UTF-8 without compression."""
    if len(body) > bounds.text_bytes and kind != "json":
        raise TooLarge(f"more than {bounds.text_bytes} bytes of text", field="body")
    if kind == "text":
        return _lines(bounds, *as_lines(body))
    if kind == "records":
        return _records(body, bounds)
    return _decode_json(body, bounds, announced=kind == "json")


_CHARSET: Final = re.compile(rb';\s*charset\s*=\s*"?([^\s";]+)', re.IGNORECASE)
_NO_CHARSETS: Final = frozenset(
    ("idna", "punycode", "raw_unicode_escape", "unicode_escape", "undefined", "utf-7", "utf-8-sig")
)
"""Codecs of text that are no charset of a body."""
KINDS: dict[bytes | None, str] = {
    b"application/json": "json",
    b"application/json; charset=utf-8": "json",
    b"text/plain": "text",
    b"text/plain; charset=utf-8": "text",
    TEXT_AND_ATTRIBUTES: "text",
    b"application/x-ndjson": "records",
    b"application/ndjson": "records",
}


def kind_of(content_type: bytes | None) -> str:
    """The form of a Content-Type; `sniff` without one. Raises `HttpError` 415."""
    if content_type is None:
        return "sniff"
    if asks_for_attributes(content_type):
        return "text"
    kind = KINDS.get(content_type.partition(b";")[0].strip().lower())
    if kind is None:
        raise HttpError(415, f"Content-Type {content_type.decode('latin-1')[:100]!r} is not taken")
    return kind


def charset_of(content_type: bytes | None) -> str | None:
    """The codec of a body that is not UTF-8. Raises `HttpError` 415 for an unknown charset."""
    if content_type is None or content_type in KINDS:
        return None
    found = _CHARSET.search(content_type)
    if found is None:
        return None
    name = found[1].decode("latin-1")
    try:
        codec = codecs.lookup(name)
        "".encode(name)  # refuses codecs that are not of text
    except LookupError:
        codec = None
    if codec is None or codec.name in _NO_CHARSETS:
        raise HttpError(
            415,
            f"the charset {name[:80]!r} is not known",
            hint=f"Send UTF-8, or one of the charsets that Python has instead of {name[:80]!r}, "
            "such as ISO-8859-1, windows-1252, UTF-16 or Shift_JIS.",
        )
    return None if codec.name in ("utf-8", "ascii") else codec.name


def _transcoded(body: bytes, charset: str) -> tuple[bytes, int]:
    """The body in UTF-8, and how many characters of it had to be replaced."""
    text = body.decode(charset, "replace")
    raw, more = encode_text(text)
    return raw, more + text.count("\N{REPLACEMENT CHARACTER}")


def _lines(bounds: Bounds, text: bytes, replaced: int, connector: str | None = None) -> Decoded:
    if len(text) > bounds.text_bytes + 1:  # what was replaced is longer; a newline is no matter
        raise TooLarge(f"more than {bounds.text_bytes} bytes of text", field="logs")
    lines = count_lines(text)
    if lines > MAX_LINES:
        raise TooLarge(f"{lines} lines; a batch has at most {MAX_LINES}", field="logs")
    return Decoded(text, lines, lines, connector, replaced=replaced)


def _records(body: bytes, bounds: Bounds) -> Decoded:
    if count_lines(body) > MAX_LINES:
        raise TooLarge(f"a batch has at most {MAX_LINES} records", field="body")
    text, meta, count, replaced, unknown = parse_records(body, bounds)
    lines = count_lines(text)
    return Decoded(text, count, lines, None, meta, replaced, unknown_levels=unknown)


def _decode_json(body: bytes, bounds: Bounds, *, announced: bool) -> Decoded:
    document = _load(body, bounds, announced=announced)
    value = document.value
    if type(value) is dict:
        return _decode_object(value, document, bounds)
    if type(value) is not str:
        raise InvalidInput(_FORMAT, field="body", hint=_JSON_HINT)
    return _decode_text(document.long.get(None, value), document.replaced, bounds, None)


def _load(body: bytes, bounds: Bounds, *, announced: bool) -> ParsedBody:
    if not body:
        return ParsedBody("", {}, 0)
    try:
        return load(body, bounds)
    except NotJson as error:
        if not announced:
            raise HttpError(415, "no Content-Type, and the body is not JSON") from error
        raise


def _decode_object(value: dict[str, Any], document: ParsedBody, bounds: Bounds) -> Decoded:
    replaced = document.replaced
    connector = _connector(document.long.get("connectorId") or value.get("connectorId"))
    logs = document.long.get("logs") or value.get("logs")
    if logs is None or logs == "":
        opens = connector is not None and "logs" not in value and "timestamp" in value
        return Decoded(b"", 0, 0, connector, replaced=replaced, opens=opens)
    if not isinstance(logs, str | LongString):
        raise InvalidInput(f"{_FORMAT}: `logs` is not a string", field="logs", hint=_JSON_HINT)
    if not _flag(value.get("compressed")):
        return _decode_text(logs, replaced, bounds, connector)
    text, more = as_lines(without_mark(gunzip(_unbase64(logs), bounds, "logs"), "logs"))
    return _lines(bounds, text, replaced + more, connector)


def _decode_text(
    value: str | LongString, replaced: int, bounds: Bounds, connector: str | None
) -> Decoded:
    if isinstance(value, str):
        raw, more = encode_text(value)
        if len(raw) > bounds.text_bytes:
            raise TooLarge(f"more than {bounds.text_bytes} bytes of text", field="logs")
    else:
        raw, more = value.text(bounds, "logs")
    raw = without_mark(raw, "logs")
    if raw and not raw.endswith(b"\n"):
        raw += b"\n"
    return _lines(bounds, raw, replaced + more, connector)


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


def _unbase64(logs: str | LongString) -> Iterator[bytes]:
    """Decodes base64, in pieces. Raises `InvalidInput` for invalid text."""
    rest = b""
    try:
        pieces = iter([logs.encode("ascii")]) if isinstance(logs, str) else _plain(logs)
        piece = next(pieces, b"")
        while piece:
            following = next(pieces, b"")
            rest += piece
            whole = len(rest) - len(rest) % 4 if following else len(rest)
            if following and b"=" in rest[:whole]:
                raise binascii.Error("padding before its end")
            yield from windows(binascii.a2b_base64(rest[:whole], strict_mode=True))
            rest, piece = rest[whole:], following
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidInput(
            f"`logs` is not base64: {error}",
            field="logs",
            hint="With `compressed` true, `logs` is base64 of gzip of UTF-8 text.",
        ) from error


def _plain(string: LongString) -> Iterator[bytes]:
    """A long string of ASCII as bytes. Raises `UnicodeEncodeError` for other characters."""
    for piece in string.raw():
        # base64 needs no escapes, but `/` may have one.
        yield parse(b'"%b"' % piece)[0].encode("ascii") if b"\\" in piece else piece
