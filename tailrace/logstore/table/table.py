"""The table as a place: opens its newest version, creates it, commits changes, finds orphans.

All calls block on the store; from an event loop they belong in a thread. `TableChange` is committed
exactly once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from tailrace.logstore import keys
from tailrace.logstore.cas import RetryBudget
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import NotFound, OutcomeUnknown, PreconditionFailed, StoreUnavailable
from tailrace.logstore.objects.config import StoreSettings
from tailrace.logstore.objects.s3.settings import S3Settings
from tailrace.logstore.table.log import LocalLogFolder, Log, LogFolder
from tailrace.logstore.table.schema import (
    ACTIONS,
    ADDED,
    COLUMNS,
    EXPIRED,
    JOB,
    PARTITIONS,
    PURGED,
    NewFile,
    application,
)
from tailrace.logstore.table.snapshot import TableFile, TableSnapshot, read, writing

if TYPE_CHECKING:
    from tailrace.logstore.objects.s3.credentials import Credentials


LOG: Final = "_delta_log"

# Checkpoints keep opening cheap: a reader replays at most this many commits. With a commit,
# delta-rs removes from the log what is older than a reader may be (24 h), but never an application
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

    def snapshot(self) -> TableSnapshot:
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
        """`TableSnapshot.marks` of the version that was the newest then, by the store's clock.

        All are 0 if there was none yet. Raises `StoreUnavailable`, `UnsupportedVersion`.
        """
        newest = self.snapshot()
        version = self.log.version_at(then_ms, newest.version)
        if version is None:
            return TableSnapshot(self.uri).marks(nodes)
        transactions = self.log.transactions(version)
        if transactions is None:
            return self._opened(version).marks(nodes)
        return {node: transactions.get(application(node), 0) for node in nodes}

    def create(self) -> TableSnapshot:
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

    def _newest(self) -> TableSnapshot:
        try:
            return self._opened()
        except NotFound:
            return TableSnapshot(self.uri)

    def _opened(self, version: int | None = None) -> TableSnapshot:
        """The table at that version, or at the newest. Raises `NotFound`, `StoreUnavailable`."""
        options = dict(self.options()) or None
        delta = read(self.uri, lambda: DeltaTable(self.uri, version, storage_options=options))
        return TableSnapshot(self.uri, delta.version(), delta, self.log)

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


# The place of the table and delta-rs's options for it, from the settings of the store.
#
# On S3 a commit is a put of the next version's log entry under `If-None-Match: *`
# (`aws_conditional_put` = `etag`), which S3 and MinIO honour: several drivers are safe without a
# lock service. delta-rs writes the log only. Data files come from Spark and the object store, so
# the storage class of large objects does not concern it, and its objects are STANDARD.


def open_table(settings: StoreSettings) -> Table:
    """The table of the store that the settings name; nothing is read or made yet.

    Raises `InvalidInput` for a profile that does not exist.
    """
    bucket = settings.bucket
    if bucket is None:
        return Table(os.path.join(settings.store_folder, keys.TABLE))
    from tailrace.logstore.objects.s3.client import BlockingBucket
    from tailrace.logstore.objects.s3.credentials import Credentials
    from tailrace.logstore.table.log_bucket import BucketLogFolder

    credentials = Credentials(settings.s3)
    prefix = f"{bucket.prefix}/{keys.TABLE}/{LOG}/".removeprefix("/")
    return Table(
        f"{bucket.uri}/{keys.TABLE}",
        lambda: storage_options(settings.s3, credentials),
        BucketLogFolder(BlockingBucket(settings.s3, credentials, bucket.name), prefix),
    )


def storage_options(settings: S3Settings, credentials: Credentials) -> dict[str, str]:
    """delta-rs's options, with the current key. Raises `StoreUnavailable`, `InvalidInput`."""
    key = credentials.frozen()
    wanted = {
        "aws_endpoint_url": settings.endpoint_url.rstrip("/"),
        "aws_server_side_encryption": settings.encryption,
        "aws_sse_kms_key_id": settings.kms_key_id,
        "aws_allow_http": "true" if settings.endpoint_url.startswith("http://") else "",
    }
    return {name: value for name, value in wanted.items() if value} | {
        "aws_access_key_id": key.access_key_id,
        "aws_secret_access_key": key.secret_access_key,
        # Said even when it is empty: delta-rs would take the environment's for it.
        "aws_session_token": key.session_token,
        "aws_region": credentials.region,
        "aws_conditional_put": "etag",
        "aws_virtual_hosted_style_request": str(not settings.path_style).lower(),
        "connect_timeout": f"{settings.connect_timeout_seconds:g}s",
        "timeout": f"{settings.read_timeout_seconds:g}s",
        "max_retries": str(settings.attempts - 1),
        "backoff_config.init_backoff": f"{settings.backoff_milliseconds}ms",
    }


# Changes of the table, each made exactly once, even if programs are killed or repeat it.
#
# - A commit is made on the snapshot that it was planned from and succeeds only as the very next
#   version (`max_commit_retries=0`: delta-rs's own retry would rebase it, and checks neither
#   duplicates nor removed files).
# - It carries, per node, the sequence that the table holds with it. It is refused before it is
#   tried unless the snapshot's mark is exactly one below the first segment of the commit.
# - A commit that failed is *unknown*: the table is read again, and its log searched for the job's
#   ULID. If no newer version exists, the same commit is tried again: either it or its late copy
#   becomes that version, never both.
# - It removes only files that its snapshot has, which delta-rs would not check.
# - It never deletes files: a commit that seemed to fail may name them. The vacuum removes files
#   that are 24 h old and in no version, so files half as old are not committed.


OLDEST_FILE_HOURS = 12


