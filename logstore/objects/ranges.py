"""Ranges of a stored file, and reading one piece by piece."""

from __future__ import annotations

import io
from abc import abstractmethod

from logstore.errors import InvalidInput
from logstore.filesystem import File
from logstore.objects.oserrors import translated

PIECE_BYTES = 1 << 20


def check_range(offset: int, size: int | None) -> None:
    """Raises `InvalidInput` for a negative offset or size."""
    if offset < 0 or (size is not None and size < 0):
        raise InvalidInput("offset and size are not negative", field="offset")


def length_of(total: int, offset: int, size: int | None) -> int:
    """The number of bytes that the range has in a file of `total` bytes."""
    rest = max(0, total - offset)
    return rest if size is None else min(rest, size)


class OpenRange:
    """A range of an open object, read piece by piece."""

    def __init__(self, key: str, file: File, offset: int, size: int) -> None:
        self._key = key
        self._file = file
        self._offset = offset
        self._end = offset + size

    def next_piece(self) -> bytes:
        """The next bytes, about 1 MiB; no bytes at the end."""
        with translated(f"get {self._key}"):
            size = min(PIECE_BYTES, self._end - self._offset)
            piece = self._file.pread(size, self._offset) if size > 0 else b""
            self._offset += len(piece)
            return piece

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class RangeReader(io.RawIOBase):
    """A readable, seekable file of `size` bytes, for libraries that read only ranges of it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._at = 0

    @abstractmethod
    def range_at(self, start: int, size: int) -> bytes:
        """So many bytes, at least one, from offset `start` on."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._size - self._at, 0)
        want = left if size is None or size < 0 else min(size, left)
        piece = self.range_at(self._at, want) if want else b""
        self._at += len(piece)
        return piece
