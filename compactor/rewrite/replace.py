"""Replacing files of the table, whatever others have committed since they were read.

A rewriting takes long and others commit often, and it need not be the next version after its
snapshot: files never change, and the new ones have the lines of those they replace. So it is
right on any later version that **still has all of them**, and is made on the newest one. Lines
that came meanwhile are in files of their own. Deletions done meanwhile are done in the replaced
files, so in the new ones as well. Once one of the files is gone (another rewriting, a purge,
the retention), the new ones are of no use: plan anew.
"""

from __future__ import annotations

from compactor.change import make_while
from compactor.compactor import Compactor
from logstore.table.commit import Change
from logstore.table.snapshot import Snapshot


async def replace(compactor: Compactor, snapshot: Snapshot, change: Change) -> Snapshot:
    """A snapshot that has the change, which only puts files in the place of files.

    Raises `PreconditionFailed` if one of `change.removed` is gone or the new files are too
    old, `OutcomeUnknown`, `StoreUnavailable`.
    """
    paths = {file.path for file in change.removed}

    async def has_all(newest: Snapshot) -> bool:
        return paths <= {file.path for file in newest.files}

    return await make_while(compactor, snapshot, change, has_all)
