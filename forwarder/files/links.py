"""Where files may really lie: symbolic links lead to any file that the forwarder may read.

A forwarder often runs as root, over folders in which others may make links. With folders given, a
file is read only if it lies in one of them, after all links of its path. What was opened is asked
once more, since a link may be changed between a look and an opening.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final

_OF_DESCRIPTOR: Final = "/proc/self/fd/{}"
_WHY: Final = "a link leads out of `within`"


class Confines:
    """The folders in which files may lie; none: anywhere."""

    def __init__(self, folders: Sequence[str] = ()) -> None:
        self._folders = tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)

    def check(self, path: str) -> None:
        """Raises `PermissionError` for a path that leads out of them."""
        if self._folders and not os.path.realpath(path).startswith(self._folders):
            raise PermissionError(errno.EPERM, _WHY, path)

    def check_open(self, descriptor: int, path: str) -> None:
        """The same for the file that was opened at a path, wherever that leads by now."""
        if not self._folders:
            return
        try:
            real = os.readlink(_OF_DESCRIPTOR.format(descriptor))
        except FileNotFoundError:  # a system without /proc
            real = os.path.realpath(path)
        if not real.startswith(self._folders):
            raise PermissionError(errno.EPERM, _WHY, path)
