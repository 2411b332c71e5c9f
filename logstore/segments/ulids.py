"""ULIDs of lines and the times in them, for many lines at once.

Line `i` of a batch has the batch's 26 characters with the last five replaced by `i`
in base 32: a batch id's low 25 bits are zero (`logstore.ulid`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logstore.batch import MADE_AFTER_DELETION, Rows
from logstore.ulid import ALPHABET, MOST_AHEAD_MS

LINE_CHARACTERS = 5
_DIGITS = np.frombuffer(ALPHABET.encode(), dtype=np.uint8)
_NUMBERS = np.arange(1 << 15)
# The 26 digits are 13 pairs of ten bits: six of the upper 64 bits, one of both, six of the lower.
_PAIR = np.uint64(0x3FF)
_PAIRS = np.stack([_DIGITS[_NUMBERS[:1024] >> shift & 31] for shift in (5, 0)], axis=1)
_PAIRS = np.ascontiguousarray(_PAIRS).view(np.uint16).ravel()
_HIGH_SHIFTS = [np.uint64(shift) for shift in range(56, 0, -10)]
_LOW_SHIFTS = [np.uint64(shift) for shift in range(50, -1, -10)]
_VALUES = np.zeros(256, dtype=np.uint8)
_VALUES[_DIGITS] = np.arange(32)
# The last three characters of every number below 2^15, as items of three bytes.
_LAST = np.stack([_DIGITS[_NUMBERS >> shift & 31] for shift in (10, 5, 0)], axis=1)


def times_ms(rows: Rows) -> NDArray[np.int64]:
    """The time of each batch, in milliseconds since the epoch."""
    times: NDArray[np.int64] = (rows["ulid_hi"] >> np.uint64(16)).astype(np.int64)
    return times


def made_ms(rows: Rows) -> NDArray[np.int64]:
    """When each batch was made, as far as its id says: `times_ms`, unless that is ahead."""
    times = times_ms(rows)
    ahead = rows["flags"] & MADE_AFTER_DELETION != 0
    if ahead.any():
        low = rows["ulid_lo"][ahead] >> np.uint64(56)
        made = (rows["ulid_hi"][ahead] & np.uint64(0xFFFF)) << np.uint64(8) | low
        times[ahead] -= MOST_AHEAD_MS - made.astype(np.int64)
    return times


def texts(rows: Rows) -> NDArray[np.uint8]:
    """The ULID of each batch as a row of 26 characters."""
    return texts_of(rows["ulid_hi"], rows["ulid_lo"])


def texts_of(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """The ULIDs of these upper and lower 64 bits, a row of 26 characters for each."""
    between = high << np.uint64(4) | low >> np.uint64(60)
    values = [high >> shift for shift in _HIGH_SHIFTS]
    values += [between, *(low >> shift for shift in _LOW_SHIFTS)]
    found = np.empty((len(high), len(values)), np.uint16)
    for number, value in enumerate(values):
        found[:, number] = _PAIRS[(value & _PAIR).view(np.int64)]
    return found.view(np.uint8)


def parse(
    matrix: NDArray[np.uint8],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Parses ULIDs, rows of characters: upper and lower 64 bits of the batch, line number."""
    values = _VALUES[matrix].astype(np.uint64)
    high = np.zeros(len(matrix), dtype=np.uint64)
    low = np.zeros(len(matrix), dtype=np.uint64)
    for column in range(26 - LINE_CHARACTERS):
        high = high << np.uint64(5) | low >> np.uint64(59)
        low = low << np.uint64(5) | values[:, column]
    for _ in range(LINE_CHARACTERS):
        high = high << np.uint64(5) | low >> np.uint64(59)
        low = low << np.uint64(5)
    number = np.zeros(len(matrix), dtype=np.int64)
    for column in range(26 - LINE_CHARACTERS, 26):
        number = number << 5 | values[:, column].astype(np.int64)
    return high, low, number


def line_ulids(rows: Rows, counts: NDArray[np.int64], numbers: NDArray[np.int64]) -> pa.Array:
    """`counts[b]` ULIDs of batch `b`, in order, for lines with these `numbers`."""
    matrix = np.repeat(texts(rows), counts, axis=0)
    matrix[:, 23:] = _LAST[numbers & 0x7FFF]
    if len(numbers) and int(numbers.max()) >> 15:
        matrix[:, 22] = _DIGITS[numbers >> 15 & 31]
        matrix[:, 21] = _DIGITS[numbers >> 20 & 31]
    offsets = np.arange(len(matrix) + 1, dtype=np.int32) * np.int32(26)
    return pa.StringArray.from_buffers(len(matrix), pa.py_buffer(offsets), pa.py_buffer(matrix))
