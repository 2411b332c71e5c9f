"""The skip index of a table file: it tells which row groups cannot hold a text.

For each row group it has two Bloom filters with one hash: of short pieces (four bytes) and of long
pieces (six or eight) of its messages in lower case. A message can hold a text only if its row group
has every piece of the text. The index therefore serves substrings, not just whole words.

    TRSKIP04, XXH3-64 of the header (8, little-endian), length of the header (4)
    header       JSON: {"size", "rows", "filters": [{"gram", "space", "slots"}, …], "bare", "maps"}
    filters      one after the other, in pages
    maps         of lines, one for each row group that has one

    size         bytes of the table file, by which the index of another file is recognised
    rows         of each row group, in order
    space        number of slots over which the hashes are spread
    slots        of the filter that are stored, from 0 on
    bare         whether no line of the file has attributes
    maps         bytes of the map of each row group, 0 if it has none
    coloured     numbers of row groups with control sequences of terminals; absent if there are none

Of a coloured row group the filters have the pieces of its messages as they are stored, and as they
are seen (`tailrace.logstore.colours`).

A page is 4,096 bytes: the XXH3-64 of its other bytes (8), then for each slot a bit of each row
group, of `4088 // groups * 8` slots. So a search reads a page for each piece, however large the
file is, and not all of the index. A page's hash is seeded with that of the header plus the
place of the page in the index: no page stands for another. The page of a filter
that has only one ends with its bits. Spaces follow the header of a large index, so that its pages
are aligned with those of the disk. A map (`line_map.py`) is stored like a page: its hash (8), and
the map.

A filter is stored only in part if the whole would be too large for its file: pieces with a slot
beyond that part exclude nothing. The part is a sample of the pieces, the same in the index and in
a search. A filter that is half full with a sample excludes more than one of the same
size that is nearly full with all pieces.

The filters are those of ClickHouse's `ngrambf_v1`, with one hash for a piece, since a text
has many pieces; they are stored as bit-sliced signatures, as in BitFunnel (SIGIR 2017). In doubt
a row group is kept: one that is skipped certainly has no match.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from tailrace.logstore.colours import is_coloured
from tailrace.logstore.errors import Damaged, UnsupportedVersion
from tailrace.logstore.table.line_map import LineMap

# Pieces of texts, by their hashes, from which a filter takes its slots.
#
# The hash is Knuth's multiplicative one: a piece, read as a little-endian number, times 2^64
# divided by the golden ratio; it is the highest 32 bits of the product. Of kinds of pieces that are
# common in logs but tell little, such as parts of times, only each fourth hash is kept. Texts are
# hashed in lower case of ASCII, so one filter serves searches with and without regard to case.
#
# The length and the kind of a piece depend on its own bytes alone. So a search makes the pieces of
# its text as the index did, wherever the text stands in a message.


LENGTHS: Final = (4, 6)
"""Four bytes serve short words; six tell identifiers apart, whose four digits occur everywhere."""
_LONGEST: Final = 8
"""Bytes of a long piece that begins with six digits: all numbers of six digits occur in logs."""
_HASH: Final = 0x9E3779B97F4A7C15  # 2^64 / golden ratio
_HASH_BITS: Final = 32
_SAMPLE: Final = np.uint64(0xC00)
"""Bits that are zero in each fourth hash; filters of up to 2^20 slots do not use them otherwise."""
_PIECE_BYTES: Final = 1 << 18  # hashed at a time: within a processor's cache
_Hashes: TypeAlias = NDArray[np.uint64]

_WORD, _DIGIT = 1, 2
_KINDS: Final = np.array(
    [
        _WORD * (chr(byte).isalnum() or byte >= 0x80) + _DIGIT * (0x30 <= byte <= 0x39)
        for byte in range(256)
    ],
    np.uint8,
)
"""What a byte is: of a word (a letter, a digit, or not ASCII), and a digit."""


class Grams(NamedTuple):
    """The hashes of a text's pieces, by `LENGTHS`, in order; a match has all of them."""

    hashes: tuple[Sequence[int], ...]

    @property
    def empty(self) -> bool:
        """Whether the text is too short to exclude anything."""
        return not any(map(len, self.hashes))


