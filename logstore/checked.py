"""JSON objects that end with a checksum: the one codec of all state in the store.

    {"seq":3,"pos":918,"low":1,"version":"…","check":"9ad4c1f0"}

`check` is the last member: the CRC-32 of all bytes before its comma, in eight hex digits. It is
taken from the stored bytes, so that no reader encodes anything again.

- An object without the member is of an earlier version, and is read as it is.
- An earlier version that rewrites an object drops the member, or writes it back at another place,
  where it means nothing.
- CRC-32 notices every change of up to three bits in 11 KB, and of two in any object of ours. The
  change of a single bit can thus be found and undone (`without_flip`). Up to 11 KB, no change of
  two bits looks like that of one.

`node.json` has the checksum as blanks behind the JSON instead, because earlier versions refuse
members that they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final
from zlib import crc32

import orjson

from logstore.errors import Damaged

MOST_FLIP_BYTES: Final = 256 << 10
"""Up to this size, at most one of 2,048 damages of another kind looks like that of one bit."""
_SIZE: Final = len(',"check":"00000000"}')
_BLANKS: Final = 32
# Whatever one bit makes of the member, it still looks like it: no object of ours ends alike.
_MEMBER: Final = re.compile(rb',"([^"]{5})":"([^"]{8})"\}', re.DOTALL)
_HEX: Final = re.compile(rb"[0-9a-f]{8}")
_CRC: Final = tuple([crc32(bytes([byte])) ^ crc32(b"\0") for byte in range(256)])
"""What each byte changes in the checksum if it is the last one."""
_TO_BLANKS: Final = str.maketrans("01", " \t")


class ChecksumMismatch(ValueError):
    """The bytes are not those that were written."""

    def __init__(self) -> None:
        super().__init__("its bytes do not match their checksum")


def encode_checked(value: Any) -> bytes:
    """The JSON of an object that is not empty, with its checksum."""
    return with_check(orjson.dumps(value))


def with_check(json: bytes) -> bytes:
    """The same JSON object with its checksum; it has none, and is not empty."""
    members = memoryview(json)[:-1]
    return b"".join((members, b',"check":"%08x"}' % crc32(members)))


def decode_checked(body: bytes) -> dict[str, Any]:
    """The members of an object, without the checksum.

    Raises `ValueError` for what is no JSON object, or does not match its checksum.
    """
    if not is_intact(body):
        raise ChecksumMismatch
    value = orjson.loads(body)
    if type(value) is not dict:
        raise ValueError("it is not a JSON object")
    value.pop("check", None)
    return value


def is_checked(body: bytes) -> bool:
    """Whether the bytes end with a checksum, right or wrong."""
    return _MEMBER.fullmatch(body, max(len(body) - _SIZE, 0)) is not None


def is_intact(body: bytes) -> bool:
    """Whether the bytes match their checksum, or have none."""
    found = _MEMBER.fullmatch(body, max(len(body) - _SIZE, 0))
    if found is None:
        return True
    expected = b"%08x" % crc32(memoryview(body)[:-_SIZE])
    return found[1] == b"check" and found[2] == expected


def without_flip(body: bytes, accepts: Callable[[bytes], object]) -> bytes | None:
    """The bytes before one bit of them changed; None if no single bit explains the damage.

    `accepts` raises `Damaged` for bytes that are no object of the kind.
    """
    if len(body) > MOST_FLIP_BYTES:
        return None
    for at, bit in _flips(body):
        tried = bytearray(body)
        tried[at] ^= 1 << bit
        candidate = bytes(tried)
        if is_checked(candidate) and is_intact(candidate) and _accepted(candidate, accepts):
            return candidate
    return None


def _flips(body: bytes) -> Iterator[tuple[int, int]]:
    """Bits that may have changed: each of the member, and those that explain its checksum.

    CRC-32 is linear: what a bit changes in it depends on the number of bytes behind it alone.
    """
    end = max(len(body) - _SIZE, 0)
    yield from product(range(end, len(body)), range(8))
    found = _MEMBER.fullmatch(body, end)
    if found is None or _HEX.fullmatch(found[2]) is None:
        return
    wanted = crc32(memoryview(body)[:end]) ^ int(found[2], 16)
    changes = [crc32(bytes([1 << bit])) ^ crc32(b"\0") for bit in range(8)]
    for at in range(end - 1, -1, -1):
        if wanted in changes:
            yield at, changes.index(wanted)
        changes = [change >> 8 ^ _CRC[change & 255] for change in changes]


def _accepted(body: bytes, accepts: Callable[[bytes], object]) -> bool:
    try:
        accepts(body)
    except Damaged:
        return False
    return True


# --- node.json -----------------------------------------------------------------------


def with_blank_check(json: bytes) -> bytes:
    """The same JSON with its checksum as blanks behind it, which every parser skips."""
    return json + f"{crc32(json):032b}".translate(_TO_BLANKS).encode()


def without_blank_check(body: bytes) -> bytes:
    """The JSON before the blanks. Raises `ChecksumMismatch`; JSON without blanks has none."""
    json = body.rstrip()
    if len(body) - len(json) < _BLANKS:
        return json
    if with_blank_check(json) != body:
        raise ChecksumMismatch
    return json
