"""The statements of one search, in a session of a locked database.

All calls block; only `interrupt` may come from another thread.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, TypeAlias

import duckdb
import pyarrow as pa

from service.query.duckdb_process import Check, ProcessConnection, ProcessEnded, ProcessSession
from service.query.sql import literal
from service.settings import QuerySettings
from tailrace.logstore.errors import (
    Damaged,
    InvalidInput,
    LimitReached,
    StoreUnavailable,
    TailraceError,
    Unavailable,
)
from tailrace.logstore.objects.s3.client import BlockingBucket
from tailrace.logstore.objects.s3.credentials import Credentials
from tailrace.logstore.objects.s3.settings import S3Settings

# DuckDB on S3: the extension that its package brings, and a secret for one prefix.
#
# Nothing is downloaded: `duckdb-extension-httpfs` carries the signed extension of exactly the
# pinned DuckDB. Names are taken as they stand: patterns, and options behind a `?` that would send
# a request and its signature to another server, are switched off. So is what the environment says
# of S3. All settings are of the database, for a session has none of the others.
#
# The secret holds the keys of the moment at which the database is opened, and signs requests for
# the store's prefix only; a search is over long before they are renewed, and the next one does
# not get a database of other keys than those of its own moment (`pool`).


_PACKAGE: Final = "duckdb_extension_httpfs"
_OF_THE_ENVIRONMENT: Final = (
    *("access_key_id", "secret_access_key", "session_token", "kms_key_id"),
    *("region", "endpoint", "use_ssl", "requester_pays"),
)

Get: TypeAlias = Callable[[str, str], bytes]
"""Gives an object by its `s3://` address: a range of it, as HTTP spells it, or all of it.

It raises `NotFound`, `StoreUnavailable`, and blocks.
"""


def extension_path() -> str:
    """The extension's file. Raises `Unavailable` if its package is not installed."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise Unavailable(
            "searches on S3 need DuckDB's httpfs extension",
            hint=f"Install duckdb-extension-httpfs=={duckdb.__version__}.",
        )
    folder = os.path.join(os.path.dirname(found.origin), "extensions", f"v{duckdb.__version__}")
    return os.path.join(folder, "httpfs.duckdb_extension")


@dataclass(frozen=True, slots=True)
class SearchedBucket:
    """How searches read below `place`, an `s3://` address without a slash at its end.

    `silent`: whether the server is known not to answer.
    """

    place: str
    settings: S3Settings
    credentials: Credentials
    silent: Callable[[], bool] = lambda: False

    def key(self) -> Hashable:
        """The keys of now. Raises `StoreUnavailable`, `InvalidInput`."""
        return self.credentials.frozen()

    def reader(self) -> Get:
        """Reads without DuckDB, for several threads."""
        name, _, _ = self.place.removeprefix("s3://").partition("/")
        requests, root = BlockingBucket(self.settings, self.credentials, name), f"s3://{name}/"
        requests.gives_up = self.silent
        return lambda uri, range_: requests.get(f"get {uri}", uri.removeprefix(root), range_)

    def attach(self, connection: duckdb.DuckDBPyConnection | ProcessConnection) -> None:
        """Before the connection is locked. Raises `StoreUnavailable`, `InvalidInput`."""
        path = extension_path().replace("'", "''")
        connection.execute(f"LOAD '{path}'")
        for name in _OF_THE_ENVIRONMENT:  # which the secret leaves open if it is empty there
            connection.execute(f"RESET GLOBAL s3_{name}")
        connection.execute("SET GLOBAL s3_url_compatibility_mode = true")
        timeout, retries = self.settings.read_timeout_seconds, self.settings.attempts - 1
        connection.execute("SET GLOBAL http_timeout = $value", {"value": max(round(timeout), 1)})
        connection.execute("SET GLOBAL http_retries = $value", {"value": retries})
        pause = self.settings.backoff_milliseconds
        connection.execute("SET GLOBAL http_retry_wait_ms = $value", {"value": pause})
        connection.execute("SET GLOBAL http_retry_backoff = 2")
        wanted = self._secret()
        options = ", ".join(f"{name} ${name}" for name in wanted)
        connection.execute(f"CREATE SECRET store (TYPE s3, PROVIDER config, {options})", wanted)

    def _secret(self) -> dict[str, Any]:
        key = self.credentials.frozen()
        scheme, _, host = self.settings.endpoint_url.rstrip("/").partition("://")
        wanted: dict[str, Any] = {
            "scope": f"{self.place}/",
            "key_id": key.access_key_id,
            "secret": key.secret_access_key,
            "session_token": key.session_token,
            "region": self.credentials.region,
            "endpoint": host,
            "url_style": "path" if self.settings.path_style else "vhost",
        }
        return {name: value for name, value in wanted.items() if value} | {
            "use_ssl": scheme != "http"
        }


