"""Whether folders stood still while they were scanned.

A list of a folder is no snapshot. What is renamed meanwhile may be missing under both names, and
what is compressed meanwhile is listed under a name that is gone when it is opened. Whatever the
scan found new may then come behind a generation that it did not see, so it is not read before a
scan in which nothing was renamed, made or removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress

from forwarder.files.finder import Found

_FEW = 8
_TICK_MS = 20
"""Times of changes are as coarse as the kernel's clock ticks, at most 10 ms."""


def folders_of(found: Iterable[Found]) -> dict[str, int]:
    """The folders of these files, and when they were changed last, in ns."""
    folders: dict[str, int] = {}
    for folder in {os.path.dirname(file.path) for file in found}:
        with suppress(OSError):
            folders[folder] = os.stat(folder or ".").st_mtime_ns
    return folders


def unchanged(quiet: Mapping[str, int], folder: str) -> bool:
    """Whether a folder is as `Stillness.quiet` says; where there are few, all of them."""
    if folder not in quiet:
        return False
    folders = quiet if len(quiet) <= _FEW else (folder,)
    try:
        return all(os.stat(each or ".").st_mtime_ns == quiet[each] for each in folders)
    except OSError:
        return False


class Stillness:
    """Made before a scan, of the folders of the one before it."""

    def __init__(self, folders: Iterable[str], now_ms: int) -> None:
        self._since_ns = (now_ms - _TICK_MS) * 1_000_000
        self._before: dict[str, int] = {}
        for folder in folders:
            with suppress(OSError):
                self._before[folder] = os.stat(folder or ".").st_mtime_ns

    def holds(self, after: Mapping[str, int]) -> bool:
        """Whether none of the folders that the scan has seen was changed since."""
        return all(
            changed < self._since_ns and self._before.get(folder, changed) == changed
            for folder, changed in after.items()
        )

    def quiet(self, after: Iterable[str]) -> dict[str, int]:
        """Those of the folders that the scan has seen that were at rest before it began.

        The values are when they were changed last, in ns. Whatever is made in them after the begin
        of the scan gives them another time.
        """
        return {
            folder: self._before[folder]
            for folder in after
            if self._before.get(folder, self._since_ns) < self._since_ns
        }
