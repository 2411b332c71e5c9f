"""Decompression that stops at a limit: a bomb costs the limit, not what it inflates to.

Data is inflated in pieces, so the size is known before it is held. gzip may have
several members; bytes after the last one, and an end that is missing, are errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zstandard
from isal import isal_zlib

from logstore.errors import InvalidInput, TooLarge

_PIECE = 1 << 20
# isal's stubs do not say that it is an exception.
_IsalError: type[Exception] = isal_zlib.error  # type: ignore[assignment]
_WINDOW = 8 << 20
_SKIPPABLE = b"\x2a\x4d\x18"
_RUN_LENGTH = 1
_GZIP = 16 + isal_zlib.MAX_WBITS


def gunzip(data: bytes, limit: int, field: str) -> bytes:
    """The inflated bytes. Raises `InvalidInput`, or `TooLarge` past `limit` bytes."""
    pieces: list[bytes] = []
    size = 0
    try:
        while data:
            stream: Any = isal_zlib.decompressobj(wbits=_GZIP)
            while not stream.eof:
                piece = stream.decompress(data, _PIECE)
                data = stream.unused_data if stream.eof else stream.unconsumed_tail
                if not piece and not data and not stream.eof:
                    raise InvalidInput("the gzip data ends early", field=field, hint=_HINT)
                size = _count(size, piece, limit, field)
                pieces.append(piece)
    except _IsalError as error:
        raise InvalidInput(f"not gzip: {error}", field=field, hint=_HINT) from error
    return b"".join(pieces)


def unzstd(data: bytes, limit: int, field: str) -> bytes:
    """The inflated bytes. Raises `InvalidInput`, or `TooLarge` past `limit` bytes."""
    pieces: list[bytes] = []
    size = 0
    try:
        _check_frames(data, field)
        # The window is what a frame can make us allocate at once.
        context = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        with context.stream_reader(data, read_across_frames=True) as reader:
            while piece := reader.read(_PIECE):
                size = _count(size, piece, limit, field)
                pieces.append(piece)
    except zstandard.ZstdError as error:
        raise InvalidInput(f"not zstd: {error}", field=field, hint=_HINT) from error
    return b"".join(pieces)


def _check_frames(data: bytes, field: str) -> None:
    """Walks frames and blocks (RFC 8878, section 3.1): the reader ends quietly where data do."""
    at = 0
    while at < len(data):
        if data[at + 1 : at + 4] == _SKIPPABLE and data[at] >> 4 == 5:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        head = data[at : at + 18]
        has_checksum = zstandard.get_frame_parameters(head).has_checksum
        at += zstandard.frame_header_size(head)
        last = 0
        while not last:
            header = int.from_bytes(data[at : at + 3], "little")
            last, kind, length = header & 1, header >> 1 & 3, header >> 3
            at += 3 + (1 if kind == _RUN_LENGTH else length)
            if at > len(data):
                raise InvalidInput("the zstd data ends early", field=field, hint=_HINT)
        at += 4 if has_checksum else 0
    if at > len(data):
        raise InvalidInput("the zstd data ends early", field=field, hint=_HINT)


def _count(size: int, piece: bytes, limit: int, field: str) -> int:
    size += len(piece)
    if size > limit:
        raise TooLarge(f"more than {limit} bytes once decompressed", field=field)
    return size


_HINT = "Check that the data was compressed as announced and arrived whole."
INFLATERS: dict[bytes, Callable[[bytes, int, str], bytes]] = {
    b"gzip": gunzip,
    b"x-gzip": gunzip,
    b"zstd": unzstd,
}
