"""Committing a batch though others have committed since it was planned, where that is as exact.

What a merge found out is: these are the batch's lines, each once, without what the table held
and without what was deleted. It still holds on a newer version if, since then,

- no node of the batch was ingested further: nobody else took these segments;
- deletions were not noted as done, nor hours as expired: those who did have not seen the files
  of this batch, so a merge has to look at deletions that are newer than its own;
- no file came that holds a batch of lines which the new files hold as well. A file
  that cannot by its bounds (`prune.py`) does not; of others the keys are read, a small part of a
  merge.

Files that went do not matter: what was left out because one of them held it is either in a file
that came (a rewriting), or gone with the rest of it (deleted, expired). Lines of another node
that came meanwhile are the usual case of several drivers at work, and cost no second merge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from compactor.commit.change import make_while
from compactor.context import Compactor
from compactor.ingest.prune import BatchRanges
from compactor.spark.threads import in_thread
from logstore.table.commit import Advance, Change
from logstore.table.snapshot import Snapshot
from logstore.table.stats import NewFile


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge came to: `files` with all lines of `advances`, all within `ranges`."""

    files: Sequence[NewFile]
    advances: Sequence[Advance]
    ranges: BatchRanges
    job: str


async def commit_merged(compactor: Compactor, snapshot: Snapshot, merged: Merged) -> Snapshot:
    """A snapshot that has it, made on `snapshot` or on a later one where it is as right.

    Raises `PreconditionFailed` where it is to be planned anew, `OutcomeUnknown`,
    `StoreUnavailable`, `Unavailable`.
    """

    async def holds(newest: Snapshot) -> bool:
        return await _holds(compactor, snapshot, newest, merged)

    change = Change(merged.files, merged.advances)
    return await make_while(compactor, snapshot, change, holds, job=merged.job)


async def _holds(compactor: Compactor, planned: Snapshot, newest: Snapshot, merged: Merged) -> bool:
    """Whether what the merge found out on `planned` is so on `newest`."""
    if not await asyncio.to_thread(_undisturbed, planned, newest, merged.advances):
        return False
    came = await asyncio.to_thread(_came, planned, newest, merged.ranges)
    if not came or not merged.files:
        return True
    mine = {f"{newest.uri}/{file.path}": file.size for file in merged.files}
    return not await in_thread(compactor.engine.share_batches, mine, came)


def _undisturbed(planned: Snapshot, newest: Snapshot, advances: Sequence[Advance]) -> bool:
    return (
        all(newest.mark(one.node) == one.first - 1 for one in advances)
        and newest.purged_ms == planned.purged_ms
        and newest.expired_ms == planned.expired_ms
    )


def _came(planned: Snapshot, newest: Snapshot, ranges: BatchRanges) -> dict[str, int]:
    """Bytes by address of files that `planned` has not, and that may hold lines of the batch."""
    known = {file.path for file in planned.files}
    return {
        file.uri: file.size
        for file in newest.files
        if file.path not in known and ranges.may_overlap(file)
    }
