"""The coordinator of a process: programs share work through it.

    coordinator = Coordinator(store, clock, entropy, name="pipeline", identity=hostname)
    await store.start()
    async with asyncio.TaskGroup() as group:
        group.create_task(coordinator.run())
        …acquire and work…
        await coordinator.stop()

    Coordinator ──► WorkQueue (one type) ──► Lease (one partition)
        │             ├── Supply       new partitions, the state that suppliers share
        │             └── Workers      the fair share of each process
        └── LeaseManager               all that is held, kept by one heartbeat

A source is `[prefix|]name|type`. The types `GLOBAL` and `WORKERS` are the coordinator's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from coordination.coordinator.lease_manager import LeaseManager
from coordination.coordinator.limits import CoordinatorLimits
from coordination.coordinator.supply import GLOBAL, Supplier
from coordination.coordinator.work_queue import WorkQueue
from coordination.coordinator.workers import WORKERS
from coordination.counters import CoordinationCounters
from coordination.partitions.store import PartitionStore
from logstore.clock import Clock, Entropy
from logstore.errors import InvalidInput, TailraceError


class Coordinator:
    """The partitions of one process; `identity` is its host's name or a configured, unique one.

    With `configured`, leases of earlier processes of that identity are taken at once, because
    those processes have ended. If two processes have one identity by mistake, they do not take
    leases from each other in turns: the later process wins.
    """

    def __init__(
        self,
        store: PartitionStore,
        clock: Clock,
        entropy: Entropy,
        *,
        name: str,
        identity: str,
        configured: bool = False,
        prefix: str | None = None,
        limits: CoordinatorLimits | None = None,
    ) -> None:
        self._base = name if prefix is None else f"{prefix}|{name}"
        self._clock = clock
        self._limits = limits or CoordinatorLimits()
        self._work: dict[str, WorkQueue] = {}
        self._manager = LeaseManager(
            store, clock, entropy, self._limits, identity=identity, restarted=configured
        )

    @property
    def owner(self) -> str:
        """`identity/ULID of this process`."""
        return self._manager.owner

    @property
    def last_error(self) -> str | None:
        """The last error of heartbeat, balancing or hand-over, such as an unavailable store."""
        return self._manager.last_error

    @property
    def counters(self) -> Mapping[str, CoordinationCounters]:
        """The counters of this process by source."""
        return {work.source: work.counters for work in self._work.values()}

    def work(
        self,
        kind: str,
        *,
        supplier: Supplier | None = None,
        random: bool = True,
        balance: bool = True,
        rotate: bool = False,
    ) -> WorkQueue:
        """Returns the work queue of type `kind`; call it once for each type.

        With `random`, workers begin in different places; without, all follow the source's order.
        `balance` keeps each worker to its fair share. With `rotate` the coordinator itself takes
        the partitions that others are entitled to from its workers; without it, the coordinator
        only asks for them (`Lease.asked_back`).
        """
        if kind in self._work:
            raise InvalidInput(f"there is work of type {kind!r} already", field="type")
        if not kind or kind in (GLOBAL, WORKERS) or "|" in kind or "/" in kind:
            raise InvalidInput(f"{kind!r} cannot be a type", field="type")
        self._work[kind] = WorkQueue(
            self._manager,
            base=self._base,
            kind=kind,
            supplier=supplier,
            random=random,
            balance=balance,
            rotate=rotate,
        )
        return self._work[kind]

    async def run(self) -> None:
        """Renews the leases of this process and balances them, until `stop` is called."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._manager.run())
            group.create_task(self._balance())

    async def stop(self) -> None:
        """Stops acquiring and hands over all leases, with progress and without counting an attempt.

        Raises nothing: a lease whose hand-over does not reach the store expires.
        """
        await self._manager.stop()
        for work in self._work.values():
            await self._leave(work)

    async def _balance(self) -> None:
        beat = self._limits.worker_seconds / 3
        while not self._manager.stopping:
            await self._manager.pause(beat * min(self._manager.jitter(), 1.0))
            for work in list(self._work.values()):
                await self._beat(work)

    async def _beat(self, work: WorkQueue) -> None:
        if work.workers is None or self._manager.stopping:
            return
        try:
            await work.workers.beat()
        except TailraceError as error:
            self._manager.last_error = f"{work.source}: {error}"

    async def _leave(self, work: WorkQueue) -> None:
        if work.workers is None:
            return
        try:
            await work.workers.leave()
        except TailraceError as error:
            self._manager.last_error = f"{work.source}: {error}"
