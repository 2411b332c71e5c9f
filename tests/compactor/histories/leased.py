"""Leases of drivers whose time is the scenario's.

Heartbeats sleep until the scenario's time has come, which they see when their driver takes a step:
a process that stood still for an hour finds its leases lost, as it should.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from random import Random

from compactor.assignment import NAME, Alone, LeaseAssigner, Patience
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.coordination.settings import CoordinatorLimits
from tailrace.coordination.work_queue import Coordinator
from tailrace.logstore.objects.store import ObjectStore
from tests.compactor.histories.dated import MovedClock

LIMITS = CoordinatorLimits(max_attempts=0)
_PATIENT_SECONDS = 60.0
RESTARTED = "one that has a lock"
"""The host of drivers that take their own leases back at once."""


class Some(Alone):
    """Leaves some nodes to others, who do the same or do not: leases must not matter."""

    def __init__(self, left: Collection[str]) -> None:
        self._left = left

    async def claim(self, nodes: Sequence[str], waiting: Collection[str]) -> list[str]:
        return [node for node in nodes if node in waiting and node not in self._left]


class PassingClock:
    """The scenario's time, which passes where it is waited for."""

    def __init__(self, clock: MovedClock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        self._clock.advance(round(seconds * 1000))


class DriverClock:
    """The scenario's time, for whoever waits beside a pass; `wake` is called at its steps."""

    def __init__(self, clock: MovedClock) -> None:
        self._clock = clock
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        due = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.monotonic() + seconds, due))
        await due

    def wake(self) -> None:
        """Those go on whose time has come."""
        now = self.monotonic()
        for until, due in self._sleepers:
            if until <= now and not due.done():
                due.set_result(None)
        self._sleepers = [one for one in self._sleepers if not one[1].done()]


def leased(
    store: ObjectStore, clock: MovedClock, waiting: DriverClock, dice: Random, host: str
) -> LeaseAssigner:
    """Assigning by leases in the store."""
    kept = ObjectPartitions(store, clock, dice, StoreTime(clock, None), shards=1)

    def coordinator() -> Coordinator:
        return Coordinator(
            kept,
            waiting,
            dice,
            name=NAME,
            identity=host,
            configured=host == RESTARTED,
            limits=LIMITS,
        )

    return LeaseAssigner(coordinator, Patience(PassingClock(clock), _PATIENT_SECONDS))
