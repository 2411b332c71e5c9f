r"""Decodes JSON bodies and text: an envelope with long strings, ndjson records, lines in UTF-8.

The text of an envelope may be long and its structure may not: `{"logs": "64 MiB of it"}`. A parser
makes objects of brackets and commas, so 64 KB of gzip can become millions of objects. The structure
is therefore measured before anything is parsed. From a large document the long strings are cut out
first, by searching for quotes. The rest must be small and is parsed. A long string is decoded piece
by piece, so that no step takes long.

Records are one JSON object per line:

    {"message": "…", "ts": <RFC 3339 | epoch s | epoch ms>, "level": "…", "attributes": {…}}

Only `message` is required. `level` is any spelling that `tailrace.logstore.segments.levels` knows.
An unknown level is kept as the attribute `level`, or `level_text` if the record has an attribute of
that name, and the receipt names it. Each message gets one newline at its end, whatever it ends
with, so its exact text can be returned; newlines inside stay. Records are decoded in groups, and
their metadata is held encoded, so that the parser's objects never cover a whole body.

Text becomes lines: valid UTF-8 that ends with a newline. A byte order mark at the start is left
out. UTF-16 that was not declared is refused. Bytes that are not UTF-8, and surrogates without their
other half (JSON can write them), become U+FFFD and are counted. `\r`, NUL and empty lines stay as
they are.

Invariants: linear in the body; at most `_STRUCTURE` objects and `_REST` bytes besides long strings;
no step holds the interpreter's lock for more than a few milliseconds.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from service.http.body import Bounds
from service.journal.format import MetaColumns
from tailrace.logstore.batch import RecordMeta
from tailrace.logstore.errors import InvalidInput, TooLarge
from tailrace.logstore.segments.file_format import LEVELS
from tailrace.logstore.segments.levels import NO_LEVEL, level_of_value

# --- Text as lines ------------------------------------------------------------------------------


_LONG_TEXT = 2048
# Text is scanned in pieces: a step of this size holds the interpreter's lock for a millisecond.
_TEXT_PIECE = 1 << 20
_LEAD = 0xC0
_HEAD = 64  # bytes at the start in which UTF-16 is recognised
_MARKED_HEAD = 4 << 10  # with a mark: text that is mostly not ASCII has a space or newline by then
_FEWEST = 4
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_REPLACEMENT_BYTES = _REPLACEMENT.encode()


def as_lines(raw: bytes) -> tuple[bytes, int]:
    """Returns `raw` as whole lines, and the number of replaced characters."""
    replaced = 0
    if not raw.isascii():
        raw, replaced = valid_utf8(raw)
    return (raw if raw.endswith(b"\n") or not raw else raw + b"\n"), replaced


def without_mark(raw: bytes, field: str) -> bytes:
    """Returns text in UTF-8 without a byte order mark. Raises `InvalidInput` if it is UTF-16."""
    if raw.startswith(codecs.BOM_UTF8):
        return raw[len(codecs.BOM_UTF8) :]
    marked = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if (marked and 0 in raw[:_MARKED_HEAD]) or _has_nul_pairs(raw):
        raise InvalidInput(
            "the text is UTF-16, which the request does not declare",
            field=field,
            hint="Send UTF-8, or name the charset: `text/plain; charset=utf-16le`. For a file of a"
            " forwarder, set `encoding: utf-16le` or `utf-16be`.",
        )
    return raw


def _has_nul_pairs(raw: bytes) -> bool:
    """Returns true if one byte of each pair is NUL at the start, as in UTF-16 of ASCII."""
    head = raw[:_HEAD]
    if len(head) < _FEWEST or 0 not in head:
        return False
    high, low = head[0::2], head[1::2]
    return (any(high) and not any(low) and 0 not in high) or (
        any(low) and not any(high) and 0 not in low
    )


def count_lines(text: bytes) -> int:
    """Counts the newlines. NumPy compares 64 bytes at once.

    `bytes.count` calls the C library for each newline.
    """
    if len(text) < _LONG_TEXT:
        return text.count(b"\n")
    held = np.frombuffer(text, dtype=np.uint8)
    if len(text) <= _TEXT_PIECE:
        return int(np.count_nonzero(held == ord("\n")))
    return sum(
        int(np.count_nonzero(held[start : start + _TEXT_PIECE] == ord("\n")))
        for start in range(0, len(text), _TEXT_PIECE)
    )


def valid_utf8(raw: bytes) -> tuple[bytes, int]:
    """Returns `raw` if it is UTF-8, else with U+FFFD for invalid bytes, and the number of those."""
    if len(raw) <= _TEXT_PIECE:
        return _valid_piece(raw)
    fixed: list[bytes] = []
    at = replaced = 0
    while at < len(raw):
        end = whole_before(raw, min(at + _TEXT_PIECE, len(raw)))
        piece, more = _valid_piece(raw[at:end])
        fixed.append(piece)
        replaced += more
        at = end
    return (b"".join(fixed) if replaced else raw), replaced


def whole_before(raw: bytes, stop: int) -> int:
    """Returns `stop`, or up to three bytes before it, where no character of UTF-8 is split."""
    if stop < len(raw):
        for at in range(stop - 1, max(stop - 4, 0), -1):
            if raw[at] >= _LEAD:
                return at
    return stop


def _valid_piece(raw: bytes) -> tuple[bytes, int]:
    try:
        raw.decode()
    except UnicodeDecodeError:
        fixed = raw.decode("utf-8", "replace").encode()
        return fixed, fixed.count(_REPLACEMENT_BYTES) - raw.count(_REPLACEMENT_BYTES)
    return raw, 0


def encode_text(text: str) -> tuple[bytes, int]:
    """Encodes a string that may hold lone surrogates; also returns the number of those replaced."""
    try:
        return text.encode(), 0
    except UnicodeEncodeError:
        # UTF-16 joins the halves of a pair; a lone half is replaced on the way back.
        fixed = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return fixed.encode(), fixed.count(_REPLACEMENT) - text.count(_REPLACEMENT)


def shown(text: bytes) -> str:
    """Returns a run's text as a string, also an unchecked text that OpenMetadata wrote."""
    return text.decode("utf-8", "replace")


