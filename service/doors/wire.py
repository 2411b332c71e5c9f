"""Walks over the fields of messages in the wire format of protocol buffers, without objects.

A parser makes objects of a hundred bytes from fields of two, so a body of 64 MiB could become
gigabytes. A message that repeats a field is therefore cut into windows of whole fields. Each window
is a valid message of the same type, and is parsed alone. Fields are found one by one, and never
listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tailrace.logstore.errors import InvalidInput, TooLarge

WINDOW: Final = 64 << 10
MOST_FIELD: Final = 2 << 20
"""One field that is parsed at once, such as a record, is not larger."""
_MOST_FIELDS: Final = 2_000_000
_MESSAGE_FIELDS: Final = 4
"""Fields that a message counts for, which is walked through or parsed alone."""
_ASK_EVERY: Final = 4096
_VARINT, _BYTES = 0, 2
_FIXED: Final = {1: 8, 5: 4}
_LONGEST_VARINT: Final = 10


class Span(NamedTuple):
    """A field: its first byte, and the bytes of its value if it has a length."""

    first: int
    start: int
    end: int


class FieldWalker:
    """Finds the fields of the messages in one body; calls `go_on` between them."""

    def __init__(self, data: bytes, go_on: Callable[[], None]) -> None:
        self.data = data
        self._go_on = go_on
        self._left = _MOST_FIELDS

    def spend(self, count: int) -> None:
        """Counts fields that a parser found. Raises `TooLarge` if there are too many in all."""
        self._left -= count
        if self._left <= 0:
            raise TooLarge(f"the body has more than {_MOST_FIELDS} fields", field="body")

    def fields(self, number: int, start: int, end: int) -> Iterator[Span]:
        """Yields the fields with this number of the message from `start` to `end`.

        Raises `InvalidInput`, and `TooLarge` if the walks meet too many fields in all.
        """
        self.spend(_MESSAGE_FIELDS)
        data, at = self.data, start
        while at < end:
            self._left -= 1
            if self._left % _ASK_EVERY == 0:
                self._go_on()
                self.spend(0)
            first = at
            tag = data[at]
            at += 1
            if tag & 0x80:
                tag, at = _varint(data, first, end)
            kind = tag & 7
            begin = at
            if kind == _BYTES:
                size = data[at] if at < end else 0x80  # which _varint refuses at the end
                at += 1
                if size & 0x80:
                    size, at = _varint(data, at - 1, end)
                begin, at = at, at + size
            elif kind == _VARINT:
                _, at = _varint(data, at, end)
            elif kind in _FIXED:
                at += _FIXED[kind]
            else:
                raise InvalidInput(f"the message has a field of wire type {kind}", field="body")
            if at > end or tag < 8:
                raise _cut()
            if tag >> 3 == number:
                yield Span(first, begin, at)

    def joined(self, number: int, start: int, end: int) -> bytes:
        """Returns the values of a field that should stand once, which protobuf merges.

        Raises `TooLarge`.
        """
        pieces: list[bytes] = []
        size = 0
        for span in self.fields(number, start, end):
            size += span.end - span.start
            if size > MOST_FIELD:
                raise TooLarge(f"a field has more than {MOST_FIELD} bytes", field="body")
            pieces.append(self.data[span.start : span.end])
        return b"".join(pieces)

    def windows(self, number: int, start: int, end: int) -> Iterator[bytes]:
        """Yields the fields as messages of about `WINDOW` bytes. Raises `TooLarge` for a larger."""
        pieces: list[bytes] = []
        size = begin = stop = 0
        for span in self.fields(number, start, end):
            length = span.end - span.first
            if length > MOST_FIELD:
                raise TooLarge(f"a record has more than {MOST_FIELD} bytes", field="body")
            full = size + length > WINDOW
            if span.first != stop or full:
                pieces.append(self.data[begin:stop])
                begin = span.first
            if full and size:
                yield b"".join(pieces)
                pieces, size = [], 0
            stop = span.end
            size += length
        if size:
            yield b"".join([*pieces, self.data[begin:stop]])


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
