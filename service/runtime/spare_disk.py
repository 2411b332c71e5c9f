"""What copies may take of a disk that the journal is on."""

from __future__ import annotations

from shutil import disk_usage
from typing import Final

_FREE_SHARE: Final = 0.1
_FREE_BYTES: Final = 1 << 30


def spare_bytes(folder: str) -> int:
    """Free bytes of the disk of `folder` beyond those that are to stay free; below 0 if it lacks.

    A tenth of the disk stays free, and at least 1 GiB, for the journal first of all.
    """
    disk = disk_usage(folder)
    return disk.free - max(round(disk.total * _FREE_SHARE), _FREE_BYTES)
