"""A file of which only some ranges are in memory: the fetched parts of a stored segment."""

from __future__ import annotations

import io

from logstore.errors import Damaged


class SparseFile(io.RawIOBase):
    """A readable, seekable file of `size` bytes. A read outside its ranges is `Damaged`.

    That error is right: Parquet's footer says which ranges a row group needs, so a read of
    others means that the footer contradicts itself.
    """

    def __init__(self, size: int, start: int, data: bytes) -> None:
        super().__init__()
        self._size = size
        self._at = 0
        self._ranges = [(start, data)]

    def add(self, start: int, data: bytes) -> None:
        """Makes `data` readable from offset `start` on."""
        self._ranges.append((start, data))

    def first(self) -> tuple[int, bytes]:
        """The range that the file was created with: its offset, and its bytes."""
        return self._ranges[0]

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
        for start, data in self._ranges:
            if start <= self._at and self._at + want <= start + len(data):
                piece = data[self._at - start : self._at - start + want]
                self._at += want
                return piece
        if want == 0:
            return b""
        raise Damaged(f"bytes {self._at} to {self._at + want} of the segment were not fetched")
