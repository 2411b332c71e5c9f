"""Decodes the body of an append to the text of a batch, in every form that the route accepts.

| Content-Type | body |
| --- | --- |
| `application/json`, or none | a JSON string, or an object with `logs` |
| `text/plain` | raw lines |
| `text/plain; charset=utf-8; attributes=header` | raw lines, see `parse_attributes` |
| `application/x-ndjson` | records, see `service/http/json_body.py` |

Each form may have `Content-Encoding: gzip` or `zstd`, and a `charset`, from which it is converted
to UTF-8. `logs` with `compressed` true is base64 of gzip. OpenMetadata's `lineCount` and
`timestamp` are wrong in its own client (one too many; renewed on a retry), so both are ignored. Its
first clients open a run with an object that has `connectorId` and `timestamp` but no `logs`.

The module also inflates bodies within limits, and decodes the header `Tailrace-Attributes`. All
functions are pure functions of bytes: the append route calls them in a thread for large bodies.
"""

from __future__ import annotations

import binascii
import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import orjson
import zstandard
from isal import isal_zlib

from service.http.body import Bounds
from service.http.errors import HttpError
from service.http.json_body import (
    LongString,
    NotJson,
    ParsedBody,
    as_lines,
    attribute_text,
    count_lines,
    encode_text,
    load,
    parse,
    parse_records,
    without_mark,
)
from tailrace.logstore.errors import InvalidInput, TooLarge
from tailrace.logstore.ulid import MAX_LINES

# Decompression stops at a limit, so a bomb costs the limit and not its inflated size.
#
# Data is inflated in pieces: the size is known before the data is held, and the caller can end the
# work between two pieces. gzip may have several members, each followed by zeros. Other bytes after
# the last member, or a missing end, are errors. The number of members, frames and blocks is
# limited too: an empty one makes no text and still costs its set-up.


# Input of one call: at the end of each member, isal copies the rest of this input.
_WINDOW_IN = 256 << 10
_PIECE = 1 << 20
# BGZF, the smallest members in use, has 64 KiB in each: 1,000 in the largest batch.
_MEMBERS = 10_000
# A block holds up to 128 KiB; a client that flushes after each line makes one block a line.
_BLOCKS = 1 << 18
_ASK_EVERY = 4096
# isal's stubs do not declare that it is an exception.
_IsalError: type[Exception] = isal_zlib.error  # type: ignore[assignment]
_WINDOW = 8 << 20
_SKIPPABLE = b"\x2a\x4d\x18"
_RUN_LENGTH = 1
_GZIP = 16 + isal_zlib.MAX_WBITS


def gunzip(data: Iterable[bytes], bounds: Bounds, field: str) -> bytes:
    """Returns the inflated bytes. Raises `InvalidInput`, or `TooLarge` past the text limit."""
    found: list[bytes] = []
    size = members = 0
    stream: Any = None
    try:
        for given in data:
            bounds.go_on()
            rest = given
            while rest := _unpadded(rest) if stream is None and members else rest:
                if stream is None:
                    stream = isal_zlib.decompressobj(wbits=_GZIP)
                    members += 1
                    if members > _MEMBERS:
                        raise _too_many("gzip members", _MEMBERS, field)
                piece = stream.decompress(rest, _PIECE)
                size = _count(size, piece, bounds, field)
                found.append(piece)
                while len(piece) == _PIECE and not stream.eof and not stream.unconsumed_tail:
                    piece = stream.decompress(b"", _PIECE)  # output that did not fit before
                    size = _count(size, piece, bounds, field)
                    found.append(piece)
                if stream.eof:
                    rest, stream = stream.unused_data, None
                else:
                    rest = stream.unconsumed_tail
    except _IsalError as error:
        raise InvalidInput(f"not gzip: {error}", field=field, hint=_COMPRESSION_HINT) from error
    if stream is not None:
        raise InvalidInput("the gzip data ends early", field=field, hint=_COMPRESSION_HINT)
    return b"".join(found)


