"""A reserve of file descriptors, for when the process or the machine has no more.

    disk = ReservedDisk()          # holds 16 descriptors of /dev/null

A file that this disk opens gets a descriptor even if no others are left: one of the reserve is
closed for it, and reopened as soon as one of the disk's files is closed. Connections, the store
and searches open files by other means, so they fail first.

Invariants:

- Opening for reading leaves half of the reserve for writers: many readers must not
  keep a journal file from being begun.
- An empty reserve changes nothing: the call fails as it would without it (EMFILE, ENFILE).
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

from logstore.disk import Disk, DiskFile, DiskFolder, DiskLock
from logstore.filesystem import Mode

T = TypeVar("T")
DESCRIPTORS = 16
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
"""What the system answers when the process, or the machine, has no descriptor left."""
ENOUGH = 65_536
"""As many open files as a process ever asks for."""


def open_files() -> int:
    """How many files the process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ENOUGH if soft == resource.RLIM_INFINITY else soft


class Reserve:
    """Up to `count` open descriptors that are held in reserve; used from any thread."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[int] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._held)
        self.fill()

    def __len__(self) -> int:
        return len(self._held)

    def lend(self, *, leave: int) -> bool:
        """Frees one descriptor for the caller, unless no more than `leave` are left."""
        with self._lock:
            if len(self._held) <= leave:
                return False
            os.close(self._held.pop())
            return True

    def fill(self) -> None:
        """Reopens what was lent, as far as there are descriptors."""
        if len(self._held) >= self._count:
            return
        with self._lock:
            while len(self._held) < self._count:
                try:
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                except OSError as error:
                    if error.errno in NO_DESCRIPTOR:
                        return  # the next file that is closed tries again
                    raise


class ReservedDisk(Disk):
    """The machine's disk with a reserve of descriptors of its own."""

    def __init__(self, descriptors: int = DESCRIPTORS, *, private: bool = False) -> None:
        super().__init__(private=private)
        self.reserve = Reserve(descriptors)
        self._kept_for_writing = descriptors // 2

    def open(self, path: str, mode: Mode) -> DiskFile:
        leave = self._kept_for_writing if mode == "read" else 0
        return self._tried(lambda: _File(path, mode, self.rights, self.reserve), leave)

    def open_folder(self, path: str) -> DiskFolder:
        return self._tried(lambda: super(ReservedDisk, self).open_folder(path))

    def sync_folder(self, path: str) -> None:
        self._tried(lambda: super(ReservedDisk, self).sync_folder(path))
        self.reserve.fill()

    def scan(self, path: str) -> Iterator[tuple[str, bool]]:
        # Read whole: whoever takes it piece by piece may open files meanwhile.
        found = self._tried(lambda: list(super(ReservedDisk, self).scan(path)))
        self.reserve.fill()
        return iter(found)

    def lock(self, path: str, *, wait: bool) -> DiskLock | None:
        return self._tried(lambda: super(ReservedDisk, self).lock(path, wait=wait))

    def _tried(self, call: Callable[[], T], leave: int = 0) -> T:
        """The call, repeated with descriptors of the reserve while other threads take them."""
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or not self.reserve.lend(leave=leave):
                    self.reserve.fill()  # what was lent for nothing
                    raise


class _File(DiskFile):
    """A file whose closing fills the reserve again."""

    __slots__ = ("_reserve",)

    def __init__(self, path: str, mode: Mode, rights: int, reserve: Reserve) -> None:
        self._reserve = reserve
        super().__init__(path, mode, rights)

    def close(self) -> None:
        super().close()
        self._reserve.fill()


def _close_all(held: list[int]) -> None:
    while held:
        os.close(held.pop())
