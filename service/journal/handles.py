"""Handles for reading journal files: opened on demand, and some of them kept open.

A journal of hundreds of files must not hold as many descriptors. When none are left, reading
continues by closing handles of files that nobody reads at the moment.

Used from any thread. A reader has pinned its file (`file`), so no path changes its meaning
while a handle is open.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from logstore.descriptors import NO_DESCRIPTOR
from logstore.filesystem import File, FileSystem
from service.journal.failures import translated

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
        """As `File.pread`. Raises `NodeNotReady` without descriptors, else `JournalFailed`."""
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
