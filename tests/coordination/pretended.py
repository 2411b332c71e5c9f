"""Pretended processes that work, crash, freeze, and whose clocks are wrong; and what they do.

    Sink     what work has an effect on: it knows the highest epoch of each partition and
             refuses lower ones, as every effect must that is to be exact
    Process  a coordinator, its heartbeat and workers over a store that fails now and then

Every process has its own clock, minutes off, and its own samples of the store's `Date`.
While frozen nothing of it runs, but time goes on, as after SIGSTOP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from random import Random

from tailrace.coordination.lease import StoreTime
from tailrace.coordination.leases import Lease
from tailrace.coordination.settings import CoordinatorLimits
from tailrace.coordination.work_queue import Coordinator, Supplier, WorkQueue
from tailrace.logstore.errors import (
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    TailraceError,
    Unavailable,
)
from tests.coordination.processes import World
from tests.simulation.clocks import MachineClock
from tests.simulation.faulty_partitions import FaultyPartitions
from tests.simulation.faulty_store import Fault
from tests.simulation.virtual_time import VirtualClock

FAULTS = (Fault.UNAVAILABLE, Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE)
LINES = 5


class WrongClock(MachineClock):
    """A clock that is off by `skew_ms`, of a process that may be frozen."""

    def __init__(self, true: VirtualClock, skew_ms: int) -> None:
        super().__init__(true, skew_ms)
        self.runs = asyncio.Event()
        self.runs.set()

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        await self.runs.wait()


class Sink:
    """Lines by partition. A line is taken once, and none of an epoch below the highest seen."""

    def __init__(self) -> None:
        self.lines: dict[str, list[tuple[int, int]]] = {}
        self.epochs: dict[str, int] = {}
        self.refused = 0

    def append(self, key: str, epoch: int, line: int) -> None:
        """Takes a line. Raises `LeaseLost` for an epoch that is over."""
        if epoch < self.epochs.get(key, 0):
            self.refused += 1
            raise LeaseLost(f"epoch {epoch} of {key} is over")
        self.epochs[key] = epoch
        taken = self.lines.setdefault(key, [])
        if line == len(taken):
            taken.append((line, epoch))
        assert line <= len(taken), "a line was skipped: progress ran ahead of its effect"


class Process:
    """One process. `kill` it, then make another of the same identity."""

    def __init__(
        self,
        world: World,
        identity: str,
        random: Random,
        sink: Sink,
        limits: CoordinatorLimits,
        *,
        supplier: Supplier | None = None,
        faults: float = 0.04,
    ) -> None:
        self._random = random
        self._sink = sink
        self.away = False
        self.clock = WrongClock(world.clock, random.randrange(-60_000, 60_001))
        self._faults = faults
        store = FaultyPartitions(world.store, self.clock, fault=self._fault, seconds=self._seconds)
        store._time = StoreTime(self.clock, lambda: store.newest)
        self.coordinator = Coordinator(
            store,
            self.clock,
            Random(f"{identity} {random.random()}"),
            name="pipeline",
            identity=identity,
            configured=random.random() < 0.5,
            limits=limits,
        )
        self.work: WorkQueue = self.coordinator.work("file", supplier=supplier, rotate=True)
        self._tasks = [
            asyncio.create_task(self.coordinator.run()),
            *[asyncio.create_task(self._works()) for _ in range(2)],
        ]

    def kill(self) -> None:
        """As SIGKILL: nothing of it happens any more."""
        for task in self._tasks:
            task.cancel()

    async def end(self) -> None:
        """Stopped in order."""
        await self.coordinator.stop()
        self.kill()
        await asyncio.wait(self._tasks)

    def failed(self) -> BaseException | None:
        """What a task died of."""
        over = [task for task in self._tasks if task.done() and not task.cancelled()]
        return next((task.exception() for task in over), None)

    def _fault(self, call: str) -> Fault | None:
        if self.away:
            return Fault.UNAVAILABLE
        return self._random.choice(FAULTS) if self._random.random() < self._faults else None

    def _seconds(self) -> float:
        return self._random.choice((0.01, 0.1, 0.5, 3.0))

    async def _works(self) -> None:
        while True:
            try:
                held = await self.work.acquire(self._random.randrange(1, 4))
            except TailraceError:
                held = []
            for one in held:
                with suppress(LeaseLost, NotFound):
                    await self._do(one)
            await self.clock.sleep(0.5 + self._random.random())

    async def _do(self, held: Lease) -> None:
        line = int(held.progress or "0")
        while line < LINES:
            await self.clock.sleep(self._random.random() * 8)
            if not held.valid():
                return
            self._sink.append(held.key, held.epoch, line)
            line += 1
            saving = partial(held.save, str(line))
            await insisting(self.clock, saving)
        await insisting(self.clock, held.complete)


async def insisting(clock: WrongClock, verb: Callable[[], Awaitable[None]]) -> None:
    """Asks until the store says that it is done, or that it is not ours to do."""
    while True:
        try:
            return await verb()
        except (Unavailable, OutcomeUnknown):
            await clock.sleep(1.0)