def _unpadded(rest: bytes) -> bytes:
    """Returns the data after a member, without the zeros that pad tapes and blocks."""
    return rest.lstrip(b"\0")


def unzstd(data: bytes, bounds: Bounds, field: str) -> bytes:
    """Returns the inflated bytes. Raises `InvalidInput`, or `TooLarge` past the text limit."""
    pieces: list[bytes] = []
    size = 0
    try:
        _check_frames(data, bounds, field)
        # A frame can make us allocate its window at once.
        context = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        with context.stream_reader(data, read_across_frames=True) as reader:
            while piece := reader.read(_PIECE):
                bounds.go_on()
                size = _count(size, piece, bounds, field)
                pieces.append(piece)
    except zstandard.ZstdError as error:
        raise InvalidInput(f"not zstd: {error}", field=field, hint=_COMPRESSION_HINT) from error
    return b"".join(pieces)


def _check_frames(data: bytes, bounds: Bounds, field: str) -> None:
    """Checks frames and blocks (RFC 8878, section 3.1), since the reader accepts truncated data."""
    at = steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps > _BLOCKS:
            raise _too_many("zstd frames and blocks", _BLOCKS, field)
        if steps % _ASK_EVERY == 0:
            bounds.go_on()

    while at < len(data):
        step()
        if data[at + 1 : at + 4] == _SKIPPABLE and data[at] >> 4 == 5:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        head = data[at : at + 18]
        has_checksum = zstandard.get_frame_parameters(head).has_checksum
        at += zstandard.frame_header_size(head)
        last = 0
        while not last:
            step()
            header = int.from_bytes(data[at : at + 3], "little")
            last, kind, length = header & 1, header >> 1 & 3, header >> 3
            at += 3 + (1 if kind == _RUN_LENGTH else length)
            if at > len(data):
                raise InvalidInput("the zstd data ends early", field=field, hint=_COMPRESSION_HINT)
        at += 4 if has_checksum else 0
    if at > len(data):
        raise InvalidInput("the zstd data ends early", field=field, hint=_COMPRESSION_HINT)


def _count(size: int, piece: bytes, bounds: Bounds, field: str) -> int:
    bounds.go_on()
    size += len(piece)
    if size > bounds.text_bytes:
        raise TooLarge(f"more than {bounds.text_bytes} bytes once decompressed", field=field)
    return size


def _too_many(what: str, limit: int, field: str) -> InvalidInput:
    return InvalidInput(
        f"more than {limit} {what}", field=field, hint="Compress the body as one stream."
    )


def _gunzip_whole(data: bytes, bounds: Bounds, field: str) -> bytes:
    return gunzip(windows(data), bounds, field)


def windows(data: bytes) -> Iterator[bytes]:
    """Splits the data into pieces, each the input of one step."""
    for start in range(0, len(data), _WINDOW_IN):
        yield data[start : start + _WINDOW_IN]


_COMPRESSION_HINT = "Check that the data was compressed as announced and arrived whole."
INFLATERS: dict[bytes, Callable[[bytes, Bounds, str], bytes]] = {
    b"gzip": _gunzip_whole,
    b"x-gzip": _gunzip_whole,
    b"zstd": unzstd,
}


# `Tailrace-Attributes` holds the attributes that each line of a text batch has:
#
#   Tailrace-Attributes: {"log.file.name": "app.log", "region": "eu"}
#
# The value is one JSON object in ASCII; other characters are JSON escapes. A value that is not a
# string is kept as its JSON, as in records.
#
# A service that does not know the header would store the lines without it. A client that must
# notice this sends `text/plain; charset=utf-8; attributes=header`. An old service answers that
# with 415, and so does this one if the header did not arrive. The client may then send the lines as
# records.


