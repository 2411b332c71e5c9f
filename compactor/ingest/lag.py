"""Decides whether so many segments wait that the next pass should begin early.

A check costs a list per node of the segments since the last pass began, and no Spark. Only these
segments are counted. A pass had a reason to leave others (another driver has the node, a segment
of a newer version, a gap), and they would start pass after pass for nothing. Segments that a
pass left to gather more are counted again, and are due when their time is over. The table is
read only when the count says that a pass is due, because some may be ingested by now.
"""

from __future__ import annotations

from collections.abc import Iterable

from compactor.context import Compactor
from compactor.ingest.plan import StoredSegment, lag_of, nodes_of, segments_of
from compactor.report import Lag
from compactor.settings import Compaction


def is_much(lag: Lag, limits: Compaction) -> bool:
    """Whether so much waits, or for so long, that a pass begins early."""
    return (
        lag.bytes >= limits.lag_bytes
        or lag.segments >= limits.lag_segments
        or (limits.lag_seconds is not None and lag.seconds >= limits.lag_seconds)
    )


class SegmentBacklog:
    """Segments that wait since the last pass began."""

    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor
        self._seen: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._left_at: float | None = None

    async def seen(self) -> None:
        """A pass begins, which will see the present segments. Raises `StoreUnavailable`."""
        listed = await self._listed()
        self._before = dict(self._seen)
        for segment in listed:
            self._pass_over(segment.node, segment.seq)

    @property
    def gathers(self) -> bool:
        """Whether a pass may still leave segments to a later one; independent of wall clocks."""
        return not self._gathered

    def note(self, *, left: bool) -> None:
        """Notes whether the last pass left ready segments to a later one, or ingested them."""
        if not left:
            self._left_at = None
            return
        self._seen = self._before
        if self._left_at is None:
            self._left_at = self._compactor.clock.monotonic()

    @property
    def _gathered(self) -> bool:
        clock, limits = self._compactor.clock, self._compactor.limits
        since = self._left_at
        return since is not None and clock.monotonic() - since >= limits.gather_seconds

    async def due(self) -> bool:
        """Whether a pass should begin. Raises `StoreUnavailable`."""
        listed = await self._listed()
        if not self._is_due(listed):
            return False
        snapshot = await self._compactor.newest()
        for node in {segment.node for segment in listed}:
            self._pass_over(node, snapshot.mark(node))
        return self._is_due(listed)

    async def _listed(self) -> list[StoredSegment]:
        store, seen = self._compactor.store, self._seen
        return [
            segment
            for node in await nodes_of(store)
            for segment in await segments_of(store, node, above=seen.get(node, 0))
        ]

    def _pass_over(self, node: str, seq: int) -> None:
        self._seen[node] = max(self._seen.get(node, 0), seq)

    def _is_due(self, listed: Iterable[StoredSegment]) -> bool:
        limits = self._compactor.limits
        new = [one for one in listed if one.seq > self._seen.get(one.node, 0)]
        lag = lag_of(new, self._compactor.clock.now_ms())
        old = self._left_at is not None and lag.seconds >= limits.gather_seconds
        return bool(new) and (old or self._gathered or is_much(lag, limits))
