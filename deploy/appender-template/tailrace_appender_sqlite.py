"""An appender that writes events into a SQLite database, each once.

    - type: sqlite
      name: database
      file: /var/lib/runs.db

After a crash the events behind the last checkpoint come again. This appender is exact because the
database knows each record by its identity (`ulid`, `fqn`, `run_id`) and ignores it the second
time. Another way is to save in the state, which `sync` gives, where to go back to: `start` gets
the state of the last checkpoint.
"""

from __future__ import annotations

import sqlite3
from typing import ClassVar

import pyarrow as pa

from tailrace.pipelines.appenders.contract import (
    AppenderContext,
    AppenderCounter,
    AppenderFailed,
    State,
)
from tailrace.pipelines.section import Section, setting

_TABLE = """
CREATE TABLE IF NOT EXISTS records (
    ulid TEXT, fqn TEXT, run_id TEXT, ts_us INTEGER, level TEXT, message TEXT,
    PRIMARY KEY (ulid, fqn, run_id)
) WITHOUT ROWID
"""


class SqliteSettings(Section):
    """The keys of the appender in a pipeline's file; `tailrace pipelines check` checks them."""

    file: str = setting(..., "the database; it is made if it is not there")


class Sqlite:
    """Writes events into a table `records`."""

    settings: ClassVar[type[Section]] = SqliteSettings

    def __init__(self, settings: SqliteSettings) -> None:
        self._file = settings.file
        self._database: sqlite3.Connection | None = None
        self._rows = AppenderCounter()

    def start(self, context: AppenderContext, state: State | None) -> None:
        """Opens the database. What fails here is tried again after a pause."""
        self._rows = context.metrics.counter("rows_written", "Rows that were not there before.")
        try:
            self._database = sqlite3.connect(self._file)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute(_TABLE)
        except sqlite3.Error as error:
            raise AppenderFailed(f"{self._file}: {error}") from error

    def append(self, events: pa.Table) -> None:
        """Takes events in the order of their time, some thousand at once."""
        columns = ("ulid", "fqn", "run_id", "ts", "level", "message")
        table = events.select(columns).set_column(3, "ts", events.column("ts").cast(pa.int64()))
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        try:
            database, before = self._opened(), self._opened().total_changes
            database.executemany("INSERT OR IGNORE INTO records VALUES (?,?,?,?,?,?)", rows)
            self._rows.add(database.total_changes - before)
        except sqlite3.Error as error:
            raise AppenderFailed(f"{self._file}: {error}") from error

    def sync(self) -> State:
        """All that was appended survives a power cut when this returns."""
        try:
            self._opened().commit()
        except sqlite3.Error as error:
            raise AppenderFailed(f"{self._file}: {error}") from error
        return {}

    def saved(self) -> None:
        """The checkpoint is saved: nobody goes back behind it. Nothing is to be done here."""

    def stop(self) -> None:
        """Closes the database; what was not committed is gone, and comes again."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            raise AppenderFailed("the appender was not started")
        return self._database
