"""The file system as a parameter: what the journal and the local store ask of a disk.

A simulated one (`tests/simulation/powercut.py`) forgets what was not synced, which is how a
power cut is tested. Paths are absolute strings. What survives a power cut:

- bytes of a file: those written before its last `sync`;
- a name (create, rename, unlink): if its folder was `sync_folder`ed after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Mode = Literal["read", "append", "create", "update"]


@dataclass(frozen=True, slots=True)
class Stat:
    """Size in bytes, time of the last change in nanoseconds since the epoch, inode."""

    size: int
    modified_ns: int
    inode: int


class File(Protocol):
    """An open file. `create` makes a new one (it must not exist), `append` opens or makes one.

    `update` opens or makes one whose bytes are overwritten where they stand: it is written
    by `write_at` alone, the others by `write` alone.
    """

    def write(self, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
        """Appends all pieces, giving the number of bytes. Raises `OSError` (ENOSPC, EIO)."""
        ...

    def write_at(self, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> int:
        """Puts all pieces at `offset` and on, over what is there; past its end the file grows.

        Gives the number of bytes. Until the next `sync` a power cut may leave old and new
        bytes in any mixture. Raises `OSError` (ENOSPC, EIO).
        """
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""
        ...

    def sync(self) -> None:
        """fdatasync: when it returns, all bytes written before are on the disk."""
        ...

    def truncate(self, size: int) -> None:
        """Cuts the file to `size` bytes."""
        ...

    def size(self) -> int:
        """The file's length now, in bytes."""
        ...

    def stat(self) -> Stat:
        """The state of this very file, even if its name belongs to another by now."""
        ...

    def fileno(self) -> int:
        """The descriptor, or -1 for a simulated file."""
        ...

    def close(self) -> None:
        """Gives the descriptor back; does not sync."""
        ...


class OpenFolder(Protocol):
    """A folder that is held open, to be synced when no descriptor may be left to open it."""

    def sync(self) -> None:
        """As `FileSystem.sync_folder`. Raises `OSError`."""
        ...

    def close(self) -> None:
        """Gives the descriptor back."""
        ...


class Lock(Protocol):
    """A lock that is held until it is released or the process ends."""

    def release(self) -> None:
        """Releases the lock for the next process."""
        ...


class FileSystem(Protocol):
    """The calls that we make to a disk. All raise `OSError`."""

    def open(self, path: str, mode: Mode) -> File:
        """Opens a file. Raises `FileNotFoundError` (read), `FileExistsError` (create)."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Puts `source` in the place of `target`, atomically."""
        ...

    def unlink(self, path: str) -> None:
        """Removes a name. Raises `FileNotFoundError`."""
        ...

    def make_folders(self, path: str, *, sync: bool = True) -> Sequence[str]:
        """Makes a folder and its parents; existing ones are no error. Gives those that it made.

        With `sync` it syncs the parent of each of them.
        """
        ...

    def remove_folder(self, path: str) -> None:
        """Removes an empty folder. Raises `OSError` if it is not empty or not there."""
        ...

    def sync_folder(self, path: str) -> None:
        """When it returns, the folder's names are on the disk."""
        ...

    def open_folder(self, path: str) -> OpenFolder:
        """Opens a folder to be synced later. Raises `FileNotFoundError`, `NotADirectoryError`."""
        ...

    def scan(self, path: str) -> Iterator[tuple[str, bool]]:
        """Names in a folder and whether each is a folder; nothing if it does not exist."""
        ...

    def stat(self, path: str) -> Stat | None:
        """The file's state; None if there is no such file."""
        ...

    def lock(self, path: str, *, wait: bool) -> Lock | None:
        """Takes flock on a lock file, made if need be.

        None if it is held elsewhere and not `wait`.
        """
        ...

    def copy(self, source: File, offset: int, size: int, target: File) -> None:
        """Appends a range of `source` to `target` without it passing through the program."""
        ...

    def free_bytes(self, path: str) -> int:
        """Bytes that this user may still write on the disk that holds `path`."""
        ...

    def free_inodes(self, path: str) -> int:
        """Files that this user may still make on the disk that holds `path`."""
        ...
