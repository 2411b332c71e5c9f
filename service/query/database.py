"""The statements of one search, in a session of a locked database.

All calls block; only `interrupt` may come from another thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from threading import Lock
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
from service.query.locked import LockedDatabase
from service.query.process import Check, ProcessEnded

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
