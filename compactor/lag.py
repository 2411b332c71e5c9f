"""Whether so much waits that the next pass should not wait for its time.

Looking costs a list per node of what came since the last pass began, and no Spark. Only that
is counted: what the pass saw and left has a reason (another driver has the node, a segment of a
newer version, a gap), and would start pass after pass for nothing. The table is read only when
the count says that a pass is due: some of it may be taken in by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from compactor.compactor import Compactor
from compactor.intake.plan import StoredSegment, nodes_of, segments_of
from compactor.report import Lag


class Backlog:
    """What waits since the last pass began."""

    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor
        self._seen: dict[str, int] = {}

    async def seen(self) -> None:
        """A pass begins, and will see what is there now. Raises `StoreUnavailable`."""
        for segment in await self._listed():
            self._pass_over(segment.node, segment.seq)

    async def due(self) -> bool:
        """Whether a pass should begin. Raises `StoreUnavailable`."""
        listed = await self._listed()
        if not self._over(self._lag(listed)):
            return False
        snapshot = await asyncio.to_thread(self._compactor.table.snapshot)
        for node in {segment.node for segment in listed}:
            self._pass_over(node, snapshot.mark(node))
        return self._over(self._lag(listed))

    async def _listed(self) -> list[StoredSegment]:
        store, seen = self._compactor.store, self._seen
        return [
            segment
            for node in await nodes_of(store)
            for segment in await segments_of(store, node, above=seen.get(node, 0))
        ]

    def _pass_over(self, node: str, seq: int) -> None:
        self._seen[node] = max(self._seen.get(node, 0), seq)

    def _lag(self, listed: Iterable[StoredSegment]) -> Lag:
        new = [one for one in listed if one.seq > self._seen.get(one.node, 0)]
        if not new:
            return Lag()
        oldest = min(one.modified_ms for one in new)
        waited = (self._compactor.clock.now_ms() - oldest) / 1000
        return Lag(len(new), sum(one.size for one in new), max(waited, 0.0))

    def _over(self, lag: Lag) -> bool:
        limits = self._compactor.limits
        return (
            lag.bytes >= limits.lag_bytes
            or lag.segments >= limits.lag_segments
            or (limits.lag_seconds is not None and lag.seconds >= limits.lag_seconds)
        )
