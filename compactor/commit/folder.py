"""Places files in a folder: syncs them, renames them, and syncs their folders."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from compactor.commit.log import FolderLog
from compactor.commit.placement import is_part, placed_path, staging_folder
from logstore.errors import StoreUnavailable
from logstore.filesystem import FileSystem
from logstore.table.stats import NewFile, describe, read_footer


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
    """Removes the folder with what Spark leaves in it: checksums, and files without rows."""
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
    if footer.num_rows == 0:  # where nothing is left Spark writes a file for its schema
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
