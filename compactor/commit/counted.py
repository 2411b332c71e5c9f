"""Places a job's files only if they hold as many rows as the job wrote, in every store.

Spark relies on what its tasks report, and placing relies on what a listing
shows. A file that an executor wrote to a disk of its own, that a mount does not show yet, or that
was removed or overwritten, would lose lines without an error, since their segments count as
compacted. The rows that the tasks counted are therefore compared with the footers of the files to
be committed.
"""

from __future__ import annotations

from typing import Final

from compactor.context import Compactor
from logstore.errors import Unavailable
from logstore.table.stats import NewFile

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
