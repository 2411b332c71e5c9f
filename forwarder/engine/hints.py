"""Hints of the kernel that something changed, by watchfiles. They may be late, missing, or wrong.

A thread waits for them; the engine looks at what they name. Everything that they do not say, the
scan of every `reconcile_interval` finds, so they improve the delay and the idle load only. Network
file systems tell nothing of what other machines write, so sources there are polled.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

_STEP_MS = 5
_DEBOUNCE_MS = 10
_TIMEOUT_MS = 1000
REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "ncpfs"}
)


class Hints:
    """Watches folders. `hint(paths)` is called by the thread; `failed(error)` at most once."""

    def __init__(
        self, hint: Callable[[set[str]], None], failed: Callable[[Exception], None]
    ) -> None:
        self._hint = hint
        self._failed = failed
        self._folders: dict[str, tuple[int, int]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, folders: set[str]) -> bool:
        """Watches these folders, not what is below them; False if they are watched already."""
        wanted = {folder: key for folder in folders if (key := _inode(folder)) is not None}
        if wanted == self._folders:
            return False
        self.close()
        self._folders = wanted
        if not wanted:
            return True
        try:
            notify = RustNotify(sorted(wanted), False, False, 0, False, True)
        except (OSError, WatchfilesRustInternalError) as error:
            self._failed(error)
            return True
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._listen, args=(notify, self._stop), name="hints", daemon=True
        )
        self._thread.start()
        return True

    def close(self) -> None:
        """Watches nothing any more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._folders = {}

    def _listen(self, notify: RustNotify, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                changes = notify.watch(_DEBOUNCE_MS, _STEP_MS, _TIMEOUT_MS, stop)
                if changes in ("stop", "signal"):
                    return
                if isinstance(changes, set):
                    self._hint({path for _, path in changes})
        except (OSError, WatchfilesRustInternalError) as error:
            if not stop.is_set():
                self._failed(error)
        finally:
            notify.close()


def _inode(folder: str) -> tuple[int, int] | None:
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
