"""Gives Spark's files their names in the table, durably, before a commit names them.

    table/_staging/{job}/part-{bucket:05d}-….parquet       Spark's; no reader looks there
    table/_staging/{job}/bucket={bucket}/part-….parquet    where a task has several buckets
    table/date=YYYY-MM-DD/hour=HH/{job}-{bucket:05d}-….parquet   (`logstore.table.layout`)

Spark writes into a folder of the job's own: its committer removes the whole working
folder of a target when it is done, and two drivers with one target would remove each
other's. Which hour a file belongs to is read from the file.

`Placement` is the interface: `folder.py` renames, `objects.py` has the server copy.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from logstore import ulid
from logstore.errors import Damaged
from logstore.table.layout import file_name
from logstore.table.stats import NewFile

STAGING = "_staging"
_PART: Final = re.compile(r"(?:bucket=([0-9]+)/)?part-([0-9]+)-[^/]*$")
_HOUR_MS = 3_600_000


class Placement(Protocol):
    """Makes a job's files files of the table that survive a power cut."""

    async def place(self, job: str, level: int = 0) -> list[NewFile]:
        """Moves the job's files, and describes them. Their names have the `level`.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """
        ...

    async def markers(self, job: str) -> list[str]:
        """Keys that stand for the folders of the job's staging, and that no listing shows."""
        ...

    async def settle(self, version: int) -> None:
        """Makes the log durable up to this version, which must happen before the next is made.

        Raises `StoreUnavailable`.
        """
        ...

    async def quarantine_torn(self, now_ms: int) -> list[str]:
        """Renames files of the log that a power cut truncated, before anything is planned.

        Returns messages for a person. Raises `StoreUnavailable`, `Damaged`.
        """
        ...


def staging_folder(table: str, job: str) -> str:
    """The folder that Spark writes for the job; a path, address or key as `table` is."""
    return f"{table}/{STAGING}/{job}"


def is_part(name: str) -> bool:
    """Whether a file below the job's staging folder, called `name`, belongs to the result.

    Other files that Spark leaves do not, nor those of late tasks further below.
    """
    return _PART.match(name) is not None


def placed_path(footer: Any, name: str, job: str, level: int) -> str:
    """The path below the table of a file that Spark wrote as `name`, below its staging folder.

    Raises `Damaged`.
    """
    return f"{_partition(footer, name)}/{file_name(job, _bucket(name), level)}"


def _bucket(name: str) -> str:
    found = _PART.match(name)
    if found is None:
        raise Damaged(f"{name} is not named as Spark names its files")
    return f"{int(found[1] or found[2]):05d}"


def _partition(footer: Any, name: str) -> str:
    columns = {footer.schema.column(i).path: i for i in range(footer.num_columns)}
    groups = [footer.row_group(i).column(columns["ulid"]) for i in range(footer.num_row_groups)]
    hours = {
        ulid.time_ms(ulid.decode(bound)) // _HOUR_MS
        for chunk in groups
        for bound in (chunk.statistics.min, chunk.statistics.max)
    }
    if len(hours) != 1:
        raise Damaged(f"{name} holds lines of {len(hours)} hours")
    start = datetime.fromtimestamp(hours.pop() * 3600, UTC)
    return start.strftime("date=%Y-%m-%d/hour=%H")
