"""The administration of leases, opened at the first request. A store of partitions that is
away, or lacks its table, keeps no node from starting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coordination.admin.admin import LeaseAdmin
from coordination.named.stored import StoredLeases
from coordination.open import open_partitions
from coordination.partitions.store import PartitionStore
from coordination.settings import SourceCoordination
from coordination.storetime import StoreTime
from service.runtime.seams import Seams


class LeasesOfStore:
    """Gives the admin of all leases at each call, and opens the partitions at the first."""

    def __init__(self, partitions: PartitionStore, named: StoredLeases) -> None:
        self._partitions = partitions
        self._admin = LeaseAdmin(partitions, named)
        self._starting = asyncio.Lock()
        self._started = False

    async def __call__(self) -> LeaseAdmin:
        """Raises `StoreUnavailable`, and `InvalidInput` for settings that the store refuses."""
        async with self._starting:
            if not self._started:
                await self._partitions.start()
                self._started = True
        return self._admin


@asynccontextmanager
async def open_leases(settings: SourceCoordination, seams: Seams) -> AsyncIterator[LeasesOfStore]:
    """Opens leases while the block runs. It asks no server. Raises `InvalidInput`."""
    opening = open_partitions(
        settings.store,
        seams.store,
        seams.clock,
        seams.entropy,
        newest_date=seams.newest_date,
        ageing_ms=settings.limits.ageing_ms,
    )
    async with opening as partitions:
        time = StoreTime(seams.clock, seams.newest_date)
        yield LeasesOfStore(partitions, StoredLeases(seams.store, seams.clock, seams.entropy, time))
