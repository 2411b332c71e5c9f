"""Parses JSON whose text may be long and whose structure may not: `{"logs": "64 MiB of it"}`.

A parser makes objects of brackets and commas: 64 KB of gzip can become millions of them.
The structure is therefore measured before anything is parsed. From a large document
the long strings are cut out first, by searching for quotes; the rest must be small,
and is parsed. A long string is decoded piece by piece, so that no step takes long.

Invariants: linear in the body; at most `_STRUCTURE` objects and `_REST` bytes beside long
strings; no step holds the interpreter's lock for more than a few milliseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from logstore.errors import InvalidInput, TooLarge
from service.http.body import Bounds
from service.http.text import encode_text, valid_utf8, whole_before

SMALL = 64 << 10
"""A document up to this size is parsed as it is: it cannot become much."""
_MIDDLE = 1 << 20
_LONG = 512 << 10
_REST = 1 << 20
_STRUCTURE = 20_000
_PIECE = 256 << 10
_RUN = 64
_ASK_EVERY = 1024
# The longest escape: a pair of surrogates.
_ESCAPE = 12
_BACKSLASH = ord("\\")
_HINT = 'Send a JSON string, or an object such as {"logs": "text", "connectorId": "me"}.'
_HIGH = re.compile(rb"\\u[dD][89abAB]..")


class NotJson(InvalidInput):
    """The error for a document that does not parse."""


class LongString(NamedTuple):
    """The place of the inside of a JSON string in a body."""

    body: bytes
    start: int
    end: int

    def raw(self) -> Iterator[bytes]:
        """The raw string, in pieces that split neither an escape nor a character."""
        at = self.start
        while at < self.end:
            cut = _cut(self.body, at, min(at + _PIECE, self.end), self.end)
            yield self.body[at:cut]
            at = cut

    def text(self, bounds: Bounds, field: str) -> tuple[bytes, int]:
        """The text in UTF-8, and the number of replaced characters.

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
    """A JSON value, with "" for strings that were cut out, and those strings by their key.

    A document that is only a long string has that string under None. `replaced` counts
    characters of the rest that were not UTF-8.
    """

    value: Any
    long: dict[str | None, LongString]
    replaced: int


def load(body: bytes, bounds: Bounds) -> ParsedBody:
    """The document in `body`. Raises `NotJson`, `InvalidInput`, `TooLarge`."""
    if len(body) <= SMALL or (len(body) <= _MIDDLE and _structure(body) <= _STRUCTURE):
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
    # Where a string was cut out, the same document has another value with its number there.
    numbers = iter(range(len(strings)))
    marked, _ = parse(b"".join(p or b"%d" % next(numbers) for p in pieces))
    long = _found(value, marked, strings)
    for name, string in long.items():
        if name is not None and name not in ("logs", "message"):
            string.text(bounds, name)  # read past, as if it were short: but it must be a string
    return ParsedBody(value, long, replaced)


def parse(body: bytes) -> tuple[Any, int]:
    """A JSON value, and the number of characters that were not UTF-8. Raises `NotJson`."""
    try:
        return orjson.loads(body), 0
    except orjson.JSONDecodeError:
        pass
    # Not UTF-8, or a lone surrogate: orjson refuses both, the standard parser takes them.
    fixed, replaced = valid_utf8(body)
    try:
        return json.loads(fixed, parse_constant=_refuse), replaced
    except (ValueError, RecursionError) as error:
        raise NotJson(f"not JSON: {error}", field="body", hint=_HINT) from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _structure(piece: bytes) -> int:
    """The number of values that it may contain."""
    if len(piece) < SMALL:
        return piece.count(b",") + piece.count(b"[") + piece.count(b"{")
    held = np.frombuffer(piece, dtype=np.uint8)
    return sum(int(np.count_nonzero(held == ord(sign))) for sign in ",[{")


def _cut_up(body: bytes, bounds: Bounds) -> Iterator[bytes | LongString]:
    """The document's pieces in order: structure and short strings, and the long ones."""
    at = rest = structure = count = 0
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
            structure += _structure(gap)
        if rest > _REST or structure > _STRUCTURE:
            raise _too_much()
        if after_long and gap.lstrip().startswith(b":"):
            raise TooLarge(f"a key of more than {_LONG} bytes", field="body")
        if quote < 0:
            yield gap
            return
        end = _string_end(body, quote + 1)
        after_long = end - quote > _LONG
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


def _string_end(body: bytes, start: int) -> int:
    """The place of the string's closing quote. Raises `NotJson`."""
    end = body.find(b'"', start)
    if end <= start or body[end - 1] != _BACKSLASH:
        return end if end >= 0 else _unended()
    held = np.frombuffer(body, dtype=np.uint8)
    for at in range(end, len(body), _PIECE):
        quotes = at + np.flatnonzero(held[at : at + _PIECE] == ord('"'))
        backslashes = _backslashes(held, quotes, start)
        for quote in quotes[(backslashes % 2 == 0) | (backslashes == _RUN)].tolist():
            if not _escaped(body, start, quote):
                return int(quote)
    return _unended()


def _backslashes(
    held: NDArray[np.uint8], places: NDArray[np.int64], start: int
) -> NDArray[np.int64]:
    """The number of backslashes before each place, none before `start`, and at most `_RUN`."""
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
    raise NotJson("not JSON: a string does not end", field="body", hint=_HINT)


def _cut(body: bytes, start: int, stop: int, end: int) -> int:
    """A place at or a little before `stop` where neither an escape nor a character is split."""
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
    """Whether a backslash escapes the character at `at`: an odd number of them precedes it."""
    size = 64
    while True:
        before = body[max(start, at - size) : at]
        backslashes = len(before) - len(before.rstrip(b"\\"))
        if backslashes < len(before) or at - size <= start:
            return backslashes % 2 == 1
        size *= 8


def _found(value: Any, marked: Any, strings: list[LongString]) -> dict[str | None, LongString]:
    """The strings that were cut out, by key. Raises `TooLarge` if one is nested deeper."""
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
            f"a string of more than {_LONG} bytes inside a list or an inner object", field="body"
        )
    return found
