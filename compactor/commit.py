"""Places the files of a job, commits a planned change of the table, and makes it durable.

Files of a job are placed only if they hold as many rows as the job wrote, in every store. Spark
relies on the reports of its tasks, and placing relies on a listing. A file that an executor wrote
to its own disk, that a mount does not show yet, or that was removed or overwritten, would lose
lines without an error, since their segments count as compacted. The rows that the tasks counted are
therefore compared with the footers of the files to be committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from compactor.context import Compactor
from tailrace.logstore.errors import PreconditionFailed, Unavailable
from tailrace.logstore.table.schema import NewFile
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import TableChange, commit

log = logging.getLogger("tailrace.compactor")

_HINT: Final = (
    "Nothing of it is committed, and the next pass does it again. If that goes on: in a folder,"
    " mount it at the same path on the driver's machine and those of all executors; on S3, see"
    " that nobody else, no rule of the bucket either, writes or removes below table/_staging/."
)


async def place_all(compactor: Compactor, job: str, rows: int, level: int = 0) -> list[NewFile]:
    """Places the job's files, which must hold `rows` lines, as `Placement.place`.

    Raises `Unavailable` if the files hold another number, and as `Placement.place`; files that
    were placed are then orphans.
    """
    files = await compactor.placement.place(job, level)
    found = sum(file.rows for file in files)
    if found != rows:
        raise Unavailable(
            f"the tasks of job {job} wrote {rows} rows, and its files hold {found}", hint=_HINT
        )
    return files


async def make(
    compactor: Compactor, snapshot: TableSnapshot, change: TableChange, *, job: str | None = None
) -> TableSnapshot:
    """Commits the change as the next version after `snapshot`; returns a snapshot that has it.

    `job` is the ULID under which it is committed, by default a fresh one. Raises
    `PreconditionFailed` if the table has a newer version, `OutcomeUnknown`, `StoreUnavailable`.
    """
    # The previous version is settled first: a power cut can only lose the newest version.
    await compactor.placement.settle(snapshot.version)
    job = job or compactor.fresh_id()
    after = await asyncio.to_thread(
        lambda: commit(compactor.table, snapshot, change, job=job, clock=compactor.clock).loaded()
    )
    await compactor.placement.settle(after.version)
    return after


async def make_while(
    compactor: Compactor,
    snapshot: TableSnapshot,
    change: TableChange,
    holds: Callable[[TableSnapshot], Awaitable[bool]],
    *,
    job: str | None = None,
) -> TableSnapshot:
    """Commits on `snapshot` or on the newest version, as long as the change `holds` there.

    A change whose planning takes long would always lose to frequent commits if it had to be the
    next version. Each try is the very next version after one that was checked. Raises
    `PreconditionFailed` if the change no longer holds or its files are too old, and as `make`.
    """
    planned = snapshot.version
    while True:
        try:
            return await make(compactor, snapshot, change, job=job)
        except PreconditionFailed:
            newest = await compactor.newest()
            if newest.version == snapshot.version or not await holds(newest):
                raise
            log.info("planned on version %d, committed after %d", planned, newest.version)
            snapshot = newest
            compactor.reached("rebased")
