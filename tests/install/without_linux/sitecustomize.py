"""Takes from a process what Linux has and macOS has not, and gives it `F_FULLFSYNC`.

Python imports this module at its start if the folder is in `PYTHONPATH`. Each full sync is noted in
the file `$FULL_SYNCS`.
"""

import builtins
import ctypes
import errno
import fcntl
import os
import socket
import sys
import time
from typing import Any

for module, prefixes in {
    os: (
        *("posix_fadvise", "posix_fallocate", "POSIX_FADV_", "copy_file_range", "pipe2", "splice"),
        *("fdatasync", "eventfd", "memfd_create", "pidfd_open", "sched_", "O_DIRECT", "O_TMPFILE"),
        *("preadv2", "epoll", "timerfd", "setns", "unshare", "getxattr", "setxattr"),
    ),
    socket: ("TCP_INFO", "TCP_QUICKACK", "TCP_USER_TIMEOUT", "SO_PEERCRED", "SO_BINDTODEVICE"),
    time: ("CLOCK_BOOTTIME",),
}.items():
    for name in [name for name in dir(module) if name.startswith(prefixes)]:
        if name != "O_DIRECTORY":
            delattr(module, name)

for name in ("caio.linux_aio", "caio.linux_aio_asyncio"):
    sys.modules[name] = None  # type: ignore[assignment]

_LINUX_ONLY = ("inotify_init1", "inotify_add_watch", "inotify_rm_watch", "mallopt", "malloc_trim")
_NO_FOLDERS = ("/proc", "/sys")
_FULL = 51  # macOS's number
_open, _readlink, _fcntl = builtins.open, os.readlink, fcntl.fcntl


class _Library(ctypes.CDLL):
    def __getattr__(self, name: str) -> Any:
        if name in _LINUX_ONLY:
            raise AttributeError(name)
        return super().__getattr__(name)


def _refuse(path: Any) -> None:
    if isinstance(path, str) and path.startswith(_NO_FOLDERS):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _opening(path: Any, *words: Any, **named: Any) -> Any:
    _refuse(path)
    return _open(path, *words, **named)


def _reading_link(path: Any, *words: Any, **named: Any) -> Any:
    _refuse(path)
    return _readlink(path, *words, **named)


def _controlling(file: Any, command: int, *words: Any) -> Any:
    if command != _FULL:
        return _fcntl(file, command, *words)
    os.fsync(file)
    with _open(os.environ["FULL_SYNCS"], "a") as noted:
        noted.write(f"{sys.argv[1:2]}\n")
    return 0


ctypes.CDLL = _Library  # type: ignore[misc]
builtins.open = _opening  # type: ignore[assignment]
os.readlink = _reading_link
fcntl.fcntl = _controlling
fcntl.F_FULLFSYNC = _FULL  # type: ignore[attr-defined]
