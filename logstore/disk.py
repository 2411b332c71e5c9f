"""The operating system's disk, as `logstore.filesystem.FileSystem`.

Descriptors are close-on-exec. A write loops until all is written, a read until the
end of the file. A lock is flock on a file that is never unlinked: unlinking would let
two processes lock two files of one name.

Logs are not readable for every user of the machine. The umask of a program that writes to a store
is a setting, so that it does not depend on a shell or an init system (`apply_umask`). Files that
belong to a node alone (the journal with its secret) are opened by a `Disk` that gives other users
no rights, whatever the umask is. At the start, the rights are also removed from a folder of an
older version (`close_to_others`).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress

from logstore.filesystem import File, Mode, Stat
from logstore.syncer import Syncer, syncer_for

__all__ = ["Disk", "Syncer", "syncer_for"]

log = logging.getLogger(__name__)

# POSIX promises 16; Linux takes 1,024.
_IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)
_COPY_BYTES = 1 << 20
_ANY_NUMBER = 1 << 60  # of inodes, where the file system makes them as it needs them
_NO_COPY_RANGE = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}
)
_FLAGS: dict[Mode, int] = {
    "read": os.O_RDONLY,
    "append": os.O_RDWR | os.O_CREAT | os.O_APPEND,
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND,
    "update": os.O_RDWR | os.O_CREAT,
}


class DiskFile:
    """An open file of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, path: str, mode: Mode, rights: int = 0o666) -> None:
        self._fd = os.open(path, _FLAGS[mode] | os.O_CLOEXEC, rights)
        if stat.S_ISDIR(os.fstat(self._fd).st_mode):  # Linux opens folders for reading
            self.close()
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)

    def write(self, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
        fd, total = self._fd, 0
        for start in range(0, len(pieces), _IOV_MAX):
            some = pieces[start : start + _IOV_MAX]
            size = sum([memoryview(piece).nbytes for piece in some])
            written = os.writev(fd, some)
            if written < size:
                _write_rest(fd, some, written)
            total += size
        return total

    def write_at(self, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> int:
        fd, at = self._fd, offset
        for start in range(0, len(pieces), _IOV_MAX):
            some = pieces[start : start + _IOV_MAX]
            size = sum([memoryview(piece).nbytes for piece in some])
            written = os.pwritev(fd, some, at)
            if written < size:
                _write_rest_at(fd, some, written, at)
            at += size
        return at - offset

    def pread(self, size: int, offset: int) -> bytes:
        first = os.pread(self._fd, size, offset)
        if len(first) == size or not first:
            return first
        pieces, got = [first], len(first)
        while got < size:
            piece = os.pread(self._fd, size - got, offset + got)
            if not piece:
                break
            pieces.append(piece)
            got += len(piece)
        return b"".join(pieces)

    def sync(self) -> None:
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def stat(self) -> Stat:
        return _stat(os.fstat(self._fd))

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class DiskFolder:
    """An open folder of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync(self) -> None:
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        os.fsync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class DiskLock:
    """flock, held by an open descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Disk:
    """The file system of the machine. `private`: new files and folders are the owner's only."""

    def __init__(self, *, private: bool = False) -> None:
        self.rights = 0o600 if private else 0o666
        self._folder_rights = 0o700 if private else 0o777

    def open(self, path: str, mode: Mode) -> DiskFile:
        return DiskFile(path, mode, self.rights)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_folders(self, path: str, *, sync: bool = True) -> Sequence[str]:
        missing, path = list[str](), os.path.abspath(path)
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            try:
                os.mkdir(folder, self._folder_rights)
            except FileExistsError:  # a file, or somebody was quicker
                if not stat.S_ISDIR(os.stat(folder).st_mode):
                    raise NotADirectoryError(
                        errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder
                    ) from None
            if sync:
                self.sync_folder(os.path.dirname(folder))
        return missing

    def remove_folder(self, path: str) -> None:
        os.rmdir(path)

    def sync_folder(self, path: str) -> None:
        folder = self.open_folder(path)
        try:
            folder.sync()
        finally:
            folder.close()

    def open_folder(self, path: str) -> DiskFolder:
        return DiskFolder(path)

    def scan(self, path: str) -> Iterator[tuple[str, bool]]:
        try:
            entries = os.scandir(path)
        except FileNotFoundError:
            return
        with entries:
            for entry in entries:
                yield entry.name, entry.is_dir()

    def stat(self, path: str) -> Stat | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _stat(found) if not stat.S_ISDIR(found.st_mode) else None

    def lock(self, path: str, *, wait: bool) -> DiskLock | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self.rights)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return DiskLock(fd)

    def copy(self, source: File, offset: int, size: int, target: File) -> None:
        _copy(source.fileno(), offset, size, target.fileno())

    def free_bytes(self, path: str) -> int:
        disk = os.statvfs(path)
        return disk.f_bavail * disk.f_frsize

    def free_inodes(self, path: str) -> int:
        disk = os.statvfs(path)
        return disk.f_favail if disk.f_files else _ANY_NUMBER


def _stat(found: os.stat_result) -> Stat:
    return Stat(found.st_size, found.st_mtime_ns, found.st_ino)


def _write_rest(fd: int, pieces: Sequence[bytes | bytearray | memoryview], written: int) -> None:
    rest = memoryview(b"".join(pieces))[written:]
    while rest:
        rest = rest[os.write(fd, rest) :]


def _write_rest_at(
    fd: int, pieces: Sequence[bytes | bytearray | memoryview], written: int, offset: int
) -> None:
    data = memoryview(b"".join(pieces))
    while written < len(data):
        written += os.pwrite(fd, data[written:], offset + written)


def _copy(source: int, offset: int, size: int, target: int) -> None:
    # copy_file_range refuses a descriptor that appends, so that is off for the time of it.
    flags = fcntl.fcntl(target, fcntl.F_GETFL)
    fcntl.fcntl(target, fcntl.F_SETFL, flags & ~os.O_APPEND)
    try:
        start = os.fstat(target).st_size
        done = _copy_in_kernel(source, offset, size, target, start)
    finally:
        fcntl.fcntl(target, fcntl.F_SETFL, flags)
    if done < size:
        _copy_through_memory(source, offset + done, size - done, target)


def _copy_in_kernel(source: int, offset: int, size: int, target: int, start: int) -> int:
    done = 0
    while done < size:
        try:
            moved = os.copy_file_range(source, target, size - done, offset + done, start + done)
        except OSError as error:
            if error.errno not in _NO_COPY_RANGE:
                raise
            return done
        if not moved:  # also what some file systems say that cannot do it
            return done
        done += moved
    return done


def _copy_through_memory(source: int, offset: int, size: int, target: int) -> None:
    end = offset + size
    while offset < end:
        piece = os.pread(source, min(_COPY_BYTES, end - offset), offset)
        if not piece:
            raise OSError(errno.EINVAL, "the source ends before the range to copy")
        _write_rest(target, [piece], 0)
        offset += len(piece)


def apply_umask(umask: str) -> None:
    """Sets the umask (octal) for all files that this process and its children make from now on."""
    os.umask(int(umask, 8))


def close_to_others(folder: str) -> None:
    """Lets only the owner look into the folder from now on; does nothing if it does not exist."""
    with suppress(FileNotFoundError):
        try:
            os.chmod(folder, 0o700)
        except PermissionError:
            log.warning("%s belongs to another user: others may be able to read it", folder)
