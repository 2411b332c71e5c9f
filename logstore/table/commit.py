"""Changes the table, each change exactly once, even if programs are killed or repeat it.

- A commit is made on the snapshot that it was planned from and succeeds only as the very
  next version (`max_commit_retries=0`: delta-rs's own retry would rebase it, and checks
  neither duplicates nor removed files).
- It carries, per node, the sequence that the table holds with it. It is refused before it
  is tried unless the snapshot's mark is exactly one below the first segment of the commit.
- A commit that failed is *unknown*: the table is read again and the job's ULID looked for. If
  there is no newer version, the same commit is tried again: of itself and a late copy of
  itself, one becomes that version.
- It removes only files that its snapshot has, which delta-rs would not check.
- Files are never deleted here: a commit that seemed to fail may name them. The vacuum
  removes what is 24 h old and in no version, so files half as old are not committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from logstore.clock import Clock
from logstore.errors import NotFound, OutcomeUnknown, PreconditionFailed, StoreUnavailable
from logstore.swap import RetryBudget
from logstore.table.schema import ACTIONS, EXPIRED, JOB, PARTITIONS, PURGED, application
from logstore.table.snapshot import Snapshot, TableFile
from logstore.table.stats import NewFile
from logstore.table.table import Table
from logstore.table.vendor import writing

OLDEST_FILE_HOURS = 12


@dataclass(frozen=True, slots=True)
class Advance:
    """With this commit the node's segments from `first` to `last`, inclusive, are in the table."""

    node: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Change:
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
    snapshot: Snapshot,
    files: Sequence[NewFile],
    advances: Sequence[Advance],
    *,
    job: str,
    clock: Clock,
) -> Snapshot:
    """Adds the files and moves the marks, as `commit` does."""
    return commit(table, snapshot, Change(files, advances), job=job, clock=clock)


def commit(table: Table, snapshot: Snapshot, change: Change, *, job: str, clock: Clock) -> Snapshot:
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


def _planned_from(snapshot: Snapshot) -> DeltaTable:
    if snapshot.delta is None:
        raise NotFound(f"there is no table at {snapshot.uri}")
    snapshot.check_writable()
    return snapshot.delta


def _check_mark(snapshot: Snapshot, advance: Advance) -> None:
    mark = snapshot.mark(advance.node)
    if mark != advance.first - 1 or advance.last < advance.first:
        raise PreconditionFailed(
            f"the table holds segments of {advance.node} up to {mark}, so it cannot take in"
            f" {advance.first} to {advance.last}"
        )


def _check_removed(snapshot: Snapshot, removed: Sequence[TableFile]) -> None:
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


def _write(delta: DeltaTable, change: Change, job: str, clock: Clock) -> None:
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


def _newest(table: Table, error: OutcomeUnknown) -> Snapshot:
    try:
        return table.snapshot()
    except StoreUnavailable as unreadable:
        raise error from unreadable


def _recognise(
    table: Table, newest: Snapshot, before: int, job: str, error: OutcomeUnknown
) -> Snapshot:
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
