"""The files of a storage folder, and its lock.

    STORAGE/
      lock                      flock, as long as a forwarder or a verb that changes something runs;
                                it has a byte once there were checkpoints
      0000000012.checkpoints    the log: the file with the highest number counts, alone
      0000000013.new            a file that is being written; removed at the next start
      0000000011.torn           bytes of a write that a crash broke off, kept for people
      0000000010.damaged        a file that was replaced by what could be read of it
      0000000009.reset          a file that was reset

All of it is for its owner alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from forwarder.checkpoints.errors import StorageFailed, StorageInUse
from forwarder.checkpoints.generation import Generation
from logstore.filesystem import FileSystem, Lock

LOG, DRAFT, TORN, DAMAGED, RESET = ".checkpoints", ".new", ".torn", ".damaged", ".reset"
_LOCK = "lock"
_DIGITS = 10


@contextmanager
def errors_as_ours(folder: str) -> Iterator[None]:
    """Turns errors of the disk into `StorageFailed`."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"checkpoints in {folder}: {error.strerror or error}") from error


class Folder:
    """A storage folder on a file system. Raises `OSError`."""

    def __init__(self, path: str, fs: FileSystem) -> None:
        self.path = os.path.abspath(path)
        self.fs = fs
        self._inode = 0

    def used(self) -> bool:
        """Whether a forwarder had checkpoints in the folder before."""
        found = self.fs.stat(self._lock_path)
        return found is not None and found.size > 0

    def mark_used(self) -> None:
        """Notes that there are checkpoints: if they are gone later, that is a loss."""
        if not self.used():
            file = self.fs.open(self._lock_path, "append")
            try:
                file.write([b"1"])
                file.sync()
            finally:
                file.close()

    def lock(self) -> Lock:
        """Makes the folder and locks it. Raises `StorageInUse`."""
        self.fs.make_folders(self.path)
        lock = self.fs.lock(self._lock_path, wait=False)
        if lock is None:
            raise StorageInUse(f"another forwarder uses the storage {self.path}")
        self._inode = self._inode_of_lock()
        return lock

    def has_lock(self) -> bool:
        """Whether the file that `lock` locked is still in the folder."""
        return self._inode == self._inode_of_lock()

    def _inode_of_lock(self) -> int:
        found = self.fs.stat(self._lock_path)
        return 0 if found is None else found.inode

    @property
    def _lock_path(self) -> str:
        return os.path.join(self.path, _LOCK)

    def numbers(self, ending: str) -> list[int]:
        """The numbers of files with this ending, rising."""
        names = [name for name, is_folder in self.fs.scan(self.path) if not is_folder]
        stems = [name.removesuffix(ending) for name in names if name.endswith(ending)]
        return sorted([int(stem) for stem in stems if stem.isascii() and stem.isdigit()])

    def file(self, number: int, ending: str) -> str:
        """The path of a file."""
        return os.path.join(self.path, f"{number:0{_DIGITS}d}{ending}")

    def read(self, number: int, *, salvage: bool = False) -> tuple[Generation, bytes]:
        """What a file of the log holds, and its torn tail. Raises `StorageDamaged`."""
        path = self.file(number, LOG)
        file = self.fs.open(path, "read")
        try:
            generation = Generation(file, path, salvage=salvage)
            return generation, generation.tail()
        finally:
            file.close()

    def keep(self, number: int, ending: str, data: bytes) -> str:
        """Writes a file for people, in the place of older ones of its kind: its path."""
        for older in self.numbers(ending):
            self.fs.unlink(self.file(older, ending))
        path = self.file(number, ending)
        file = self.fs.open(path, "create")
        try:
            file.write([data])
            file.sync()
        finally:
            file.close()
        return path
