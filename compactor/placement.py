"""Gives Spark's files their names in the table, durably, before a commit names them.

    table/_staging/{job}/part-{bucket:05d}-….parquet       written by Spark; no reader looks there
    table/_staging/{job}/bucket={bucket}/part-….parquet    if a task has several buckets
    table/date=YYYY-MM-DD/hour=HH/{job}-{bucket:05d}-….parquet   (`tailrace.logstore.table.schema`)

Each job of Spark writes into its own folder: Spark's committer removes the whole working folder of
a target when it is done, and two drivers with one target would remove each other's. The hour of a
file is read from the file.

`Placement` is the interface. `FolderPlacement` syncs and renames files in a folder;
`ObjectPlacement` lets the S3 server copy them.

**Bucket.** The server copies each file, then Spark's file is removed, since S3 has no renaming.
Spark could write below the table's own folders, but would then sort every file once more and could
not write `hour=09`. A copy inside the store moves no byte through this process. It also gives the
file its storage class, by its level: Spark's file lives for seconds and a fresh file for an hour,
and a class may be billed for at least a month. A put is durable when it is answered, also one of
the log, so nothing has to be settled.

**Folder.** `FolderLog` makes the table's log durable after each commit, and repairs it after a
power cut. delta-rs writes an entry under a temporary name and links it to its own name, and syncs
nothing. Therefore

- **a commit counts once it is settled**: its entry and its checkpoint are synced, then the log's
  folder and its parents. All earlier commits are settled first (another driver may have been killed
  before it did so), so only the newest may be missing on the disk;
- **a power cut before that** may truncate the newest entry. Its commit was never reported: an entry
  that is not whole, and is the newest, is renamed to `….json.torn`, and its change is made again.
  Our entries have their number of actions, so one that ends between two lines is recognised, too.
  The same applies to checkpoints, which only repeat the content of entries.

Only files of some age are checked, because a folder that several machines share shows a new file
before its bytes. All drivers that quarantine files hold one lock, and check again once they have
it. A truncated entry below a whole one is not the effect of a power cut; a person must decide.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.logstore import keys, ulid
from tailrace.logstore.cas import write_until_known
from tailrace.logstore.errors import Damaged, StoreUnavailable
from tailrace.logstore.filesystem import FileSystem
from tailrace.logstore.objects.store import ObjectInfo, ObjectPart, ObjectStore
from tailrace.logstore.parquet import fetch_tail, opened
from tailrace.logstore.table.schema import ACTIONS, NewFile, describe, file_name, read_footer

STAGING = "_staging"
_PART: Final = re.compile(r"(?:bucket=([0-9]+)/)?part-([0-9]+)-[^/]*$")
_HOUR_MS = 3_600_000


class Placement(Protocol):
    """Moves the files of a job into the table, so that they survive a power cut."""

    async def place(self, job: str, level: int = 0) -> list[NewFile]:
        """Moves the job's files, and describes them. Their names have the `level`.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """
        ...

    async def markers(self, job: str) -> list[str]:
        """Keys that represent the folders of the job's staging, and that no listing shows."""
        ...

    async def settle(self, version: int) -> None:
        """Makes the log durable up to this version. Must be called before the next is made.

        Raises `StoreUnavailable`.
        """
        ...

    async def quarantine_torn(self, now_ms: int) -> list[str]:
        """Renames files of the log that a power cut truncated, before anything is planned.

        Returns messages for a person. Raises `StoreUnavailable`, `Damaged`.
        """
        ...


def staging_folder(table: str, job: str) -> str:
    """The folder that Spark writes for the job: a path, address or key, like `table`."""
    return f"{table}/{STAGING}/{job}"


def is_part(name: str) -> bool:
    """Whether a file below the job's staging folder, called `name`, belongs to the result.

    Other files that Spark leaves do not, nor the files of late tasks in deeper folders.
    """
    return _PART.match(name) is not None


def placed_path(footer: Any, name: str, job: str, level: int) -> str:
    """The path below the table of a file that Spark wrote as `name`, below its staging folder.

    Raises `Damaged`.
    """
    return f"{_partition(footer, name)}/{file_name(job, _bucket(name), level)}"