# DuckDB with limits: an in-memory database that searches use one after the other.
#
# It reads below the given folders (on S3: prefixes of the store's bucket) and nothing else: no
# other files, no other address of the network, no extensions but the one that reads S3, and no
# setting can be changed afterwards. What it cannot hold within its memory goes to a spill folder
# of limited size. `connect` is DuckDB's own, or that of a process which an interrupt ends at once
# (`process`).
#
# A search works in a `session`, which has its own names, transaction, results and interrupts, and
# takes them with it. So nothing of one search is left for the next, but what DuckDB keeps of
# files that it has read.


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
        bucket: SearchedBucket | None = None,
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

    def _lock(self, bucket: SearchedBucket | None) -> None:
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


PIECE_ROWS: Final = 8_192
_VENDOR: Final = (duckdb.Error, OSError, pa.ArrowException)
# Of a request that got no answer: DuckDB has no class for it.
_NO_ANSWER: Final = re.compile(r"error for HTTP [A-Z]+ to ")
_GONE: Final = 404
_NARROW: Final = "Narrow the search: a shorter time, one fqn or run, a limit."

GiveBack: TypeAlias = Callable[[LockedDatabase, bool], None]
"""Takes a database back, and whether all that was asked of it came to its end."""


def _closed(locked: LockedDatabase, _: bool) -> None:
    locked.close()


class Database:
    """Statements over Parquet files and over registered Arrow data."""

    def __init__(
        self, locked: LockedDatabase, give_back: GiveBack = _closed, check: Check | None = None
    ) -> None:
        """Raises `ProcessEnded` if it is one of a process that has ended, and as `check`."""
        self._locked = locked
        self._give_back = give_back
        self._stopped: TailraceError | None = None
        self._feed_failure: TailraceError | None = None
        self._clean = True
        self._open = True
        self._closing = Lock()
        self._connection = locked.session(check)

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
        """Makes a small table known as `name`. Raises `LimitReached`."""
        self._register(name, table)

    def feed(self, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Makes a stream known as `name`, for one statement. Raises `LimitReached`."""
        self._register(name, pa.RecordBatchReader.from_batches(schema, self._watched(batches)))

    def run(self, statement: str, parameters: Mapping[str, Any]) -> Generator[pa.RecordBatch]:
        """The statement's rows, streamed.

        Raises `LimitReached` (memory, spill, or interrupted), `Damaged` (a file is gone or not
        what was written), `StoreUnavailable` (the bucket does not answer) or what a feed raised.
        """
        self.check()
        self._clean = False
        try:
            result = self._connection.execute(statement, dict(parameters))
            for batch in result.to_arrow_reader(PIECE_ROWS):
                yield batch
                self.check()
            self._clean = True
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
        with self._closing:  # once it is given back, it may be another search's
            if self._open:
                self._stopped = self._stopped or reason
                self._connection.interrupt()

    def close(self) -> None:
        """Gives the database back. May be repeated."""
        with self._closing:
            if not self._open:
                return
            self._open = False
        clean = self._clean and self._stopped is None
        try:
            self._connection.close()
        except _VENDOR:
            clean = False
        self._give_back(self._locked, clean)

    def check(self) -> None:
        """Raises the reason for which the search was stopped, if it was."""
        if self._stopped is not None:
            raise self._stopped

    def _register(self, name: str, data: pa.Table | pa.RecordBatchReader) -> None:
        try:
            self._connection.register(name, data)
        except ProcessEnded as error:  # it was interrupted before its statement
            raise self._translated(error) from error

    def _watched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """DuckDB turns an error in a feed into text; this keeps it."""
        try:
            for batch in batches:
                self.check()
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
            mib = self._locked.settings.memory_bytes >> 20
            spill = self._locked.settings.spill_bytes >> 20
            return LimitReached(
                f"the search needs more than {mib} MiB of memory and {spill} MiB of disk",
                hint=_NARROW,
            )
        reason = str(error)
        if _is_silent(error):
            return StoreUnavailable(f"the store cannot be read: {reason[:500]}")
        for folder in self._locked.folders:
            reason = reason.replace(folder, "")
        return Damaged(f"what is stored cannot be read: {reason[:500]}")


def _is_silent(error: Exception) -> bool:
    """Whether the server refused or did not answer; a file that is gone is an answer."""
    if isinstance(error, duckdb.HTTPException):
        return int(error.status_code) != _GONE
    return isinstance(error, duckdb.IOException) and _NO_ANSWER.search(str(error)) is not None
