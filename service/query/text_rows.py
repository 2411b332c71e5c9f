"""Which rows of a column of strings hold a text: by one look through the bytes of all of them.

The strings of a column lie one behind the other, so the C library finds a text in them at the
speed of memory, and lets other threads work meanwhile. A text may be found across the end of a
string: such a row is a candidate like others, which only the search's condition decides on.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

_memmem: Final = ctypes.CDLL(None).memmem
_memmem.restype = ctypes.c_void_p
_memmem.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)


class TooMany(Exception):
    """More rows hold the text than is worth looking at one by one."""


def occurrences(data: pa.Buffer, texts: Sequence[bytes], most: int) -> int:
    """How often the texts are in the bytes. Raises `TooMany` as soon as it is more than `most`."""
    number = 0
    for text in texts:
        at, end = data.address, data.address + data.size
        while place := _memmem(at, end - at, text, len(text)):
            number += 1
            if number > most:
                raise TooMany
            at = place + len(text)
    return number


def candidate_rows(column: pa.ChunkedArray, texts: Sequence[bytes], most: int) -> list[int]:
    """Numbers of rows, in order: all that hold one of the texts. Raises `TooMany`."""
    found: set[int] = set()
    for text in texts:
        first = 0
        for chunk in column.chunks:
            found.update([first + row for row in _rows(chunk, text, most)])
            first += len(chunk)
    if len(found) > most:
        raise TooMany
    return sorted(found)


def _rows(column: pa.StringArray, text: bytes, most: int) -> Iterator[int]:
    _, offsets, data = column.buffers()
    if data is None or len(column) == 0:
        return
    bounds = memoryview(offsets).cast("i")[column.offset : column.offset + len(column) + 1]
    at, end, row, number = bounds[0], bounds[-1], 0, 0
    while place := _memmem(data.address + at, end - at, text, len(text)):
        row = bisect_right(bounds, place - data.address, row) - 1
        yield row
        number += 1
        if number > most:
            raise TooMany
        at = bounds[row + 1]  # what begins in a row says it once
