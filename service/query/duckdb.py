"""Runs the statements of searches in locked DuckDB databases, over local files and S3.

`LockedDatabase` is an in-memory database that searches use one after the other. It reads below the
given folders (on S3: prefixes of the store's bucket) and nothing else: no other files, no other
address of the network, no extensions but the one that reads S3, and no setting can be changed
afterwards. Data beyond its memory goes to a spill folder of limited size. `connect` is DuckDB's
own, or that of a process which an interrupt ends at once (`service.query.duckdb_process`).

`Database` is one search's work in a `session`, which has its own names, transaction, results and
interrupts, and takes them with it. So one search leaves nothing to the next, except the metadata of
files that DuckDB keeps.

`SearchedBucket` prepares DuckDB for S3: the extension that its package brings, and a secret for one
prefix. Nothing is downloaded: `duckdb-extension-httpfs` carries the signed extension of exactly the
pinned DuckDB. Names are taken literally: patterns, and options after a `?` that would send a
request and its signature to another server, are switched off, and so are the environment's
variables of S3. All settings belong to the database, since a session has none of the others.

The secret holds the keys of the moment at which the database is opened, and signs requests for the
store's prefix only. A search is over long before the keys are renewed. The next search gets no
database of other keys than those of its own moment (`DatabasePool`).

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

# --- DuckDB on S3 -------------------------------------------------------------------------------


_PACKAGE: Final = "duckdb_extension_httpfs"
_OF_THE_ENVIRONMENT: Final = (
    *("access_key_id", "secret_access_key", "session_token", "kms_key_id"),
    *("region", "endpoint", "use_ssl", "requester_pays"),
)

Get: TypeAlias = Callable[[str, str], bytes]
"""Reads an object by its `s3://` address: a range of it, as HTTP spells it, or all of it.

It raises `NotFound`, `StoreUnavailable`, and blocks.
"""


def extension_path() -> str:
    """Returns the extension's file. Raises `Unavailable` if its package is not installed."""
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
        """Returns the present keys. Raises `StoreUnavailable`, `InvalidInput`."""
        return self.credentials.frozen()

    def reader(self) -> Get:
        """Returns a thread-safe function that reads without DuckDB."""
        name, _, _ = self.place.removeprefix("s3://").partition("/")
        requests, root = BlockingBucket(self.settings, self.credentials, name), f"s3://{name}/"
        requests.gives_up = self.silent
        return lambda uri, range_: requests.get(f"get {uri}", uri.removeprefix(root), range_)

    def attach(self, connection: duckdb.DuckDBPyConnection | ProcessConnection) -> None:
        """Prepares a connection before it is locked. Raises `StoreUnavailable`, `InvalidInput`."""
        path = extension_path().replace("'", "''")
        connection.execute(f"LOAD '{path}'")
        for name in _OF_THE_ENVIRONMENT:  # the secret would not set a name that is empty in it
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


# --- Locked databases ---------------------------------------------------------------------------


Connection: TypeAlias = duckdb.DuckDBPyConnection | ProcessConnection
Session: TypeAlias = duckdb.DuckDBPyConnection | ProcessSession
Connect: TypeAlias = Callable[[Mapping[str, Any]], Connection]


def in_this_process(config: Mapping[str, Any]) -> Connection:
    """Opens a database in this process: quick, and interrupted between two vectors only."""
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
        """Restricts it to the given folders."""
        run = self._connection.execute
        run("SET GLOBAL TimeZone = 'UTC'")
        run("SET GLOBAL parquet_metadata_cache = true")  # a file's footer is parsed once
        if bucket is not None:
            bucket.attach(self._connection)
        # A name is checked both as it is given and as the file that it resolves to.
        allowed = [*self.folders, *map(literal, self.folders)]
        run("SET GLOBAL allowed_directories = $folders", {"folders": allowed})
        run("SET GLOBAL enable_external_access = false")
        run("SET GLOBAL lock_configuration = true")

    def session(self, check: Check | None = None) -> Session:
        """Returns a connection of its own, to be closed. Raises `ProcessEnded`, and as `check`."""
        if isinstance(self._connection, ProcessConnection):
            return self._connection.cursor(check)
        return self._connection.cursor()

    @property
    def spilled(self) -> bool:
        """Returns true if its spill folder is not empty."""
        return os.path.isdir(self._spill_folder) and bool(os.listdir(self._spill_folder))

    def close(self) -> None:
        """Gives back memory and spill folder, and ends the process."""
        self._connection.close()
        shutil.rmtree(self._spill_folder, ignore_errors=True)  # a killed process leaves files


PIECE_ROWS: Final = 8_192
_VENDOR: Final = (duckdb.Error, OSError, pa.ArrowException)
# Errors of a request without an answer: DuckDB has no class for them.
_NO_ANSWER: Final = re.compile(r"error for HTTP [A-Z]+ to ")
_GONE: Final = 404
_NARROW: Final = "Narrow the search: a shorter time, one fqn or run, a limit."

GiveBack: TypeAlias = Callable[[LockedDatabase, bool], None]
"""Takes a database back; the flag says whether every statement finished."""


def _closed(locked: LockedDatabase, _: bool) -> None:
    locked.close()


class Database:
    """Runs statements over Parquet files and over registered Arrow data."""

    def __init__(
        self, locked: LockedDatabase, give_back: GiveBack = _closed, check: Check | None = None
    ) -> None:
        """Raises `ProcessEnded` if its process has ended, and the errors of `check`."""
        self._locked = locked
        self._give_back = give_back
        self._stopped: TailraceError | None = None
        self._feed_failure: TailraceError | None = None
        self._clean = True
        self._open = True
        self._closing = Lock()
        self._connection = locked.session(check)

    def check_regex(self, pattern: str) -> None:
        """Raises `InvalidInput` if RE2 does not accept the pattern."""
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
        """Registers a small table as `name`. Raises `LimitReached`."""
        self._register(name, table)

    def feed(self, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Registers a stream as `name`, for one statement. Raises `LimitReached`."""
        self._register(name, pa.RecordBatchReader.from_batches(schema, self._watched(batches)))

    def run(self, statement: str, parameters: Mapping[str, Any]) -> Generator[pa.RecordBatch]:
        """Yields the statement's rows, streamed.

        Raises `LimitReached` (memory, spill, or interrupted), `Damaged` (a file is gone or differs
        from the written one), `StoreUnavailable` (the bucket does not answer) or the error of a
        feed.
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
        """Returns the one number that the statement selects. Raises as `run`."""
        found = 0
        for batch in self.run(statement, parameters):
            found = int(batch.column(0)[0].as_py())
        return found

    def interrupt(self, reason: TailraceError) -> None:
        """Ends the running statement, and every later one, with `reason`.

        DuckDB forgets an interrupt that arrives between two statements: call again until the work
        has ended.
        """
        with self._closing:  # once it is given back, another search may use it
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
        """Keeps an error of a feed, which DuckDB turns into text."""
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
    """Returns true if the server refused or did not answer; a missing file is an answer."""
    if isinstance(error, duckdb.HTTPException):
        return int(error.status_code) != _GONE
    return isinstance(error, duckdb.IOException) and _NO_ANSWER.search(str(error)) is not None
