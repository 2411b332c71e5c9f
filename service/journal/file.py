"""One journal file: its bytes, its rows, and the read handle that views share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from logstore.batch import BATCH, Rows
from logstore.filesystem import File, FileSystem
from service.journal import index as indexes
from service.journal.index import FileIndex


class JournalFile:
    """A file of the journal. `end` is one past its last `pos`, `size` its whole bytes."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        *,
        ulid: str,
        secret: bytes,
        node: str,
        first_pos: int,
        size: int,
        index: FileIndex,
    ) -> None:
        self._fs = fs
        self.path = path
        self.ulid = ulid
        self.secret = secret
        self.node = node
        self.first_pos = first_pos
        self.end_pos = first_pos
        self.size = size
        self.index = index
        self.pins = 0
        self.released = False
        self._reader: File | None = None

    def read(self, size: int, offset: int) -> bytes:
        """Bytes of the file, through one handle that stays open until the file goes."""
        if self._reader is None:
            self._reader = self._fs.open(self.path, "read")
        return self._reader.pread(size, offset)

    def spill_index(self) -> None:
        """Moves the rows out of memory; for files that will not grow."""
        if len(self.index):
            self.index.spill(self._write_rows, self._load_rows)

    def release(self) -> None:
        """Deletes the file when nobody reads it any more."""
        self.released = True
        if self.pins == 0:
            self._remove()

    def unpin(self) -> None:
        """Ends one reader's hold."""
        self.pins -= 1
        if self.released and self.pins == 0:
            self._remove()

    def close(self) -> None:
        """Gives the read handle back."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @property
    def _index_path(self) -> str:
        return self.path.removesuffix(".wal") + indexes.SUFFIX

    def _write_rows(self, pieces: Iterator[bytes]) -> None:
        if self._fs.stat(self._index_path) is not None:
            self._fs.unlink(self._index_path)
        target = self._fs.open(self._index_path, "create")
        try:
            for piece in pieces:
                target.write([piece])
        finally:
            target.close()

    def _load_rows(self) -> Rows:
        source = self._fs.open(self._index_path, "read")
        try:
            if source.fileno() >= 0:
                return np.memmap(self._index_path, dtype=BATCH, mode="r")
            return np.frombuffer(source.pread(source.size(), 0), dtype=BATCH)
        finally:
            source.close()

    def _remove(self) -> None:
        self.close()
        for path in (self._index_path, self.path):
            if self._fs.stat(path) is not None:
                self._fs.unlink(path)
        self._fs.sync_folder(os.path.dirname(self.path))