SMALL = 64 << 10
"""A document up to this size is parsed at once: it cannot become large."""
_MIDDLE = 1 << 20
_LONG_ENVELOPE = 512 << 10
_REST = 1 << 20
_STRUCTURE = 20_000
_ENVELOPE_PIECE = 256 << 10
_RUN = 64
_ASK_EVERY = 1024
# The longest escape: a pair of surrogates.
_ESCAPE = 12
_BACKSLASH = ord("\\")
_ENVELOPE_HINT = 'Send a JSON string, or an object such as {"logs": "text", "connectorId": "me"}.'
_HIGH = re.compile(rb"\\u[dD][89abAB]..")


class NotJson(InvalidInput):
    """The error for a document that does not parse."""


class LongString(NamedTuple):
    """The position of the inside of a JSON string in a body."""

    body: bytes
    start: int
    end: int

    def raw(self) -> Iterator[bytes]:
        """Yields the raw string in pieces that split neither an escape nor a character."""
        at = self.start
        while at < self.end:
            cut = _cut(self.body, at, min(at + _ENVELOPE_PIECE, self.end), self.end)
            yield self.body[at:cut]
            at = cut

    def text(self, bounds: Bounds, field: str) -> tuple[bytes, int]:
        """Returns the text in UTF-8, and the number of replaced characters.

        Raises `NotJson`, `TooLarge`.
        """
        found: list[bytes] = []
        size = replaced = 0
        for piece in self.raw():
            bounds.go_on()
            value, more = parse(b'"%b"' % piece)
            text, again = encode_text(value)
            replaced += more + again
            size += len(text)
            if size > bounds.text_bytes:
                raise TooLarge(f"more than {bounds.text_bytes} bytes of text", field=field)
            found.append(text)
        return b"".join(found), replaced


class ParsedBody(NamedTuple):
    """A JSON value with "" for the strings that were cut out, and those strings by their key.

    If the document is only a long string, that string has the key None. `replaced` counts
    characters of the rest that were not UTF-8.
    """

    value: Any
    long: dict[str | None, LongString]
    replaced: int


