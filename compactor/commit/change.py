"""Commits a planned change of the table, and makes it durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from compactor.context import Compactor
from logstore.errors import PreconditionFailed
from logstore.table.commit import Change, commit
from logstore.table.snapshot import Snapshot

log = logging.getLogger("tailrace.compactor")


async def make(
    compactor: Compactor, snapshot: Snapshot, change: Change, *, job: str | None = None
) -> Snapshot:
    """Commits the change as the next version after `snapshot`; returns a snapshot that has it.

    `job` is the ULID under which it is committed, by default a fresh one. Raises
    `PreconditionFailed` if the table has a newer version, `OutcomeUnknown`, `StoreUnavailable`.
    """
    # First what it stands on: of versions that a power cut may take there is one at most, the last.
    await compactor.placement.settle(snapshot.version)
    job = job or compactor.fresh_id()
    after = await asyncio.to_thread(
        lambda: commit(compactor.table, snapshot, change, job=job, clock=compactor.clock).loaded()
    )
    await compactor.placement.settle(after.version)
    return after


async def make_while(
    compactor: Compactor,
    snapshot: Snapshot,
    change: Change,
    holds: Callable[[Snapshot], Awaitable[bool]],
    *,
    job: str | None = None,
) -> Snapshot:
    """Commits on `snapshot` or on the newest version, as long as the change `holds` there.

    A change whose planning takes long would always lose to frequent commits if it had to be the
    next version. Each try is the very next version after one that was checked. Raises
    `PreconditionFailed` if the change no longer holds or its files are too old, and as `make`.
    """
    planned = snapshot.version
    while True:
        try:
            return await make(compactor, snapshot, change, job=job)
        except PreconditionFailed:
            newest = await compactor.newest()
            if newest.version == snapshot.version or not await holds(newest):
                raise
            log.info("planned on version %d, committed after %d", planned, newest.version)
            snapshot = newest
            compactor.reached("rebased")