def grams_of(text: str, *, ignore_case: bool = False) -> Grams:
    """The pieces that every message has which contains the text.

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
    for hashes in (_short_hashes, _long_hashes):
        each = [some for part in parts for some in hashes(part)]
        found.append(np.unique(np.concatenate(each)).tolist() if each else [])
    return Grams(tuple(found))


def _short_hashes(text: bytes) -> Iterator[_Hashes]:
    """The hashes of all pieces of four bytes. Those with two or more digits are common."""
    length = LENGTHS[0]
    for words, kinds in _windows(text, length, length):
        digits, number = kinds >> 1, len(words)
        counted = sum((digits[at : at + number] for at in range(1, length)), digits[:number])
        hashes = _hashed(words, length)
        yield hashes[(counted < 2) | (hashes & _SAMPLE == 0)]


def _long_hashes(text: bytes) -> Iterator[_Hashes]:
    """The hashes of all long pieces. Those with a digit and with a byte of no word are common."""
    length = LENGTHS[1]
    for words, kinds in _windows(text, length, _LONGEST):
        number = len(words)
        every = some = kinds[:number]
        for at in range(1, length):
            every, some = every & kinds[at : at + number], some | kinds[at : at + number]
        hashes = _hashed(words, length)
        wanted = ((every & _WORD | ~some & _DIGIT) > 0) | (hashes & _SAMPLE == 0)
        digits = np.flatnonzero(every & _DIGIT)
        wanted[digits] = False
        yield hashes[wanted]
        digits = digits[digits <= len(kinds) - _LONGEST]
        hashes = _hashed(words[digits], _LONGEST)
        word = kinds[digits + length] & kinds[digits + length + 1] & _WORD
        yield hashes[(word > 0) | (hashes & _SAMPLE == 0)]


def _windows(
    text: bytes, least: int, most: int
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint8]]]:
    """Eight bytes from each place on at which `least` follow, and the kinds of these bytes.

    Both are of a part of the text; of the next one, `most - 1` bytes follow.
    """
    for start in range(0, len(text) - least + 1, _PIECE_BYTES):
        part = text[start : start + _PIECE_BYTES + most - 1]
        number = min(len(part) - least + 1, _PIECE_BYTES)
        words: NDArray[np.uint64] = np.ndarray((number,), "<u8", part + bytes(8), strides=(1,))
        yield words, _KINDS[np.frombuffer(part, np.uint8)]


def _hashed(words: NDArray[np.uint64], length: int) -> _Hashes:
    """The hashes of the first `length` of these eight bytes."""
    return (words * _factor(length)) >> np.uint64(64 - _HASH_BITS)


def _factor(length: int) -> np.uint64:
    """Hashes the first `length` of eight bytes; it shifts those out that are too many."""
    return np.uint64((_HASH << 8 * (8 - length)) % (1 << 64))


def taken_slots(text: bytes, length: int, bits: int) -> NDArray[np.uint8]:
    """An array of `2 ** bits` with 1 for the hash of every substring of `length` bytes.

    A substring has at most eight bytes.
    """
    taken = np.zeros(1 << bits, np.uint8)
    for words, _ in _windows(text, length, length):
        taken[((words * _factor(length)) >> np.uint64(64 - bits)).view(np.int64)] = 1
    return taken


SHARE: Final = 0.08
"""An index is at most so large, as a part of its file."""
_FILTERS_SHARE, _MAPS_SHARE = 0.065, 0.015
PAGE_BYTES: Final = 4_096

_MAGIC: Final = b"TRSKIP04"
_FAMILY: Final = b"TRSKIP"
_SHORT_SHARE: Final = 0.25
"""The part of the index that pieces of four bytes may take: there are far fewer of them."""
_LIGHT, _FULL = 0.35, 0.7
"""Pieces for each slot: as many slots are made, and a filter with more keeps a sample."""
_FEWEST_SLOTS: Final = 1 << 10
_MOST_MEASURED: Final = 1 << 22  # slots, in the first row group
_HASH_BYTES: Final = 8
_HEAD_BYTES: Final = len(_MAGIC) + _HASH_BYTES + 4
_LARGE_BYTES: Final = 64 * PAGE_BYTES
_PAIR_BYTES: Final = 128  # in memory

Read: TypeAlias = Callable[[int, int], bytes]
"""Gives bytes of an index from a place on, so many, or fewer at its end."""


@dataclass(frozen=True, slots=True)
class _Filter:
    """A filter of `slots` stored slots, whose pages begin at `at` and end before `end`."""

    space: int
    slots: int
    at: int
    end: int

    @property
    def pages(self) -> int:
        """How many it has."""
        return -(-(self.end - self.at) // PAGE_BYTES)

    def page(self, number: int) -> tuple[int, int]:
        """Place and size of a page."""
        at = self.at + number * PAGE_BYTES
        return at, min(self.end - at, PAGE_BYTES)

    def stored(self, hashes: Sequence[int]) -> list[int]:
        """The slots of hashed pieces, as far as they are stored, in the order of the hashes."""
        slots = [hashed * self.space >> _HASH_BITS for hashed in hashes]
        return [slot for slot in slots if slot < self.slots]


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The header of an index. `rows` are those of each row group.

    `bare`: no line of the file has attributes. `maps` are place and size of each row group's map.
    """

    rows: NDArray[np.int64]
    bare: bool
    filters: Sequence[_Filter]
    maps: Sequence[tuple[int, int]]
    digest: int
    coloured: frozenset[int] = frozenset()

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory it takes."""
        return self.rows.nbytes + _HEAD_BYTES + _PAIR_BYTES * len(self.maps)


def head_bytes(start: bytes) -> int:
    """Returns the size of an index's header in bytes, read from its first bytes.

    Raises `Damaged` for other bytes, `UnsupportedVersion` if its format is another.
    """
    if start[: len(_MAGIC)] != _MAGIC:
        if start[: len(_FAMILY)] == _FAMILY:
            raise UnsupportedVersion("the skip index is of another version")
        raise Damaged("not a skip index")
    return _HEAD_BYTES + _number(start[_HEAD_BYTES - 4 : _HEAD_BYTES])


def parse_head(body: bytes, *, size: int) -> IndexHeader:
    """Decodes the header of the index of a table file of `size` bytes, from its first bytes.

    Raises `Damaged` if they are not as written or belong to another file, `UnsupportedVersion`.
    """
    end = head_bytes(body)
    text, digest = body[_HEAD_BYTES:end], _number(body[len(_MAGIC) : _HEAD_BYTES - 4])
    if len(body) < end or xxhash.xxh3_64_intdigest(text) != digest:
        raise Damaged("the skip index is not as it was written")
    header: dict[str, Any] = orjson.loads(text)
    if header["size"] != size:
        raise Damaged(f"the skip index is of a file of {header['size']} bytes, not of {size}")
    rows, filters, at = np.array(header["rows"], np.int64), [], end
    if [one["gram"] for one in header["filters"]] != list(LENGTHS):
        raise Damaged("the skip index has other filters")
    for one in header["filters"]:
        begin, at = at, at + _stored_bytes(one["slots"], len(rows))
        filters.append(_Filter(one["space"], one["slots"], begin, at))
    maps = list[tuple[int, int]]()
    for stored in header["maps"]:
        maps.append((at, stored))
        at += stored
    coloured = frozenset(header.get("coloured", ()))
    return IndexHeader(rows, header["bare"], filters, maps, digest, coloured)


class SkipIndex:
    """An index whose pages are read as they are needed; `sure`: those were checked before."""

    def __init__(self, head: IndexHeader, read: Read, *, sure: bool = False) -> None:
        self.rows, self.bare = head.rows, head.bare
        self.head = head
        self._page = read if sure else self._checked
        self._read = read

    def may_hold(self, grams: Grams) -> NDArray[np.bool_]:
        """For each row group, False only if none of its messages has all the pieces.

        Raises `Damaged` if a page is not as it was written, or is not of this header.
        """
        groups = len(self.rows)
        found, width = (1 << groups) - 1, (groups + 7) // 8 + 1
        in_page, page = _slots_in_page(groups), b""
        for hashes, one in self._filters(grams):
            seen = -1
            for slot in one.stored(hashes):
                number, within = divmod(slot, in_page)
                if number != seen:
                    seen, page = number, self._page(*one.page(number))
                first = within * groups
                start = _HASH_BYTES + first // 8
                found &= int.from_bytes(page[start : start + width], "little") >> first % 8
                if not found:
                    return np.zeros(groups, np.bool_)
        bits = np.frombuffer(found.to_bytes(width, "little"), np.uint8)
        return np.unpackbits(bits, count=groups, bitorder="little").view(np.bool_)

    def pages(self, grams: Grams) -> Iterator[tuple[int, int]]:
        """The pages that `may_hold` reads at most, each once: place in the index, and bytes."""
        in_page = _slots_in_page(len(self.rows))
        for hashes, one in self._filters(grams):
            for number in dict.fromkeys([slot // in_page for slot in one.stored(hashes)]):
                yield one.page(number)

    def _filters(self, grams: Grams) -> Iterator[tuple[Sequence[int], _Filter]]:
        """The hashes with their filter, that of long pieces first, which leaves out most."""
        return zip(reversed(grams.hashes), reversed(self.head.filters), strict=True)

    def lines(self, group: int) -> LineMap | None:
        """The map of a row group, if it has one. Raises `Damaged`, and what reading it raises."""
        at, size = self.head.maps[group]
        return LineMap.decoded(self._checked(at, size)[_HASH_BYTES:]) if size else None

    def check(self) -> None:
        """Reads all pages and maps. Raises `Damaged`."""
        for _ in self._bits():
            pass
        for group in range(len(self.rows)):
            self.lines(group)

    def agrees(self, other: SkipIndex) -> bool:
        """Returns whether both indexes have the same content for the same file. Raises `Damaged`.

        One may have a map for which the other has no room: two versions of a library may compress
        maps differently.
        """
        if (
            self.head.coloured != other.head.coloured
            or self.bare != other.bare
            or not np.array_equal(self.rows, other.rows)
        ):
            return False
        if [(f.space, f.slots) for f in self.head.filters] != [
            (f.space, f.slots) for f in other.head.filters
        ]:
            return False
        if any(one != two for one, two in zip(self._bits(), other._bits(), strict=True)):
            return False
        pairs = ((self.lines(group), other.lines(group)) for group in range(len(self.rows)))
        return all(one is None or two is None or one.equals(two) for one, two in pairs)

    def _bits(self) -> Iterator[bytes]:
        """The bits of all pages."""
        for one in self.head.filters:
            for number in range(one.pages):
                yield self._page(*one.page(number))[_HASH_BYTES:]

    def _checked(self, at: int, size: int) -> bytes:
        page = self._read(at, size)
        digest = _digest(self.head.digest, at, memoryview(page)[_HASH_BYTES:])
        if len(page) != size or digest != _number(page[:_HASH_BYTES]):
            raise Damaged("the skip index is not as it was written")
        return page


def parse(body: bytes, *, size: int) -> SkipIndex:
    """The index of a table file of `size` bytes, all of which is in memory.

    Raises as `parse_head`.
    """
    return SkipIndex(parse_head(body, size=size), lambda at, count: body[at : at + count])


class Builder:
    """Makes the index of a table file of `size` bytes, from the text of its row groups in order.

    `add` takes some milliseconds for a megabyte of text, and memory for some twice the index.
    """

    def __init__(self, size: int, groups: int) -> None:
        self._size = size
        self._rows: list[int] = []
        self._bare = True
        self._coloured: list[int] = []
        self._maps: list[bytes] = []
        self._room_for_maps = int(size * _MAPS_SHARE)
        most = int(size * _FILTERS_SHARE)
        short = int(most * _SHORT_SHARE)
        self._filters = [
            _FilterBuilder(LENGTHS[0], _short_hashes, _most_slots(short, groups)),
            _FilterBuilder(LENGTHS[1], _long_hashes, _most_slots(most - short, groups)),
        ]

    def add(
        self, rows: int, text: bytes, *, bare: bool, lines: LineMap | None = None, seen: bytes = b""
    ) -> None:
        """Adds a row group: its messages, concatenated, and whether no line has attributes.

        `seen` are its messages as they are seen, if they are coloured.
        """
        mapped = b"" if lines is None else lines.encoded()
        size = len(mapped) + _HASH_BYTES if mapped else 0
        self._maps.append(mapped if size <= self._room_for_maps else b"")
        if self._maps[-1]:
            self._room_for_maps -= size
        if is_coloured(text):
            self._coloured.append(len(self._rows))
        self._rows.append(rows)
        self._bare = self._bare and bare
        lowered = (text + seen).lower()
        for one in self._filters:
            one.add(lowered)

    def finish(self) -> bytes:
        """The index, to be called after the last row group."""
        header = {
            "size": self._size,
            "rows": self._rows,
            "filters": [one.header for one in self._filters],
            "bare": self._bare,
            "maps": [len(one) + _HASH_BYTES if one else 0 for one in self._maps],
            **({"coloured": self._coloured} if self._coloured else {}),
        }
        text, groups = orjson.dumps(header), len(self._rows)
        stored = [_stored_bytes(one.slots, groups) for one in self._filters]
        if sum(stored) >= _LARGE_BYTES:
            text += b" " * (-(_HEAD_BYTES + len(text)) % PAGE_BYTES)
        digest, at = xxhash.xxh3_64_intdigest(text), _HEAD_BYTES + len(text)
        made = [_MAGIC, digest.to_bytes(8, "little"), len(text).to_bytes(4, "little"), text]
        for one, size in zip(self._filters, stored, strict=True):
            for bits in one.pages():
                behind = bits.ljust(min(size, PAGE_BYTES) - _HASH_BYTES, b"\0")
                made += [_digest(digest, at, behind).to_bytes(8, "little"), behind]
                at += _HASH_BYTES + len(behind)
        for mapped in filter(None, self._maps):
            made += [_digest(digest, at, mapped).to_bytes(8, "little"), mapped]
            at += _HASH_BYTES + len(mapped)
        return b"".join(made)


class _FilterBuilder:
    """A filter of the pieces that `hashes` makes. The first row group decides its size."""

    def __init__(
        self, length: int, hashes: Callable[[bytes], Iterator[_Hashes]], most_slots: int
    ) -> None:
        self._length = length
        self._hashes = hashes
        self._most = most_slots
        self._space = 0
        self.slots = 0
        self._groups: list[NDArray[np.uint8]] = []

    @property
    def header(self) -> dict[str, int]:
        """The filter's entry in the header of the index."""
        return {"gram": self._length, "space": self._space, "slots": self.slots}

    def add(self, text: bytes) -> None:
        """Adds a row group's messages, in lower case."""
        if not self._groups:
            self._measure(text)
        taken = self._taken(text, self._space, self.slots)
        self._groups.append(np.packbits(taken, bitorder="little"))

    def pages(self) -> Iterator[bytes]:
        """The bits of each page: slots one after the other, each with all row groups."""
        in_page = _slots_in_page(len(self._groups)) // 8
        for first in range(0, self.slots // 8, max(in_page, 1)):
            packed = np.stack([group[first : first + in_page] for group in self._groups])
            bits = np.unpackbits(packed, axis=1, bitorder="little")
            yield np.packbits(bits.T, bitorder="little").tobytes()

    def _measure(self, text: bytes) -> None:
        """Makes about a third of the slots full; if these are too many, keeps a sample."""
        slots = min(max(4 * len(text), _FEWEST_SLOTS), _MOST_MEASURED)
        free = 1 - float(self._taken(text, slots, slots).mean())
        pieces = -math.log(max(free, 1 / slots)) * slots
        wanted = -(-max(round(pieces / _LIGHT), _FEWEST_SLOTS) // 8) * 8
        self.slots = min(wanted, self._most)
        self._space = max(self.slots, round(pieces / _FULL))

    def _taken(self, text: bytes, space: int, slots: int) -> NDArray[np.bool_]:
        """Of each stored slot whether a piece of the text has it."""
        taken = np.zeros(space, np.bool_)
        for hashes in self._hashes(text):
            taken[((hashes * np.uint64(space)) >> np.uint64(_HASH_BITS)).view(np.int64)] = True
        return taken[:slots]


def _slots_in_page(groups: int) -> int:
    """A multiple of eight; none if there are more row groups than bytes in a page."""
    return (PAGE_BYTES - _HASH_BYTES) // max(groups, 1) * 8


def _most_slots(budget: int, groups: int) -> int:
    """So many slots of all row groups take at most `budget` bytes: full pages, or one in part."""
    if budget >= PAGE_BYTES:
        return budget // PAGE_BYTES * _slots_in_page(groups)
    part = max(budget - _HASH_BYTES, 0) // max(groups, 1) * 8
    return min(part, _slots_in_page(groups))


def _stored_bytes(slots: int, groups: int) -> int:
    """The size of the pages of a filter in bytes."""
    in_page = _slots_in_page(groups)
    if slots <= in_page:
        return _HASH_BYTES + slots // 8 * groups if slots else 0
    return -(-slots // in_page) * PAGE_BYTES


def _digest(head: int, at: int, bits: bytes | memoryview) -> int:
    """The hash of a page's bits."""
    return xxhash.xxh3_64_intdigest(bits, (head + at) % (1 << 64))


def _number(digits: bytes) -> int:
    return int.from_bytes(digits, "little")


def ranges(rows: NDArray[np.int64], wanted: NDArray[np.bool_]) -> Iterable[tuple[int, int]]:
    """Row numbers of the wanted row groups, first and last, neighbours as one range."""
    ends = np.cumsum(rows)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], wanted, [False]))))
    for first, behind in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield int(ends[first] - rows[first]), int(ends[behind - 1]) - 1
