"""How much searches have read of the table's files, for who brings nearer what is read often."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_MOST_COUNTED: Final = 10_000  # files


class ReadCounts:
    """Bytes by path, of the files that were read last. Its owner locks it."""

    def __init__(self) -> None:
        self._read: OrderedDict[str, float] = OrderedDict()

    def add(self, path: str, size: float) -> float:
        """Counts so many bytes more of a file; gives all of them."""
        read = self._read.pop(path, 0.0) + size
        self._read[path] = read
        if len(self._read) > _MOST_COUNTED:
            self._read.popitem(last=False)
        return read

    def reset(self, path: str, size: float = 0.0) -> None:
        """Counts of a file anew, from `size`: below 0 so much is to be read in vain first."""
        self._read[path] = size
