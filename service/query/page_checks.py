"""Checks that a search reads files as they were written, once for each row group.

DuckDB and the readers of single lines do not check the CRCs of pages, so a flipped bit would become
another value. Before a row group of a file on this machine is read for the first time, each of its
pages is compared with its CRC (`tailrace.logstore.table.file_check`); a segment is compared with
its seal. The verdict holds as long as the file has its size, inode and time of change. The pages
are then in the system's memory, so the check costs a fifth of the decoding, once (decision 143).

Files that are read on S3 itself are not checked: a node would have to fetch each row group whole. A
file that the node fetches for its cache is checked before it is used. If it is damaged, no search
reads it on S3 either (`file_cache`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

from service.query.footers import Footers, as_damage
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.objects.store import is_remote
from tailrace.logstore.parquet import footer_at
from tailrace.logstore.segments import file_format
from tailrace.logstore.table.file_check import check_row_group, check_row_groups

_MOST_FILES: Final = 16_384
_WAITED_SECONDS: Final = 0.1

Identity: TypeAlias = tuple[int, int, int]


@dataclass(slots=True)
class _Checked:
    """The sound row groups of a file with this identity."""

    identity: Identity
    groups: set[int] = field(default_factory=set)
    whole: bool = False


def identity_of(path: str) -> Identity:
    """Returns size, inode and time of change of a file. Raises `OSError`."""
    found = os.stat(path)
    return found.st_size, found.st_ino, found.st_mtime_ns


class PageChecks:
    """The checks of one node's searches. Thread-safe; `threads` of them run at a time."""

    def __init__(self, footers: Footers, threads: Executor) -> None:
        self._footers = footers
        self._threads = threads
        self._files: BoundedCache[str, _Checked] = BoundedCache(_MOST_FILES)
        self._changing = Lock()

    def check_group(self, path: str, group: int) -> None:
        """Raises `Damaged` if a page of the row group is not as it was written. Blocks."""
        known = self._known(path)
        if known.whole or group in known.groups:
            return
        footer = self._footers.of(path).metadata
        with open(path, "rb", buffering=0) as file:
            number = file.fileno()
            check_row_group(footer, group, lambda at, size: os.pread(number, size, at))
        known.groups.add(group)
        known.whole = len(known.groups) == footer.num_row_groups

    def check_groups(
        self, path: str, groups: Callable[[], Iterable[int]], check: Callable[[], None]
    ) -> None:
        """Checks some row groups, by all threads; `check` raises once it must stop.

        `groups` is called only if a check is needed.
        """
        if is_remote(path) or self._known(path).whole:
            return
        work = [self._threads.submit(self.check_group, path, group) for group in groups()]
        try:
            while wait(work, _WAITED_SECONDS).not_done:
                check()
            for future in work:
                future.result()
        finally:
            for future in work:
                future.cancel()

    def check_file(self, path: str) -> None:
        """Checks a file of the table whole. Raises `Damaged`. Blocks."""
        if is_remote(path):
            return
        with as_damage():
            for group in range(self._footers.of(path).metadata.num_row_groups):
                self.check_group(path, group)

    def check_segment(self, path: str) -> None:
        """Raises `Damaged` if a byte of the segment is not as it was written. Blocks."""
        if is_remote(path):
            return
        with as_damage():
            known = self._known(path)
            if not known.whole:
                file_format.check(Path(path).read_bytes())
                known.whole = True

    def _known(self, path: str) -> _Checked:
        identity = identity_of(path)
        with self._changing:
            known = self._files.get(path)
            if known is None or known.identity != identity:
                known = _Checked(identity)
                self._files.put(path, known)
            return known


def check_pages_of(path: str) -> None:
    """Checks a Parquet file on this machine whole. Raises `Damaged`, `OSError`. Blocks."""
    with as_damage(), open(path, "rb", buffering=0) as file:
        number = file.fileno()
        check_row_groups(footer_at(path), lambda at, size: os.pread(number, size, at))
