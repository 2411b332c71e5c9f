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

_PIECE_BYTES: Final = 1 << 19


class TooMany(Exception):
    """More rows hold the text than is worth looking at one by one."""


def places(
    path: str, span: tuple[int, int], texts: Sequence[bytes], most: int, piece: int = _PIECE_BYTES
) -> list[int]:
    """Where texts are in `span[1]` bytes of a file from `span[0]` on, in no order.

    It looks at a piece at a time, which stays in the processor's cache. Raises `TooMany` as soon as
    there are more than `most`, `OSError` if the file has fewer bytes.
    """
    at, end = span[0], span[0] + span[1]
    kept_most = max(map(len, texts)) - 1
    held = bytearray(kept_most + min(piece, span[1]))
    address = ctypes.addressof((ctypes.c_char * len(held)).from_buffer(held))
    view = memoryview(held)
    found, kept = list[int](), 0
    with open(path, "rb", buffering=0) as file:
        file.seek(at)
        while at < end:
            size = file.readinto(view[kept : kept + min(piece, end - at)])
            if not size:
                raise OSError(f"{path} is cut off")
            first, at, size = at - kept, at + size, kept + size
            for text in texts:
                here = places_in_memory(address, size, text, seen=kept, most=most - len(found))
                found += [first + place for place in here]
            moved = min(kept_most, size)
            view[:moved] = view[size - moved : size]
            kept = moved
    return found


def places_in_memory(address: int, size: int, text: bytes, *, seen: int, most: int) -> list[int]:
    """Where the text is in `size` bytes at an address, without those that end in the first `seen`.

    Raises `TooMany`.
    """
    found, at = list[int](), max(seen - len(text) + 1, 0)
    while place := _memmem(address + at, size - at, text, len(text)):
        found.append(place - address)
        if len(found) > most:
            raise TooMany
        at = found[-1] + 1  # the next message may begin within
    return found


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
