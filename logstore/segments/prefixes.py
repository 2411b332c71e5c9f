"""The first bytes of every record as a matrix, in which levels and times are searched.

Each record has a row of `WIDTH` bytes. Column 0 is the newline before the record (the first record
gets one), and column `1 + i` is byte `i` of the record. The row of a shorter record continues with
the bytes of the next record, so a caller that finds something compares its column with `lengths`.
Callers search the flattened matrix, where NumPy is as fast as memory, and get positions in it.

A prefix contains no colours and no other control sequences of terminals (`ESC [ … letter`):
`ESC[32mINFO ESC[0m` is searched as `INFO `. These records are prepared one by one, in Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

WIDTH = 96
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_ALL = slice(None)
_ESCAPE = b"\x1b"
_CONTROL = re.compile(rb"\x1b\[[0-9;:?]*[A-Za-z]")  # ECMA-48's CSI, as terminals get them
_COLOURED_WIDTH = 4 * WIDTH  # bytes of a record in which control sequences are removed


@dataclass(frozen=True)
class Prefixes:
    """The matrix (`rows`), and the length of each record with its newline, in bytes.

    The length is without control sequences within the first bytes of the record.
    """

    rows: Bytes
    lengths: Ints

    @cached_property
    def flat(self) -> Bytes:
        """All rows as one array."""
        return self.rows.reshape(-1)

    @cached_property
    def words(self) -> NDArray[np.uint64]:
        """The eight bytes from each position, first byte lowest; 8 fewer than `flat`."""
        count = max(self.flat.size - 8, 0)
        return np.ndarray((count,), dtype="<u8", buffer=self.flat.data, strides=(1,))

    def place(self, found: Ints) -> tuple[Ints, Ints]:
        """Row and column of flat positions."""
        row = found // WIDTH
        return row, found - row * WIDTH


def prefixes(text: bytes, ends: Ints, part: slice = _ALL) -> Prefixes:
    """The prefixes of the records in `part` of those that end (behind their newline) at `ends`."""
    first, stop, _ = part.indices(len(ends))
    starts = np.empty(stop - first, dtype=ends.dtype)
    starts[:1] = ends[first - 1] if first else 0
    starts[1:] = ends[first : stop - 1]
    look = Prefixes(_rows(text, starts), ends[first:stop] - starts)
    if len(starts) and text.find(_ESCAPE, int(starts[0]), int(ends[stop - 1])) >= 0:
        _without_control_sequences(look, text, starts)
    return look


def _without_control_sequences(look: Prefixes, text: bytes, starts: Ints) -> None:
    """Removes control sequences from the rows that have some; later bytes of the record move up."""
    coloured = np.flatnonzero((look.rows == _ESCAPE[0]).any(axis=1))
    lengths = np.minimum(look.lengths[coloured], _COLOURED_WIDTH)
    windows: list[bytes] = []
    removed: list[int] = []
    for start, length in zip(starts[coloured].tolist(), lengths.tolist(), strict=True):
        end = start + length
        plain = _CONTROL.sub(b"", text[start:end])
        removed.append(length - len(plain))
        if len(plain) < WIDTH:
            plain += text[end : end + WIDTH]
        windows.append(plain[: WIDTH - 1].ljust(WIDTH - 1, b"\n"))
    look.rows[coloured, 1:] = np.frombuffer(b"".join(windows), np.uint8).reshape(-1, WIDTH - 1)
    look.lengths[coloured] -= np.array(removed, np.int64)


def _rows(text: bytes, starts: Ints) -> Bytes:
    """Copies `WIDTH` bytes of the text for each start, beginning one byte before it."""
    last_start = len(text) - WIDTH
    inside = (starts > 0) & (starts <= last_start + 1)
    if last_start < 0:
        rows = np.empty((len(starts), WIDTH), dtype=np.uint8)
    else:
        windows = np.ndarray((last_start + 1,), dtype=f"V{WIDTH}", buffer=text, strides=(1,))
        found = windows[np.clip(starts - 1, 0, last_start)]
        rows = found.view(np.uint8).reshape(len(starts), WIDTH)
    for row in np.flatnonzero(~inside).tolist():
        start = int(starts[row])
        window = text[max(start - 1, 0) : start + WIDTH - 1] if start else b"\n" + text[: WIDTH - 1]
        rows[row] = np.frombuffer(window.ljust(WIDTH, b"\n"), dtype=np.uint8)
    return rows


def first_of_rows(row: Ints) -> Bools:
    """For ascending row numbers: which entries are the first of their row."""
    first = np.ones(len(row), dtype=np.bool_)
    first[1:] = row[1:] != row[:-1]
    return first


def is_word(byte: Bytes) -> Bools:
    """Whether each byte is a letter, a digit or `_`."""
    return _WORD[byte]


_WORD: Bools = np.array([(chr(b).isalnum() and b < 128) or b == 95 for b in range(256)])
