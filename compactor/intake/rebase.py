"""Committing a batch though others have committed since it was planned, where that is as exact.

What a merge found out is: these are the batch's lines, each once, without what the table held
and without what was deleted. It still holds on a newer version if, since then,

- no node of the batch was taken in further: nobody else took these segments;
- deletions were not noted as done, nor hours as expired: those who did have not seen the files
  of this batch, so a merge has to look at deletions that are newer than its own;
- no file came that holds a batch of lines which the new files hold as well. A file whose ULIDs
  do not meet the input's cannot; of others the keys are read, which is a small part of a merge.

Files that went do not matter: what was left out because one of them held it is either in a file
that came (a rewriting), or gone with the rest of it (deleted, expired). Lines of another node
that came meanwhile are the usual case of several drivers at work, and cost no second merge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from compactor.compactor import Compactor
from compactor.intake.span import Coverage
from compactor.spark.apart import apart
from logstore.errors import PreconditionFailed
from logstore.table.commit import Advance, commit_segments
from logstore.table.snapshot import Snapshot
from logstore.table.stats import NewFile

log = logging.getLogger("tailrace.compactor")


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge came to: `files` with all lines of `advances` that lie within `covered`."""

    files: Sequence[NewFile]
    advances: Sequence[Advance]
    covered: Coverage
    job: str


async def commit_merged(compactor: Compactor, snapshot: Snapshot, merged: Merged) -> Snapshot:
    """A snapshot that has it, made on `snapshot` or on a later one where it is as right.

    Raises `PreconditionFailed` where it is to be planned anew, `OutcomeUnknown`,
    `StoreUnavailable`, `Unavailable`.
    """
    planned = snapshot
    while True:
        try:
            after = await asyncio.to_thread(
                commit_segments,
                compactor.table,
                snapshot,
                merged.files,
                merged.advances,
                job=merged.job,
                clock=compactor.clock,
            )
        except PreconditionFailed:
            newest = await asyncio.to_thread(compactor.table.snapshot)
            if newest.version == snapshot.version or not await _holds(
                compactor, planned, newest, merged
            ):
                raise
            log.info("merged on version %d, committed after %d", planned.version, newest.version)
            snapshot = newest
            compactor.reached("rebased")
        else:
            await compactor.placement.settle(range(snapshot.version + 1, after.version + 1))
            return after


async def _holds(compactor: Compactor, planned: Snapshot, newest: Snapshot, merged: Merged) -> bool:
    """Whether what the merge found out on `planned` is so on `newest`."""
    if not await asyncio.to_thread(_undisturbed, planned, newest, merged.advances):
        return False
    came = await asyncio.to_thread(_came, planned, newest, merged.covered)
    if not came or not merged.files:
        return True
    mine = [f"{newest.uri}/{file.path}" for file in merged.files]
    return not await apart(compactor.engine.share_batches, mine, came)


def _undisturbed(planned: Snapshot, newest: Snapshot, advances: Sequence[Advance]) -> bool:
    return (
        all(newest.mark(one.node) == one.first - 1 for one in advances)
        and newest.purged_ms == planned.purged_ms
        and newest.expired_ms == planned.expired_ms
    )


def _came(planned: Snapshot, newest: Snapshot, covered: Coverage) -> list[str]:
    """Addresses of files that `planned` has not, and that may hold lines of the batch."""
    known = {file.path for file in planned.files}
    return [
        file.uri for file in newest.files if file.path not in known and covered.meets(file.ulids)
    ]
