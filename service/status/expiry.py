"""Removing reports whose run is gone: expired, or never had a line.

A deletion removes a run's reports at once. Expiry removes lines only, so reports follow
here: those that have not changed for as long as runs are kept, and whose run is not there
any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.errors import Damaged, NotFound
from logstore.objects.store import ObjectStore
from logstore.runs.report import decode_report
from logstore.runs.retention import RunRetention
from service.status.reports import FOLDERS

_DAY_MS = 86_400_000


class Expiry:
    """Of one node; doing it twice, or on several nodes, does no harm."""

    def __init__(
        self, store: ObjectStore, clock: Clock, exists: Callable[[RunKey], Awaitable[bool]]
    ) -> None:
        self._store = store
        self._clock = clock
        self._exists = exists
        self.removed = 0

    async def sweep(self, retention: RunRetention) -> None:
        """Looks at every report once. Raises `StoreUnavailable`."""
        now = self._clock.now_ms()
        for folder in FOLDERS:
            async for info in self._store.list(folder):
                days = (now - info.modified_ms) / _DAY_MS
                if days > retention.shortest_days and await self._goes(info.key, days, retention):
                    await self._store.delete([info.key])
                    self.removed += 1

    async def _goes(self, name: str, days: float, retention: RunRetention) -> bool:
        try:
            report = decode_report((await self._store.get(name))[1])
        except (NotFound, Damaged):
            return False  # what cannot be read is for `verify`, not for the sweeper
        kept = retention.days_of(report.key.fqn)
        return 0 < kept < days and not await self._exists(report.key)
