"""The file system as a parameter, and the real disk: syncs, reserved descriptors, errors.

`FileSystem` lists the calls that the journal and the local store make to a disk. `Disk` makes them
to the operating system, `ReservedDisk` with a reserve of file descriptors. A simulated one
(`tests/simulation/powercut.py`) forgets what was not synced, which is how a power cut is tested.
Paths are absolute strings. A power cut keeps:

- of a file the bytes that were written before its last `sync`;
- a name (create, rename, unlink) if its folder was `sync_folder`ed after it.

`translated` turns an `OSError` into an error of the store. `read_token` and `trust` read the files
of a client of a service: its token, and the certificates that it trusts.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import resource
import ssl
import stat
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import (
    Conflict,
    InvalidInput,
    InvalidName,
    OutcomeUnknown,
    StoreUnavailable,
    TailraceError,
)

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

    def fileno(self) -> int:
        """The descriptor, or -1 for a simulated folder."""
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

    def sync_all(self, opened: Sequence[File | OpenFolder]) -> Sequence[OSError | None]:
        """Syncs all of them at the same time; returns the error of each, None if it is synced."""
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


# Durability: fdatasync without blocking the event loop.
#
# `AioSyncer` submits the sync to the kernel, which reports its end by an eventfd. It needs no
# thread and no switch of the interpreter lock, which on two cores costs more than the disk does.
# `ThreadSyncer` is for kernels and file systems without Linux AIO. A failed fdatasync is always an
# `OSError`, and the pages that it failed on count as lost: never sync again.


# The average moves by a part of each sync's distance from it; it begins as that of a slow disk.
_AVERAGED = 16
_FIRST_SECONDS = 0.01
_QUICK_SECONDS = 0.001
_LARGE_BYTES = 1 << 20
_ERRNO_OF_TEXT = {os.strerror(number): number for number in errno.errorcode}


class Syncer(Protocol):
    """Makes the written bytes of a file durable."""

    async def sync(self, file: File, size: int = 0, /) -> None:
        """As `File.sync`: durable once it returns; `size` bytes were written since the last one.

        Raises `OSError`.
        """
        ...

    def close(self) -> None:
        """Releases its resources of the loop and the kernel."""
        ...


class ThreadSyncer:
    """One thread per call, from the loop's pool."""

    async def sync(self, file: File, _size: int = 0, /) -> None:
        await asyncio.to_thread(file.sync)

    def close(self) -> None:
        """Does nothing: there is no resource to release."""


class Fdsync(Protocol):
    """The part of caio's context that `AioSyncer` uses."""

    def fdsync(self, fd: int) -> Awaitable[None]:
        """Waits for the end of an fdatasync; its failure is a `SystemError`."""
        ...

    def close(self) -> None:
        """Detaches from the loop."""
        ...


class AioSyncer:
    """Linux AIO. The context belongs to one loop, and is used in it only."""

    def __init__(self, context: Fdsync) -> None:
        self._context = context
        self._thread = ThreadSyncer()

    async def sync(self, file: File, _size: int = 0, /) -> None:
        try:
            await self._context.fdsync(file.fileno())
        except (OverflowError, ValueError):
            # The kernel did not take the request (its queue is full, or this file system
            # has no asynchronous sync): nothing failed yet, so ask the ordinary way.
            await self._thread.sync(file)
        except SystemError as error:
            # caio gives the text of the errno only.
            number = _ERRNO_OF_TEXT.get(str(error), errno.EIO)
            raise OSError(number, os.strerror(number)) from error

    def close(self) -> None:
        self._context.close()


class QuickSyncer:
    """Syncs in place while the disk is quick, else by `inner`.

    Submitting a sync to the kernel and waiting for its end costs two switches of tasks, more
    than a fast disk takes for it. While syncs take less than `_QUICK_SECONDS` on average,
    the loop therefore waits for the disk itself. One slow sync delays the loop; several make the
    next ones go to `inner`, until they are quick again.
    """

    def __init__(self, inner: Syncer, clock: Clock) -> None:
        self._inner = inner
        self._now = clock.monotonic
        self._average = _FIRST_SECONDS

    async def sync(self, file: File, size: int = 0, /) -> None:
        start = self._now()
        if size > _LARGE_BYTES:  # its time says nothing about the others
            await self._inner.sync(file, size)
            return
        if self._average < _QUICK_SECONDS:
            file.sync()
        else:
            await self._inner.sync(file, size)
        self._average += (self._now() - start - self._average) / _AVERAGED

    def close(self) -> None:
        self._inner.close()


