"""Taking segments into the table, each exactly once, whatever is killed or repeated.

- A commit is made on the snapshot that it was planned from and succeeds only as the very
  next version (`max_commit_retries=0`: delta-rs's own retry would rebase it, and checks
  neither duplicates nor removed files).
- It carries, per node, the sequence that the table holds with it. It is refused before it
  is tried unless the snapshot's mark is exactly one below the first segment taken in.
- A commit that failed is *unknown*: the table is read again and the job's ULID looked for. If
  there is no newer version, the same commit is tried again: of itself and a late copy of
  itself, one becomes that version.
- Files are never deleted here: a commit that seemed to fail may name them. The vacuum
  removes what is 24 h old and in no version, so files half as old are not committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction

from logstore.clock import Clock
from logstore.errors import NotFound, OutcomeUnknown, PreconditionFailed, StoreUnavailable
from logstore.objects.unclear import Unclear
from logstore.table.schema import JOB, PARTITIONS, application
from logstore.table.snapshot import Snapshot
from logstore.table.stats import NewFile
from logstore.table.table import Table
from logstore.table.vendor import read, writing

OLDEST_FILE_HOURS = 12


@dataclass(frozen=True, slots=True)
class Advance:
    """The node's segments from `first` to `last`, inclusive, are in the table with this commit."""

    node: str
    first: int
    last: int


def commit_segments(
    table: Table,
    snapshot: Snapshot,
    files: Sequence[NewFile],
    advances: Sequence[Advance],
    *,
    job: str,
    clock: Clock,
) -> Snapshot:
    """Adds the files and moves the marks in one version, and gives a snapshot that has both.

    `snapshot` is the one the job was planned from, `job` its ULID, not used before. Raises
    `PreconditionFailed` if the table moved on or the files are too old: read it again and
    plan anew. Raises `OutcomeUnknown` if the table cannot be read after a failed commit, or
    no commit is taken though nobody else made one.
    """
    delta = _planned_from(snapshot)
    for advance in advances:
        _check_mark(snapshot, advance)
    _check_age(files, clock)
    unclear = Unclear()
    while True:
        try:
            with writing(table.uri):
                _write(delta, files, advances, job, clock)
            return table.snapshot()
        except OutcomeUnknown as error:
            newest = _newest(table, error)
            if newest.version > snapshot.version:
                return _recognise(newest, snapshot.version, job, error)
            # Not in by now, and if it comes late, the version is taken by itself.
            unclear.bear(error)


def _planned_from(snapshot: Snapshot) -> DeltaTable:
    if snapshot.delta is None:
        raise NotFound(f"there is no table at {snapshot.uri}")
    return snapshot.delta


def _check_mark(snapshot: Snapshot, advance: Advance) -> None:
    mark = snapshot.mark(advance.node)
    if mark != advance.first - 1 or advance.last < advance.first:
        raise PreconditionFailed(
            f"the table holds segments of {advance.node} up to {mark}, so it cannot take in"
            f" {advance.first} to {advance.last}"
        )


def _check_age(files: Sequence[NewFile], clock: Clock) -> None:
    oldest = clock.now_ms() - OLDEST_FILE_HOURS * 3_600_000
    stale = [file.path for file in files if file.modified_ms < oldest]
    if stale:
        raise PreconditionFailed(
            f"{stale[0]} is older than {OLDEST_FILE_HOURS} h and may be vacuumed",
            hint="Run the compaction again: it writes new files.",
        )


def _write(
    delta: DeltaTable,
    files: Sequence[NewFile],
    advances: Sequence[Advance],
    job: str,
    clock: Clock,
) -> None:
    now = clock.now_ms()
    marks = [Transaction(application(a.node), a.last, now) for a in advances]
    delta.create_write_transaction(
        [_add(file) for file in files],
        "append",
        delta.schema(),
        list(PARTITIONS),
        commit_properties=CommitProperties(
            custom_metadata={JOB: job}, max_commit_retries=0, app_transactions=marks
        ),
    )


def _add(file: NewFile) -> AddAction:
    partition = {"date": file.date.isoformat(), "hour": str(file.hour)}
    return AddAction(file.path, file.size, partition, file.modified_ms, True, file.stats)


def _newest(table: Table, error: OutcomeUnknown) -> Snapshot:
    try:
        return table.snapshot()
    except StoreUnavailable as unreadable:
        raise error from unreadable


def _recognise(newest: Snapshot, before: int, job: str, error: OutcomeUnknown) -> Snapshot:
    """The newest snapshot if the job's commit is in it, else why it is not."""
    try:
        mine = _holds(newest, before, job)
    except StoreUnavailable as unreadable:
        raise error from unreadable
    if not mine:
        raise PreconditionFailed(
            f"the table moved from version {before} to {newest.version} meanwhile"
        ) from error
    return newest


def _holds(snapshot: Snapshot, after: int, job: str) -> bool:
    delta = snapshot.delta
    if delta is None or snapshot.version <= after:
        return False
    commits = read(snapshot.uri, lambda: delta.history(snapshot.version - after))
    return any(commit.get(JOB) == job for commit in commits)
