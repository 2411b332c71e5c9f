"""One journal file: its bytes, its rows, and the read handle that views share.

Readers pin and unpin from any thread; a file goes when it is released and unpinned.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np

from logstore.batch import BATCH, Rows
from logstore.errors import JournalFailed
from logstore.filesystem import File, FileSystem
from service.journal import format as wal
from service.journal import index as indexes
from service.journal.index import FileIndex


class JournalFile:
    """A file of the journal. `end` is one past its last `pos`, `size` its whole bytes."""

    def __init__(self, fs: FileSystem, path: str, *, header: wal.FileHeader, size: int) -> None:
        self._fs = fs
        self.path = path
        self.ulid = header.file
        self.secret = header.secret
        self.node = header.node
        self.first_pos = header.first_pos
        self.end_pos = header.first_pos
        self.size = size
        self.index = FileIndex()
        self.pins = 0
        self.released = False
        self._reader: File | None = None
        self._lock = threading.Lock()

    def read(self, size: int, offset: int) -> bytes:
        """Bytes of the file, through one handle that stays open until the file goes.

        Raises `JournalFailed` if the disk does not give them.
        """
        try:
            return self._opened().pread(size, offset)
        except OSError as error:
            raise JournalFailed(f"reading {self.path} failed: {error}") from error

    def _opened(self) -> File:
        reader = self._reader
        if reader is None:
            with self._lock:
                if self._reader is None:
                    self._reader = self._fs.open(self.path, "read")
                reader = self._reader
        return reader

    def spill_index(self) -> None:
        """Moves the rows out of memory; for files that will not grow.

        The side file is a cache: on a disk that does not take it the rows stay where
        they are.
        """
        if len(self.index):
            try:
                self.index.spill(self._write_rows, self._load_rows)
            except OSError:
                discard(self._fs, self._index_path)

    def release(self) -> None:
        """Deletes the file when nobody reads it any more."""
        with self._lock:
            self.released = True
            gone = self.pins == 0
        if gone:
            self._remove()

    def pin(self) -> None:
        """Begins one reader's hold."""
        with self._lock:
            self.pins += 1

    def unpin(self) -> None:
        """Ends one reader's hold."""
        with self._lock:
            self.pins -= 1
            gone = self.released and self.pins == 0
        if gone:
            self._remove()

    def close(self) -> None:
        """Gives the read handle back."""
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    @property
    def _index_path(self) -> str:
        return self.path.removesuffix(wal.SUFFIX) + indexes.SUFFIX

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
        # Not synced: a file that a power cut brings back is let go again.
        self.close()
        for path in (self._index_path, self.path):
            discard(self._fs, path)


def make_file(
    fs: FileSystem, folder: str, *, header: wal.FileHeader, state: bytes
) -> tuple[JournalFile, File]:
    """A new file with its first entry, synced; its name is not, before the folder is.

    Until it is whole it has another name, so a failure leaves nothing that a later start
    could take for a journal file. Raises `OSError`.
    """
    path = f"{folder}/{header.file}{wal.SUFFIX}"
    making = f"{folder}/{header.file}{wal.MAKING_SUFFIX}"
    out = fs.open(making, "create")
    try:
        head = wal.encode_header(
            file=header.file, secret=header.secret, first_pos=header.first_pos, node=header.node
        )
        size = out.write([head, state])
        out.sync()
        fs.rename(making, path)
    except OSError:
        out.close()
        discard(fs, making)
        raise
    return JournalFile(fs, path, header=header, size=size), out


def discard(fs: FileSystem, path: str) -> None:
    """Removes a file that nothing depends on: what stays is found and let go at the next start."""
    with contextlib.suppress(OSError):
        if fs.stat(path) is not None:
            fs.unlink(path)
