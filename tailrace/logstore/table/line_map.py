"""Line maps: where the lines of a row group are in its file, so that single lines can be read.

A line map tells where each line is in the pages of a row group. A skip index stores it.
`GroupReader` reads single lines by it, without decoding the rest. `map_of` makes the map of a row
group, and compares the lines that it gives with those of Parquet's own reader. `stored_pages` reads
the headers of pages in Parquet's Thrift encoding.
"""

from __future__ import annotations

import base64
import ctypes
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import zstandard
from numpy.typing import NDArray

from tailrace.logstore import ulid
from tailrace.logstore.errors import Damaged
from tailrace.logstore.segments.file_format import CARRIED, parse, texts_of

# Places of a column's pages: the headers before them, in Thrift's compact protocol.
#
# The fields are those of `PageHeader` in parquet-format's `parquet.thrift`; of version 1 of data
# pages and of dictionaries, which parquet-mr and Arrow write unless they are configured otherwise.


PLAIN: Final = 0
DICTIONARY: Final = (2, 8)  # PLAIN_DICTIONARY, RLE_DICTIONARY
_RLE: Final = 3
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_DATA_HEADERS: Final = (5, 8)  # of data pages of version 1 and 2
# Thrift's types of fields.
_STOP, _TRUE, _BINARY, _STRUCT = 0, 1, 8, 12
_BOOLEANS, _INTEGERS, _LISTS = (1, 2), (4, 5, 6), (9, 10)
_SKIPPED_BYTES: Final = {3: 1, 7: 8}  # a byte, a double
_LONG_LIST: Final = 15


class UnknownPages(Exception):
    """Pages of a kind that this reader does not support."""


class ColumnPage(NamedTuple):
    """A page: where its body begins in the column's bytes, its size as stored and decompressed.

    It has this number of `values`, including nulls. `encoding` is Parquet's number for it.
    """

    dictionary: bool
    at: int
    stored: int
    size: int
    values: int
    encoding: int


class StoredPage(NamedTuple):
    """A page of any kind: where its body begins in the column's bytes, and its size as stored.

    `size` is that of header and body when decompressed, `crc` None if the page has none, and
    `header` the fields of its header by their numbers. `values` are 0 for a dictionary.
    """

    at: int
    stored: int
    size: int
    values: int
    crc: int | None
    header: Mapping[int, Any]


def stored_pages(column: bytes) -> Iterator[StoredPage]:
    """The pages in the bytes of a column of a row group. Raises `Damaged`."""
    begin = 0
    try:
        while begin < len(column):
            header, at = struct_at(column, begin)
            size, stored, crc = header[2], header[3], header.get(4)
            inner = next((header[n] for n in _DATA_HEADERS if n in header), None)
            values = 0 if inner is None else inner[1]
            if min(size, stored, values) < 0 or at + stored > len(column):
                raise Damaged("a page is longer than its column")
            yield StoredPage(at, stored, at - begin + size, values, crc, header)
            begin = at + stored
    except (IndexError, KeyError, TypeError, RecursionError, UnknownPages) as error:
        raise Damaged("the header of a page does not read") from error


def pages_of(column: bytes) -> list[ColumnPage]:
    """The pages in the bytes of a column of a row group. Raises `Damaged`, `UnknownPages`."""
    found = list[ColumnPage]()
    for one in stored_pages(column):
        kind, size = one.header[1], one.header[2]
        try:
            if kind == _DATA_PAGE:
                inner = one.header[5]
                if inner[3] != _RLE:
                    raise UnknownPages("definition levels of another encoding")
            elif kind == _DICTIONARY_PAGE:
                inner = one.header[7]
            else:
                raise UnknownPages(f"a page of type {kind}")
            page = ColumnPage(
                kind == _DICTIONARY_PAGE, one.at, one.stored, size, inner[1], inner[2]
            )
        except (KeyError, TypeError) as error:
            raise Damaged("the header of a page does not read") from error
        if min(page[1:]) < 0:
            raise Damaged("the header of a page does not read")
        found.append(page)
    return found


