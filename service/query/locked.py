"""DuckDB with limits: an in-memory database that searches use one after the other.

It reads below the given folders (on S3: prefixes of the store's bucket) and nothing else: no
other files, no other address of the network, no extensions but the one that reads S3, and
no setting can be changed afterwards. What it cannot hold within its memory goes to a spill
folder of limited size. `connect` is DuckDB's own, or that of a process which an interrupt ends
at once (`process`).

A search works in a `session`, which has its own names, transaction, results and interrupts,
and takes them with it. So nothing of one search is left for the next, but what DuckDB keeps of
files that it has read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import duckdb

from service.query.bucket import Bucket
from service.query.process import Check, ProcessConnection, ProcessSession
from service.query.settings import QuerySettings
from service.query.sql import literal

Connection: TypeAlias = duckdb.DuckDBPyConnection | ProcessConnection
Session: TypeAlias = duckdb.DuckDBPyConnection | ProcessSession
Connect: TypeAlias = Callable[[Mapping[str, Any]], Connection]


def in_this_process(config: Mapping[str, Any]) -> Connection:
    """A database of this process: quick to open, and stopped between two vectors only."""
    return duckdb.connect(":memory:", config=dict(config))


class LockedDatabase:
    """A database over Parquet files below `folders`. All calls block."""

    def __init__(
        self,
        settings: QuerySettings,
        folders: Sequence[str],
        spill_folder: str,
        bucket: Bucket | None = None,
        connect: Connect = in_this_process,
    ) -> None:
        self.settings = settings
        self.folders = [f"{folder}/" for folder in folders]
        self._spill_folder = spill_folder
        self._connection = connect(
            {
                "threads": settings.threads,
                "memory_limit": f"{settings.memory_bytes}B",
                "temp_directory": spill_folder,
                "max_temp_directory_size": f"{settings.spill_bytes}B",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "python_enable_replacements": "false",
                "allow_persistent_secrets": "false",
            }
        )
        try:
            self._lock(bucket)
        except BaseException:
            self.close()
            raise

    def _lock(self, bucket: Bucket | None) -> None:
        """Leaves it the given folders."""
        run = self._connection.execute
        run("SET GLOBAL TimeZone = 'UTC'")
        run("SET GLOBAL parquet_metadata_cache = true")  # a file's footer is parsed once
        if bucket is not None:
            bucket.attach(self._connection)
        # A name is checked both as it is given and as the file that it stands for.
        allowed = [*self.folders, *map(literal, self.folders)]
        run("SET GLOBAL allowed_directories = $folders", {"folders": allowed})
        run("SET GLOBAL enable_external_access = false")
        run("SET GLOBAL lock_configuration = true")

    def session(self, check: Check | None = None) -> Session:
        """A connection of its own, to be closed. Raises `ProcessEnded`, and as `check`."""
        if isinstance(self._connection, ProcessConnection):
            return self._connection.cursor(check)
        return self._connection.cursor()

    @property
    def spilled(self) -> bool:
        """Whether something is in its spill folder."""
        return os.path.isdir(self._spill_folder) and bool(os.listdir(self._spill_folder))

    def close(self) -> None:
        """Gives back memory and spill folder, and ends the process."""
        self._connection.close()
        shutil.rmtree(self._spill_folder, ignore_errors=True)  # what a process left that was ended
