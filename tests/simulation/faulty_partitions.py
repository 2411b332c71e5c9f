"""A partition store that fails when it is told to: wraps any `PartitionStore`, and is one.

`fault` is asked at every call, by its name: see `faulty_store.py`. `seconds` is how long
a call takes, half of it before its effect. `calls` names all that were made. `newest` is
what a `Date` in the last answer says: the time of the store, in whole seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from tailrace.coordination.lease import StoreTime
from tailrace.coordination.partitions import (
    Acquired,
    Claim,
    NewPartition,
    Partition,
    PartitionPage,
    PartitionStore,
    Status,
)
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import OutcomeUnknown, StoreUnavailable
from tailrace.logstore.objects.store import DateSample
from tests.simulation.faulty_store import Fault

T = TypeVar("T")
WRITES = frozenset({"create", "acquire", "change", "delete", "purge"})


class FaultyPartitions:
    """One process's way to the store: `time` is what that process takes the store's time for."""

    def __init__(
        self,
        inner: PartitionStore,
        clock: Clock,
        *,
        fault: Callable[[str], Fault | None] = lambda _: None,
        seconds: Callable[[], float] = lambda: 0.0,
        time: StoreTime | None = None,
    ) -> None:
        self.inner = inner
        self.fault = fault
        self.calls: list[str] = []
        self.newest: DateSample | None = None
        self._clock = clock
        self._seconds = seconds
        self._time = time or inner.time

    @property
    def time(self) -> StoreTime:
        return self._time

    async def start(self) -> None:
        await self.inner.start()

    async def close(self) -> None:
        await self.inner.close()

    async def create(self, source: str, new: Sequence[NewPartition]) -> list[str]:
        return await self._call("create", self.inner.create(source, new))

    async def get(self, source: str, key: str) -> Partition | None:
        return await self._call("get", self.inner.get(source, key))

    async def acquire(
        self,
        source: str,
        claim: Claim,
        count: int,
        *,
        only: str | None = None,
        random: bool = True,
    ) -> Acquired:
        done = self.inner.acquire(source, claim, count, only=only, random=random)
        return await self._call("acquire", done)

    async def change(self, old: Partition, wanted: Partition) -> Partition:
        return await self._call("change", self.inner.change(old, wanted))

    async def delete(self, old: Partition) -> None:
        await self._call("delete", self.inner.delete(old))

    async def page(
        self,
        source: str,
        *,
        status: Status | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> PartitionPage:
        done = self.inner.page(source, status=status, after=after, limit=limit)
        return await self._call("page", done)

    async def counts(self, source: str) -> Mapping[Status, int]:
        return await self._call("counts", self.inner.counts(source))

    async def sources(self) -> list[str]:
        return await self._call("sources", self.inner.sources())

    async def purge(self, source: str, ended_before_ms: int) -> int:
        return await self._call("purge", self.inner.purge(source, ended_before_ms))

    async def _call(self, name: str, done: Coroutine[Any, Any, T]) -> T:
        self.calls.append(name)
        fault = self.fault(name)
        if fault is not None and name not in WRITES:
            fault = Fault.UNAVAILABLE
        half = self._seconds() / 2
        sent = self._clock.monotonic()
        try:
            await self._clock.sleep(half)
            if fault is Fault.UNAVAILABLE:
                raise StoreUnavailable(f"{name}: no answer")
            if fault is Fault.UNKNOWN_NOT_DONE:
                raise OutcomeUnknown(f"{name}: no answer")
            date_ms = self.inner.time.at_most_ms() // 1000 * 1000
            result = await done
        finally:
            done.close()
        await self._clock.sleep(half)
        if fault is Fault.UNKNOWN_DONE:
            raise OutcomeUnknown(f"{name}: no answer")
        arrived = self._clock.monotonic()
        self.newest = DateSample(date_ms, sent, arrived, self._clock.now_ms())
        return result
