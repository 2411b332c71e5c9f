"""Replacing files of the table, whatever others have committed since they were read.

A rewriting takes long and others commit often, so it would lose for ever if it had to be the
next version after its snapshot. It need not be: files never change, and the new ones have the
lines of those they replace. So it is right on any later version that **still has all of them**,
and is made on the newest one, again as the very next version after it. Lines that came
meanwhile are in files of their own. Deletions done meanwhile are done in the replaced files,
so in the new ones as well. Once one of the files is gone (another rewriting, a purge, the
retention), the new ones are of no use: plan anew.
"""

from __future__ import annotations

import asyncio
import logging

from compactor.compactor import Compactor
from compactor.upkeep.change import make
from logstore.errors import PreconditionFailed
from logstore.table.commit import Change
from logstore.table.snapshot import Snapshot

log = logging.getLogger("tailrace.compactor")


async def replace(compactor: Compactor, snapshot: Snapshot, change: Change) -> Snapshot:
    """A snapshot that has the change, which only puts files in the place of files.

    Raises `PreconditionFailed` if one of `change.removed` is gone or the new files are too
    old, `OutcomeUnknown`, `StoreUnavailable`.
    """
    while True:
        try:
            return await make(compactor, snapshot, change)
        except PreconditionFailed as error:
            newest = await asyncio.to_thread(compactor.table.snapshot)
            if newest.version == snapshot.version:
                raise
            log.info("replacing files of version %d on %d", snapshot.version, newest.version)
            _check_there(newest, change, error)
            snapshot = newest


def _check_there(newest: Snapshot, change: Change, error: PreconditionFailed) -> None:
    gone = {file.path for file in change.removed} - {file.path for file in newest.files}
    if gone:
        raise PreconditionFailed(f"{min(gone)} was replaced meanwhile") from error