def _bucket(name: str) -> str:
    found = _PART.match(name)
    if found is None:
        raise Damaged(f"{name} does not have a name that Spark gives to files")
    return f"{int(found[1] or found[2]):05d}"


def _partition(footer: Any, name: str) -> str:
    columns = {footer.schema.column(i).path: i for i in range(footer.num_columns)}
    groups = [footer.row_group(i).column(columns["ulid"]) for i in range(footer.num_row_groups)]
    hours = {
        ulid.time_ms(ulid.decode(bound)) // _HOUR_MS
        for chunk in groups
        for bound in (chunk.statistics.min, chunk.statistics.max)
    }
    if len(hours) != 1:
        raise Damaged(f"{name} holds lines of {len(hours)} hours")
    start = datetime.fromtimestamp(hours.pop() * 3600, UTC)
    return start.strftime("date=%Y-%m-%d/hour=%H")


_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class ObjectPlacement:
    """`Placement` of the table in an object store."""

    store: ObjectStore

    async def place(self, job: str, level: int = 0) -> list[NewFile]:
        prefix = _staging(job)
        staged = [info async for info in self.store.list(prefix)]
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(part: ObjectInfo) -> NewFile | None:
            async with turns:
                return await self._copy(part, job, level)

        parts = [info for info in staged if is_part(info.key.removeprefix(prefix))]
        placed = await asyncio.gather(*(one(part) for part in parts))
        # The files are placed: an ambiguous removal must not cause the job to be repeated.
        gone = [*(info.key for info in staged), *await self.markers(job)]
        await write_until_known(lambda: self.store.delete(gone))
        return [file for file in placed if file is not None]

    async def markers(self, job: str) -> list[str]:
        """Hadoop's connector puts an empty object `x/` for a folder `x`; these are its keys."""
        return await self._folders(_staging(job))

    async def settle(self, version: int) -> None:
        pass

    async def quarantine_torn(self, now_ms: int) -> list[str]:  # noqa: ARG002 - nothing is ever half
        return []

    async def _folders(self, prefix: str) -> list[str]:
        found = [prefix]
        async for name in self.store.folders(prefix):
            found += await self._folders(f"{prefix}{name}/")
        return found

    async def _copy(self, part: ObjectInfo, job: str, level: int) -> NewFile | None:
        tail = await fetch_tail(self.store, part.key, part.size, if_match=part.etag)
        footer = opened(tail, part.key).metadata
        if footer.num_rows == 0:  # without remaining lines Spark writes a file for its schema
            return None
        path = placed_path(footer, part.key.removeprefix(_staging(job)), job, level)
        made = await self._copied(ObjectPart(part.key, if_match=part.etag), f"{keys.TABLE}/{path}")
        return describe(footer, path=path, size=made.size, modified_ms=made.modified_ms)

    async def _copied(self, source: ObjectPart, key: str) -> ObjectInfo:
        # Only this job uses the name: a second copy does no harm.
        return await write_until_known(lambda: self.store.compose(key, [source]))


def _staging(job: str) -> str:
    return staging_folder(keys.TABLE, job) + "/"


LOG: Final = "_delta_log"
TORN: Final = ".torn"
SETTLED_MS: Final = 120_000
_ENTRY: Final = re.compile(r"([0-9]{20})\.json$")
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint\.parquet$")
_LAST: Final = "_last_checkpoint"
_LOCK: Final = ".mending"


