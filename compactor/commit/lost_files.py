"""Finds files of the table that cannot be used: gone, or not as they were written.

No program of ours removes or changes such a file. Somebody may put an intact copy back, so work
that needs the file waits and raises an alarm: a segment whose lines may be copies of those in the
file, the rewriting of its hour. All other work continues. A rewriting would give damaged lines new
checksums.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

from compactor.rewrite.plan import hour_of
from logstore.errors import Damaged, NotFound
from logstore.objects.store import ObjectStore
from logstore.table.file_check import check_footer, check_table_file
from logstore.table.snapshot import TableFile

_AT_ONCE: Final = 16
_READ_AT_ONCE: Final = 2  # files, of each some row groups are in memory


class LostFile(NamedTuple):
    """A file that cannot be used, and why: what follows its name in a sentence."""

    file: TableFile
    reason: str


async def lost_files(store: ObjectStore, files: Iterable[TableFile]) -> list[LostFile]:
    """The files that are gone or damaged; it reads every page. Raises `StoreUnavailable`."""
    turns = asyncio.Semaphore(_READ_AT_ONCE)

    async def look(file: TableFile) -> LostFile | None:
        async with turns:
            try:
                await check_table_file(store, file)
            except NotFound:
                return LostFile(file, "is gone")
            except Damaged as error:
                return LostFile(file, f"is damaged ({error})")
            return None

    found = await asyncio.gather(*(look(file) for file in files))
    return [one for one in found if one is not None]


async def misread_files(store: ObjectStore, files: Iterable[TableFile]) -> list[LostFile]:
    """The files whose footer is not what the table's log says; Spark reads such a file as another.

    A file that is gone is none of them. Raises `StoreUnavailable`.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def look(file: TableFile) -> LostFile | None:
        async with turns:
            try:
                await check_footer(store, file)
            except NotFound:
                return None
            except Damaged as error:
                return LostFile(file, f"is damaged ({error})")
            return None

    found = await asyncio.gather(*(look(file) for file in files))
    return [one for one in found if one is not None]


def describe(lost: LostFile) -> str:
    """Says what happened to the file, and what a person can do."""
    file = lost.file
    return (
        f"{file.path} of the table, with {file.rows} lines of the hour {hour_of(file)},"
        f" {lost.reason}: put it back, or give its lines up"
        " (docs/operations.md, A file of the table that is gone or damaged)"
    )
