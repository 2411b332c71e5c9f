"""A file's content as bytes at offsets, decompressed; its handles; and its identity.

Offsets count decompressed bytes, so a file keeps its offsets when it is compressed. The first bytes
of a file decide its format: gzip, zstd, or anything else, which is read unchanged. A compressed
file is read forwards: going back to an earlier offset begins again at its first byte, so callers
read in order. Members that follow one another are one content.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import IO, Protocol, cast

import xxhash
import zstandard

from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.errors import Damaged

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


class FileContent(Protocol):
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
    """A forward reader that keeps the last 64 KiB or more."""

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
    """Returns the compression of a file by its first bytes; empty without one. Raises `OSError`."""
    magic = os.pread(descriptor, _LONGEST_MAGIC, 0)
    return next((name for name, begin in _FORMATS.items() if magic.startswith(begin)), "")


def open_content(descriptor: int, *, compression: bool) -> FileContent | None:
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


# Open files, never more than a limit.
#
# To open one more than the limit allows, another is closed first: an idle file, then one that is
# read but can be opened again under its path, then one that was rotated away. A file that has no
# name any more is never closed while it has unread bytes, since nobody could open it again. A
# process that may open no more files (`EMFILE`, `ENFILE`) is treated like the limit.


_FEW = (errno.EMFILE, errno.ENFILE)
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Rank(IntEnum):
    """How much it costs to close a handle; the cheapest is closed first."""

    IDLE = 0
    READING = 1
    ROTATED = 2
    UNLINKED = 3


class NoHandle(Exception):
    """No file can be opened now: all handles are of files that could not be opened again."""


class Handle:
    """One open file.

    `rank` is asked when another file needs the place; `closed` is called when this one is closed.
    """

    __slots__ = ("closed", "descriptor", "device", "inode", "rank")

    def __init__(
        self, descriptor: int, rank: Callable[[], Rank], closed: Callable[[], None]
    ) -> None:
        found = os.fstat(descriptor)
        self.descriptor = descriptor
        self.device = found.st_dev
        self.inode = found.st_ino
        self.rank = rank
        self.closed = closed


class Handles:
    """All handles of a process that count against `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: BoundedCache[int, Handle] = BoundedCache()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, path: str, rank: Callable[[], Rank], closed: Callable[[], None]) -> Handle:
        """Opens a regular file. Raises `OSError`, and `NoHandle` if no place can be made."""
        while len(self._open) >= self.limit:
            self._evict()
        while True:
            try:
                descriptor = os.open(path, _FLAGS)
                break
            except OSError as error:
                if error.errno not in _FEW or not self._open:
                    raise
                self._evict()
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            handle = Handle(descriptor, rank, closed)
        except OSError:
            os.close(descriptor)
            raise
        self._open.put(descriptor, handle)
        return handle

    def touch(self, handle: Handle) -> None:
        """It is used now: of two with the same rank the one that was not used for longer goes."""
        self._open.get(handle.descriptor)

    def close(self, handle: Handle) -> None:
        """Closes it; a second call does nothing."""
        if self._open.peek(handle.descriptor) is handle:
            self._open.pop(handle.descriptor)
            os.close(handle.descriptor)
            handle.closed()

    def _evict(self) -> None:
        cheapest: tuple[Rank, Handle] | None = None
        for handle in self._open.values():
            rank = handle.rank()
            if cheapest is None or rank < cheapest[0]:
                cheapest = rank, handle
            if rank is Rank.IDLE:
                break
        if cheapest is None or cheapest[0] is Rank.UNLINKED:
            raise NoHandle
        self.close(cheapest[1])


# The identity of files by their content.
#
# A file that was read is identified by its **fingerprint**, the first N bytes of its decompressed
# content (fewer while it is shorter), and by its **window**, a hash of the bytes just before the
# offset up to which it was read. A file that begins with the fingerprint and has the window at that
# offset holds the read bytes: it is the same file, or a copy of it, whatever its name and inode
# are. A file that shares the first N bytes only is another one.


WINDOW = 1024
_SAMPLES = 8

Window = tuple[int, int, int]
NO_WINDOW: Window = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class KnownContent:
    """The known content of a file: its first bytes, and a hash of the last bytes that were read."""

    fingerprint: bytes
    window: Window
    least: int = 0
    """So many bytes it has at least: batches were made of them."""
    ranges: tuple[Window, ...] = ()
    """Offset, length and hash of bytes that it has, whatever comes before them."""
    blind: bool = False
    """Nothing is known of the bytes that count as read: no content can be told to be this one."""
    exact: bool = False
    """Nothing comes after the window."""


def window_of(tail: bytes, offset: int) -> Window:
    """The window before `offset`, of the bytes before it, at least `WINDOW` if there are."""
    part = tail[-WINDOW:]
    return offset, len(part), xxhash.xxh3_64_intdigest(part)


def read_window(content: FileContent, offset: int) -> bytes:
    """The bytes that the window before `offset` is made of; fewer if the file ends earlier."""
    length = min(offset, WINDOW)
    return content.read(offset - length, length)


def holds(content: FileContent, known: KnownContent) -> bool:
    """Returns whether a file holds the bytes read of another. Raises `OSError`, `Damaged`."""
    fingerprint = known.fingerprint
    if known.blind or content.read(0, len(fingerprint)) != fingerprint:
        return False
    offset, length, digest = known.window
    if length:
        part = content.read(offset - length, length)
        if len(part) < length or xxhash.xxh3_64_intdigest(part) != digest:
            return False
    if any(not _has(content, each) for each in known.ranges):
        return False
    if known.exact and content.read(offset, 1):
        return False
    return known.least <= offset or bool(content.read(known.least - 1, 1))


def find_end(content: FileContent) -> int:
    """The end of the content, also of a compressed file. Raises `OSError`, `Damaged`."""
    if content.compressed:
        while content.read(content.end(), 1 << 20):
            pass
    return content.end()


def _has(content: FileContent, range_: Window) -> bool:
    offset, length, digest = range_
    part = content.read(offset, length)
    return len(part) == length and xxhash.xxh3_64_intdigest(part) == digest


def begins(content: FileContent, original: FileContent) -> bool:
    """Whether one file is the beginning of the other, or both are the same.

    Compares the beginning, the last bytes that both have, and a few places between. Raises
    `OSError`, `Damaged`.
    """
    size = original.end() if content.compressed else min(content.end(), original.end())
    step = max(size // _SAMPLES, WINDOW)
    for place in [*range(0, max(size - WINDOW, 0), step), max(size - WINDOW, 0)]:
        length = min(WINDOW, size - place)
        mine, its = content.read(place, length), original.read(place, length)
        common = min(len(mine), len(its))
        if mine[:common] != its[:common]:
            return False
        if len(mine) < length:  # a compressed file ends here
            last = max(content.end() - WINDOW, 0)
            return content.read(last, WINDOW) == original.read(last, content.end() - last)
    return True
