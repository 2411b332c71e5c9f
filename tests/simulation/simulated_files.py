"""What is open of a simulated disk (`tests/simulation/powercut.py`): files, folders and locks."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace.logstore.filesystem import Mode, Stat
from tests.simulation.inodes import Folder, Inode

if TYPE_CHECKING:
    from tests.simulation.powercut import PowerCutFileSystem


class SimulatedFile:
    """An open file; goes on working when its name is gone."""

    def __init__(self, fs: PowerCutFileSystem, path: str, inode: Inode, mode: Mode) -> None:
        self.path = path
        self.inode = inode
        self._fs = fs
        self._mode = mode
        self._open = True

    def write(self, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
        assert self._mode != "update"
        return self._write(b"".join(pieces), None)

    def write_at(self, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> int:
        assert self._mode in ("update", "read")
        return self._write(b"".join(pieces), offset)

    def _write(self, data: bytes, offset: int | None) -> int:
        self._check_writable()
        try:
            with self._fs.call("write", self.path):
                self._fs.grow(self.inode, data, offset)
        except OSError as error:
            if error.errno == errno.ENOSPC and self._fs.free_bytes("/"):
                self._fs.grow(self.inode, data[: len(data) // 2], offset)
            raise
        return len(data)

    def pread(self, size: int, offset: int) -> bytes:
        self._check_open()
        with self._fs.call("pread", self.path):
            return bytes(self.inode.current[offset : offset + size])

    def sync(self) -> None:
        self._check_open()
        try:
            with self._fs.call("sync", self.path, before=True):
                self.inode.sync()
        except OSError:
            self.inode.fail_sync()
            raise

    def truncate(self, size: int) -> None:
        self._check_writable()
        with self._fs.call("truncate", self.path):
            self._fs.grown_bytes += max(size - len(self.inode.current), 0)
            self.inode.truncate(size)
            self.inode.modified_ns = self._fs.tick()

    def size(self) -> int:
        self._check_open()
        return len(self.inode.current)

    def stat(self) -> Stat:
        self._check_open()
        return stat_of(self.inode)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise error_of(errno.EBADF, self.path)

    def _check_writable(self) -> None:
        self._check_open()
        if self._mode == "read":
            raise error_of(errno.EBADF, self.path)


class SimulatedFolder:
    """An open folder."""

    def __init__(self, fs: PowerCutFileSystem, path: str, folder: Folder) -> None:
        self._fs = fs
        self._path = path
        self._folder = folder
        self._open = True

    def sync(self) -> None:
        if not self._open:
            raise error_of(errno.EBADF, self._path)
        with self._fs.call("sync_open_folder", self._path, before=True):
            self._folder.sync()

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._open = False


class SimulatedLock:
    """Held until released; a power cut forgets it."""

    def __init__(self, locked: set[int], number: int) -> None:
        self._locked = locked
        self._number = number

    def release(self) -> None:
        self._locked.discard(self._number)


def stat_of(inode: Inode) -> Stat:
    """As the environment gives it."""
    return Stat(len(inode.current), inode.modified_ns, inode.number)


def error_of(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
