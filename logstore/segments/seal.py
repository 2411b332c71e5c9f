"""The seal: a checksum over every byte of a segment, inside a file that is plain Parquet.

    PAR1 | pages | seal | footer | footer's length (4) | PAR1

    seal, 32 bytes: "TRSEAL01", XXH3-64 of all bytes before the seal, XXH3-64 of all bytes
    behind it, XXH3-64 of the first 24 bytes of the seal; numbers little-endian

Readers of Parquet find pages by the offsets in the footer and the footer by its length,
so they never look at the seal. With it, a truncated or altered object is distinguished from a
whole one for certain, and a footer that was fetched alone is checked by itself.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

from logstore.errors import Damaged, UnsupportedVersion

SIZE: Final = 32
MAGIC: Final = b"TRSEAL01"
_PARQUET: Final = b"PAR1"
_FAMILY: Final = b"TRSEAL"
_NUMBER = struct.Struct("<Q")


def sealed(parquet: bytes | memoryview) -> bytes:
    """The Parquet file with a seal before its footer."""
    view = memoryview(parquet)
    cut = footer_start(view)
    pages, footer = view[:cut], view[cut:]
    return b"".join((pages, _seal(pages, footer), footer))


def footer_start(view: memoryview) -> int:
    """The offset of the footer in a Parquet file, or in its end. Raises `Damaged`."""
    if len(view) < 12 or bytes(view[-4:]) != _PARQUET:
        raise Damaged("not a whole segment: it does not end as Parquet does")
    start = len(view) - 8 - int.from_bytes(view[-8:-4], "little")
    if start < 0:
        raise Damaged(f"the footer is {-start} bytes longer than what there is")
    return start


def check(body: bytes | memoryview) -> None:
    """Raises `Damaged` unless every byte is as it was written."""
    view = memoryview(body)
    cut = footer_start(view) - SIZE
    check_tail(view, whole=True)
    if xxhash.xxh3_64_intdigest(view[:cut]) != _NUMBER.unpack_from(view, cut + 8)[0]:
        raise Damaged("the pages of the segment do not match its seal")


def check_tail(tail: memoryview, *, whole: bool = False) -> None:
    """Raises `Damaged` unless the footer in the tail (with its seal) is as it was written."""
    cut = footer_start(tail) - SIZE
    if cut < (len(_PARQUET) if whole else 0):
        raise Damaged("the segment has no seal")
    seal = bytes(tail[cut : cut + SIZE])
    if seal[:8] != MAGIC:
        if seal[:6] == _FAMILY and _intact(seal):
            raise UnsupportedVersion("the seal of the segment is of a newer kind")
        raise Damaged("the segment has no seal")
    if not _intact(seal):
        raise Damaged("the seal of the segment is damaged")
    if xxhash.xxh3_64_intdigest(tail[cut + SIZE :]) != _NUMBER.unpack_from(seal, 16)[0]:
        raise Damaged("the footer of the segment does not match its seal")


def pages(tail: memoryview, size: int) -> tuple[int, int]:
    """The number of bytes before the seal in a segment of `size` bytes, and their XXH3-64.

    `tail` is the segment's end, already verified by `check_tail`.
    """
    cut = footer_start(tail) - SIZE
    return size - len(tail) + cut, _NUMBER.unpack_from(tail, cut + 8)[0]


def _seal(pages: memoryview, footer: memoryview) -> bytes:
    head = MAGIC + b"".join(_NUMBER.pack(xxhash.xxh3_64_intdigest(p)) for p in (pages, footer))
    return head + _NUMBER.pack(xxhash.xxh3_64_intdigest(head))


def _intact(seal: bytes) -> bool:
    """Whether the seal's own checksum is right."""
    return bool(xxhash.xxh3_64_intdigest(seal[:24]) == _NUMBER.unpack_from(seal, 24)[0])
