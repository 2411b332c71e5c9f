"""Hints of the kernel that something changed. They may be late, missing, or wrong.

A thread waits for them; the engine looks at what they name. Everything that they do not say, the
scan of every `reconcile_interval` finds, so they improve the delay and the idle load only. Network
file systems tell nothing of what other machines write, so sources there are polled; so are all of
them on systems without inotify.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from forwarder.engine.inotify import OVERFLOW, Inotify

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
    """By which a folder is told from one that was made anew under its name."""
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
