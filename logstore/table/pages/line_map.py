"""Where the lines of a row group lie in its file, so that single ones are read.

With a map a reader decompresses pages and takes values out of them, instead of decoding all:
messages are searched as they lie there, and in which line a text is found in a few steps. What is
the same for all lines of a batch, or one more from line to line, and levels, are in the map itself.

    length of the JSON (4, little-endian)
    JSON         {"messages": [[at, stored, size, rows, begin], …], "times": […],
                  "names": [text or null, …], "stretches": their number, "carried": text}
    the rest     compressed by Zstandard:
      stretches  of all the first bytes, then of all the second ones, and so on
      anchors    of each page of messages: the places in it of rows 0, 8, … (4 each), as
                 differences to the one before, in the order of stretches
      levels     of each row, the number of its name (1)

    at           the place of the page's body in the file
    stored       its bytes there, as Zstandard compressed them
    size         its bytes when decompressed
    rows         of the page
    begin        where values begin in it, behind the definition levels
    carried      base64 of a bit for each row, first the lowest one of a byte, compressed by
                 Zstandard: the line continues the record before it. Not there if no line does

A stretch (`STRETCH`) is a part of a batch: from its first row on ULID and position rise by one from
row to row, pipeline, run and connector stay; they are numbers of names.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import zstandard
from numpy.typing import NDArray

from logstore.errors import Damaged

EVERY: Final = 8
"""Rows between two anchors."""
MOST_LEVELS: Final = 1 << 8
MOST_NAMES: Final = 1 << 16
STRETCH: Final = np.dtype(
    [
        *(("row", "<u4"), ("hi", "<u8"), ("lo", "<u8"), ("pos", "<i8")),
        *(("fqn", "<u2"), ("run_id", "<u2"), ("connector_id", "<u2")),
    ]
)
LINE: Final = np.dtype(
    [
        *(("hi", "<u8"), ("lo", "<u8"), ("ts", "<i8"), ("pos", "<i8")),
        *(("fqn", "<u4"), ("run_id", "<u4"), ("level", "<u4"), ("connector_id", "<u4")),
        ("carried", "?"),
    ]
)
"""A line without its message: upper and lower half of its ULID, time in µs, numbers of names.

