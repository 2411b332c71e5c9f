"""The table as a place: opens its newest version, creates it, finds orphaned files.

All calls block on the store; from an event loop they belong in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError

from logstore.errors import NotFound, StoreUnavailable
from logstore.table.log import Log
from logstore.table.log_folder import LocalLogFolder, LogFolder
from logstore.table.schema import ADDED, COLUMNS, PARTITIONS, application
from logstore.table.snapshot import Snapshot
from logstore.table.vendor import read

LOG: Final = "_delta_log"

# Checkpoints keep opening cheap: a reader replays at most this many commits. What is older than
# a reader may be (24 h), delta-rs removes from the log with a commit, never an application
# transaction: those have no retention unless a table is given one.
_CONFIGURATION = {
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 2 days",
    "delta.deletedFileRetentionDuration": "interval 2 days",
}


@dataclass(frozen=True, slots=True)
class Table:
    """The Delta table at `uri`, a path or an `s3://` address (`ObjectStore.uri`).

    `options` returns delta-rs's storage options, none for a local folder. It is called at each
    opening, since its keys may have been renewed. `log_folder` is where we read the log
    ourselves, by default a local folder.
    """

    uri: str
    options: Callable[[], Mapping[str, str]] = dict
    log_folder: LogFolder | None = None

    @property
    def log(self) -> Log:
        """The table's log."""
        return Log(self.log_folder or LocalLogFolder(f"{self.uri}/{LOG}"))

    def snapshot(self) -> Snapshot:
        """The newest version, the empty one if there is no table.

        Raises `StoreUnavailable`, and `UnsupportedVersion` for a table of another shape.
        """
        newest = self._newest()
        newest.check_readable()
        return newest

    def mark(self, node: str) -> int:
        """The node's mark in the newest version, of whatever shape. Raises `StoreUnavailable`."""
        return self._newest().mark(node)

    def marks_at(self, then_ms: int, nodes: Iterable[str]) -> Mapping[str, int]:
        """`Snapshot.marks` of the version that was the newest then, by the store's clock.

        All are 0 if there was none yet. Raises `StoreUnavailable`, `UnsupportedVersion`.
        """
        newest = self.snapshot()
        version = self.log.version_at(then_ms, newest.version)
        if version is None:
            return Snapshot(self.uri).marks(nodes)
        transactions = self.log.transactions(version)
        if transactions is None:
            return self._opened(version).marks(nodes)
        return {node: transactions.get(application(node), 0) for node in nodes}

    def create(self) -> Snapshot:
        """The newest version of the table, which is created if needed; racing creators are safe.

        A table of an earlier version gets the columns that it lacks. Raises `UnsupportedVersion`
        for one of another shape.
        """
        found = self.snapshot()
        if found.delta is None:
            failure = self._try_create()
            found = self.snapshot()
            if found.delta is None:
                raise StoreUnavailable(f"no table could be made at {self.uri}: {failure}")
        if found.is_outdated:
            found.check_writable()
            failure = self._try_extend(found.delta)
            found = self.snapshot()
            if found.is_outdated:
                raise StoreUnavailable(f"the table at {self.uri} gets no new column: {failure}")
        return found

    def orphans(self, hours: int) -> list[str]:
        """Paths of old files that no version of the last `hours` hours has.

        Files younger than that are kept, since their jobs may still run. Raises `StoreUnavailable`.
        """
        delta = self.snapshot().delta
        if delta is None:
            return []
        return read(
            self.uri,
            lambda: delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True),
        )

    def replaced(self) -> list[str]:
        """Paths of files that a commit took out of the table. Raises `StoreUnavailable`.

        Files that no commit names are not among them: their jobs may still run.
        """
        delta = self.snapshot().delta
        if delta is None:
            return []
        return read(
            self.uri,
            lambda: delta.vacuum(0, dry_run=True, enforce_retention_duration=False, full=False),
        )

    def _newest(self) -> Snapshot:
        try:
            return self._opened()
        except NotFound:
            return Snapshot(self.uri)

    def _opened(self, version: int | None = None) -> Snapshot:
        """The table at that version, or at the newest. Raises `NotFound`, `StoreUnavailable`."""
        options = dict(self.options()) or None
        delta = read(self.uri, lambda: DeltaTable(self.uri, version, storage_options=options))
        return Snapshot(self.uri, delta.version(), delta, self.log)

    def _try_create(self) -> Exception | None:
        try:
            DeltaTable.create(
                self.uri,
                COLUMNS,
                mode="error",
                partition_by=list(PARTITIONS),
                name="tailrace",
                description="log lines, by the hour of their ULID",
                configuration=dict(_CONFIGURATION),
                storage_options=dict(self.options()) or None,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, OSError) as error:
            return error  # somebody else may have made it: the caller looks
        return None

    def _try_extend(self, delta: DeltaTable | None) -> Exception | None:
        if delta is None:
            return None
        there = {field.name for field in delta.schema().fields}
        new = [field for field in Schema.from_arrow(COLUMNS).fields if field.name in ADDED - there]
        try:
            delta.alter.add_columns(new, commit_properties=CommitProperties(max_commit_retries=0))
        except (DeltaError, OSError) as error:
            return error  # somebody else may have done it: the caller looks
        return None
