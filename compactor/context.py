"""The dependencies of every part of a pass: one store and its table, an engine, a clock, limits.

`now_ms` is the time by which ages are computed before something is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from compactor.assignment import Alone, Assigner
from compactor.placement import Placement
from compactor.settings import Compaction
from compactor.spark.engine import SparkEngine
from tailrace.logstore import ulid
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.objects.config import SegmentRetention
from tailrace.logstore.objects.store import ObjectStore, RemoteStore
from tailrace.logstore.runs.deletions import FOR_EVER, RunRetention, StoredDeletions, undo_flip
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import Table

MOST_DELETIONS: Final = 10_000
"""Deletions that are applied at a time: they are held in memory and sent to every executor."""

Hurry: TypeAlias = Callable[[], Awaitable[bool]]
"""Whether segments wait, so that a part of a pass leaves the rest of its work to the next one."""


async def never() -> bool:
    """A `Hurry` for passes that have no next one."""
    return False


@dataclass(frozen=True, slots=True)
class Compactor:
    """A compactor of one store.

    `reached` is called with the name of each step at its end; tests kill the process there. `runs`
    is how long the service keeps runs, `deletions` caches the deletions that were read.
    """

    store: ObjectStore
    table: Table
    placement: Placement
    clock: Clock
    entropy: Entropy
    limits: Compaction
    engine: SparkEngine
    reached: Callable[[str], None]
    evict_after_hours: float = 24.0
    assigner: Assigner = field(default_factory=Alone)
    runs: RunRetention = FOR_EVER
    pipeline_bytes: int = SegmentRetention().max_bytes
    deletions: StoredDeletions = field(default_factory=lambda: StoredDeletions(damaged=undo_flip))

    async def newest(self) -> TableSnapshot:
        """The table's newest version, its marks read. Raises `StoreUnavailable`."""
        return await asyncio.to_thread(lambda: self.table.snapshot().loaded())

    def fresh_id(self) -> str:
        """A unique ULID for a job, a version or a mark."""
        return ulid.fresh_text(self.clock, self.entropy)


def now_ms(compactor: Compactor) -> int:
    """The earlier of this machine's time and the last known time of the store.

    So a clock that is ahead, of either, removes nothing too early.
    """
    here, store = compactor.clock.now_ms(), compactor.store
    said = store.newest_date if isinstance(store, RemoteStore) else None
    return here if said is None else min(here, said.date_ms)
