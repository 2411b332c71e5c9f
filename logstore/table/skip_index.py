"""The skip index of a table file: it tells which row groups cannot hold a text.

For each row group it has two Bloom filters with one hash: of all substrings of four and of six
bytes (n-grams) of its messages in lower case. A message can hold a text only if its row group has
every n-gram of the text. The index therefore serves substrings, not just whole words. Four bytes
serve short words; six distinguish identifiers, whose groups of four digits occur everywhere.

    TRSKIP01, CRC-32 of all behind it (4, little-endian), length of the header (4)
    header       JSON: {"size", "rows", "filters": [{"gram", "bits", "kept"}, …], "bare"}
    filters      one after the other: for each row group `kept` bytes

    size         bytes of the table file, by which the index of another file is recognised
    rows         of each row group, in order
    bits         an n-gram's slot is the highest `bits` bits of its hash
    kept         bytes of the filter that are stored: slots from 0, eight in a byte
    bare         whether no line of the file has attributes; absent if an older program wrote it

A filter is stored only in part if the whole would be too large for its file: n-grams with a slot
beyond that part exclude nothing. The part is a sample of the n-grams, the same in the index and in
a search. A filter that is half full with a sample excludes more than one of the same
size that is nearly full with all n-grams.

The filters are those of ClickHouse's `ngrambf_v1`, with one hash for an n-gram, since a text
has many n-grams; the hash is Knuth's multiplicative one. In doubt a row group is kept: one
that is skipped certainly has no match.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from logstore.errors import Damaged, UnsupportedVersion

SHARE: Final = 0.075
"""An index is at most so large, as a part of its file."""

_MAGIC: Final = b"TRSKIP01"
_FAMILY: Final = b"TRSKIP"
_GRAMS: Final = (4, 6)
_SHORT_SHARE: Final = 0.25
"""The part of the index that pieces of four bytes may take: there are far fewer of them."""
_HASH: Final = 0x9E3779B97F4A7C15  # 2^64 / golden ratio
_FULL: Final = 0.6
_FEWEST_BITS, _MOST_BITS = 10, 22
_PIECE_BYTES: Final = 1 << 20  # hashed at a time: within a processor's cache
_HEAD_BYTES: Final = len(_MAGIC) + 8

Slots: TypeAlias = NDArray[np.uint64]


class Grams(NamedTuple):
    """The hashes of a text's n-grams, by their length; a search needs all of them."""

    hashes: tuple[NDArray[np.uint64], ...]

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
    for gram in _GRAMS:
        each = [hashed for part in parts for hashed in _hashes(part, gram)]
        found.append(np.unique(np.concatenate(each)) if each else np.empty(0, np.uint64))
    return Grams(tuple(found))


