"""The free space of disks that caches may use, and reserves for a full disk.

`spare_bytes` limits copies and caches on the journal's disk. `DiskReserve` takes space on disks
beforehand and releases it when a disk is full.

A full disk must not be a deadlock: freeing space needs some space itself. A start writes a new
journal file and registers the node; a deletion writes an entry into the journal, a record and a
manifest. Each of both has its own reserve, because work that begins with a start, such as shipping
the waiting lines of the journal, uses all space that it finds.

    {folder}/start/bytes        zeros
    {folder}/start/inode-00     and so on: empty files, for disks that run out of inodes
    {folder}/deletion/…         likewise

A reserve is released only if its disk has less than that free, and taken again once the disk has
three times as much. Nothing depends on a reserve: if it cannot be taken, it is tried again later.
The files have no meaning, and may be deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from shutil import disk_usage
from typing import Final, Literal

from tailrace.logstore.filesystem import Disk, FileSystem

_FREE_SHARE: Final = 0.1
_FREE_BYTES: Final = 1 << 30


def spare_bytes(folder: str) -> int:
    """Free bytes of the disk of `folder` beyond those that must stay free; negative if too few.

    A tenth of the disk stays free, and at least 1 GiB, for the journal first of all.
    """
    disk = disk_usage(folder)
    return disk.free - max(round(disk.total * _FREE_SHARE), _FREE_BYTES)


INODES: Final = 32
"""In each reserve. A deletion of a run needs about ten at a time."""
_PLENTY: Final = 3
_PIECE: Final = 1 << 20
Purpose = Literal["start", "deletion"]
_PURPOSES: Final[tuple[Purpose, ...]] = ("start", "deletion")


class DiskReserve:
    """Reserves in `folders`, each with `size` bytes for each purpose; with 0 there are none.

    All calls block on the disks.
    """

    def __init__(self, fs: FileSystem, folders: Sequence[str], size: int) -> None:
        self._fs = fs
        self._folders = folders if size else ()
        self._size = size

    def give_up_if_full(self, purpose: Purpose) -> None:
        """Releases the reserve of each disk with less free space. Does nothing if that fails."""
        for folder in self._folders:
            with suppress(OSError):
                if not self._has_room(folder, 1):
                    self._remove(f"{folder}/{purpose}")

    def restore(self) -> None:
        """Takes missing reserves, on each disk with enough space."""
        for folder in self._folders:
            for purpose in _PURPOSES:
                with suppress(OSError):
                    self._restore(folder, f"{folder}/{purpose}")

    def _restore(self, folder: str, reserve: str) -> None:
        if self._is_whole(reserve):
            return
        self._fs.make_folders(reserve)
        if not self._has_room(folder, _PLENTY):
            return
        self._remove(reserve)
        try:
            for number in range(INODES - 1):
                self._fs.open(f"{reserve}/inode-{number:02}", "create").close()
            self._write_zeros(f"{reserve}/bytes")
        except OSError:  # another process was faster
            self._remove(reserve)
            raise

    def _is_whole(self, reserve: str) -> bool:
        stat = self._fs.stat(f"{reserve}/bytes")
        return stat is not None and stat.size == self._size

    def _has_room(self, folder: str, times: int) -> bool:
        return (
            self._fs.free_bytes(folder) >= times * self._size
            and self._fs.free_inodes(folder) >= times * INODES
        )

    def _write_zeros(self, path: str) -> None:
        file = self._fs.open(path, "create")
        try:
            for start in range(0, self._size, _PIECE):
                file.write([bytes(min(_PIECE, self._size - start))])
            file.sync()
        finally:
            file.close()

    def _remove(self, reserve: str) -> None:
        for name, is_folder in list(self._fs.scan(reserve)):
            if not is_folder:
                self._fs.unlink(f"{reserve}/{name}")


def no_reserve() -> DiskReserve:
    """No reserve, for nodes whose disks are managed elsewhere."""
    return DiskReserve(Disk(), (), 0)
