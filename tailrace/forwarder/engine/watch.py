"""Hints of the kernel that something changed. They may be late, missing, or wrong.

A thread waits for them; the engine looks at the paths that they name. The scan of every
`reconcile_interval` finds all changes without a hint, so hints improve the delay and the idle load
only. Network file systems do not report writes of other machines, so sources on them are polled; so
are all sources on systems without inotify.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

# Linux's inotify: events in folders, from the kernel.
#
# A read blocks until an event happens, so watching costs nothing while nothing happens. Only the
# calls that are needed are bound, from the C library that the interpreter has loaded.


OVERFLOW: Final = 0x4000
"""The queue was full: events are missing. `sys.fs.inotify.max_queued_events` is its length."""
_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _ONLYDIR = 0x400, 0x800, 0x1000000
_MASK = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 << 10


class FolderEvent(NamedTuple):
    """Something in the folder that `watch` numbers; of the folder itself `name` is empty."""

    watch: int
    mask: int
    name: str


class Inotify:
    """An inotify instance. Raises `OSError` where there is none, or no more are allowed."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._descriptor = -1
        self._descriptor = self._call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC)

    def add(self, folder: str) -> int:
        """Watches a folder; the number that a folder has already, under any name. `OSError`."""
        path = os.fsencode(folder)
        return self._call("inotify_add_watch", self._descriptor, path, ctypes.c_uint32(_MASK))

    def remove(self, watch: int) -> None:
        """Watches a folder no more; it may be gone."""
        try:
            self._call("inotify_rm_watch", self._descriptor, watch)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise

    def wait(self) -> Iterator[FolderEvent]:
        """Waits for events; none come once `stop` was called."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll()]
        if self._woken in ready:
            return
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            watch, mask, _, size = _EVENT.unpack_from(data, at)
            name = data[at + _EVENT.size : at + _EVENT.size + size].rstrip(b"\0")
            yield FolderEvent(watch, mask, os.fsdecode(name))
            at += _EVENT.size + size

    def stop(self) -> None:
        """Ends `wait`, also in another thread."""
        os.write(self._wake, b"x")

    def close(self) -> None:
        """Gives the descriptors back; nobody may wait any more."""
        for descriptor in (self._descriptor, self._woken, self._wake):
            os.close(descriptor)

    def _call(self, name: str, *arguments: Any) -> int:
        function: Callable[..., int] | None = getattr(self._library, name, None)
        if function is None:
            raise OSError(errno.ENOSYS, "this system has no inotify")
        result = function(*arguments)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


_PAUSE_SECONDS = 0.01
"""A file that is written to all the time gives a hint so often."""
REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "ncpfs"}
)
_Place = tuple[int, int]


class Hints:
    """Watches folders. `hint(paths)` is called by the thread, and `missed()` where hints are lost.

    `failed(error)` is called at most once; after that nothing is watched.
    """

    def __init__(
        self,
        hint: Callable[[set[str]], None],
        missed: Callable[[], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self._hint = hint
        self._missed = missed
        self._failed = failed
        self._folders: dict[str, _Place] = {}
        self._watches: dict[str, int] = {}
        self._names: dict[int, tuple[str, ...]] = {}
        """By watch; a folder may have several names. The thread only looks a watch up."""
        self._inotify: Inotify | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def watch(self, folders: set[str]) -> bool:
        """Watches these folders, not what is below them; False if they are watched already."""
        wanted = {folder: place for folder in folders if (place := _place(folder)) is not None}
        if wanted == self._folders:
            return False
        for folder in [each for each in self._folders if wanted.get(each) != self._folders[each]]:
            self._leave(folder)
        try:
            for folder in sorted(wanted.keys() - self._folders.keys()):
                self._enter(folder, wanted[folder])
        except OSError as error:
            self.close()
            self._failed(error)
        return True

    def close(self) -> None:
        """Watches nothing any more."""
        self._stop.set()
        if self._inotify is not None and self._thread is not None:
            self._inotify.stop()
            self._thread.join()
            self._inotify.close()
        self._inotify = self._thread = None
        self._folders, self._watches, self._names = {}, {}, {}

    def _enter(self, folder: str, place: _Place) -> None:
        if self._inotify is None:
            self._inotify = Inotify()
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=self._listen, args=(self._inotify, self._stop), name="hints", daemon=True
            )
            self._thread.start()
        try:
            watch = self._inotify.add(folder)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # gone again, or to be seen by scans only
        self._folders[folder], self._watches[folder] = place, watch
        self._names[watch] = (*self._names.get(watch, ()), folder)

    def _leave(self, folder: str) -> None:
        assert self._inotify is not None
        watch = self._watches.pop(folder)
        del self._folders[folder]
        left = tuple(each for each in self._names[watch] if each != folder)
        if left:
            self._names[watch] = left
        else:
            del self._names[watch]
            self._inotify.remove(watch)

    def _listen(self, inotify: Inotify, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                paths: set[str] = set()
                for watch, mask, name in inotify.wait():
                    if mask & OVERFLOW:
                        self._missed()
                    folders = self._names.get(watch, ())
                    paths.update([f"{each}/{name}" if name else each for each in folders])
                if paths:
                    self._hint(paths)
                stop.wait(_PAUSE_SECONDS)
        except OSError as error:
            if not stop.is_set():
                self._failed(error)


def _place(folder: str) -> _Place | None:
    """Identifies a folder, to tell it from a new one under its name."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_remote(path: str, mounts: str) -> bool:
    """Whether a path is on a network file system; `mounts` is the text of `/proc/mounts`."""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        point = fields[1] if len(fields) > 2 else ""
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if point and inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind in REMOTE or kind.startswith("fuse.")
