"""A file's content as bytes at offsets: decompressed, if the file is compressed.

Offsets count decompressed bytes, so a file keeps its offsets when it is compressed. What the
file is, its first bytes say: gzip, zstd, or anything else, which is read as it is. A compressed
file is read forwards: going back to an earlier offset begins again at its first byte, so callers
read in order. Members that follow one another are one content.
"""

from __future__ import annotations

import os
import zlib
from typing import IO, Protocol, cast

import zstandard

from logstore.errors import Damaged

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
_MAGIC = 4
_FORMATS = {
    "gzip": GZIP,
    "zstd": ZSTD,
    "bzip2": b"BZh",
    "xz": b"\xfd7zXZ\0",
    "lz4": b"\x04\x22\x4d\x18",
}
_LONGEST_MAGIC = max(map(len, _FORMATS.values()))
_PIECE = 64 << 10
_MOST_WINDOW = 32 << 20
_KEPT = 64 << 10


class Content(Protocol):
    """The decompressed bytes of one open file."""

    compressed: bool

    def read(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes at `offset`; fewer only at the present end.

        Raises `OSError`, and `Damaged` where compressed bytes are not what was written.
        """
        ...

    def end(self) -> int:
        """The present end as far as it is known without decompressing: a lower bound."""
        ...

    def whole(self) -> bool:
        """Whether the bytes read so far may be all: no compressed member is unfinished."""
        ...


class PlainContent:
    """A file that is read as it is."""

    compressed = False

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, offset: int, count: int) -> bytes:
        data = os.pread(self._descriptor, count, offset)
        if len(data) in (0, count):
            return data
        pieces = [data]
        got = len(data)
        while got < count:
            more = os.pread(self._descriptor, count - got, offset + got)
            if not more:
                break
            pieces.append(more)
            got += len(more)
        return b"".join(pieces)

    def end(self) -> int:
        return os.fstat(self._descriptor).st_size

    def whole(self) -> bool:
        return True


class _Forward:
    """What is read forwards, with the last 64 KiB or more at hand."""

    compressed = True

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()  # begins at _start
        self._start = 0
        self._begin()

    def read(self, offset: int, count: int) -> bytes:
        if offset < self._start:
            self._buffer.clear()
            self._start = 0
            self._begin()
        while self._start + len(self._buffer) < offset + count:
            piece = self._next()
            if not piece:
                break
            self._buffer += piece
            spare = min(offset - self._start, len(self._buffer)) - _KEPT
            if spare > _KEPT:
                del self._buffer[:spare]
                self._start += spare
        begin = offset - self._start
        return bytes(self._buffer[begin : begin + count])

    def end(self) -> int:
        return self._start + len(self._buffer)

    def whole(self) -> bool:
        raise NotImplementedError

    def _begin(self) -> None:
        raise NotImplementedError

    def _next(self) -> bytes:
        """The next decompressed bytes; empty if the file has no more of them now."""
        raise NotImplementedError


class GzipContent(_Forward):
    """A gzip file of one or more members. It may grow while it is read."""

    def _begin(self) -> None:
        self._position = 0  # of what was not read from the file yet
        self._input = b""
        self._member: zlib._Decompress | None = None

    def whole(self) -> bool:
        behind = self._position >= os.fstat(self._descriptor).st_size
        return self._member is None and not self._input.strip(b"\0") and behind

    def _next(self) -> bytes:
        while True:
            if self._member is None and not self._open_member():
                return b""
            assert self._member is not None
            if not self._input and not self._load():
                return b""
            try:
                piece = self._member.decompress(self._input, _PIECE)
            except zlib.error as error:
                raise Damaged(f"a gzip file is damaged: {error}") from error
            if self._member.eof:
                self._input, self._member = self._member.unused_data, None
            else:
                self._input = self._member.unconsumed_tail
            if piece:
                return piece

    def _load(self) -> bool:
        piece = os.pread(self._descriptor, _PIECE, self._position)
        self._position += len(piece)
        self._input += piece
        return bool(piece)

    def _open_member(self) -> bool:
        self._input = self._input.lstrip(b"\0")  # padding of tapes and blocks
        while len(self._input) < _MAGIC:
            if not self._load():
                return False
            self._input = self._input.lstrip(b"\0")
        if not self._input.startswith(GZIP):
            raise Damaged("a gzip file goes on with bytes that are no gzip member")
        self._member = zlib.decompressobj(wbits=31)
        return True


class ZstdContent(_Forward):
    """A zstd file of one or more frames. If it grew, it is decompressed from its first byte."""

    def _begin(self) -> None:
        self._size = os.fstat(self._descriptor).st_size
        context = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
        source = cast(IO[bytes], _Source(self._descriptor))  # it needs no more than `read`
        self._frames = context.stream_reader(source, read_across_frames=True)

    def whole(self) -> bool:
        # A frame that breaks off gives no sign; the next scan sees whether the file grows.
        return self._size >= os.fstat(self._descriptor).st_size

    def _next(self) -> bytes:
        try:
            piece: bytes = self._frames.read(_PIECE)
            if not piece and os.fstat(self._descriptor).st_size > self._size:
                skip = self.end()
                self._begin()
                while skip > 0 and (piece := self._frames.read(min(_PIECE, skip))):
                    skip -= len(piece)
                piece = self._frames.read(_PIECE)
        except zstandard.ZstdError as error:
            raise Damaged(f"a zstd file is damaged: {error}") from error
        return piece


class _Source:
    """A file from its first byte, for a decompressor that reads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._position = 0

    def read(self, count: int = _PIECE) -> bytes:
        piece = os.pread(self._descriptor, count, self._position)
        self._position += len(piece)
        return piece


def find_format(descriptor: int) -> str:
    """How a file is compressed, by its first bytes; empty if it is not. Raises `OSError`."""
    magic = os.pread(descriptor, _LONGEST_MAGIC, 0)
    return next((name for name, begin in _FORMATS.items() if magic.startswith(begin)), "")


def open_content(descriptor: int, *, compression: bool) -> Content | None:
    """The content of an open file; None while it is too short to say whether it is compressed."""
    if not compression:
        return PlainContent(descriptor)
    magic = os.pread(descriptor, _MAGIC, 0)
    if magic.startswith(GZIP) and len(magic) >= 3 and magic[2] == 8:
        return GzipContent(descriptor)
    if magic == ZSTD:
        return ZstdContent(descriptor)
    if len(magic) < _MAGIC and magic and any(each.startswith(magic) for each in (GZIP, ZSTD)):
        return None
    return PlainContent(descriptor)
