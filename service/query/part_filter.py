"""Tells in which parts of a row group of a copy a text may be, so that the others are not read.

The messages of a row group are cut, between two of them, into `PARTS` parts. The filter has for
each slot a number of 16 bits, one for each part: set if a piece of six bytes (n-gram) of the
part's messages has that slot. A part may have a text only if its bit is set in the slots of all of
the text's pieces. That is a bit-sliced Bloom filter with one hash, as in BitFunnel: an answer for
all parts takes two bytes for each piece of the text, read where they lie in a file.

A text of fewer than six bytes may be in any part. In doubt a part is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from io import FileIO
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logstore.table.ngrams import taken_slots

PARTS: Final = 16
ALL_PARTS: Final = (1 << PARTS) - 1
_MASK: Final = np.dtype("<u2")
_GRAM: Final = 6
_LONGEST_TEXT: Final = 32  # more of a text excludes hardly any more
_FEWEST_BITS: Final = 8
_MOST_BITS: Final = 18


def bits_of(size: int) -> int:
    """How many bits of a hash are a slot, for `size` bytes of messages.

    A part of `size / 16` bytes of logs then sets a fifth to a third of the slots.
    """
    return min(max((size // PARTS * 3 // 4).bit_length(), _FEWEST_BITS), _MOST_BITS)


def part_filter(texts: Sequence[bytes]) -> bytes:
    """The filter of a row group; `texts` has the messages of each part, one behind the other."""
    bits = bits_of(sum(map(len, texts)))
    masks: NDArray[np.uint16] = np.zeros(1 << bits, _MASK)
    for part, text in enumerate(texts):
        masks |= taken_slots(text, _GRAM, bits).astype(_MASK) << np.uint16(part)
    return masks.tobytes()


def filter_bytes(size: int) -> int:
    """The size of the filter of so many bytes of messages."""
    return _MASK.itemsize << bits_of(size)


def parts_with(file: FileIO, at: int, size: int, needed: Sequence[Sequence[bytes]]) -> int:
    """The parts that may have one text of each group, as bits, by the filter at `at` of a file.

    `size` bytes of messages are in the row group. Raises `OSError`.
    """
    found, bits = ALL_PARTS, bits_of(size)
    for texts in needed:
        of_one = 0
        for text in texts:
            of_one |= _parts_with(file, at, _slots(text[:_LONGEST_TEXT], bits))
        found &= of_one
        if not found:
            break
    return found


def _parts_with(file: FileIO, at: int, slots: Sequence[int]) -> int:
    found = ALL_PARTS
    for slot in slots:
        mask = os.pread(file.fileno(), _MASK.itemsize, at + _MASK.itemsize * slot)
        if len(mask) < _MASK.itemsize:
            raise OSError(f"a copy of a table file is cut off at {at}")
        found &= int.from_bytes(mask, "little")
        if not found:
            break
    return found


@lru_cache(maxsize=256)
def _slots(text: bytes, bits: int) -> Sequence[int]:
    """The slots of the text's pieces; of a long text only the beginning is asked for."""
    slots: list[int] = np.flatnonzero(taken_slots(text, _GRAM, bits)).tolist()
    return slots
