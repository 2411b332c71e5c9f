"""Pieces of `n` bytes of texts (n-grams), as slots of a filter with one hash.

The hash is Knuth's multiplicative one: an n-gram, read as a little-endian number, times 2^64
divided by the golden ratio; the highest bits of the product are its slot. Texts are hashed in
lower case of ASCII, so one filter serves searches with and without regard to case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

LENGTHS: Final = (4, 6)
"""Four bytes serve short words; six tell identifiers apart, whose four digits occur everywhere."""

_HASH: Final = 0x9E3779B97F4A7C15  # 2^64 / golden ratio
_PIECE_BYTES: Final = 1 << 20  # hashed at a time: within a processor's cache


class Grams(NamedTuple):
    """The hashes of a text's n-grams, by `LENGTHS`, in order; a match has all of them."""

    hashes: tuple[Sequence[int], ...]

    @property
    def empty(self) -> bool:
        """Whether the text is too short to exclude anything."""
        return not any(map(len, self.hashes))


def grams_of(text: str, *, ignore_case: bool = False) -> Grams:
    """The n-grams that every message has which contains the text.

    Without regard to case, only characters of ASCII with exactly two case forms are certain: the
    sign for kelvin is a `k` as well, and `ı` and `ſ` match `i` and `s`.
    """
    if not ignore_case:
        parts = [text.encode("utf-8", "surrogatepass").lower()]
    else:
        lowered = text.lower()
        kept = [c if c.isascii() and c not in "iks" else "\0" for c in lowered]
        parts = [part.encode() for part in "".join(kept).split("\0")]
    found = []
    for length in LENGTHS:
        each = [hashed for part in parts for hashed in _hashes(part, length)]
        found.append(np.unique(np.concatenate(each)).tolist() if each else [])
    return Grams(tuple(found))


def taken_slots(text: bytes, length: int, bits: int) -> NDArray[np.uint8]:
    """An array of `2 ** bits` with 1 for every slot that an n-gram of `length` bytes has.

    An n-gram has at most eight bytes.
    """
    taken = np.zeros(1 << bits, np.uint8)
    for hashes in _hashes(text, length):
        taken[(hashes >> np.uint64(64 - bits)).view(np.int64)] = 1
    return taken


def _hashes(text: bytes, length: int) -> Iterator[NDArray[np.uint64]]:
    """The hashes of all n-grams of `length` bytes, in no order."""
    for start in range(0, len(text), _PIECE_BYTES):
        piece = text[start : start + _PIECE_BYTES + length - 1]
        number = len(piece) - length + 1
        padded = piece + bytes(16)
        # Of the eight bytes that are read, this shifts those out that are too many, and hashes.
        factor = np.uint64((_HASH << 8 * (8 - length)) % (1 << 64))
        for phase in range(min(8, number)):
            count = (number - phase + 7) // 8
            words = np.frombuffer(padded, "<u8", count, phase)
            yield words * factor
