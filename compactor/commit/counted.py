"""Placing what a job wrote, if all of it is there: rows written are rows found, in every store.

Spark takes for written what its tasks say, and placing takes for all there is what a listing
shows. A file that an executor wrote to a disk of its own, that a mount does not show yet, that
somebody removed or wrote over, would be lines lost without a word: their segments count as taken
in. The rows that the tasks counted are compared with the footers of what is to be committed.
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
    """Places what the job wrote, `rows` lines by its own count, as `Placement.place`.

    Raises `Unavailable` where the files hold another number, and as `Placement.place`; what was
    placed is then orphans.
    """
    files = await compactor.placement.place(job, level)
    found = sum(file.rows for file in files)
    if found != rows:
        raise Unavailable(
            f"the tasks of job {job} wrote {rows} rows, and its files hold {found}", hint=_HINT
        )
    return files
