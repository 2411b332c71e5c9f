"""Access to the files of a table's log: the interface that `log.py` uses, and a local folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from logstore.errors import NotFound, StoreUnavailable


class LogFile(NamedTuple):
    """A file of the log; `modified_ms` by the store's clock, perhaps of whole seconds.

    `tag` differs between two files that had the same name at different times.
    """

    name: str
    size: int
    modified_ms: int
    tag: str = ""


class Look(NamedTuple):
    """The result of a look at the log: whether a version is still the newest.

    `current` is the version's commit, None if it does not exist. `newer` tells whether a later
    commit exists. `rest` changes whenever other files of the log are added or removed; a clean-up
    that removed the next commit is noticed by it.
    """

    current: LogFile | None
    newer: bool
    rest: object


def commit_name(version: int) -> str:
    """The name of a version's commit."""
    return f"{version:020}.json"


class LogFolder(Protocol):
    """The files of a log. Calls block, may come from several threads, and let other threads run."""

    def list(self, start: str) -> Iterator[LogFile]:
        """Files whose names are above `start`, in order of name. Raises `StoreUnavailable`."""
        ...

    def get(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """The file from `offset`, at most `size` bytes. Raises `NotFound`, `StoreUnavailable`."""
        ...

    def look(self, version: int) -> Look:
        """Looks behind the version, as cheaply as the store allows. Raises `StoreUnavailable`."""
        ...


@dataclass(frozen=True, slots=True)
class LocalLogFolder:
    """The folder at `path`."""

    path: str

    def list(self, start: str) -> Iterator[LogFile]:
        """As `LogFolder.list`; a folder that does not exist has no files."""
        try:
            names = sorted(name for name in os.listdir(self.path) if name > start)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreUnavailable(f"{self.path} cannot be listed: {error}") from error
        for name in names:
            found = self._stat(name)
            if found is not None:  # else cleaned up meanwhile
                yield _file(name, found)

    def get(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """As `LogFolder.get`."""
        try:
            with open(os.path.join(self.path, name), "rb") as file:
                file.seek(offset)
                return file.read(-1 if size is None else size)
        except FileNotFoundError as error:
            raise NotFound(f"there is no {self.path}/{name}") from error
        except OSError as error:
            raise StoreUnavailable(f"{self.path}/{name} cannot be read: {error}") from error

    def look(self, version: int) -> Look:
        """As `LogFolder.look`, without a listing: it examines three files, however many exist."""
        folder = self._stat("")
        name = commit_name(version)
        current, following = self._stat(name), self._stat(commit_name(version + 1))
        return Look(
            None if current is None else _file(name, current),
            following is not None,
            None if folder is None else (folder.st_ino, folder.st_mtime_ns),
        )

    def _stat(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(os.path.join(self.path, name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailable(f"{self.path}/{name}: {error}") from error


def _file(name: str, found: os.stat_result) -> LogFile:
    tag = f"{found.st_ino}-{found.st_mtime_ns}"
    return LogFile(name, found.st_size, found.st_mtime_ns // 1_000_000, tag)
