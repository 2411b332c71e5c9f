"""The files of a source: those that its globs match, once each, as the file system has them now."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forwarder.files.globs import Glob, Unreadable
from forwarder.files.links import Confines

Order = Callable[[list["Found"]], list["Found"]]


@dataclass(frozen=True, slots=True)
class Found:
    """A regular file at a path, with what `stat` says of it."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int

    @property
    def place(self) -> tuple[int, int]:
        """Device and inode: no two files have the same at one time."""
        return self.device, self.inode


def look(path: str) -> Found | None:
    """The regular file at a path, through symbolic links; None if there is none.

    Raises `OSError` where it cannot be seen.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return Found(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def look_at(path: str, descriptor: int) -> Found:
    """The open file that was found at a path, as it is now. Raises `OSError`."""
    found = os.fstat(descriptor)
    return Found(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class Finder:
    """Finds files that match one of `include` and none of `exclude`.

    Files whose content changed more than `older_than_ns` ago are left out, if it is not zero.
    `order` sorts and cuts the list, as `ordering_criteria` say. `unreadable(path, error)` hears
    of what cannot be listed or seen, or lies outside of `confines`; everything else is found
    nevertheless.
    """

    def __init__(
        self,
        include: Sequence[str],
        exclude: Sequence[str] = (),
        *,
        older_than_ns: int = 0,
        order: Order | None = None,
        confines: Confines | None = None,
        now_ns: Callable[[], int],
        unreadable: Unreadable,
    ) -> None:
        self._include = [Glob(each) for each in include]
        self._exclude = [Glob(each) for each in exclude]
        self._older_than_ns = older_than_ns
        self._order = order
        self._confines = confines or Confines()
        self._now_ns = now_ns
        self._unreadable = unreadable

    def leads(self, path: str) -> bool:
        """Whether a path is of the source, or a folder in which such may be."""
        return any(each.leads(path) for each in self._include)

    def find(self) -> list[Found]:
        """The files. Two paths of one file count once, and the one that is listed first stays."""
        paths: dict[str, None] = {}
        for glob in self._include:
            for path in glob.find(self._unreadable):
                paths.setdefault(path)
        found: list[Found] = []
        for path in paths:
            if not any(glob.matches(path) for glob in self._exclude):
                found += self._look(path)
        return self._order(found) if self._order is not None else found

    def find_archives(self, globs: Sequence[Glob], found: Sequence[Found]) -> list[Found]:
        """The files that `globs` match, without those that were found already."""
        known = {file.place for file in found}
        archives: dict[tuple[int, int], Found] = {}
        for glob in globs:
            for path in glob.find(self._unreadable):
                for file in self._look(path):
                    if file.place not in known:
                        archives.setdefault(file.place, file)
        return list(archives.values())

    def matches(self, path: str) -> bool:
        """Whether a path is of the source."""
        return any(glob.matches(path) for glob in self._include) and not any(
            glob.matches(path) for glob in self._exclude
        )

    def _look(self, path: str) -> list[Found]:
        """The file, if it is there and not too old."""
        try:
            self._confines.check(path)
            file = look(path)
        except OSError as error:
            self._unreadable(path, error)
            return []
        oldest = self._now_ns() - self._older_than_ns if self._older_than_ns else 0
        return [file] if file is not None and file.mtime_ns >= oldest else []

    def folders(self) -> set[str]:
        """The folders in which something new can be of interest, those that exist."""
        return {
            folder for glob in self._include for folder in glob.folders(lambda _path, _error: None)
        }
