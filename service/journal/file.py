"""One journal file: its bytes, its rows, and its readers.

Readers pin and unpin a file from any thread. A file is given away when it is released and
unpinned; another file may then overwrite it (`Spares`). A reader must therefore pin a file.

If the same process opens a folder again (a fork), each file exists as two objects. An earlier
reader may still hold the first one, so the second is given away only `after` it.

Files are opened for reading on demand, and `ReadHandles` keeps some of them open: a journal of
hundreds of files must not hold as many descriptors. When none are left, reading continues by
closing handles of files that nobody reads at the moment. A pinned file keeps its path, so a path
never changes its meaning while a handle is open. Handles are used from any thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from logstore.batch import BATCH, Rows
from logstore.descriptors import NO_DESCRIPTOR
from logstore.filesystem import File, FileSystem
from service.journal import format as wal
from service.journal import index as indexes
from service.journal.failures import translated
from service.journal.index import FileIndex

MOST = 32


class _Handle:
    """An open file and its number of readers; `gone`: to be closed after the last of them."""

    __slots__ = ("file", "gone", "readers")

    def __init__(self, file: File) -> None:
        self.file = file
        self.readers = 0
        self.gone = False


class ReadHandles:
    """Keeps at most `most` handles open, those that were used last."""

    def __init__(self, fs: FileSystem, most: int = MOST) -> None:
        self._fs = fs
        self._most = most
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Handle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def read(self, path: str, size: int, offset: int) -> bytes:
        """Reads as `File.pread`. Raises `NodeNotReady` without descriptors, or `JournalFailed`."""
        with translated(f"{path} could not be read"):
            handle = self._take(path)
            try:
                return handle.file.pread(size, offset)
            finally:
                self._give_back(handle)

    def drop(self, path: str) -> None:
        """Closes the file's handle: the file is removed, or must not be read any more."""
        with self._lock:
            handle = self._open.pop(path, None)
            if handle is not None:
                self._end(handle)

    def _take(self, path: str) -> _Handle:
        with self._lock:
            handle = self._open.get(path)
            if handle is None:
                opened = self._opened(path)
                self._close_idle(self._most - 1)
                handle = self._open[path] = _Handle(opened)
            self._open.move_to_end(path)
            handle.readers += 1
            return handle

    def _opened(self, path: str) -> File:
        try:
            return self._fs.open(path, "read")
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR or not self._close_idle(0):
                raise
        return self._fs.open(path, "read")

    def _give_back(self, handle: _Handle) -> None:
        with self._lock:
            handle.readers -= 1
            if handle.gone and handle.readers == 0:
                handle.file.close()

    def _close_idle(self, most: int) -> bool:
        """Closes unused handles, oldest first, down to `most`; whether there were any."""
        before = len(self._open)
        for path in [path for path, handle in self._open.items() if handle.readers == 0]:
            if len(self._open) <= most:
                break
            self._open.pop(path).file.close()
        return len(self._open) < before

    def _end(self, handle: _Handle) -> None:
        handle.gone = True
        if handle.readers == 0:
            handle.file.close()


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

    def has_any(self, owners: Collection[tuple[str, str | None]]) -> bool:
        """Whether it has batches of one of these runs, or of a pipeline's runs."""
        return any(
            (key.fqn, key.run) in owners or (key.fqn, None) in owners for key in self.index.runs
        )

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


def back_from(pos: int, size: int, files: Sequence[JournalFile]) -> int:
    """The lowest position so that whole `files` from there to below `pos` have `size` bytes."""
    for file in reversed(files):
        if file.end_pos <= pos:
            size -= file.size
            if size < 0:
                return file.end_pos
    return files[0].first_pos


def discard(fs: FileSystem, path: str) -> None:
    """Removes a file that nothing depends on; if that fails, the next start releases it."""
    with contextlib.suppress(OSError):
        if fs.stat(path) is not None:
            fs.unlink(path)