@dataclass(frozen=True, slots=True)
class SkipIndex:
    """A decoded index. `rows` are those of each row group."""

    rows: NDArray[np.int64]
    filters: Sequence[tuple[int, NDArray[np.uint8]]]
    """Of each length of pieces: bits of a slot; the bytes that are kept, by row group."""
    bare: bool | None = None
    """Whether no line of the file has attributes; None: the index does not say."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        return self.rows.nbytes + sum(kept.nbytes for _, kept in self.filters)

    def may_hold(self, grams: Grams) -> NDArray[np.bool_]:
        """For each row group, False only if none of its messages has all the n-grams."""
        found = np.ones(len(self.rows), np.bool_)
        for hashes, (bits, kept) in zip(grams.hashes, self.filters, strict=True):
            slots = hashes >> np.uint64(64 - bits)
            slots = slots[slots < np.uint64(kept.shape[1] * 8)]
            if len(slots):
                masks = (1 << (slots & np.uint64(7))).astype(np.uint8)
                found &= (kept[:, slots >> np.uint64(3)] & masks != 0).all(axis=1)
        return found


def parse(body: bytes, *, size: int) -> SkipIndex:
    """Decodes the index of a table file of `size` bytes.

    Raises `Damaged` if the bytes are not as written or belong to another file,
    `UnsupportedVersion` if the format is newer.
    """
    if body[: len(_MAGIC)] != _MAGIC:
        if body[: len(_FAMILY)] == _FAMILY:
            raise UnsupportedVersion("the skip index is of a newer kind")
        raise Damaged("not a skip index")
    crc = zlib.crc32(memoryview(body)[len(_MAGIC) + 4 :])
    if len(body) < _HEAD_BYTES or crc != _number(body, len(_MAGIC)):
        raise Damaged("the skip index is not as it was written")
    at = _HEAD_BYTES + _number(body, len(_MAGIC) + 4)
    header: dict[str, Any] = orjson.loads(body[_HEAD_BYTES:at])
    if header["size"] != size:
        raise Damaged(f"the skip index is of a file of {header['size']} bytes, not of {size}")
    rows, filters = np.array(header["rows"], np.int64), []
    for one in header["filters"]:
        count = len(rows) * one["kept"]
        kept = np.frombuffer(body, np.uint8, count, at).reshape(len(rows), one["kept"])
        filters.append((one["bits"], kept))
        at += count
    return SkipIndex(rows, filters, header.get("bare"))


def as_older(body: bytes) -> bytes:
    """An index as a program of before wrote it, which said nothing of attributes."""
    end = _HEAD_BYTES + _number(body, len(_MAGIC) + 4)
    header: dict[str, Any] = orjson.loads(body[_HEAD_BYTES:end])
    del header["bare"]
    return _framed(header, body[end:])


class Builder:
    """Makes the index of a table file of `size` bytes, from the text of its row groups in order.

    `add` takes some milliseconds for a megabyte of text, and memory for some twice the index.
    """

    def __init__(self, size: int, groups: int) -> None:
        self._size = size
        self._rows: list[int] = []
        self._bare = True
        most = int(size * SHARE) // max(groups, 1)
        short = int(most * _SHORT_SHARE)
        self._filters = [
            _Filter(gram, most) for gram, most in ((_GRAMS[0], short), (_GRAMS[1], most - short))
        ]

    def add(self, rows: int, text: bytes, *, bare: bool) -> None:
        """Adds a row group: its messages, concatenated, and whether no line has attributes."""
        self._rows.append(rows)
        self._bare = self._bare and bare
        lowered = text.lower()
        for one in self._filters:
            one.add(lowered)

    def finish(self) -> bytes:
        """The index, to be called after the last row group."""
        header = {
            "size": self._size,
            "rows": self._rows,
            "filters": [one.header for one in self._filters],
            "bare": self._bare,
        }
        return _framed(header, b"".join(group for one in self._filters for group in one.groups))


class _Filter:
    """The filters of n-grams of one length. The first row group decides their size."""

    def __init__(self, gram: int, most: int) -> None:
        self._gram = gram
        self._most = most
        self._bits = 0
        self._kept = 0
        self.groups: list[bytes] = []

    @property
    def header(self) -> dict[str, int]:
        """The filter's entry in the header of the index."""
        return {"gram": self._gram, "bits": self._bits, "kept": self._kept}

    def add(self, text: bytes) -> None:
        """Adds a row group's messages, in lower case."""
        if not self.groups:
            self._measure(text)
        slots = taken_slots(text, self._gram, self._bits)[: self._kept * 8]
        self.groups.append(np.packbits(slots, bitorder="little").tobytes())

    def _measure(self, text: bytes) -> None:
        """Chooses the number of slots so that about half are set, and stores as many as fit."""
        bits = min(max(len(text).bit_length(), _FEWEST_BITS), _MOST_BITS)
        slots = taken_slots(text, self._gram, bits)
        while bits > _FEWEST_BITS:
            fewer = slots.reshape(-1, 2).max(axis=1)
            if fewer.mean() > _FULL:
                break
            bits, slots = bits - 1, fewer
        self._bits, self._kept = bits, min((1 << bits) // 8, self._most)


def taken_slots(text: bytes, gram: int, bits: int) -> NDArray[np.uint8]:
    """An array of `2 ** bits` with 1 for every slot that an n-gram of `gram` bytes has.

    An n-gram has at most eight bytes.
    """
    taken = np.zeros(1 << bits, np.uint8)
    shift = np.uint64(64 - bits)
    for hashes in _hashes(text, gram):
        taken[(hashes >> shift).view(np.int64)] = 1
    return taken


def _hashes(text: bytes, gram: int) -> Iterator[NDArray[np.uint64]]:
    """The hashes of all n-grams of `gram` bytes, in no order."""
    for start in range(0, len(text), _PIECE_BYTES):
        piece = text[start : start + _PIECE_BYTES + gram - 1]
        number = len(piece) - gram + 1
        padded = piece + bytes(16)
        # Of the eight bytes that are read, this shifts those out that are too many, and hashes.
        factor = np.uint64((_HASH << 8 * (8 - gram)) % (1 << 64))
        for phase in range(min(8, number)):
            count = (number - phase + 7) // 8
            words = np.frombuffer(padded, "<u8", count, phase)
            yield words * factor


def _framed(header: dict[str, Any], filters: bytes) -> bytes:
    text = orjson.dumps(header)
    behind = len(text).to_bytes(4, "little") + text + filters
    return _MAGIC + zlib.crc32(behind).to_bytes(4, "little") + behind


def _number(body: bytes, at: int) -> int:
    return int.from_bytes(body[at : at + 4], "little")


def ranges(rows: NDArray[np.int64], wanted: NDArray[np.bool_]) -> Iterable[tuple[int, int]]:
    """Row numbers of the wanted row groups, first and last, neighbours as one range."""
    ends = np.cumsum(rows)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], wanted, [False]))))
    for first, behind in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield int(ends[first] - rows[first]), int(ends[behind - 1]) - 1