def struct_at(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Returns a structure: its values by the numbers of their fields, and where it ends.

    Raises `IndexError`, `RecursionError`, `UnknownPages` for other bytes.
    """
    fields: dict[int, Any] = {}
    number = 0
    while (head := data[at]) != _STOP:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            raw, at = _varint(data, at)
            number = _signed(raw)
        kind = head & 15
        if kind in _BOOLEANS:
            fields[number] = kind == _TRUE
        else:
            fields[number], at = _value(data, at, kind)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    """A value of that type, and where it ends; None for a number that nobody needs here."""
    if kind in _INTEGERS:
        raw, at = _varint(data, at)
        return _signed(raw), at
    if kind == _STRUCT:
        return struct_at(data, at)
    if kind == _BINARY:
        size, at = _varint(data, at)
        return data[at : at + size], at + size
    if kind in _SKIPPED_BYTES:
        return None, at + _SKIPPED_BYTES[kind]
    if kind not in _LISTS:
        raise UnknownPages(f"a field of Thrift's type {kind}")
    head = data[at]
    count, at = (head >> 4, at + 1) if head >> 4 != _LONG_LIST else _varint(data, at + 1)
    values = []
    for _ in range(count):
        if head & 15 in _BOOLEANS:  # a byte each
            value, at = data[at] == _TRUE, at + 1
        else:
            value, at = _value(data, at, head & 15)
        values.append(value)
    return values, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _signed(value: int) -> int:
    """The number of a zigzag."""
    return (value >> 1) ^ -(value & 1)


# The map of a row group.
#
# With a map a reader decompresses pages and takes values out of them, instead of decoding all:
# messages are searched in the page itself, and the line of a match is found in a few steps. The map
# itself has levels, values that are the same for all lines of a batch, and values that rise by one
# from line to line.
#
#   length of the JSON (4, little-endian)
#   JSON         {"messages": [[at, stored, size, rows, begin], …], "times": […],
#                 "names": [text or null, …], "stretches": their number, "carried": text}
#   the rest     compressed by Zstandard:
#     stretches  of all the first bytes, then of all the second ones, and so on
#     anchors    of each page of messages: the places in it of rows 0, 8, … (4 each), as
#                differences to the one before, in the order of stretches
#     levels     of each row, the number of its name (1)
#
#   at           the place of the page's body in the file
#   stored       its bytes in the file, as Zstandard compressed them
#   size         its bytes when decompressed
#   rows         of the page
#   begin        where values begin in it, after the definition levels
#   carried      base64 of a bit for each row, first the lowest one of a byte, compressed by
#                Zstandard: the line continues the record before it. Absent if no line does
#
# A stretch (`STRETCH`) is a part of a batch: from its first row on ULID and position rise by one
# from row to row, pipeline, run and connector stay; they are numbers of names.


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
    `names`. `carried` marks the lines that continue others; it is empty if none does.
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
        """Returns the first row with these names, by column, and the row after the last.

        Rows between them may have other names.
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
        """Returns the range of the file with messages and times of `span`; None without pages."""
        first, behind = self.span(wanted)
        pages = [page for _, page, _ in self.message_pages(first, behind)]
        if not pages:
            return None
        pages += self.times
        return min(page.at for page in pages), max(page.at + page.stored for page in pages)

    def equals(self, other: LineMap) -> bool:
        """Returns whether both maps have the same content, however they were compressed."""
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


# Reading single lines of a row group by its map.
#
# Pages are decompressed one by one, and only the values of the wanted lines are read, in place. All
# pages of messages are decompressed into the same memory, so that the system does not allocate
# pages for each.


Read: TypeAlias = Callable[[int, int], "bytes | memoryview"]
"""Gives bytes of the file from a place on, so many. Raises `OSError`."""

LENGTH_WIDTH: Final = 4
_LENGTH: Final = struct.Struct("<I")
_LEAST_KEPT: Final = 1 << 16  # bytes of a page
_LARGEST_KEPT: Final = 4 << 20


class Scratch:
    """A decompressor and the memory for its page, of one thread."""

    def __init__(self) -> None:
        self._zstandard = zstandard.ZstdDecompressor()
        self._page = bytearray(_LEAST_KEPT)

    def start(self, stored: bytes | memoryview, size: int) -> bytes:
        """The first `size` bytes of a page. Raises `Damaged`."""
        try:
            with self._zstandard.stream_reader(stored) as reader:
                return reader.read(size)
        except zstandard.ZstdError as error:
            raise Damaged(f"a page does not decompress: {error}") from error

    def page(self, stored: bytes | memoryview, size: int) -> bytearray:
        """Returns the first `size` bytes of a page, valid until the next call. Raises `Damaged`.

        The memory after them holds bytes of other pages.
        """
        page = self._page
        if len(page) < size:
            page = bytearray(size)
            if size <= _LARGEST_KEPT:
                self._page = page
        try:
            with self._zstandard.stream_reader(stored) as reader:
                read = reader.readinto(memoryview(page)[:size])
        except zstandard.ZstdError as error:
            raise Damaged(f"a page does not decompress: {error}") from error
        if read != size:
            raise Damaged(f"a page of {size} bytes has {read}")
        return page


class MessagePage(NamedTuple):
    """A page of messages: its first row in the row group, and its values in `data`.

    They are at `begin` to before `end`, each after its length (4, little-endian).
    """

    first: int
    rows: int
    data: bytearray
    begin: int
    end: int
    anchors: NDArray[np.uint32]

    @property
    def address(self) -> int:
        """Where `data` lies in memory."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.data))

    def at(self, places: Sequence[int]) -> tuple[list[int], list[bytes]]:
        """Returns the messages that contain these places: their row numbers and their bytes.

        Both are in order. A place within a length belongs to the message after it. Raises `Damaged`
        if the page is not the one that the map describes.
        """
        try:
            return self._at(places)
        except struct.error as error:
            raise Damaged("messages do not lie where they should") from error

    def _at(self, places: Sequence[int]) -> tuple[list[int], list[bytes]]:
        rows, messages = list[int](), list[bytes]()
        if not places:
            return rows, messages
        data, row, at = self.data, 0, self.begin
        length, places = _LENGTH.unpack_from, sorted(places)
        jumps = np.searchsorted(self.anchors, places, "right") - 1
        anchors = zip((jumps * EVERY).tolist(), self.anchors[jumps].tolist(), strict=True)
        for place, (anchored, begin) in zip(places, anchors, strict=True):
            if place < at:
                continue  # in the one before
            if anchored > row:
                row, at = anchored, begin
            while (end := at + LENGTH_WIDTH + length(data, at)[0]) <= place:
                row, at = row + 1, end
            if end > self.end or row >= self.rows:
                raise Damaged("messages do not lie where they should")
            rows.append(self.first + row)
            messages.append(bytes(data[at + LENGTH_WIDTH : end]))
            row, at = row + 1, end
        return rows, messages


class GroupReader:
    """The lines of one row group. For one thread, with its scratch memory."""

    def __init__(self, lines: LineMap, read: Read, scratch: Scratch) -> None:
        self._map = lines
        self._read = read
        self._scratch = scratch

    def message_pages(self, first: int, behind: int) -> Iterator[MessagePage]:
        """The pages that have rows from `first` to before `behind`; each until the next.

        Raises `Damaged`, `OSError`.
        """
        for row, place, anchors in self._map.message_pages(first, behind):
            data = self._page(place)
            yield MessagePage(row, place.rows, data, place.begin, place.size, anchors)

    def lines(self, rows: Sequence[int]) -> NDArray[Any]:
        """The lines (`LINE`) of these rows, which are in order. Raises `Damaged`, `OSError`."""
        stretches, numbers = self._map.stretches, np.array(rows, np.int64)
        found = np.empty(len(rows), LINE)
        of = stretches[np.searchsorted(stretches["row"], numbers, "right") - 1]
        behind = numbers - of["row"]
        found["hi"], found["lo"] = of["hi"], of["lo"] + behind.astype(np.uint64)
        found["pos"], found["level"] = of["pos"] + behind, self._map.levels[numbers]
        found["carried"] = self._map.carried[numbers] if len(self._map.carried) else False
        for name in ("fqn", "run_id", "connector_id"):
            found[name] = of[name]
        found["ts"] = self._times(numbers)
        return found

    def _times(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        found, first = np.empty(len(rows), np.int64), 0
        for place in self._map.times:
            here = (rows >= first) & (rows < first + place.rows)
            if here.any():
                if place.begin + place.rows * found.itemsize != place.size:
                    raise Damaged("times do not lie where they should")
                times = np.frombuffer(self._page(place), "<i8", place.rows, place.begin)
                found[here] = times[rows[here] - first]
            first += place.rows
        return found

    def _page(self, place: PagePlace) -> bytearray:
        stored = self._read(place.at, place.stored)
        if len(stored) < place.stored:
            raise OSError(f"the file is cut off at {place.at + len(stored)}")
        return self._scratch.page(stored, place.size)


# Making the map of a row group, if its pages are of the supported kinds.
#
# The map does not trust the writer: messages have to fill each page to the byte, and the values of
# one line of a thousand, and of messages at the anchors of the last page, are compared with those
# of Parquet's own reader.


MAPPED: Final = ("ulid", "ts", "fqn", "run_id", "pos", "level", "connector_id", "message")
"""The columns that a map knows of, and `CARRIED`. Attributes are left to Parquet's reader."""
_NAMES: Final = ("fqn", "run_id", "connector_id")  # of a stretch
_TYPES: Final = {"ts": pa.timestamp("us", "UTC"), "pos": pa.int64()}
_NULLABLE: Final = ("level", "connector_id")
_COMPARED: Final = 1_024  # one line of so many
_ULID_WIDTH: Final = 26


def map_of(footer: Any, index: int, rows: pa.Table, read: Read) -> LineMap | None:
    """Returns the map of a row group; None if its pages are of other kinds or in another order.

    `rows` are the columns `MAPPED` as Parquet's reader returns them, and `CARRIED` if the file has
    it.
    """
    if not {*MAPPED} <= {*rows.column_names}:
        return None
    making = _MapBuilder(footer, index, rows, read)
    try:
        made = making.made()
        return made if making.is_right(made) else None
    except (Damaged, UnknownPages):
        return None


class _MapBuilder:
    """The map of one row group while it is made."""

    def __init__(self, footer: Any, index: int, rows: pa.Table, read: Read) -> None:
        self._schema = footer.schema
        self._group = footer.row_group(index)
        self._numbers = {self._schema.column(n).path: n for n in range(len(self._schema))}
        self._rows = rows
        self._columns = {name: rows.column(name).combine_chunks() for name in MAPPED}
        self._names: dict[str | None, int] = {}
        self._read = read
        self._scratch = Scratch()

    def made(self) -> LineMap:
        """The map. Raises `Damaged`, `UnknownPages`."""
        for name, column in self._columns.items():
            if column.type != _TYPES.get(name, pa.string()):
                raise UnknownPages(f"{name} is of another type")
            if column.null_count and name not in _NULLABLE:
                raise UnknownPages(f"{name} has nulls")
        levels = self._codes("level")  # first: their numbers are small
        if len(self._names) > MOST_LEVELS:
            raise UnknownPages("there are too many levels")
        stretches = self._stretches()
        messages, times = self._places("message"), self._places("ts")
        names, anchors = list(self._names), self._anchors(messages)
        numbers, carried = levels.astype(np.uint8), self._carried()
        return LineMap(messages, times, names, stretches, anchors, numbers, carried)

    def _carried(self) -> NDArray[np.bool_]:
        """Which lines continue others; empty if none does."""
        if CARRIED not in self._rows.column_names:
            return np.empty(0, np.bool_)
        marks: NDArray[np.bool_] = self._rows.column(CARRIED).fill_null(False).to_numpy()
        return marks if marks.any() else marks[:0]

    def is_right(self, made: LineMap) -> bool:
        """Whether the map gives what Parquet's reader gives. Raises `Damaged`."""
        count, reader = self._rows.num_rows, GroupReader(made, self._read, self._scratch)
        rows = sorted({*range(0, count, _COMPARED), count - 1})
        expected = self._rows.select(MAPPED[:-1]).take(pa.array(rows))
        times = expected.column("ts").cast(pa.int64())
        values = expected.set_column(1, "ts", times).to_pylist()
        marks = made.carried[rows] if len(made.carried) else np.zeros(len(rows), np.bool_)
        lines = reader.lines(rows)
        if not np.array_equal(lines["carried"], marks):
            return False
        for line, value in zip(lines, values, strict=True):
            given = {name: made.names[line[name]] for name in (*_NAMES, "level")}
            given |= {name: int(line[name]) for name in ("ts", "pos")}
            if given | {"ulid": ulid.encode(int(line["hi"]) << 64 | int(line["lo"]))} != value:
                return False
        return self._has_messages(reader)

    def _codes(self, column: str) -> NDArray[np.int64]:
        """The number of each row's name; new names get one."""
        coded = self._columns[column].dictionary_encode("encode")
        texts = coded.dictionary.to_pylist()
        numbers = [self._names.setdefault(text, len(self._names)) for text in texts]
        codes: NDArray[np.int64] = np.array(numbers, np.int64)[coded.indices.to_numpy()]
        return codes

    def _stretches(self) -> NDArray[Any]:
        """Where ULID or position does not rise by one, or a name changes."""
        names = {name: self._codes(name) for name in _NAMES}
        if len(self._names) > MOST_NAMES:
            raise UnknownPages("there are too many names")
        texts = _texts(self._columns["ulid"])
        pos = self._columns["pos"].to_numpy()
        high, batch, line = parse(texts)
        rises = (np.diff(line) == 1) & (np.diff(pos) == 1)
        for same in (high, batch, *names.values()):
            rises &= same[1:] == same[:-1]
        firsts = np.flatnonzero(np.concatenate(([True], ~rises)))
        found = np.zeros(len(firsts), STRETCH)
        found["row"], found["pos"] = firsts, pos[firsts]
        found["hi"] = high[firsts]
        found["lo"] = batch[firsts] | line[firsts].astype(np.uint64)
        for name, codes in names.items():
            found[name] = codes[firsts]
        if not np.array_equal(texts_of(found["hi"], found["lo"]), texts[firsts]):
            raise UnknownPages("a ULID is none")
        return found

    def _places(self, name: str) -> Sequence[PagePlace]:
        """The pages of a column, all of which are plain."""
        number = self._numbers[name]
        chunk, levels = self._group.column(number), self._schema.column(number)
        if chunk.compression != "ZSTD" or levels.max_definition_level > 1:
            raise UnknownPages(f"{name} is stored in another way")
        at = chunk.data_page_offset
        data, places = self._read(at, chunk.total_compressed_size), list[PagePlace]()
        for page in pages_of(bytes(data)):
            if page.dictionary or page.encoding != PLAIN:
                raise UnknownPages(f"{name} has pages of encoding {page.encoding}")
            begin = 0
            if levels.max_definition_level:
                stored = data[page.at : page.at + page.stored]
                length = self._scratch.start(stored, LENGTH_WIDTH)
                begin = LENGTH_WIDTH + int.from_bytes(length, "little")
            places.append(PagePlace(at + page.at, page.stored, page.size, page.values, begin))
        return places

    def _anchors(self, pages: Sequence[PagePlace]) -> list[NDArray[np.uint32]]:
        """Where every eighth message begins in its page. Raises `UnknownPages`."""
        widths = pc.binary_length(self._columns["message"]).to_numpy() + LENGTH_WIDTH
        firsts = np.cumsum([0, *(page.rows for page in pages)]).tolist()
        found = []
        for page, (first, behind) in zip(pages, pairwise(firsts), strict=True):
            ends = page.begin + np.cumsum(widths[first:behind], dtype=np.int64)
            if not len(ends) or ends[-1] != page.size:
                raise UnknownPages("messages do not fill their page")
            found.append(np.concatenate(([page.begin], ends[:-1]))[::EVERY].astype(np.uint32))
        if firsts[-1] != len(widths):
            raise UnknownPages("there are other messages")
        return found

    def _has_messages(self, reader: GroupReader) -> bool:
        """Returns whether messages of the last page are at its anchors, and the last at its end."""
        count = self._rows.num_rows
        for page in reader.message_pages(count - 1, count):
            rows, messages = page.at([*page.anchors.tolist(), page.end - 1])
            expected = self._columns["message"].take(pa.array(rows)).to_pylist()
            if [message.decode() for message in messages] != expected:
                return False
            if rows[-1] != page.first + page.rows - 1:
                return False
        return True


def _texts(ulids: pa.StringArray) -> NDArray[np.uint8]:
    """The characters of ULIDs, a row for each."""
    if not pc.all(pc.equal(pc.binary_length(ulids), _ULID_WIDTH)).as_py():
        raise UnknownPages("a ULID has another width")
    _, _, data = ulids.buffers()
    begin, size = ulids.offset * _ULID_WIDTH, len(ulids) * _ULID_WIDTH
    return np.frombuffer(data, np.uint8, size, begin).reshape(-1, _ULID_WIDTH)
