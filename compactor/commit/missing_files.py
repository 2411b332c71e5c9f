"""Files of the table that its log names and the store has not.

Nothing of ours removes one. Somebody may put it back, so whoever needs one waits and is an alarm:
a segment whose lines may be copies of its own, the rewriting of its hour. All else goes on.
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
    """Those of them that are not there. Raises `StoreUnavailable`."""
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
    """That it is gone, and what can be done."""
    return (
        f"{file.path} of the table, with {file.rows} lines of the hour {hour_of(file)}, is gone:"
        " put it back, or give its lines up (docs/operations.md, A file of the table that is gone)"
    )
