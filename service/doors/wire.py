"""Walks over the fields of messages in the wire format of protocol buffers, without objects.

A parser makes objects of a hundred bytes from fields of two, so a body of 64 MiB could become
gigabytes. A message that repeats a field is therefore cut into windows of whole fields. Each window
is a valid message of the same type, and is parsed alone. Fields are listed as two offsets each.

Most messages of a window have the same few fields. `decode_columns` decodes them side by side: the
first field of each message, then the second one, with NumPy. It takes a tenth of the time of a
parser's objects. It returns None for messages outside of that pattern, which are left to a parser.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tailrace.logstore.errors import InvalidInput, TooLarge

Ints: TypeAlias = NDArray[np.int64]

WINDOW: Final = 64 << 10
"""Bytes that a parser makes objects of at once."""
WIDE_WINDOW: Final = 256 << 10
"""Bytes that are decoded side by side."""
_MOST_OF_WINDOW: Final = 2048
"""Fields of a window, however small they are."""
MOST_FIELD: Final = 2 << 20
"""One field that is parsed at once, such as a record, is not larger."""
_MOST_FIELDS: Final = 2_000_000
_MESSAGE_FIELDS: Final = 4
"""Fields that a message counts for, which is walked through or parsed alone."""
_ASK_EVERY: Final = 4096
_LONGEST_VARINT: Final = 10
_COLUMN_VARINT: Final = 9
"""Bytes of a varint in a column: such a number is below 2**63."""
_MOST_IN_ROW: Final = 48
"""Fields of a message that are decoded side by side."""
_PADDING: Final = bytes(16)
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""
_FIXED: Final = {FIXED64: 8, FIXED32: 4}


class Span(NamedTuple):
    """A field, and where its value begins and ends."""

    number: int
    kind: int
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
        at = start
        while at < end:
            self._meet(1)
            found = self._field(at, end)
            at = found.end
            if found.number == number:
                yield found

    def joined(self, number: int, start: int, end: int) -> bytes:
        """Returns the values of a field that should stand once, which protobuf merges.

        Raises `TooLarge`.
        """
        return self._together(self.fields(number, start, end))

    def _together(self, spans: Iterable[Span]) -> bytes:
        pieces: list[bytes] = []
        size = 0
        for span in spans:
            size += span.end - span.start
            if size > MOST_FIELD:
                raise TooLarge(f"a field has more than {MOST_FIELD} bytes", field="body")
            pieces.append(self.data[span.start : span.end])
        return b"".join(pieces)

    def split(self, single: int, repeated: int, start: int, end: int) -> tuple[bytes, FieldSpans]:
        """Returns the fields `single` as `joined` does, and where the fields `repeated` stand.

        The repeated ones are messages. Raises as `fields` and `joined`.
        """
        self.spend(_MESSAGE_FIELDS)
        data, wanted, met, at = self.data, repeated << 3 | BYTES, 0, start
        starts, ends, singles = array("q"), array("q"), list[Span]()
        while at < end:
            if met == _ASK_EVERY:
                self._meet(met)
                met = 0
            met += 1
            size = data[at + 1] if data[at] == wanted and at + 2 < end else 0x80
            if size < 0x80:  # nearly all fields: a size of one byte or two
                begin = at + 2
                at = begin + size
            elif data[at] == wanted and at + 2 < end and data[at + 2] < 0x80:
                begin = at + 3
                at = begin + (data[at + 2] << 7) + size - 0x80
            else:
                found = self._field(at, end)
                begin, at = found.start, found.end
                if found.number == single and len(singles) < _MOST_OF_WINDOW:
                    singles.append(found)
                if found.number != repeated or found.kind != BYTES:
                    continue
            starts.append(begin)
            ends.append(at)
        if at > end:
            raise _cut()
        self._meet(met)
        many = len(singles) == _MOST_OF_WINDOW
        one = self.joined(single, start, end) if many else self._together(singles)
        return one, FieldSpans(data, repeated, starts, ends)

    def _meet(self, count: int) -> None:
        before = self._left
        self.spend(count)
        if before // _ASK_EVERY != self._left // _ASK_EVERY:
            self._go_on()

    def _field(self, at: int, end: int) -> Span:
        """Returns the field at an offset. Raises `InvalidInput`."""
        data, first = self.data, at
        tag, at = _varint(data, first, end)
        kind = tag & 7
        begin = at
        if kind == BYTES:
            size, begin = _varint(data, at, end)
            at = begin + size
        elif kind == VARINT:
            _, at = _varint(data, at, end)
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            raise InvalidInput(f"the message has a field of wire type {kind}", field="body")
        if at > end or tag < 8:
            raise _cut()
        return Span(tag >> 3, kind, begin, at)


@dataclass(frozen=True, slots=True)
class FieldSpans:
    """Where the values of a repeated field begin and end."""

    data: bytes
    number: int
    starts: Sequence[int]
    ends: Sequence[int]

    def windows(self, size: int = WINDOW, most: int = _MOST_OF_WINDOW) -> Iterator[FieldSpans]:
        """Yields at most so many of them that have about `size` bytes. Raises `TooLarge`."""
        starts, ends, at = self.starts, self.ends, 0
        while at < len(starts):
            if ends[at] - starts[at] > MOST_FIELD:
                raise TooLarge(f"a record has more than {MOST_FIELD} bytes", field="body")
            stop = bisect_right(ends, starts[at] + size, at + 1, min(at + most, len(ends)))
            yield FieldSpans(self.data, self.number, starts[at:stop], ends[at:stop])
            at = stop

    def message(self) -> bytes:
        """Returns a message that has these fields alone."""
        pieces: list[bytes] = []
        for start, end in zip(self.starts, self.ends, strict=True):
            pieces += (encode_size(self.number, end - start), self.data[start:end])
        return b"".join(pieces)


def encode_size(number: int, size: int) -> bytes:
    """Returns what stands before the value of a field that has a size."""
    return bytes((number << 3 | BYTES,)) + encode_varint(size)


def encode_varint(value: int) -> bytes:
    """Returns a number as protocol buffers write it."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


