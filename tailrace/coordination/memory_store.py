"""Partitions in the memory of one process: for programs that run alone, and for tests.

Nothing outlives the process. No method awaits anything, so each is atomic for all others.

The partitions of a source that are free are kept in the order in which they are due:

    waiting   ordered by the time from which they may be taken
    ready     those whose time has come, by `Partition.order`
    held      searched as a whole, since they are few

An entry stays in its heap until it reaches the top, even if the partition changed meanwhile;
`newest` has the current version. A change therefore costs the logarithm of the number of
partitions, and a search costs in proportion to what it returns.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tailrace.coordination.lease import StoreTime
from tailrace.coordination.partitions import (
    AGEING_MS,
    Acquired,
    Claim,
    NewPartition,
    Partition,
    PartitionPage,
    Status,
    acquired,
    check_changed,
    check_new,
    chosen,
    exhausted,
    free,
    left_behind,
    worn_out,
)
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import NotFound, PreconditionFailed


class Due:
    """The free partitions of one source. `newest` has the current version of each, by key."""

    def __init__(self, newest: Mapping[str, Partition]) -> None:
        self._newest = newest
        self._held: dict[str, Partition] = {}
        self._waiting: list[tuple[int, str, Partition]] = []
        self._ready: list[tuple[tuple[float, int, int, str], str, Partition]] = []
        self._ageing_ms = AGEING_MS

    def changed(self, one: Partition) -> None:
        """Records a new or changed partition."""
        self.removed(one.key)
        if one.status is Status.ASSIGNED:
            self._held[one.key] = one
        elif one.status in (Status.UNASSIGNED, Status.CLOSED):
            heapq.heappush(self._waiting, (one.available_ms, one.version, one))

    def removed(self, key: str) -> None:
        """Records that a partition was removed."""
        self._held.pop(key, None)

    def take(self, claim: Claim) -> Iterator[Partition]:
        """Yields partitions that are free for the claimant. The caller must change each of them."""
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


class InMemoryPartitions:
    """A `PartitionStore` of this process alone."""

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        self._entropy = entropy
        self._time = StoreTime(clock, None)
        self._sources: dict[str, dict[str, Partition]] = {}
        self._due: dict[str, Due] = {}
        self._epoch = 0

    @property
    def time(self) -> StoreTime:
        return self._time

    async def start(self) -> None:
        """Does nothing: there is nothing to create."""

    async def close(self) -> None:
        """Does nothing: there is no connection to close."""

    async def create(self, source: str, new: Sequence[NewPartition]) -> list[str]:
        for one in new:
            check_new(source, one)
        now_ms = self._time.at_most_ms()
        made = []
        for place, one in enumerate(new):
            if one.key in self._sources.get(source, {}):
                continue
            self._put(
                Partition(
                    source,
                    one.key,
                    version="",
                    created_ms=now_ms,
                    available_ms=now_ms,
                    progress=one.progress,
                    priority=one.priority,
                    place=place,
                )
            )
            made.append(one.key)
        return made

    async def get(self, source: str, key: str) -> Partition | None:
        return self._sources.get(source, {}).get(key)

    async def acquire(
        self,
        source: str,
        claim: Claim,
        count: int,
        *,
        only: str | None = None,
        random: bool = True,  # noqa: ARG002 -- one process has no conflicts
    ) -> Acquired:
        taken: list[Partition] = []
        failed: list[Partition] = []
        due = self._free(source, claim, only)
        while len(taken) < count and (one := next(due, None)) is not None:
            if exhausted(one, claim):
                failed.append(self._put(worn_out(one, claim)))
            else:
                self._epoch += 1
                taken.append(self._put(acquired(one, claim, self._epoch)))
        return Acquired(taken, failed)

    async def change(self, old: Partition, wanted: Partition) -> Partition:
        check_changed(wanted.progress, wanted.priority)
        self._newest(old)
        return self._put(wanted)

    async def delete(self, old: Partition) -> None:
        self._newest(old)
        of_source = self._sources[old.source]
        del of_source[old.key]
        self._due[old.source].removed(old.key)
        if not of_source:
            del self._sources[old.source], self._due[old.source]

    async def page(
        self,
        source: str,
        *,
        status: Status | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> PartitionPage:
        found = [
            one
            for one in self._sources.get(source, {}).values()
            if (status is None or one.status is status) and (after is None or one.key > after)
        ]
        found.sort(key=lambda one: one.key)
        return PartitionPage(found[:limit], found[limit - 1].key if len(found) > limit else None)

    async def counts(self, source: str) -> Mapping[Status, int]:
        return Counter([one.status for one in self._sources.get(source, {}).values()])

    async def sources(self) -> list[str]:
        return sorted(self._sources)

    async def purge(self, source: str, ended_before_ms: int) -> int:
        over = [
            one
            for one in self._sources.get(source, {}).values()
            if one.status is Status.COMPLETED and one.ended_ms < ended_before_ms
        ]
        for one in over:
            await self.delete(one)
        return len(over)

    def _free(self, source: str, claim: Claim, only: str | None) -> Iterator[Partition]:
        known = self._sources.get(source, {})
        if only is not None:
            return iter(chosen([known[only]] if only in known else [], claim, 1))
        return self._due[source].take(claim) if known else iter([])

    def _newest(self, old: Partition) -> None:
        found = self._sources.get(old.source, {}).get(old.key)
        if found is None:
            raise NotFound(f"there is no partition {old.key!r} of {old.source!r}")
        if found.version != old.version:
            raise PreconditionFailed(f"{old.key!r} of {old.source!r} was changed meanwhile")

    def _put(self, partition: Partition) -> Partition:
        version = ulids.fresh_text(self._clock, self._entropy)
        stored = replace(partition, version=version)
        of_source = self._sources.setdefault(stored.source, {})
        of_source[stored.key] = stored
        if stored.source not in self._due:
            self._due[stored.source] = Due(of_source)
        self._due[stored.source].changed(stored)
        return stored