@dataclass(slots=True)
class FolderLog:
    """The log of the table in the folder `table`. All calls block, and none raises `OSError`."""

    fs: FileSystem
    table: str
    _durable: int = field(default=-1, init=False)
    _checked: bool = field(default=False, init=False)

    @property
    def _folder(self) -> str:
        return os.path.join(self.table, LOG)

    def settle(self, last: int) -> None:
        """Makes the log durable up to this version. Raises `StoreUnavailable`."""
        try:
            if last > self._durable:
                self._settle(last)
        except OSError as error:
            raise StoreUnavailable(f"the table's log cannot be synced: {error}") from error

    def quarantine_torn(self, now_ms: int) -> list[str]:
        """Renames files that a power cut truncated, and returns alarms; once in a process.

        Raises `StoreUnavailable`, and `Damaged` for a fault that no power cut explains.
        """
        if self._checked:
            return []
        try:
            alarms = self._quarantine_torn(now_ms) if _names(self.fs, self._folder) else []
        except OSError as error:
            raise StoreUnavailable(f"the table's log cannot be read: {error}") from error
        self._checked = True
        return alarms

    def _settle(self, last: int) -> None:
        names = self._unsettled(last)
        for name in names:
            self._sync(name)
        self.fs.sync_folder(self._folder)
        if self._durable < 0:  # delta-rs may have made it, and the table's folder
            self.fs.sync_folder(self.table)
            self.fs.sync_folder(os.path.dirname(self.table))
        self._durable = max(self._durable, last)

    def _unsettled(self, last: int) -> list[str]:
        """Files that may not be on the disk: first all files of an opening, then new ones."""
        if self._durable < 0:
            found = _names(self.fs, self._folder)
            checkpoints, entries = _numbered(_CHECKPOINT, found), _numbered(_ENTRY, found)
            base = max(checkpoints, default=-1)
            return [
                *(checkpoints[n] for n in checkpoints if n == base),
                *(entries[n] for n in sorted(entries) if base <= n <= last),
                _LAST,
            ]
        new = range(self._durable + 1, last + 1)
        return [n for v in new for n in (f"{v:020d}.json", f"{v:020d}.checkpoint.parquet")] + [
            _LAST
        ]

    def _sync(self, name: str) -> None:
        try:
            file = self.fs.open(os.path.join(self._folder, name), "read")
        except FileNotFoundError:
            return  # not every version has a checkpoint, and old entries are cleaned away
        try:
            file.sync()
        finally:
            file.close()

    def _quarantine_torn(self, now_ms: int) -> list[str]:
        if not self._torn():
            return []
        lock = self.fs.lock(os.path.join(self._folder, _LOCK), wait=True)
        try:
            return [self._quarantine(name, now_ms) for name in self._torn()]
        finally:
            if lock is not None:
                lock.release()

    def _torn(self) -> list[str]:
        """Names of truncated files, highest version first, checkpoints before entries."""
        found = _names(self.fs, self._folder)
        checkpoints = _numbered(_CHECKPOINT, found)
        torn = []
        base = max(checkpoints, default=-1)
        while base >= 0 and not _is_parquet(self._read(checkpoints[base])):
            torn.append(checkpoints.pop(base))
            base = max(checkpoints, default=-1)
        return torn + self._torn_entries(_numbered(_ENTRY, found), base)

    def _torn_entries(self, entries: Mapping[int, str], base: int) -> list[str]:
        torn, whole = [], False
        for version in range(max(entries, default=-1), base, -1):
            name = entries.get(version)
            if name is not None and is_whole(self._read(name)):
                whole = True
            elif whole:
                raise Damaged(
                    f"entry {version} of the table's log is damaged or gone, later ones are not",
                    hint="Restore table/_delta_log from a copy"
                    " (docs/operate/verify.md, Power cuts).",
                )
            elif name is not None:
                torn.append(name)
        return torn

    def _quarantine(self, name: str, now_ms: int) -> str:
        path = os.path.join(self._folder, name)
        stat = self.fs.stat(path)
        if stat is not None and now_ms - stat.modified_ns // 1_000_000 < SETTLED_MS:
            raise StoreUnavailable(f"{path} is not complete, and is checked again when it is older")
        self._forget_last()
        self.fs.rename(path, path + TORN)
        self.fs.sync_folder(self._folder)
        return (
            f"{name} of the table's log was not complete, as after a power cut: it is renamed to"
            f" {name}{TORN}, and its change is made again"
        )

    def _forget_last(self) -> None:
        """Removes the pointer to a checkpoint that may be gone; readers then list the log."""
        path = os.path.join(self._folder, _LAST)
        if self.fs.stat(path) is not None:
            self.fs.unlink(path)

    def _read(self, name: str) -> bytes:
        file = self.fs.open(os.path.join(self._folder, name), "read")
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()


