"""DuckDB with limits: one in-memory database for one search.

It reads below the given folders (on S3: prefixes of the store's bucket) and nothing else: no
other files, no other address of the network, no extensions but the one that reads S3, and
no setting can be changed afterwards. What it cannot hold within its memory goes to a spill
folder of limited size, which goes when the database is closed. All calls block; only
`interrupt` may come from another thread. `connect` is DuckDB's own, or that of a process
which an interrupt ends at once (`process`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import duckdb
import pyarrow as pa

from logstore.errors import (
    Damaged,
    InvalidInput,
    LimitReached,
    StoreUnavailable,
    TailraceError,
)
from service.query.bucket import Bucket
from service.query.process import ProcessConnection, ProcessEnded
from service.query.settings import QuerySettings
from service.query.sql import literal

PIECE_ROWS: Final = 8_192
_VENDOR: Final = (duckdb.Error, OSError, pa.ArrowException)
# Of a request that got no answer: DuckDB has no class for it.
_NO_ANSWER: Final = re.compile(r"error for HTTP [A-Z]+ to ")
_GONE: Final = 404
_NARROW: Final = "Narrow the search: a shorter time, one fqn or run, a limit."

Connection: TypeAlias = duckdb.DuckDBPyConnection | ProcessConnection
Connect: TypeAlias = Callable[[Mapping[str, Any]], Connection]


def in_this_process(config: Mapping[str, Any]) -> Connection:
    """A database of this process: quick to open, and stopped between two vectors only."""
    return duckdb.connect(":memory:", config=dict(config))


class Database:
    """Statements over Parquet files below `folders` and over registered Arrow data."""

    def __init__(
        self,
        settings: QuerySettings,
        folders: Sequence[str],
        spill_folder: str,
        bucket: Bucket | None = None,
        connect: Connect = in_this_process,
    ) -> None:
        self._settings = settings
        self._spill_folder = spill_folder
        self._folders = [f"{folder}/" for folder in folders]
        self._stopped: TailraceError | None = None
        self._feed_failure: TailraceError | None = None
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
        run("SET TimeZone = 'UTC'")
        if bucket is not None:
            bucket.attach(self._connection)
        # A name is checked both as it is given and as the file that it stands for.
        allowed = [*self._folders, *map(literal, self._folders)]
        run("SET allowed_directories = $folders", {"folders": allowed})
        run("SET enable_external_access = false")
        run("SET lock_configuration = true")

    def check_regex(self, pattern: str) -> None:
        """Raises `InvalidInput` if RE2 does not take the pattern."""
        try:
            result = self._connection.execute("SELECT regexp_matches('', $q)", {"q": pattern})
            for _ in result.to_arrow_reader(1):
                pass
        except ProcessEnded as error:
            raise self._translated(error) from error
        except duckdb.Error as error:
            reason = str(error).removeprefix("Invalid Input Error: ")
            raise InvalidInput(
                f"q is not a regular expression: {reason[:200]}",
                field="q",
                hint="RE2 syntax: no look-around and no back references.",
            ) from error

    def hold(self, name: str, table: pa.Table) -> None:
        """Makes a small table known as `name`."""
        self._connection.register(name, table)

    def feed(self, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Makes a stream known as `name`, for one statement."""
        self._connection.register(
            name, pa.RecordBatchReader.from_batches(schema, self._watched(batches))
        )

    def run(self, statement: str, parameters: Mapping[str, Any]) -> Generator[pa.RecordBatch]:
        """The statement's rows, streamed.

        Raises `LimitReached` (memory, spill, or interrupted), `Damaged` (a file is gone or not
        what was written), `StoreUnavailable` (the bucket does not answer) or what a feed raised.
        """
        self._check()
        try:
            result = self._connection.execute(statement, dict(parameters))
            for batch in result.to_arrow_reader(PIECE_ROWS):
                yield batch
                self._check()
        except _VENDOR as error:
            raise self._translated(error) from error

    def number(self, statement: str, parameters: Mapping[str, Any]) -> int:
        """The one number that the statement gives. Raises as `run`."""
        found = 0
        for batch in self.run(statement, parameters):
            found = int(batch.column(0)[0].as_py())
        return found

    def interrupt(self, reason: TailraceError) -> None:
        """Ends the running statement, and every later one, with `reason`.

        An interrupt that meets DuckDB between two statements is forgotten by it: call
        again until the work has ended.
        """
        self._stopped = self._stopped or reason
        self._connection.interrupt()

    def close(self) -> None:
        """Gives back memory and spill folder."""
        self._connection.close()
        shutil.rmtree(self._spill_folder, ignore_errors=True)  # what a process left that was ended

    def _check(self) -> None:
        if self._stopped is not None:
            raise self._stopped

    def _watched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """DuckDB turns an error in a feed into text; this keeps it."""
        try:
            for batch in batches:
                self._check()
                yield batch
        except TailraceError as error:
            self._feed_failure = error
            raise

    def _translated(self, error: Exception) -> TailraceError:
        if self._stopped is not None:
            return self._stopped
        if self._feed_failure is not None:
            return self._feed_failure
        if isinstance(error, ProcessEnded):
            return LimitReached(str(error), hint=_NARROW)
        if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in str(error):
            mib = self._settings.memory_bytes >> 20
            spill = self._settings.spill_bytes >> 20
            return LimitReached(
                f"the search needs more than {mib} MiB of memory and {spill} MiB of disk",
                hint=_NARROW,
            )
        reason = str(error)
        if _is_silent(error):
            return StoreUnavailable(f"the store cannot be read: {reason[:500]}")
        for folder in self._folders:
            reason = reason.replace(folder, "")
        return Damaged(f"what is stored cannot be read: {reason[:500]}")


def _is_silent(error: Exception) -> bool:
    """Whether the server refused or did not answer; a file that is gone is an answer."""
    if isinstance(error, duckdb.HTTPException):
        return int(error.status_code) != _GONE
    return isinstance(error, duckdb.IOException) and _NO_ANSWER.search(str(error)) is not None
