"""Linux's inotify: what happens in folders, as the kernel tells it.

A read blocks until something happens, so watching costs nothing while nothing does. Only the calls
that are needed here are bound, from the C library that the interpreter has loaded.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

OVERFLOW: Final = 0x4000
"""The queue was full: events are missing. `sys.fs.inotify.max_queued_events` is its length."""
_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _ONLYDIR = 0x400, 0x800, 0x1000000
_MASK = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 << 10


class Event(NamedTuple):
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

    def wait(self) -> Iterator[Event]:
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
            yield Event(watch, mask, os.fsdecode(name))
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
