"""A change of the table that upkeep has planned: committed on its snapshot, and made durable."""

from __future__ import annotations

import asyncio

from compactor.compactor import Compactor
from logstore import ulid
from logstore.table.commit import Change, commit
from logstore.table.snapshot import Snapshot


async def make(compactor: Compactor, snapshot: Snapshot, change: Change) -> Snapshot:
    """A snapshot that has the change.

    Raises `PreconditionFailed` if the table has moved on, `OutcomeUnknown`, `StoreUnavailable`.
    """
    job = ulid.encode(ulid.fresh(compactor.clock, compactor.entropy))
    after = await asyncio.to_thread(
        commit, compactor.table, snapshot, change, job=job, clock=compactor.clock
    )
    await compactor.placement.settle(range(snapshot.version + 1, after.version + 1))
    return after
