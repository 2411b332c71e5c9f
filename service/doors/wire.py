"""Walks over the fields of messages in the wire format of protocol buffers, without objects.

A parser makes objects of a hundred bytes from fields of two, so a body of 64 MiB could become
gigabytes. A message that repeats a field is therefore cut into windows of whole fields. Each window
is a valid message of the same type, and is parsed alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tailrace.logstore.errors import InvalidInput, TooLarge

WINDOW: Final = 64 << 10
MOST_FIELD: Final = 2 << 20
"""One field that is parsed at once, such as a record, is not larger."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10


class Span(NamedTuple):
    """A field: its number, its first byte, and the bytes of its value if it has a length."""

    number: int
    first: int
    start: int
    end: int


def fields(data: bytes, start: int, end: int) -> Iterator[Span]:
    """Yields the fields of the message in `data` from `start` to `end`. Raises `InvalidInput`."""
    at = start
    while at < end:
        first = at
        tag = data[at]
        at += 1
        if tag & 0x80:
            tag, at = _varint(data, first, end)
        kind = tag & 7
        if kind == _BYTES:
            if at >= end:
                raise _cut()
            size = data[at]
            at += 1
            if size & 0x80:
                size, at = _varint(data, at - 1, end)
            begin, at = at, at + size
        elif kind == _VARINT:
            begin = at
            _, at = _varint(data, at, end)
        elif kind in (_FIXED64, _FIXED32):
            begin, at = at, at + (8 if kind == _FIXED64 else 4)
        else:
            raise InvalidInput(f"the message has a field of wire type {kind}", field="body")
        if at > end or tag < 8:
            raise _cut()
        yield Span(tag >> 3, first, begin, at)


def windows(data: bytes, spans: list[Span]) -> Iterator[bytes]:
    """Yields the fields as messages of about `WINDOW` bytes. Raises `TooLarge` for a larger one."""
    pieces: list[bytes] = []
    size = 0
    for span in spans:
        length = span.end - span.first
        if length > MOST_FIELD:
            raise TooLarge(f"a record has more than {MOST_FIELD} bytes", field="body")
        if size + length > WINDOW and pieces:
            yield b"".join(pieces)
            pieces, size = [], 0
        pieces.append(data[span.first : span.end])
        size += length
    if pieces:
        yield b"".join(pieces)


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(end, at + _LONGEST_VARINT)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, place + 1
        shift += 7
    raise _cut()


def _cut() -> InvalidInput:
    return InvalidInput(
        "the body is no whole message of protocol buffers",
        field="body",
        hint="Check that it was compressed as announced and arrived whole.",
    )
