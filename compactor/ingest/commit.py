"""Commits a batch on a newer version than it was planned on, if its result still holds there.

The result of a merge is: these are the batch's lines, each once, without lines that the table
had and without deleted ones. It still holds on a newer version if, since then,

- no node of the batch was ingested further: no other driver ingested these segments;
- no deletions were recorded as done, and no hours as expired: whoever recorded it has not seen
  the files of this batch, so a new merge must apply deletions that are newer than its own;
- no file came that has a batch of lines which the new files have as well. A file whose bounds
  exclude that (`prune.py`) has none; of others only the keys are read, a small part of a merge.

Files that were removed do not matter. A line that was left out because such a file had it is
either in a new file (a rewriting), or gone with the rest of the file (deleted, expired). Several
drivers usually just add lines of other nodes meanwhile, which costs no second merge.
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
    """The result of a merge: `files` with all lines of `advances`, all within `ranges`."""

    files: Sequence[NewFile]
    advances: Sequence[Advance]
    ranges: BatchRanges
    job: str


async def commit_merged(compactor: Compactor, snapshot: Snapshot, merged: Merged) -> Snapshot:
    """Commits on `snapshot`, or on a later one where the result still holds; gives the new one.

    Raises `PreconditionFailed` if the batch must be planned again, `OutcomeUnknown`,
    `StoreUnavailable`, `Unavailable`.
    """

    async def holds(newest: Snapshot) -> bool:
        return await _holds(compactor, snapshot, newest, merged)

    change = Change(merged.files, merged.advances)
    return await make_while(compactor, snapshot, change, holds, job=merged.job)


async def _holds(compactor: Compactor, planned: Snapshot, newest: Snapshot, merged: Merged) -> bool:
    """Whether the merge's result on `planned` still holds on `newest`."""
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
    """Bytes by address of files that are not in `planned` and may hold lines of the batch."""
    known = {file.path for file in planned.files}
    return {
        file.uri: file.size
        for file in newest.files
        if file.path not in known and ranges.may_overlap(file)
    }