def syncer_for(loop: asyncio.AbstractEventLoop) -> Syncer:
    """The best syncer for this machine; call it inside the running loop."""
    try:
        # Its import fails where the kernel has no AIO, so it cannot stand at the top.
        from caio.linux_aio_asyncio import AsyncioContext

        make: Callable[..., Fdsync] = _resumed(AsyncioContext)
        return AioSyncer(make(loop=loop))
    except (ImportError, OSError, SystemError, NotImplementedError):
        return ThreadSyncer()


def _resumed(context: Any) -> Any:
    """caio's context that goes on when a signal interrupts its look at what has ended.

    The kernel has reported these ends by then, and would not again: who waits for them would wait
    until the end of another sync.
    """

    class Resumed(context):  # type: ignore[misc]
        def _on_read_event(self) -> None:
            while True:
                try:
                    super()._on_read_event()
                    break
                except SystemError as error:
                    if error.args[:1] != (errno.EINTR,):
                        raise

    return Resumed


_contexts = threading.local()
_AT_ONCE = 128


def sync_one_by_one(opened: Sequence[File | OpenFolder]) -> list[OSError | None]:
    """As `FileSystem.sync_all`, without a gain."""
    failed: list[OSError | None] = [None] * len(opened)
    for number, one in enumerate(opened):
        try:
            one.sync()
        except OSError as error:
            failed[number] = error
    return failed


def _sync_together(opened: Sequence[File | OpenFolder]) -> list[OSError | None]:
    """Syncs by requests to the kernel, which writes its log once for many of them."""
    try:
        from caio.linux_aio import Context, Operation

        context = getattr(_contexts, "own", None)
        if context is None:
            context = _contexts.own = Context(max_requests=_AT_ONCE)
        asked = [Operation.fsync(one.fileno()) for one in opened[:_AT_ONCE]]
        left = taken = context.submit(*asked)
    except (ImportError, OSError, SystemError, OverflowError, ValueError, NotImplementedError):
        return sync_one_by_one(opened)
    while left:
        try:
            left -= context.process_events(_AT_ONCE, 1, -1)
        except SystemError as error:
            if error.args[:1] != (errno.EINTR,):
                raise
    return [_failure_of(one) for one in asked[:taken]] + sync_one_by_one(opened[taken:])


def _failure_of(operation: Any) -> OSError | None:
    try:
        operation.get_value()
    except SystemError as error:  # caio gives the text of the errno only
        number = _ERRNO_OF_TEXT.get(str(error), errno.EIO)
        return OSError(number, os.strerror(number))
    return None


# The operating system's disk.
#
# Descriptors are close-on-exec. A write loops until all is written, a read until the end of the
# file. A lock is flock on a file that is never unlinked: unlinking would let two processes lock two
# files of one name.
#
# Logs are not readable for every user of the machine. A setting gives the umask of a program that
# writes to a store, so that it does not depend on a shell or an init system (`apply_umask`). Files
# that belong to one node alone (the journal with its secret) are opened by a `Disk` that gives
# other users no rights, whatever the umask is. At the start, `close_to_others` also removes the
# rights from a folder of an older version.


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


