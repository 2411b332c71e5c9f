"""What one search reads in place of the table's files: those of the cache, and copies to scan.

If something there cannot be read, the search goes on with the store itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from logstore.objects.store import is_remote
from logstore.table.snapshot import TableFile
from service.query.file_cache import FileCache
from service.query.scan_copies import ScanCopies, ScanCopy


@dataclass(frozen=True, slots=True)
class Nearer:
    """What a node has beside the store, for all searches."""

    cache: FileCache
    copies: ScanCopies


class NearestFiles:
    """Of one search, in its thread."""

    def __init__(self, nearer: Nearer) -> None:
        self._nearer = nearer
        self._in_use = True
        self._cached: dict[str, None] = {}  # paths of files that were read there
        self._scanned: dict[str, None] = {}
        self._read: list[tuple[TableFile, float]] = []  # and how many bytes of it

    def files(self, files: Iterable[TableFile]) -> list[TableFile]:
        """The files, with addresses of the cache where they are in it."""
        if not self._in_use:
            return list(files)
        found = list[TableFile]()
        for file in files:
            found.append(self._nearer.cache.nearest(file))
            if found[-1] is not file:
                self._cached[file.path] = None
        return found

    def damage_of(self, path: str) -> str | None:
        """How the file is damaged in the store, if the cache found that out."""
        return self._nearer.cache.damaged.get(path)

    def copy_of(self, file: TableFile) -> ScanCopy | None:
        """The copy of a file, if there is one."""
        copy = self._nearer.copies.of(file) if self._in_use else None
        if copy is not None:
            self._scanned[file.path] = None
        return copy

    def give_up(self, read: Collection[str]) -> bool:
        """From now on the store itself is read; False if nothing else was read before.

        One of the files with these paths cannot be read where it was read: all of them go there.
        """
        if not self._in_use or not (self._cached or self._scanned):
            return False
        self._in_use = False
        for path in self._cached.keys() & read:
            self._nearer.cache.forget(path)
        for path in self._scanned.keys() & read:
            self._nearer.copies.forget(path)
        return True

    def note_read(self, file: TableFile, size: float) -> None:
        """So many bytes were read of a file that has no copy."""
        self._read.append((file, size))

    def ask(self) -> None:
        """Asks for what was read to be nearer the next time: at the end, not beside the search."""
        read, self._read = self._read, []
        for file, size in read if self._in_use else ():
            self._nearer.copies.note_read(file, size)
            if is_remote(file.uri):
                self._nearer.cache.note_read(file, size)