def load(body: bytes, bounds: Bounds) -> ParsedBody:
    """Parses the document in `body`. Raises `NotJson`, `InvalidInput`, `TooLarge`."""
    if len(body) <= SMALL or (len(body) <= _MIDDLE and structure(body) <= _STRUCTURE):
        value, replaced = parse(body)
        return ParsedBody(value, {}, replaced)
    strings: list[LongString] = []
    pieces: list[bytes] = []
    for piece in _cut_up(body, bounds):
        if isinstance(piece, LongString):
            strings.append(piece)
            pieces.append(b"")
        else:
            pieces.append(piece)
    value, replaced = parse(b"".join(pieces))
    if not strings:
        return ParsedBody(value, {}, replaced)
    # A second parse has a number in place of each string that was cut out; it shows their keys.
    numbers = iter(range(len(strings)))
    marked, _ = parse(b"".join(p or b"%d" % next(numbers) for p in pieces))
    long = _found(value, marked, strings)
    for name, string in long.items():
        if name is not None and name not in ("logs", "message"):
            string.text(bounds, name)  # unused, as a short string would be, but it must be valid
    return ParsedBody(value, long, replaced)


def parse(body: bytes) -> tuple[Any, int]:
    """Returns a JSON value and the number of characters that were not UTF-8. Raises `NotJson`."""
    try:
        return orjson.loads(body), 0
    except orjson.JSONDecodeError as error:
        wrong = str(error)
    # Not UTF-8, or a lone surrogate: orjson refuses both, the standard parser takes them. It is
    # slow, and holds the interpreter's lock.
    fixed, replaced = valid_utf8(body)
    if structure(fixed) > _STRUCTURE:
        try:
            return orjson.loads(fixed), replaced
        except orjson.JSONDecodeError:
            raise NotJson(f"not JSON: {wrong}", field="body", hint=_ENVELOPE_HINT) from None
    try:
        return json.loads(fixed, parse_constant=_refuse), replaced
    except (ValueError, RecursionError) as error:
        raise NotJson(f"not JSON: {error}", field="body", hint=_ENVELOPE_HINT) from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def structure(piece: bytes) -> int:
    """Returns an upper bound of the number of values in the piece."""
    if len(piece) < SMALL:
        return piece.count(b",") + piece.count(b"[") + piece.count(b"{")
    held = np.frombuffer(piece, dtype=np.uint8)
    return sum(int(np.count_nonzero(held == ord(sign))) for sign in ",[{")


def _cut_up(body: bytes, bounds: Bounds) -> Iterator[bytes | LongString]:
    """Yields the document's pieces in order: structure with short strings, and the long strings."""
    at = rest = values = count = 0
    after_long = False
    while at < len(body):
        count += 1
        if count % _ASK_EVERY == 0:
            bounds.go_on()
        quote = body.find(b'"', at)
        stop = quote if quote >= 0 else len(body)
        rest += stop - at
        if rest <= _REST:
            gap = body[at:stop]
            values += structure(gap)
        if rest > _REST or values > _STRUCTURE:
            raise _too_much()
        if after_long and gap.lstrip().startswith(b":"):
            raise TooLarge(f"a key of more than {_LONG_ENVELOPE} bytes", field="body")
        if quote < 0:
            yield gap
            return
        end = string_end(body, quote + 1)
        after_long = end - quote > _LONG_ENVELOPE
        if after_long:
            yield gap + b'"'
            yield LongString(body, quote + 1, end)
            yield b'"'
        else:
            rest += end - quote
            yield body[at : end + 1]
        at = end + 1


def _too_much() -> InvalidInput:
    return InvalidInput(
        f"the JSON has more than {_STRUCTURE} values, or {_REST} bytes, beside its text",
        field="body",
        hint="Nothing but `logs` (of a record: `message`) may be long. Send lines as text/plain, "
        "or records as application/x-ndjson.",
    )


def string_end(body: bytes, start: int) -> int:
    """Returns the position of the string's closing quote. Raises `NotJson`."""
    end = body.find(b'"', start)
    if end <= start or body[end - 1] != _BACKSLASH:
        return end if end >= 0 else _unended()
    held = np.frombuffer(body, dtype=np.uint8)
    for at in range(end, len(body), _ENVELOPE_PIECE):
        quotes = at + np.flatnonzero(held[at : at + _ENVELOPE_PIECE] == ord('"'))
        backslashes = _backslashes(held, quotes, start)
        for quote in quotes[(backslashes % 2 == 0) | (backslashes == _RUN)].tolist():
            if not _escaped(body, start, quote):
                return int(quote)
    return _unended()


