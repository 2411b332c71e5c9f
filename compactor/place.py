"""Spark's files to their names in the table, durably, before a commit speaks of them.

    table/_staging/{job}/part-{bucket:05d}-….parquet       Spark's; no reader looks there
    table/date=YYYY-MM-DD/hour=HH/{job}-{bucket:05d}.parquet

Spark writes into a folder of the job's own: its committer removes the whole working
folder of a target when it is done, and two drivers with one target would remove each
other's. Which hour a file belongs to is read from the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow.parquet as pq

from logstore import ulid
from logstore.errors import Damaged, StoreUnavailable
from logstore.filesystem import FileSystem
from logstore.table.stats import NewFile, describe

STAGING = "_staging"
_HOUR_MS = 3_600_000


def staging_folder(table: str, job: str) -> str:
    """Where Spark writes for the job."""
    return os.path.join(table, STAGING, job)


def place(fs: FileSystem, table: str, job: str) -> list[NewFile]:
    """Moves what the job wrote, and describes it. Raises `StoreUnavailable`, `Damaged`."""
    folder = staging_folder(table, job)
    try:
        parts = [name for name in sorted(_parts(fs, folder)) if _rows(folder, name)]
        placed = [_move(fs, table, folder, name, job) for name in parts]
        _remove(fs, folder)
    except OSError as error:
        raise StoreUnavailable(f"the files of job {job} cannot be placed: {error}") from error
    return placed


def sync_commits(fs: FileSystem, table: str, versions: range) -> None:
    """Makes the log of these versions durable: delta-rs leaves that to the system.

    Raises `StoreUnavailable`.
    """
    log = os.path.join(table, "_delta_log")
    try:
        for version in versions:
            _sync(fs, os.path.join(log, f"{version:020d}.json"))
        fs.sync_folder(log)
    except OSError as error:
        raise StoreUnavailable(f"the table's log cannot be synced: {error}") from error


def _parts(fs: FileSystem, folder: str) -> Iterator[str]:
    return (name for name, is_folder in fs.scan(folder) if not is_folder and name[:5] == "part-")


def _remove(fs: FileSystem, folder: str) -> None:
    """What Spark leaves beside its files: their checksums, and files without rows."""
    for name, _ in list(fs.scan(folder)):
        fs.unlink(os.path.join(folder, name))
    fs.remove_folder(folder)


def _rows(folder: str, name: str) -> int:
    # Spark writes a file without rows where nothing is left, for its schema.
    return int(pq.read_metadata(os.path.join(folder, name)).num_rows)


def _move(fs: FileSystem, table: str, folder: str, name: str, job: str) -> NewFile:
    source = os.path.join(folder, name)
    path = f"{_partition(source)}/{job}-{name.split('-')[1]}.parquet"
    target = os.path.join(table, path)
    _sync(fs, source)
    fs.make_folders(os.path.dirname(target))
    fs.rename(source, target)
    fs.sync_folder(os.path.dirname(target))
    stat = fs.stat(target)
    if stat is None:
        raise StoreUnavailable(f"{target} is gone")
    return describe(target, path=path, size=stat.size, modified_ms=stat.modified_ns // 1_000_000)


def _sync(fs: FileSystem, path: str) -> None:
    file = fs.open(path, "append")
    try:
        file.sync()
    finally:
        file.close()


def _partition(source: str) -> str:
    footer = pq.read_metadata(source)
    columns = {footer.schema.column(i).path: i for i in range(footer.num_columns)}
    groups = [footer.row_group(i).column(columns["ulid"]) for i in range(footer.num_row_groups)]
    hours = {
        ulid.time_ms(ulid.decode(bound)) // _HOUR_MS
        for chunk in groups
        for bound in (chunk.statistics.min, chunk.statistics.max)
    }
    if len(hours) != 1:
        raise Damaged(f"{source} holds lines of {len(hours)} hours")
    start = datetime.fromtimestamp(hours.pop() * 3600, UTC)
    return start.strftime("date=%Y-%m-%d/hour=%H")