class _Descriptor:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class DiskFile(_Descriptor):
    """An open file of the operating system."""

    __slots__ = ()

    def __init__(self, path: str, mode: Mode, rights: int = 0o666) -> None:
        super().__init__(os.open(path, _FLAGS[mode] | os.O_CLOEXEC, rights))
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
        _sync_data(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def stat(self) -> Stat:
        return _stat(os.fstat(self._fd))


class DiskFolder(_Descriptor):
    """An open folder of the operating system."""

    __slots__ = ()

    def __init__(self, path: str) -> None:
        super().__init__(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def sync(self) -> None:
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        _sync(self._fd)


class DiskLock(_Descriptor):
    """flock, held by an open descriptor."""

    __slots__ = ()

    def release(self) -> None:
        self.close()


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

    def sync_all(self, opened: Sequence[File | OpenFolder]) -> Sequence[OSError | None]:
        return _sync_together(opened) if len(opened) > 1 else sync_one_by_one(opened)

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


def _sync(fd: int) -> None:
    # fsync of macOS leaves data in the disk's cache. F_FULLFSYNC empties it, where it is known.
    os.fsync(fd)
    try:
        if hasattr(fcntl, "F_FULLFSYNC"):
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY):
            raise


_sync_data: Callable[[int], None] = getattr(os, "fdatasync", _sync)


def advise(
    fd: int, begin: int, size: int, advice: Literal["DONTNEED", "RANDOM", "WILLNEED"]
) -> None:
    """Tells the system how a file will be read; macOS takes no such advice."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, begin, size, getattr(os, f"POSIX_FADV_{advice}"))


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
    while done < size and hasattr(os, "copy_file_range"):
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


# A reserve of file descriptors, for a process or a machine that has no more.
#
#   disk = ReservedDisk()          # holds 16 descriptors of /dev/null
#
# A file that this disk opens gets a descriptor even if no others are left: the disk closes one of
# the reserve for it, and reopens it as soon as one of the disk's files is closed. Connections, the
# store and searches open files by other means, so they fail first.
#
# - Opening for reading leaves half of the reserve for writers: many readers must not keep a journal
#   file from being created.
# - An empty reserve changes nothing: the call fails as it would without it (EMFILE, ENFILE).


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
        """Reopens the descriptors that were lent, as far as the system has free ones."""
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
        return self._tried(lambda: _ReservedFile(path, mode, self.rights, self.reserve), leave)

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


class _ReservedFile(DiskFile):
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


# Translation of errors of the operating system into errors of the store.


_HINTS = {
    errno.ENOSPC: "Free disk space on the store's disk.",
    errno.EDQUOT: "Raise the disk quota of the store's user, or free space.",
    errno.EROFS: "The store's disk is read-only: check the kernel's log for why.",
    errno.EACCES: "Give this user the right to read and write the store's folder.",
    errno.EPERM: "Give this user the right to read and write the store's folder.",
    errno.EIO: "The store's disk fails: check the kernel's log, and replace it.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
    errno.ENFILE: "Raise the machine's limit of open files (fs.file-max).",
    errno.ENOENT: "The store's folder is gone: mount or restore it, then restart.",
}
_IN_THE_WAY = frozenset({errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
# A rename that failed with one of these did nothing for certain.
_DEFINITE = _IN_THE_WAY | {
    errno.ENOENT,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENAMETOOLONG,
}


def means_absent(error: OSError) -> bool:
    """Returns whether the error of a read means that the name does not exist, or cannot exist."""
    return error.errno in _ABSENT


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Translates every `OSError` of the block. `what` names the operation and its key."""
    try:
        yield
    except OSError as error:
        raise _store_error(what, error) from error


@contextmanager
def unknown_outcome(what: str, *, started: bool) -> Iterator[None]:
    """For the step that makes a write visible: an error may come after its effect.

    With `started`, the effect certainly happened, and only its durability is unknown.
    """
    try:
        yield
    except OSError as error:
        if not started and error.errno in _DEFINITE:
            raise
        raise OutcomeUnknown(
            f"{what}: {error.strerror or error}; the object may have been written",
            hint=_HINTS.get(error.errno or 0, "Read the object before you write again."),
        ) from error


def _store_error(what: str, error: OSError) -> TailraceError:
    number = error.errno or 0
    reason = error.strerror or str(error)
    if number in _IN_THE_WAY:
        return Conflict(
            f"{what}: an object stands where the key needs a folder, or a folder where it ends",
            hint="A local store cannot hold both x and x/y. Use another key.",
        )
    if number == errno.ENAMETOOLONG:
        return InvalidName(f"{what}: {reason}", field="key")
    return StoreUnavailable(f"{what}: {reason}", hint=_HINTS.get(number))


# Files of a client of a service: its token, and the certificates that it trusts.


def read_token(path: str, *, field: str | None = None) -> str:
    """The token in a file of one line. Raises `InvalidInput` with `field`: unreadable or empty."""
    hint = "Name a file with one line, the token, that this user may read."
    try:
        with open(path, encoding="ascii") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        message = f"the token in {path} cannot be read: {why}"
        raise InvalidInput(message, field=field, hint=hint) from error
    if not token:
        raise InvalidInput(f"{path} is empty", field=field, hint=hint)
    return token


def hint_of_trust(error: Exception, setting: str) -> str | None:
    """Returns the hint for an error about an untrusted certificate; None for other errors."""
    if "CERTIFICATE_VERIFY_FAILED" not in str(error):
        return None
    return f"Name the certificate of its authority with {setting}, or with SSL_CERT_FILE."


def trust(ca_file: str, *, field: str) -> ssl.SSLContext:
    """A context that trusts the certificates in a PEM file. Raises `InvalidInput` with `field`."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            f"the certificates in {ca_file} cannot be read: {error}",
            field=field,
            hint="Name a file in PEM format that this user may read.",
        ) from error