`carried`: it continues the record before it.
"""
_ANCHOR: Final = np.dtype("<u4")
_LENGTH_BYTES: Final = 4
_ZSTANDARD_LEVEL: Final = 15  # levels of lines become a fifth smaller than with 3
_MOST_BYTES: Final = 64 << 20


class PagePlace(NamedTuple):
    """A page, as in the map."""

    at: int
    stored: int
    size: int
    rows: int
    begin: int


@dataclass(frozen=True, slots=True, eq=False)
class LineMap:
    """The map of one row group.

    `anchors` are those of each page of messages, `levels` and those of `stretches` numbers of
    `names`. `carried` says which lines continue others; it is empty if none does.
    """

    messages: Sequence[PagePlace]
    times: Sequence[PagePlace]
    names: Sequence[str | None]
    stretches: NDArray[Any]
    anchors: Sequence[NDArray[np.uint32]]
    levels: NDArray[np.uint8]
    carried: NDArray[np.bool_]

    @property
    def rows(self) -> int:
        """Of the row group."""
        return len(self.levels)

    def span(self, wanted: Mapping[str, str]) -> tuple[int, int]:
        """The first row with these names, by column, and the one behind the last.

        Between them may be others.
        """
        ours = np.ones(len(self.stretches), np.bool_)
        for column, name in wanted.items():
            if name not in self.names:
                return 0, 0
            ours &= self.stretches[column] == self.names.index(name)
        numbers = np.flatnonzero(ours)
        if not len(numbers):
            return 0, 0
        ends = [*self.stretches["row"][1:].tolist(), self.rows]
        return int(self.stretches["row"][numbers[0]]), ends[numbers[-1]]

    def message_pages(
        self, first: int, behind: int
    ) -> Iterator[tuple[int, PagePlace, NDArray[np.uint32]]]:
        """The pages of messages that have rows from `first` to before `behind`.

        Each with its own first row and its anchors.
        """
        row = 0
        for page, anchors in zip(self.messages, self.anchors, strict=True):
            if row < behind and first < row + page.rows:
                yield row, page, anchors
            row += page.rows

    def extent(self, wanted: Mapping[str, str]) -> tuple[int, int] | None:
        """Where in the file pages begin and end that hold messages and times of `span`, if any."""
        first, behind = self.span(wanted)
        pages = [page for _, page, _ in self.message_pages(first, behind)]
        if not pages:
            return None
        pages += self.times
        return min(page.at for page in pages), max(page.at + page.stored for page in pages)

    def equals(self, other: LineMap) -> bool:
        """Whether both say the same, however they were compressed."""
        return self._parts() == other._parts()

    def encoded(self) -> bytes:
        """The map as it is stored."""
        text, rest = self._parts()
        packed = zstandard.ZstdCompressor(level=_ZSTANDARD_LEVEL).compress(rest)
        return b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, packed])

    def _parts(self) -> tuple[bytes, bytes]:
        """The JSON and what is behind it."""
        header: dict[str, Any] = {
            "messages": [list(page) for page in self.messages],
            "times": [list(page) for page in self.times],
            "names": self.names,
            "stretches": len(self.stretches),
        }
        if len(self.carried):
            bits = np.packbits(self.carried, bitorder="little").tobytes()
            packed = zstandard.ZstdCompressor(level=_ZSTANDARD_LEVEL).compress(bits)
            header["carried"] = base64.b64encode(packed).decode()
        anchors = np.concatenate([np.diff(each, prepend=0) for each in self.anchors])
        parts = [_turned(self.stretches), _turned(anchors.astype(_ANCHOR)), self.levels.tobytes()]
        return orjson.dumps(header), b"".join(parts)

    @classmethod
    def decoded(cls, body: bytes) -> LineMap:
        """The map of these bytes, whose hash was compared. Raises `Damaged`."""
        begin = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "little")
        try:
            header = orjson.loads(body[_LENGTH_BYTES:begin])
            rest = zstandard.ZstdDecompressor().decompress(
                body[begin:], max_output_size=_MOST_BYTES
            )
            messages, times = (
                [PagePlace(*page) for page in header[name]] for name in ("messages", "times")
            )
            count = header["stretches"]
            stretches = _read(rest, 0, STRETCH, count)
            at, counts = count * STRETCH.itemsize, [-(-page.rows // EVERY) for page in messages]
            steps = _read(rest, at, _ANCHOR, sum(counts))
            anchors = [np.cumsum(each) for each in np.split(steps, np.cumsum(counts)[:-1])]
            levels = np.frombuffer(rest, np.uint8, offset=at + len(steps) * _ANCHOR.itemsize)
            carried = _bits(header.get("carried"), len(levels))
        except (IndexError, KeyError, TypeError, ValueError, zstandard.ZstdError) as error:
            raise Damaged("a map of lines does not read") from error
        return cls(messages, times, header["names"], stretches, anchors, levels, carried)


def _bits(text: str | None, count: int) -> NDArray[np.bool_]:
    """A bit for each of the rows; none without a text. Raises `ValueError`."""
    if text is None:
        return np.empty(0, np.bool_)
    size = -(-count // 8)
    packed = base64.b64decode(text, validate=True)
    body = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size)
    if len(body) != size:
        raise ValueError("not a bit for each row")
    bits = np.unpackbits(np.frombuffer(body, np.uint8), count=count, bitorder="little")
    return bits.astype(np.bool_)


def _turned(values: NDArray[Any]) -> bytes:
    """The first bytes of all values, then the second ones, and so on."""
    width = values.dtype.itemsize
    return np.frombuffer(values.tobytes(), np.uint8).reshape(-1, width).T.tobytes()


def _read(data: bytes, at: int, kind: np.dtype[Any], count: int) -> NDArray[Any]:
    """The values of `_turned`."""
    width = kind.itemsize
    turned = np.frombuffer(data, np.uint8, count * width, at).reshape(width, count)
    return np.frombuffer(turned.T.tobytes(), kind)
