"""The files that one writer has made: what it may roll, count and remove, and nothing else is.

    DIR/.tailrace/{name}/catalog    a line each: CRC-32 in hex, a space, the path as JSON

Other programs may have files in the same folder whose names look alike. So nothing is removed for
its name: only what is in the catalog. A path is there before its file is begun, where other writers
see it (`neighbours`), and synced before a checkpoint has its file. A torn line at the end is of a
file that no checkpoint has. A damaged line is a warning: its file stays, and nothing removes it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from typing import Final

from logstore.filesystem import File, FileSystem
from pipelines.appenders.rolling.lines import has_damage, line_of, read_lines

log = logging.getLogger("tailrace.pipelines")
_UNFINISHED: Final = ".unfinished"


def catalog_in(folder: str) -> str:
    """The catalog of the writer whose folder DIR/.tailrace/{name} this is."""
    return os.path.join(folder, "catalog")


def paths_in(fs: FileSystem, catalog: str) -> tuple[list[str], bool]:
    """The paths of a catalog, and whether nothing else is there. Raises `OSError`."""
    entries, whole = read_lines(fs, catalog)
    return [str(path) for (path,) in entries], whole


class Catalog:
    """The paths, relative to the folder of the files. All calls block; they raise `OSError`."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._known: dict[str, None] = {}
        self._unsynced = False
        self._file: File | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._known))

    def start(self) -> None:
        """Reads it. Its folder is there, and nobody else writes it."""
        draft = self._path + _UNFINISHED
        if self._fs.stat(draft) is not None:
            self._fs.unlink(draft)
        if self._fs.stat(self._path) is not None:
            paths, whole = paths_in(self._fs, self._path)
            self._known = dict.fromkeys(paths)
            if has_damage(self._fs, self._path):
                log.warning(
                    "%s is damaged and lost the name of a file. That file keeps its lines, and is"
                    " not rolled, counted or removed any more. Remove it by hand when it is old.",
                    self._path,
                )
            if not whole:
                self._rewrite()
        self._open()

    def add(self, paths: Iterable[str]) -> list[str]:
        """These files are, or will be, written here; gives those that are new."""
        new = [path for path in paths if path not in self._known]
        if new and self._file is not None:
            self._file.write([line_of([path]) for path in new])
            self._known.update(dict.fromkeys(new))
            self._unsynced = True
        return new

    def sync(self) -> None:
        """All that was added survives a power cut."""
        if self._unsynced and self._file is not None:
            self._file.sync()
            self._unsynced = False

    def drop(self, paths: Iterable[str]) -> None:
        """Nothing is left of these."""
        gone = [path for path in paths if path in self._known]
        if not gone:
            return
        for path in gone:
            del self._known[path]
        self._unsynced = False
        self.stop()
        self._rewrite()
        self._open()

    def stop(self) -> None:
        """Gives the descriptor back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        made = self._fs.stat(self._path) is None
        self._file = self._fs.open(self._path, "append")
        if made:
            self._fs.sync_folder(os.path.dirname(self._path))

    def _rewrite(self) -> None:
        draft = self._path + _UNFINISHED
        file = self._fs.open(draft, "create")
        try:
            if self._known:
                file.write([line_of([path]) for path in self._known])
            file.sync()
        finally:
            file.close()
        self._fs.rename(draft, self._path)
        self._fs.sync_folder(os.path.dirname(self._path))
