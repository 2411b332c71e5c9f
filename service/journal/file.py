"""One journal file: its bytes, its rows, and its readers.

Readers pin and unpin a file from any thread. A file is given away when it is released and
unpinned; another file may then overwrite it (`Spares`). A reader must therefore pin a file.

If the same process opens a folder again (a fork), each file exists as two objects. An earlier
reader may still hold the first one, so the second is given away only `after` it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import numpy as np

from logstore.batch import BATCH, Rows
from logstore.filesystem import FileSystem
from service.journal import format as wal
from service.journal import index as indexes
from service.journal.handles import ReadHandles
from service.journal.index import FileIndex


class JournalFile:
    """A file of the journal. `end_pos` is one past its last `pos`.

    `size` is where its entries end, `space` the bytes that it occupies on the disk: no less.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        *,
        header: wal.FileHeader,
        size: int,
        space: int,
        handles: ReadHandles | None = None,
    ) -> None:
        self._fs = fs
        self._handles = ReadHandles(fs) if handles is None else handles
        self.path = path
        self.ulid = header.file
        self.secret = header.secret
        self.node = header.node
        self.first_pos = header.first_pos
        self.end_pos = header.first_pos
        self.size = size
        self.space = space
        self.index = FileIndex()
        self.after: JournalFile | None = None
        self.damaged: frozenset[int] = frozenset()
        """Offsets of texts whose entries do not read any more: nobody is given them."""
        self.pins = 0
        self._closed = False
        self._give: Callable[[str, int], None] | None = None
        self._lock = threading.Lock()

    def read(self, size: int, offset: int) -> bytes:
        """Bytes of the file. Raises `JournalFailed` if the disk does not give them,
        `NodeNotReady` if no descriptor is free to open it.
        """
        return self._handles.read(self.path, size, offset)

    def spill_index(self) -> None:
        """Moves the rows out of memory; for files that no longer grow.

        The side file is a cache: if the disk refuses it, the rows stay in memory.
        """
        if len(self.index):
            try:
                self.index.spill(self._write_rows, self._load_rows)
            except OSError:
                discard(self._fs, self._index_path)

    def release(self, give: Callable[[str, int], None]) -> None:
        """Gives path and size away once nobody reads the file any more."""
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
            gone = self.pins == 0
            give, closed = self._give, self._closed
        if gone and give is not None:
            self._go(give)
        elif gone and closed:
            self.close()

    def close(self) -> None:
        """Closes its read handle, if there is one."""
        self._closed = True
        self._handles.drop(self.path)

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
        if self.after is not None:
            self.after.release(give)
            return
        discard(self._fs, self._index_path)
        give(self.path, self.size)


def discard(fs: FileSystem, path: str) -> None:
    """Removes a file that nothing depends on; if that fails, the next start releases it."""
    with contextlib.suppress(OSError):
        if fs.stat(path) is not None:
            fs.unlink(path)