FIELD: Final = "Tailrace-Attributes"
MOST_BYTES: Final = 8 << 10
MOST_ATTRIBUTES: Final = 64
TEXT_AND_ATTRIBUTES: Final = b"text/plain; charset=utf-8; attributes=header"
_ASKS: Final = TEXT_AND_ATTRIBUTES.replace(b" ", b"")
_ATTRIBUTES_HINT = 'One JSON object in ASCII, such as {"region": "eu", "name": "M\\u00fcller"}.'


def parse_attributes(value: bytes, kind: str) -> dict[str, str]:
    """Decodes the header of a request whose body is of this kind; `KINDS` has the kinds.

    Raises `InvalidInput`, `TooLarge`.
    """
    if kind != "text":
        raise InvalidInput(
            f"{FIELD} is there, and the body is not text",
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
    """Returns true if a Content-Type announces the header."""
    if len(content_type) < len(_ASKS):
        return False
    plain = content_type.lower().replace(b" ", b"").replace(b'"', b"")
    return plain == _ASKS


def check_not_announced(content_type: bytes | None) -> None:
    """Raises `HttpError` 415 if a Content-Type announces a header that did not arrive."""
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
    return InvalidInput(f"{FIELD} {message}", field=FIELD, hint=_ATTRIBUTES_HINT)


# OpenMetadata's message for JSON of the wrong shape.
_FORMAT = "Invalid log data format"
_JSON_HINT = 'Send a JSON string, or an object such as {"logs": "text", "connectorId": "me"}.'


class Decoded(NamedTuple):
    """Text of whole lines (empty: nothing to store), and its metadata.

    `meta` is the metadata of records as the journal stores it, or nothing for plain lines.
    `unknown_levels` are some of the levels in the records that Tailrace does not know.
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
    """Returns the batch as OpenMetadata stores it: its first line begins with the sender."""
    if decoded.connector is None:
        return decoded
    name = decoded.connector.replace("\n", " ")
    return decoded._replace(text=b"[%b] %b" % (name.encode(), decoded.text))


def decode(
    body: bytes, kind: str, encoding: bytes | None, bounds: Bounds, charset: str | None = None
) -> Decoded:
    """Decodes the batch in `body`; `kind` is one of the values of `KINDS`.

    `charset` is the encoding if it is not UTF-8. Raises `InvalidInput`, `TooLarge` (more text than
    `bounds` allow, or too many lines), `HttpError` 415 (an unknown encoding), and the errors of
    `bounds.go_on`.
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
    """Decodes a body that is uncompressed UTF-8."""
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
"""Codecs of text that no body may have as its charset."""
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
    """Returns the form that a Content-Type names; `sniff` without one. Raises `HttpError` 415."""
    if content_type is None:
        return "sniff"
    if asks_for_attributes(content_type):
        return "text"
    kind = KINDS.get(content_type.partition(b";")[0].strip().lower())
    if kind is None:
        raise HttpError(415, f"Content-Type {content_type.decode('latin-1')[:100]!r} is not taken")
    return kind


def charset_of(content_type: bytes | None) -> str | None:
    """Returns the codec of a body that is not UTF-8.

    Raises `HttpError` 415 for an unknown charset.
    """
    if content_type is None or content_type in KINDS:
        return None
    found = _CHARSET.search(content_type)
    if found is None:
        return None
    name = found[1].decode("latin-1")
    try:
        codec = codecs.lookup(name)
        "".encode(name)  # refuses codecs that do not encode text
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
    """Returns the body in UTF-8 and the number of replaced characters."""
    text = body.decode(charset, "replace")
    raw, more = encode_text(text)
    return raw, more + text.count("\N{REPLACEMENT CHARACTER}")


def _lines(bounds: Bounds, text: bytes, replaced: int, connector: str | None = None) -> Decoded:
    if len(text) > bounds.text_bytes + 1:  # replaced text is longer; one newline is tolerated
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
