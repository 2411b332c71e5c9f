"""Some lines of a row group, by its map (`line_map`).

Pages are decompressed one by one, and of each only the values of the lines are looked at, where
they lie. A page of messages is decompressed into memory that is used again for the next, so that
the system does not make room for each.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import zstandard
from numpy.typing import NDArray

from logstore.errors import Damaged
from logstore.table.pages.line_map import EVERY, LINE, LineMap, PagePlace

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
        """The first `size` bytes of a page, until the next one is asked for. Raises `Damaged`.

        What is behind them is of other pages.
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

    They lie from `begin` to before `end`, each behind its length (4, little-endian).
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
        """The numbers in the row group of messages that have one of these places, and their bytes.

        Both are in order. A place within a length is one of the message behind it. Raises
        `Damaged` if the page is not what the map is of.
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
