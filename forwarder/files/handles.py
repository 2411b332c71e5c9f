"""Open files, never more than a limit.

Whoever needs one more than the limit allows closes another first: an idle file, then one that is
read but can be opened again under its path, then one that was rotated away. A file that has no name
any more is never closed while it has unread bytes, since nobody could open it again. A process that
may open no more files (`EMFILE`, `ENFILE`) is treated like the limit.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum

_FEW = (errno.EMFILE, errno.ENFILE)
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Rank(IntEnum):
    """How much it costs to close a handle; the cheapest is closed first."""

    IDLE = 0
    READING = 1
    ROTATED = 2
    UNLINKED = 3


class NoHandle(Exception):
    """No file can be opened now: all handles are of files that could not be opened again."""


class Handle:
    """One open file. `rank` is asked when another file needs the place; `closed` hears of it."""

    __slots__ = ("closed", "descriptor", "device", "inode", "rank")

    def __init__(
        self, descriptor: int, rank: Callable[[], Rank], closed: Callable[[], None]
    ) -> None:
        found = os.fstat(descriptor)
        self.descriptor = descriptor
        self.device = found.st_dev
        self.inode = found.st_ino
        self.rank = rank
        self.closed = closed


class Handles:
    """All handles of a process that count against `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: OrderedDict[int, Handle] = OrderedDict()  # the one used last is last

    def __len__(self) -> int:
        return len(self._open)

    def open(self, path: str, rank: Callable[[], Rank], closed: Callable[[], None]) -> Handle:
        """Opens a regular file. Raises `OSError`, and `NoHandle` if no place can be made."""
        while len(self._open) >= self.limit:
            self._evict()
        while True:
            try:
                descriptor = os.open(path, _FLAGS)
                break
            except OSError as error:
                if error.errno not in _FEW or not self._open:
                    raise
                self._evict()
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            handle = Handle(descriptor, rank, closed)
        except OSError:
            os.close(descriptor)
            raise
        self._open[descriptor] = handle
        return handle

    def touch(self, handle: Handle) -> None:
        """It is used now: of two with the same rank the one that was not used for longer goes."""
        self._open.move_to_end(handle.descriptor)

    def close(self, handle: Handle) -> None:
        """Closes it; a second call does nothing."""
        if self._open.get(handle.descriptor) is handle:
            del self._open[handle.descriptor]
            os.close(handle.descriptor)
            handle.closed()

    def _evict(self) -> None:
        cheapest: tuple[Rank, Handle] | None = None
        for handle in self._open.values():
            rank = handle.rank()
            if cheapest is None or rank < cheapest[0]:
                cheapest = rank, handle
            if rank is Rank.IDLE:
                break
        if cheapest is None or cheapest[0] is Rank.UNLINKED:
            raise NoHandle
        self.close(cheapest[1])
