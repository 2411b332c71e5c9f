"""One journal file: its bytes, its rows, and the read handle that views share.

Readers pin and unpin from any thread; a file goes when it is released and unpinned. Then
its space may serve another one (`spares`), so nobody reads a file that he has not pinned.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import numpy as np

from logstore.batch import BATCH, Rows
from logstore.errors import JournalFailed
from logstore.filesystem import File, FileSystem
from service.journal import format as wal
from service.journal import index as indexes
from service.journal.index import FileIndex


class JournalFile:
    """A file of the journal. `end_pos` is one past its last `pos`.

    `size` is where its entries end, `space` what it takes of the disk: no less.
    """

    def __init__(
        self, fs: FileSystem, path: str, *, header: wal.FileHeader, size: int, space: int
    ) -> None:
        self._fs = fs
        self.path = path
        self.ulid = header.file
        self.secret = header.secret
        self.node = header.node
        self.first_pos = header.first_pos
        self.end_pos = header.first_pos
        self.size = size
        self.space = space
        self.index = FileIndex()
        self.pins = 0
        self._give: Callable[[str, int], None] | None = None
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

    def release(self, give: Callable[[str, int], None]) -> None:
        """Gives path and size away when nobody reads the file any more."""
        with self._lock:
            self._give = give
            gone = self.pins == 0
        if gone:
            self._go(give)

    def pin(self) -> None:
        """Begins one reader's hold."""
        with self._lock:
            self.pins += 1

    def unpin(self) -> None:
        """Ends one reader's hold."""
        with self._lock:
            self.pins -= 1
            give = self._give if self.pins == 0 else None
        if give is not None:
            self._go(give)

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

    def _go(self, give: Callable[[str, int], None]) -> None:
        # Not synced: a file that a power cut brings back is let go again.
        self.close()
        discard(self._fs, self._index_path)
        give(self.path, self.size)


def make_file(
    fs: FileSystem, folder: str, *, header: wal.FileHeader, state: bytes, spare: str | None
) -> tuple[JournalFile, File]:
    """A new file with its first entry, synced; its name is not, before the folder is.

    It is written over `spare`, which is gone in any case. Until it is whole it has another
    name, so a failure leaves nothing that a later start could take for a journal file.
    Raises `OSError`.
    """
    path = f"{folder}/{header.file}{wal.SUFFIX}"
    making = f"{folder}/{header.file}{wal.MAKING_SUFFIX}"
    out: File | None = None
    try:
        if spare is not None:
            _take_over(fs, folder, spare, making)
        out = fs.open(making, "update")
        size, space = _begin(out, header, state)
        out.sync()
        fs.rename(making, path)
    except OSError:
        if out is not None:
            out.close()
        for left in (making, spare):
            if left is not None:
                discard(fs, left)
        raise
    return JournalFile(fs, path, header=header, size=size, space=space), out


def _take_over(fs: FileSystem, folder: str, spare: str, making: str) -> None:
    """Synced before the first byte changes: the names that the file had in its earlier
    life must not come back with the bytes of the new one.
    """
    fs.rename(spare, making)
    fs.sync_folder(folder)


def _begin(out: File, header: wal.FileHeader, state: bytes) -> tuple[int, int]:
    """Writes header and state; where they end, and the file."""
    head = wal.encode_header(
        file=header.file, secret=header.secret, first_pos=header.first_pos, node=header.node
    )
    size, space = len(head) + len(state), out.size()
    out.write_at([head, state, wal.END] if size < space else [head, state], 0)
    return size, max(size, space)


def discard(fs: FileSystem, path: str) -> None:
    """Removes a file that nothing depends on: what stays is found and let go at the next start."""
    with contextlib.suppress(OSError):
        if fs.stat(path) is not None:
            fs.unlink(path)
