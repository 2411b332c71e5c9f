"""The partitions of a source that are free, in the order in which they are due, as they change.

    waiting   by the time from which they may be taken
    ready     those whose time has come, by `Partition.order`
    held      looked through whole: they are few

A partition stands in a heap until it comes up, also if it is another by then; `newest` says
which it is. So a change costs the logarithm of what there is, and a search what it brings.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from coordination.partitions.partition import AGEING_MS, Partition, Status
from coordination.partitions.transitions import Claim, free, left_behind


class Due:
    """Of one source. `newest` has all of its partitions as they are now, by key."""

    def __init__(self, newest: Mapping[str, Partition]) -> None:
        self._newest = newest
        self._held: dict[str, Partition] = {}
        self._waiting: list[tuple[int, str, Partition]] = []
        self._ready: list[tuple[tuple[float, int, int, str], str, Partition]] = []
        self._ageing_ms = AGEING_MS

    def changed(self, one: Partition) -> None:
        """A partition is new, or another than before."""
        self.gone(one.key)
        if one.status is Status.ASSIGNED:
            self._held[one.key] = one
        elif one.status in (Status.UNASSIGNED, Status.CLOSED):
            heapq.heappush(self._waiting, (one.available_ms, one.version, one))

    def gone(self, key: str) -> None:
        """A partition is not there any more."""
        self._held.pop(key, None)

    def take(self, claim: Claim) -> Iterator[Partition]:
        """Those that are free for the claimant. What is yielded must be changed."""
        behind = [one for one in self._held.values() if left_behind(one, claim)]
        yield from sorted(behind, key=lambda one: one.order(claim.ageing_ms))
        self._make_ready(claim)
        while self._ready:
            one = heapq.heappop(self._ready)[-1]
            if self._newest.get(one.key) is not one:
                continue
            if free(one, claim):
                yield one
            else:  # another claimant's clock was ahead of this one's
                heapq.heappush(self._waiting, (one.available_ms, one.version, one))

    def _make_ready(self, claim: Claim) -> None:
        if claim.ageing_ms != self._ageing_ms:
            self._ageing_ms = claim.ageing_ms
            self._ready = [(one.order(claim.ageing_ms), key, one) for _, key, one in self._ready]
            heapq.heapify(self._ready)
        while self._waiting and self._waiting[0][0] <= claim.at_least_ms:
            _, version, one = heapq.heappop(self._waiting)
            heapq.heappush(self._ready, (one.order(claim.ageing_ms), version, one))
