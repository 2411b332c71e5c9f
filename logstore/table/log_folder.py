"""Where files of a table's log are: the seam that `log.py` reads through, and a local folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from logstore.errors import NotFound, StoreUnavailable


class LogFile(NamedTuple):
    """A file of the log; `modified_ms` by the store's clock, perhaps of whole seconds."""

    name: str
    size: int
    modified_ms: int


class LogFolder(Protocol):
    """Files of a log. Calls block, may come from several threads, and leave other threads run."""

    def list(self, start: str) -> Iterator[LogFile]:
        """Files whose name is above `start`, in order of name. Raises `StoreUnavailable`."""
        ...

    def get(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """The file from `offset`, at most `size` bytes. Raises `NotFound`, `StoreUnavailable`."""
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
            try:
                found = os.stat(os.path.join(self.path, name))
            except FileNotFoundError:  # cleaned up meanwhile
                continue
            except OSError as error:
                raise StoreUnavailable(f"{self.path}/{name}: {error}") from error
            yield LogFile(name, found.st_size, found.st_mtime_ns // 1_000_000)

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
