"""Assigns nodes to ingest and hours to rewrite to drivers, by leases.

    pass: nodes with segments to ingest ──► leases (`compact/{node}`) ──► batch, batch, …
                                              ▲                          │ between two batches:
                                              └── hand over, acquire ────┘ revoked leases
    end of a pass: all leases are closed, and free again at once

A driver that acquires nothing, although its fair share is not zero, waits until nodes are handed
over to it: two drivers that start together share the nodes, whichever is first. A driver whose fair
share is zero ends its pass.

A lease only saves work. A batch is committed on the snapshot that it was planned from or not at
all, so a driver that has lost a lease without knowing it commits nothing twice: its commit fails,
and it plans again. Leases are taken only if work waits: an idle pass requests none. Others wait for
a killed driver until its leases expire, unless it starts again.

The source is `[prefix|]compactor|compact`, a partition's key `compact/{node}`. The partition of a
node that has no segments any more is removed by the driver that acquires it. For hours to be
rewritten it is `[prefix|]compactor|hour` and `hour/{YYYY-MM-DDTHH}`, removed when the hour is done,
because new ones always follow. The rules for nodes hold for hours as well.

Settings define how this driver shares nodes with others: its identity, and the place of leases. A
driver that was killed and starts again takes its own leases back at once, if it is sure that the
earlier one is gone: it holds `compactor.lock` in the data folder, which the kernel releases with
its process. Its identity is the host and that folder. A second driver on the same folder, or one
without such a folder, succeeds no other driver: the leases that it leaves expire.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Protocol

from compactor.settings import CompactorSettings
from tailrace.coordination.lease import process_identity
from tailrace.coordination.leases import NAMES, Lease
from tailrace.coordination.open import open_partitions
from tailrace.coordination.partitions import NewPartition, Status
from tailrace.coordination.work_queue import Coordinator, WorkQueue
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    Unavailable,
)
from tailrace.logstore.filesystem import FileSystem
from tailrace.logstore.objects.store import ObjectStore, newest_date_of

log = logging.getLogger("tailrace.compactor")

NAME: Final = "compactor"
NODES: Final = "compact"
HOURS: Final = "hour"
# A closed lease is due at once by every driver's clock, though each knows the store's time only
# within some seconds.
_DUE_SECONDS: Final = -5.0
_GONE_AT_ONCE: Final = 100
_LOOK_AGAIN_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Patience:
    """The time for which a driver waits for leases that others hand over to it."""

    clock: Clock
    seconds: float


class Assignment(Protocol):
    """A driver's part of the nodes, for one pass."""

    @property
    def barred(self) -> Sequence[str]:
        """Nodes whose leases an operator made FAILED, with the reason; no driver works on them."""
        ...

    @property
    def counted(self) -> Mapping[str, int]:
        """The counters of leases above 0, by Data Prepper's names."""
        ...

    @property
    def works(self) -> Sequence[WorkQueue]:
        """The work queues whose leases it holds, for metrics."""
        ...

    @property
    def settled(self) -> bool:
        """Whether the last `claim` acquired no node that this driver did not hold before."""
        ...

    async def claim(self, nodes: Sequence[str], waiting: Collection[str]) -> list[str]:
        """Acquires nodes with something to do (`waiting`), and returns those that it holds.

        `nodes` are all nodes that have segments. Raises `StoreUnavailable`, `OutcomeUnknown`.
        """
        ...

    def check(self, nodes: Collection[str]) -> None:
        """Raises `PreconditionFailed` if this driver has lost one of them."""
        ...

    async def wait(self) -> bool:
        """After a `claim` that returned none: waits, and returns whether to claim again."""
        ...


class Assigner(Protocol):
    """Assigns nodes to drivers."""

    def joined(self, kind: str = NODES) -> AbstractAsyncContextManager[Assignment]:
        """Takes part in the work on nodes, or on `HOURS`, while the block runs.

        Gives all leases back at the end.
        """
        ...


class Alone:
    """Assigns everything to this driver, which is the only one."""

    barred: Sequence[str] = ()
    works: Sequence[WorkQueue] = ()
    settled = True
    counted: Mapping[str, int] = MappingProxyType({})

    @asynccontextmanager
    async def joined(self, kind: str = NODES) -> AsyncIterator[Assignment]:  # noqa: ARG002
        yield self

    async def claim(self, nodes: Sequence[str], waiting: Collection[str]) -> list[str]:
        return [node for node in nodes if node in waiting]

    def check(self, nodes: Collection[str]) -> None:
        """Raises nothing: no other driver exists."""

    async def wait(self) -> bool:
        return False


class LeaseAssigner:
    """Assigns by leases. `coordinator` makes one for each pass: between passes no heartbeat runs.

    Without `patience` it never waits.
    """

    def __init__(
        self, coordinator: Callable[[], Coordinator], patience: Patience | None = None
    ) -> None:
        self._coordinator = coordinator
        self._patience = patience

    @asynccontextmanager
    async def joined(self, kind: str = NODES) -> AsyncIterator[Assignment]:
        coordinator = self._coordinator()
        assignment = LeasedAssignment(coordinator.work(kind), kind, self._patience)
        # Runs during the pass, whose Spark calls are in threads, and renews the leases.
        beating = asyncio.create_task(coordinator.run(), name="leases")
        try:
            yield assignment
            await assignment.close()
        finally:
            await coordinator.stop()
            beating.cancel()
            with suppress(asyncio.CancelledError):
                await beating


