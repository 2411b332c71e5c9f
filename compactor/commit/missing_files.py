"""Finds files of the table that its log names and the store does not have.

No program of ours removes such a file. Somebody may put it back, so work that needs it waits and
raises an alarm: a segment whose lines may be copies of the file's, the rewriting of its hour. All
other work continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from compactor.rewrite.plan import hour_of
from logstore import keys
from logstore.errors import NotFound
from logstore.objects.store import ObjectStore
from logstore.table.snapshot import TableFile

_AT_ONCE: Final = 16


async def missing_files(store: ObjectStore, files: Iterable[TableFile]) -> list[TableFile]:
    """The files that are missing. Raises `StoreUnavailable`."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def is_missing(file: TableFile) -> bool:
        async with turns:
            try:
                await store.head(f"{keys.TABLE}/{file.path}")
            except NotFound:
                return True
            return False

    wanted = list(files)
    found = await asyncio.gather(*(is_missing(file) for file in wanted))
    return [file for file, it_is in zip(wanted, found, strict=True) if it_is]


def describe(file: TableFile) -> str:
    """Says that the file is missing, and what a person can do."""
    return (
        f"{file.path} of the table, with {file.rows} lines of the hour {hour_of(file)}, is gone:"
        " put it back, or give its lines up (docs/operations.md, A file of the table that is gone)"
    )
