"""Reads the Delta log where delta-rs is too slow or blocks the interpreter.

delta-rs replays the log for each application transaction that is requested: a request per commit
since the last checkpoint, for every node. Its history begins at the newest version, whichever was
loaded, and no other thread runs while it waits. `Log` does the same with fewer requests:

- It reads all transactions up to a version at once: the last checkpoint at or below it, and the
  commits after that, some at a time.
- It finds the newest version at some time by a listing, which has the store's time of each commit.
  The result is a version before which every commit existed by then, so a commit that looks younger
  than it is (it was restored) makes the result older, never newer.
- It reads the jobs that made some versions from the commits.

This module only reads, in the format of Delta's protocol: `{version:020}.json` has an action a
line, `{version:020}.checkpoint.parquet`, perhaps in parts, the sum of all actions up to that
version. A log with other checkpoints (of a UUID) is recognised: delta-rs has to read it then.

All calls block on the store; from an event loop they belong in a thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.logstore.errors import NotFound, StoreUnavailable
from tailrace.logstore.objects.store import RangeReader

# Access to the files of a log: the interface that `Log` uses, and a local folder.


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


_COMMIT: Final = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint(?:\.[0-9]{10}\.([0-9]{10}))?\.parquet")
_STEPS: Final = (100, 10_000)  # versions that are listed at first, and then, before all of them
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class ListedLog:
    """Files of a log from some version on: commits by version, and complete checkpoints."""

    commits: Mapping[int, LogFile]
    checkpoints: Mapping[int, Sequence[LogFile]]

    def base(self, version: int) -> int | None:
        """The last checkpoint at or below the version."""
        return max((at for at in self.checkpoints if at <= version), default=None)

    def times(self) -> Iterator[tuple[int, int]]:
        """Each version with the time of its commit, in ms; lowest first."""
        for version in sorted({*self.commits, *self.checkpoints}):
            files = [self.commits[version]] if version in self.commits else None
            yield version, max(f.modified_ms for f in files or self.checkpoints[version])


@dataclass(frozen=True, slots=True)
class Log:
    """The log in a folder of the store."""

    folder: LogFolder = field(repr=False)

    def transactions(self, version: int) -> Mapping[str, int] | None:
        """The version of every application transaction, as of this version of the table.

        None if only delta-rs can read the log. Raises `StoreUnavailable`.
        """
        for start in _starts(version):
            listed = self.listed(start, version)
            base = listed.base(version)
            if base is not None or start == 0:
                break
        commits = range(0 if base is None else base + 1, version + 1)
        if any(number not in listed.commits for number in commits):
            return None
        found = {} if base is None else self._checkpointed(listed.checkpoints[base])
        for actions in self._actions([listed.commits[n].name for n in commits], b'"txn"'):
            for action in actions:
                if said := action.get("txn"):
                    found[said["appId"]] = said["version"]
        return found

    def version_at(self, then_ms: int, newest: int) -> int | None:
        """The newest version that existed at that time, by the store's clock.

        `newest` is the table's version now, or one a little older.

        None if there was none, or the log does not reach back so far. Raises `StoreUnavailable`.
        """
        for start in _starts(newest):
            found: int | None = None
            for version, written_ms in self.listed(start).times():
                if written_ms > then_ms:
                    break
                found = version
            if found is not None:
                return found
        return None

    def jobs(self, key: str, after: int, up_to: int) -> set[str]:
        """The values under `key` in the commit infos `after` some version and up to another.

        Raises `StoreUnavailable`, also if one of them was removed.
        """
        names = _commits(after, up_to)
        every = (action for some in self._actions(names, b'"commitInfo"') for action in some)
        infos = (action.get("commitInfo") or {} for action in every)
        return {info[key] for info in infos if isinstance(info.get(key), str)}

    def actions(self, after: int, up_to: int) -> Iterator[list[dict[str, Any]]]:
        """The actions of the commits `after` some version and up to another, a list per commit.

        Raises `StoreUnavailable`, also if one of them was removed.
        """
        return self._actions(_commits(after, up_to), b"")

    def listed(self, start: int, end: int | None = None) -> ListedLog:
        """Files from the version `start` on, up to `end`. Raises `StoreUnavailable`."""
        commits: dict[int, LogFile] = {}
        parts: dict[tuple[int, int], list[LogFile]] = {}
        for file in self.folder.list(f"{start:020}"):
            if commit := _COMMIT.fullmatch(file.name):
                if end is not None and int(commit[1]) > end:
                    break
                commits[int(commit[1])] = file
            elif found := _CHECKPOINT.fullmatch(file.name):
                parts.setdefault((int(found[1]), int(found[2] or 1)), []).append(file)
        whole = {at: files for (at, count), files in parts.items() if len(files) == count}
        return ListedLog(commits, whole)

    def _checkpointed(self, files: Sequence[LogFile]) -> dict[str, int]:
        found: dict[str, int] = {}
        for file in files:
            for said in self._column(file, "txn"):
                if said is not None:
                    found[said["appId"]] = said["version"]
        return found

    def _column(self, file: LogFile, name: str) -> Iterable[Any]:
        try:
            parquet = pq.ParquetFile(_LogFileReader(self.folder, file))
            if name not in parquet.schema_arrow.names:
                return ()
            column: Iterable[Any] = parquet.read([name], use_threads=False).column(name).to_pylist()
        except (NotFound, pa.ArrowException) as error:
            raise StoreUnavailable(f"{file.name} of the table's log: {error}") from error
        return column

    def _actions(self, names: Sequence[str], wanted: bytes) -> Iterator[list[dict[str, Any]]]:
        """Returns for each commit, in this order, the actions that may contain `wanted`."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for name, body in zip(names, pool.map(self._get, names), strict=True):
                try:
                    yield [orjson.loads(line) for line in body.splitlines() if wanted in line]
                except ValueError as error:
                    raise StoreUnavailable(f"{name} of the table's log is not a commit") from error

    def _get(self, name: str) -> bytes:
        try:
            return self.folder.get(name)
        except NotFound as error:
            raise StoreUnavailable(f"{name} of the table's log is gone") from error


def _commits(after: int, up_to: int) -> list[str]:
    return [commit_name(number) for number in range(after + 1, up_to + 1)]


def _starts(version: int) -> Iterator[int]:
    """Where listing begins, as far back as need be."""
    for step in _STEPS:
        if version > step:
            yield version - step
    yield 0


class _LogFileReader(RangeReader):
    """A file of the log of which only those ranges are fetched that are read."""

    def __init__(self, folder: LogFolder, file: LogFile) -> None:
        super().__init__(file.size)
        self._folder, self._name = folder, file.name

    def range_at(self, start: int, size: int) -> bytes:
        return self._folder.get(self._name, start, size)