@dataclass(frozen=True, slots=True)
class Advance:
    """With this commit the node's segments from `first` to `last`, inclusive, are in the table."""

    node: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TableChange:
    """The change of one version: `files` are added, `removed` are removed, marks rise.

    `purged_ms`: deletions that were stored by that time are applied in all files of the snapshot
    outside `removed`. `expired_ms`: hours that ended by that time are beyond the retention, and
    `removed` has all files that the snapshot has of them. `same_lines`: files are only rearranged,
    so that a reader of the table's change feed sees no changes.
    """

    files: Sequence[NewFile] = ()
    advances: Sequence[Advance] = ()
    removed: Sequence[TableFile] = ()
    purged_ms: int | None = None
    expired_ms: int | None = None
    same_lines: bool = False


def commit_segments(
    table: Table,
    snapshot: TableSnapshot,
    files: Sequence[NewFile],
    advances: Sequence[Advance],
    *,
    job: str,
    clock: Clock,
) -> TableSnapshot:
    """Adds the files and moves the marks, as `commit` does."""
    return commit(table, snapshot, TableChange(files, advances), job=job, clock=clock)


def commit(
    table: Table, snapshot: TableSnapshot, change: TableChange, *, job: str, clock: Clock
) -> TableSnapshot:
    """Commits the change as one version; returns a snapshot that includes it.

    `snapshot` is the one that the job was planned from, `job` its ULID, not used before. Raises
    `PreconditionFailed` if the table has a newer version or the files are too old: read the table
    again and plan anew. Raises `OutcomeUnknown` if the table cannot be read after a failed commit,
    or no commit succeeds though no other program made one, and `UnsupportedVersion` for a table of
    another shape.
    """
    delta = _planned_from(snapshot)
    for advance in change.advances:
        _check_mark(snapshot, advance)
    _check_removed(snapshot, change.removed)
    _check_age(change.files, clock)
    budget = RetryBudget()
    while True:
        try:
            with writing(table.uri):
                _write(delta, change, job, clock)
            return table.snapshot()
        except OutcomeUnknown as error:
            newest = _newest(table, error)
            if newest.version > snapshot.version:
                return _recognise(table, newest, snapshot.version, job, error)
            # Not in by now, and if it comes late, the version is taken by itself.
            budget.spend(error)


def _planned_from(snapshot: TableSnapshot) -> DeltaTable:
    if snapshot.delta is None:
        raise NotFound(f"there is no table at {snapshot.uri}")
    snapshot.check_writable()
    return snapshot.delta


def _check_mark(snapshot: TableSnapshot, advance: Advance) -> None:
    mark = snapshot.mark(advance.node)
    if mark != advance.first - 1 or advance.last < advance.first:
        raise PreconditionFailed(
            f"the table holds segments of {advance.node} up to {mark}, so it cannot take in"
            f" {advance.first} to {advance.last}"
        )


def _check_removed(snapshot: TableSnapshot, removed: Sequence[TableFile]) -> None:
    if not removed:
        return
    there = {file.path for file in snapshot.files}
    for file in removed:
        if file.path not in there:
            raise PreconditionFailed(f"version {snapshot.version} has no {file.path} to remove")


def _check_age(files: Sequence[NewFile], clock: Clock) -> None:
    oldest = clock.now_ms() - OLDEST_FILE_HOURS * 3_600_000
    stale = [file.path for file in files if file.modified_ms < oldest]
    if stale:
        raise PreconditionFailed(
            f"{stale[0]} is older than {OLDEST_FILE_HOURS} h and may be vacuumed",
            hint="Run the compaction again: it writes new files.",
        )


def _write(delta: DeltaTable, change: TableChange, job: str, clock: Clock) -> None:
    now = clock.now_ms()
    changed = not change.same_lines
    marks = [Transaction(application(a.node), a.last, now) for a in change.advances]
    if change.purged_ms is not None:
        marks.append(Transaction(PURGED, change.purged_ms, now))
    if change.expired_ms is not None:
        marks.append(Transaction(EXPIRED, change.expired_ms, now))
    added = [_add(file, changed) for file in change.files]
    removed = [_remove(file, changed, now) for file in change.removed]
    actions = len(added) + len(removed) + len(marks)
    delta.create_write_transaction(
        [*added, *removed],
        "append",
        delta.schema(),
        list(PARTITIONS),
        commit_properties=CommitProperties(
            custom_metadata={JOB: job, ACTIONS: str(actions)},
            max_commit_retries=0,
            app_transactions=marks,
        ),
    )


def _add(file: NewFile, changed: bool) -> AddAction:
    partition = _partition(file.date, file.hour)
    return AddAction(file.path, file.size, partition, file.modified_ms, changed, file.stats)


def _remove(file: TableFile, changed: bool, now_ms: int) -> RemoveAction:
    return RemoveAction(
        file.path,
        changed,
        now_ms,
        size=file.size,
        partition_values=_partition(file.date, file.hour),
    )


def _partition(day: date, hour: int) -> dict[str, str | None]:
    return {"date": day.isoformat(), "hour": str(hour)}


def _newest(table: Table, error: OutcomeUnknown) -> TableSnapshot:
    try:
        return table.snapshot()
    except StoreUnavailable as unreadable:
        raise error from unreadable


def _recognise(
    table: Table, newest: TableSnapshot, before: int, job: str, error: OutcomeUnknown
) -> TableSnapshot:
    """The newest snapshot if it includes the job's commit; else raises why not."""
    try:
        mine = job in table.log.jobs(JOB, before, newest.version)
    except StoreUnavailable as unreadable:
        raise error from unreadable
    if not mine:
        raise PreconditionFailed(
            f"the table moved from version {before} to {newest.version} meanwhile"
        ) from error
    return newest