# --- Messages side by side ----------------------------------------------------------------------


class FieldColumn(NamedTuple):
    """A field of some messages: `rows` are their numbers, in order.

    The value is a number, or the bytes from `starts` to before `ends`.
    """

    rows: Ints
    starts: Ints
    ends: Ints
    numbers: Ints

    def spans(self, count: int) -> tuple[list[int], list[int]]:
        """Returns where the value of each of `count` messages begins and ends; empty without."""
        starts, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
        starts[self.rows], ends[self.rows] = self.starts, self.ends
        return starts.tolist(), ends.tolist()

    def values(self, count: int) -> Ints:
        """Returns the number of each of `count` messages; 0 without."""
        found = np.zeros(count, np.int64)
        found[self.rows] = self.numbers
        return found


def decode_columns(
    data: bytes,
    starts: Sequence[int] | Ints,
    ends: Sequence[int] | Ints,
    kinds: Mapping[int, int],
    repeated: int = 0,
) -> dict[int, FieldColumn] | None:
    """Returns the fields of messages with the wire types `kinds`, by number; others are skipped.

    Only the field `repeated` may occur more than once in a message. None: a message has another
    pattern, is cut, or has a number of 2**63 or above.
    """
    stop, at = np.array(ends, np.int64), np.array(starts, np.int64)
    if not len(at):
        return dict.fromkeys(kinds, _NO_COLUMN)
    origin = int(at[0])
    held = np.frombuffer(data[origin : int(stop[-1])] + _PADDING, np.uint8)
    at, stop, rows = at - origin, stop - origin, np.arange(len(at))
    found: dict[int, list[FieldColumn]] = {number: [] for number in kinds}
    for _ in range(_MOST_IN_ROW):
        live = at < stop
        if not live.all():
            at, stop, rows = at[live], stop[live], rows[live]
        if not len(at):
            return _joined(found, origin, repeated)
        tags = held[at]
        following = np.empty_like(at)
        for tag in [int(tags[0])] if (tags == tags[0]).all() else np.unique(tags).tolist():
            some = np.flatnonzero(tags == tag)
            number, kind = tag >> 3, tag & 7
            step = _step(held, at[some] + 1, kind) if 8 <= tag < 0x80 else None
            if step is None or kinds.get(number, kind) != kind:
                return None
            begin, end, value = step
            if (end > stop[some]).any() or (end < begin).any():
                return None
            if number in found:
                found[number].append(FieldColumn(rows[some], begin, end, value))
            following[some] = end
        at = following
    return None


def _step(held: NDArray[np.uint8], at: Ints, kind: int) -> tuple[Ints, Ints, Ints] | None:
    """Returns where values of this wire type begin and end, and the numbers that they are."""
    if kind in _FIXED:
        size = _FIXED[kind]
        places = at[:, None] + np.arange(size)
        raw = held[np.minimum(places, len(held) - 1)].view("<u8" if kind == FIXED64 else "<u4")
        numbers = raw.reshape(-1).astype(np.int64)
        return None if (numbers < 0).any() else (at, at + size, numbers)
    if kind not in (VARINT, BYTES):
        return None
    byte = held[at]
    value, begin = (byte & 0x7F).astype(np.int64), at + 1
    longer = np.flatnonzero(byte & 0x80)
    for more in range(1, _COLUMN_VARINT):
        if not len(longer):
            break
        byte = held[begin[longer]]
        value[longer] |= (byte & 0x7F).astype(np.int64) << (7 * more)
        begin[longer] += 1
        longer = longer[(byte & 0x80) != 0]
    if len(longer):
        return None
    return begin, begin if kind == VARINT else begin + np.minimum(value, len(held)), value


_NOTHING: Final = np.zeros(0, np.int64)
_NO_COLUMN: Final = FieldColumn(_NOTHING, _NOTHING, _NOTHING, _NOTHING)


def _joined(
    found: Mapping[int, Sequence[FieldColumn]], origin: int, repeated: int
) -> dict[int, FieldColumn] | None:
    columns: dict[int, FieldColumn] = {}
    for number, pieces in found.items():
        if not pieces:
            columns[number] = _NO_COLUMN
            continue
        rows, starts, ends, numbers = map(np.concatenate, zip(*pieces, strict=True))
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        if number != repeated and (rows[1:] == rows[:-1]).any():
            return None
        columns[number] = FieldColumn(
            rows, starts[order] + origin, ends[order] + origin, numbers[order]
        )
    return columns


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