def is_whole(entry: bytes) -> bool:
    """Whether an entry of the log has all its lines, if it has their number."""
    try:
        actions = [orjson.loads(line) for line in entry.splitlines()]
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
    except (ValueError, TypeError):
        return False
    if not infos:
        return False
    info: dict[str, Any] = infos[0]
    if ACTIONS in info:
        return len(actions) - 1 == int(info[ACTIONS])
    made = info.get("operation") == "CREATE TABLE"
    return not made or any("metaData" in action for action in actions)


def _is_parquet(body: bytes) -> bool:
    try:
        pq.read_table(pa.BufferReader(body))
    except (OSError, pa.ArrowException):
        return False
    return True


def _names(fs: FileSystem, folder: str) -> list[str]:
    return [name for name, is_folder in list(fs.scan(folder)) if not is_folder]


def _numbered(pattern: re.Pattern[str], names: list[str]) -> dict[int, str]:
    """Names that match the pattern, by their version."""
    found = ((pattern.match(name), name) for name in names)
    return {int(match[1]): name for match, name in found if match}


@dataclass(frozen=True, slots=True)
class FolderPlacement:
    """`Placement` of the table in the folder `table`."""

    fs: FileSystem
    table: str
    log: FolderLog = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "log", FolderLog(self.fs, self.table))

    async def place(self, job: str, level: int = 0) -> list[NewFile]:
        return await asyncio.to_thread(place, self.fs, self.table, job, level)

    async def markers(self, job: str) -> list[str]:  # noqa: ARG002 - folders are folders
        return []

    async def settle(self, version: int) -> None:
        await asyncio.to_thread(self.log.settle, version)

    async def quarantine_torn(self, now_ms: int) -> list[str]:
        return await asyncio.to_thread(self.log.quarantine_torn, now_ms)


def place(fs: FileSystem, table: str, job: str, level: int = 0) -> list[NewFile]:
    """As `Placement.place`."""
    folder = staging_folder(table, job)
    try:
        parts = sorted(_parts(fs, folder))
        moved = [_move(fs, table, folder, name, job, level) for name in parts]
        placed = [file for file in moved if file is not None]
        _sync_folders(fs, table, (file.path for file in placed))
        _remove(fs, folder)
    except OSError as error:
        raise StoreUnavailable(f"the files of job {job} cannot be placed: {error}") from error
    return placed


def _sync_folders(fs: FileSystem, table: str, paths: Iterable[str]) -> None:
    """Syncs each file's hour folder and its parents, which another driver may just have made."""
    hours = {os.path.dirname(os.path.join(table, path)) for path in paths}
    dates = {os.path.dirname(hour) for hour in hours}
    for found in (hours, dates, {table} if hours else set[str]()):
        for folder in sorted(found):
            fs.sync_folder(folder)


def _parts(fs: FileSystem, folder: str) -> list[str]:
    return [name for name in _files(fs, folder) if is_part(name)]


def _files(fs: FileSystem, folder: str) -> Iterator[str]:
    """Names below the folder, some of them in folders of their bucket."""
    for name, is_folder in list(fs.scan(folder)):
        if is_folder:
            yield from (f"{name}/{file}" for file in _files(fs, os.path.join(folder, name)))
        else:
            yield name


def _remove(fs: FileSystem, folder: str) -> None:
    """Removes the folder and the files that Spark leaves in it: checksums, files without rows."""
    for name, is_folder in list(fs.scan(folder)):
        path = os.path.join(folder, name)
        if is_folder:
            _remove(fs, path)
        else:
            fs.unlink(path)
    fs.remove_folder(folder)


def _move(
    fs: FileSystem, table: str, folder: str, name: str, job: str, level: int
) -> NewFile | None:
    source = os.path.join(folder, name)
    footer = read_footer(source)
    if footer.num_rows == 0:  # without remaining lines Spark writes a file for its schema
        return None
    path = placed_path(footer, name, job, level)
    target = os.path.join(table, path)
    _sync(fs, source)
    fs.make_folders(os.path.dirname(target))
    fs.rename(source, target)
    stat = fs.stat(target)
    if stat is None:
        raise StoreUnavailable(f"{target} is gone")
    return describe(footer, path=path, size=stat.size, modified_ms=stat.modified_ns // 1_000_000)


def _sync(fs: FileSystem, path: str) -> None:
    file = fs.open(path, "append")
    try:
        file.sync()
    finally:
        file.close()
