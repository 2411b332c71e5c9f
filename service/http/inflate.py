"""Decompression that stops at a limit: a bomb costs the limit, not its inflated size.

Data is inflated in pieces, so the size is known before it is held, and the caller can
end it between two pieces. gzip may have several members, with zeros behind each; other bytes after
the last one, and a missing end, are errors. Members, frames and blocks are limited too: an empty
one costs its set-up and makes no text, so that their number, not the text, would be the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import zstandard
from isal import isal_zlib

from logstore.errors import InvalidInput, TooLarge
from service.http.body import Bounds

# What one call is given: the rest of it is copied at the end of each member.
_WINDOW_IN = 256 << 10
_PIECE = 1 << 20
# BGZF, the smallest members in use, has 64 KiB in each: 1,000 in the largest batch.
_MEMBERS = 10_000
# A block holds up to 128 KiB; who flushes after each line makes one a line.
_BLOCKS = 1 << 18
_ASK_EVERY = 4096
# isal's stubs do not say that it is an exception.
_IsalError: type[Exception] = isal_zlib.error  # type: ignore[assignment]
_WINDOW = 8 << 20
_SKIPPABLE = b"\x2a\x4d\x18"
_RUN_LENGTH = 1
_GZIP = 16 + isal_zlib.MAX_WBITS


def gunzip(data: Iterable[bytes], bounds: Bounds, field: str) -> bytes:
    """The inflated bytes. Raises `InvalidInput`, or `TooLarge` past the text limit."""
    found: list[bytes] = []
    size = members = 0
    stream: Any = None
    try:
        for given in data:
            bounds.go_on()
            rest = given
            while rest := _unpadded(rest) if stream is None and members else rest:
                if stream is None:
                    stream = isal_zlib.decompressobj(wbits=_GZIP)
                    members += 1
                    if members > _MEMBERS:
                        raise _too_many("gzip members", _MEMBERS, field)
                piece = stream.decompress(rest, _PIECE)
                size = _count(size, piece, bounds, field)
                found.append(piece)
                while len(piece) == _PIECE and not stream.eof and not stream.unconsumed_tail:
                    piece = stream.decompress(b"", _PIECE)  # what did not fit into the last
                    size = _count(size, piece, bounds, field)
                    found.append(piece)
                if stream.eof:
                    rest, stream = stream.unused_data, None
                else:
                    rest = stream.unconsumed_tail
    except _IsalError as error:
        raise InvalidInput(f"not gzip: {error}", field=field, hint=_HINT) from error
    if stream is not None:
        raise InvalidInput("the gzip data ends early", field=field, hint=_HINT)
    return b"".join(found)


def _unpadded(rest: bytes) -> bytes:
    """What follows a member, without the zeros with which tapes and blocks are filled."""
    return rest.lstrip(b"\0")


def unzstd(data: bytes, bounds: Bounds, field: str) -> bytes:
    """The inflated bytes. Raises `InvalidInput`, or `TooLarge` past the text limit."""
    pieces: list[bytes] = []
    size = 0
    try:
        _check_frames(data, bounds, field)
        # The window is what a frame can make us allocate at once.
        context = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        with context.stream_reader(data, read_across_frames=True) as reader:
            while piece := reader.read(_PIECE):
                bounds.go_on()
                size = _count(size, piece, bounds, field)
                pieces.append(piece)
    except zstandard.ZstdError as error:
        raise InvalidInput(f"not zstd: {error}", field=field, hint=_HINT) from error
    return b"".join(pieces)


def _check_frames(data: bytes, bounds: Bounds, field: str) -> None:
    """Checks frames and blocks (RFC 8878, section 3.1), since the reader accepts truncated data."""
    at = steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps > _BLOCKS:
            raise _too_many("zstd frames and blocks", _BLOCKS, field)
        if steps % _ASK_EVERY == 0:
            bounds.go_on()

    while at < len(data):
        step()
        if data[at + 1 : at + 4] == _SKIPPABLE and data[at] >> 4 == 5:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        head = data[at : at + 18]
        has_checksum = zstandard.get_frame_parameters(head).has_checksum
        at += zstandard.frame_header_size(head)
        last = 0
        while not last:
            step()
            header = int.from_bytes(data[at : at + 3], "little")
            last, kind, length = header & 1, header >> 1 & 3, header >> 3
            at += 3 + (1 if kind == _RUN_LENGTH else length)
            if at > len(data):
                raise InvalidInput("the zstd data ends early", field=field, hint=_HINT)
        at += 4 if has_checksum else 0
    if at > len(data):
        raise InvalidInput("the zstd data ends early", field=field, hint=_HINT)


def _count(size: int, piece: bytes, bounds: Bounds, field: str) -> int:
    bounds.go_on()
    size += len(piece)
    if size > bounds.text_bytes:
        raise TooLarge(f"more than {bounds.text_bytes} bytes once decompressed", field=field)
    return size


def _too_many(what: str, limit: int, field: str) -> InvalidInput:
    return InvalidInput(
        f"more than {limit} {what}", field=field, hint="Compress the body as one stream."
    )


def _gunzip_whole(data: bytes, bounds: Bounds, field: str) -> bytes:
    return gunzip(windows(data), bounds, field)


def windows(data: bytes) -> Iterator[bytes]:
    """The data in pieces, each the input of one step."""
    for start in range(0, len(data), _WINDOW_IN):
        yield data[start : start + _WINDOW_IN]


_HINT = "Check that the data was compressed as announced and arrived whole."
INFLATERS: dict[bytes, Callable[[bytes, Bounds, str], bytes]] = {
    b"gzip": _gunzip_whole,
    b"x-gzip": _gunzip_whole,
    b"zstd": unzstd,
}