class LeasedAssignment:
    """The nodes, or hours, that one driver leases."""

    def __init__(
        self, work: WorkQueue, kind: str = NODES, patience: Patience | None = None
    ) -> None:
        self._work = work
        self._kind = kind
        self._patience = patience
        self._since: float | None = None
        self.works = (work,)
        self.barred: list[str] = []
        self.settled = True

    @property
    def counted(self) -> Mapping[str, int]:
        counters = self._work.counters
        found = {upstream: getattr(counters, name) for name, upstream in NAMES.items()}
        return {name: count for name, count in found.items() if count}

    async def claim(self, nodes: Sequence[str], waiting: Collection[str]) -> list[str]:
        await self._hand_over()
        before = self._mine()
        missing = [node for node in nodes if node in waiting and node not in before]
        if missing:
            await self._acquire(nodes, missing)
        mine = self._mine()
        self.settled = mine <= before
        found = [node for node in nodes if node in waiting and node in mine]
        self._since = None if found else self._since
        return found

    def check(self, nodes: Collection[str]) -> None:
        lost = sorted(set(nodes) - self._mine())
        if lost:
            raise PreconditionFailed(f"the lease of {', '.join(map(self._key, lost))} is lost")

    async def wait(self) -> bool:
        patience, workers = self._patience, self._work.workers
        if patience is None or workers is None or not workers.owed:
            return False
        now = patience.clock.monotonic()
        if self._since is None:
            log.info("waiting for nodes that other compactors hand over")
            self._since = now
        if now - self._since >= patience.seconds:
            return False
        await patience.clock.sleep(_LOOK_AGAIN_SECONDS)
        return True

    async def close(self) -> None:
        """Releases all leases, so that they are free at once.

        Lost or deleted leases need no release, and leases that the store did not release expire:
        neither undoes the commits of this pass.
        """

        async def close(held: Lease) -> None:
            with suppress(LeaseLost, NotFound, Unavailable, OutcomeUnknown):
                if self._kind == HOURS:
                    await held.delete()
                else:
                    await held.close(_DUE_SECONDS)

        await asyncio.gather(*(close(held) for held in self._work.held()))

    def _mine(self) -> set[str]:
        return {self._thing(held.key) for held in self._work.held() if held.valid()}

    async def _hand_over(self) -> None:
        async def give_up(held: Lease) -> None:
            with suppress(LeaseLost):
                await held.give_up()

        asked = [held for held in self._work.held() if held.asked_back.is_set()]
        await asyncio.gather(*(give_up(held) for held in asked))

    async def _acquire(self, nodes: Sequence[str], missing: Sequence[str]) -> None:
        """Acquires free partitions of `missing`, up to this driver's share; makes absent ones."""
        made = await self._work.create([NewPartition(self._key(node)) for node in missing])
        if made and self._work.workers is not None:
            self._work.workers.look_again()  # more nodes are to be shared now
        await self._take(nodes)
        await self._look_for_barred(set(missing) - self._mine())

    async def _take(self, nodes: Sequence[str]) -> None:
        known = set(nodes)

        async def delete(held: Lease) -> None:
            with suppress(LeaseLost):
                await held.delete()

        while True:
            taken = await self._work.acquire(len(known) + _GONE_AT_ONCE)
            gone = [held for held in taken if self._thing(held.key) not in known]
            if not gone:
                return
            await asyncio.gather(*(delete(held) for held in gone))  # their segments are gone

    async def _look_for_barred(self, missing: Collection[str]) -> None:
        self.barred = []
        if not missing:
            return
        page = await self._work.page(status=Status.FAILED)
        self.barred = [
            f"{one.key} is FAILED and waits to be reset: {one.last_error}"
            for one in page.partitions
            if self._thing(one.key) in missing
        ]

    def _key(self, thing: str) -> str:
        return f"{self._kind}/{thing}"

    def _thing(self, key: str) -> str:
        return key.removeprefix(f"{self._kind}/")


_LOCK = "compactor.lock"
_SHARDS = 1
"""All nodes in one object: they are few, and one write takes or gives back all of them."""


@asynccontextmanager
async def open_assigner(
    settings: CompactorSettings, store: ObjectStore, clock: Clock, entropy: Entropy, fs: FileSystem
) -> AsyncIterator[Assigner]:
    """The assigner of the settings during the block. Raises `InvalidInput`, `StoreUnavailable`."""
    coordination = settings.source_coordination
    # A node's segments are never given up, however often a driver died during their ingest.
    limits = replace(
        coordination.limits, lease_seconds=settings.compaction.lease_seconds, max_attempts=0
    )
    identity, lock = process_identity(fs, settings.data, _LOCK)
    opening = open_partitions(
        coordination.store,
        store,
        clock,
        entropy,
        newest_date=newest_date_of(store),
        ageing_ms=limits.ageing_ms,
        shards=_SHARDS,
    )

    try:
        async with opening as partitions:
            await partitions.start()

            def coordinator() -> Coordinator:
                return Coordinator(
                    partitions,
                    clock,
                    entropy,
                    name=NAME,
                    identity=identity,
                    configured=lock is not None,
                    prefix=coordination.prefix,
                    limits=limits,
                )

            yield LeaseAssigner(coordinator, Patience(clock, settings.compaction.lease_seconds))
    finally:
        if lock is not None:
            lock.release()