def _backslashes(
    held: NDArray[np.uint8], places: NDArray[np.int64], start: int
) -> NDArray[np.int64]:
    """Counts the backslashes before each place, none before `start`, and at most `_RUN`."""
    found = np.zeros(len(places), dtype=np.int64)
    going_on = np.arange(len(places))
    for back in range(1, _RUN + 1):
        before = np.maximum(places[going_on] - back, start - 1)  # a quote stands before `start`
        going_on = going_on[held[before] == _BACKSLASH]
        if len(going_on) == 0:
            break
        found[going_on] = back
    return found


def _unended() -> int:
    raise NotJson("not JSON: a string does not end", field="body", hint=_ENVELOPE_HINT)


def _cut(body: bytes, start: int, stop: int, end: int) -> int:
    """Returns a place at or before `stop` where neither an escape nor a character is split."""
    if stop == end:
        return end
    escape = body.rfind(b"\\", max(start, stop - _ESCAPE), stop)
    if escape < 0:
        return whole_before(body, stop)
    if _escaped(body, start, escape):
        return escape + 1
    pair = escape - _ESCAPE // 2
    if pair > start and _HIGH.match(body, pair) and not _escaped(body, start, pair):
        return pair
    return escape


def _escaped(body: bytes, start: int, at: int) -> bool:
    """Returns true if a backslash escapes the character at `at`: an odd number precedes it."""
    size = 64
    while True:
        before = body[max(start, at - size) : at]
        backslashes = len(before) - len(before.rstrip(b"\\"))
        if backslashes < len(before) or at - size <= start:
            return backslashes % 2 == 1
        size *= 8


def _found(value: Any, marked: Any, strings: list[LongString]) -> dict[str | None, LongString]:
    """Returns the strings that were cut out, by key. Raises `TooLarge` if one is nested deeper."""
    if type(value) is dict:
        found: dict[str | None, LongString] = {
            name: strings[int(marked[name])]
            for name, item in value.items()
            if type(item) is str and marked[name] != item
        }
    else:
        found = {None: strings[int(marked)]} if type(value) is str else {}
    if len(found) < len(strings):
        raise TooLarge(
            f"a string of more than {_LONG_ENVELOPE} bytes inside a list or an inner object",
            field="body",
        )
    return found


# --- Records ------------------------------------------------------------------------------------


_RECORDS_HINT = 'Each line is an object such as {"message": "text", "ts": "2026-01-31T12:00:00Z"}.'
# Numbers below this are epoch seconds, above it milliseconds: 5138 in seconds, 1973 in ms.
_MILLISECONDS_FROM = 1e11
_MAX_MICROSECONDS = 253_402_300_799_999_999
_MOST_UNKNOWN = 10  # levels that a receipt names
_LONGEST_UNKNOWN = 32  # characters of each of these levels


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
    """Decodes the records of a body. Raises `InvalidInput`, `TooLarge`."""
    texts: list[bytes] = []
    columns = MetaColumns()
    unknown: dict[str, None] = {}
    size = count = replaced = 0
    for window in line_windows(body):
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


def line_windows(body: bytes) -> Iterator[bytes]:
    """Splits the body at lines into pieces of at most `SMALL` bytes, or one line that is longer."""
    at = 0
    while at < len(body):
        end = len(body)
        if end - at > SMALL:
            end = body.rfind(b"\n", at, at + SMALL) + 1 or body.find(b"\n", at + SMALL) + 1
        yield body[at : end or len(body)]
        at = end or len(body)


def _meta(some: _Some, first: int, base: int, unknown: dict[str, None]) -> RecordMeta:
    """Returns the records' metadata; `base` is the offset of their text in the batch's.

    Adds some of the unknown levels to `unknown`.
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
    """Keeps unknown levels as attributes."""
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

    Decodes line by line only after an error, to name the line.
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
        # Compared before the conversion to an integer: 1e308 times a thousand has none.
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
    if isinstance(value, str) and value in LEVELS:  # so most clients write it
        return value
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
    """Returns an attribute's value as it is kept: a text unchanged, anything else as JSON.

    Raises `orjson.JSONEncodeError`.
    """
    return item if isinstance(item, str) else orjson.dumps(item).decode()


def _invalid(number: int, message: str) -> InvalidInput:
    return InvalidInput(f"record {number} {message}", field=f"body[{number}]", hint=_RECORDS_HINT)
