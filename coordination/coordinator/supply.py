"""The supplier of new partitions: one process at a time runs it, and its state is shared.

The state is the progress of the partition `{type}` of the source `[prefix|]name|GLOBAL`, a
JSON object:

    map          the supplier's own data, for instance where a listing continues
    finished     whether the supplier said that no more partitions will come
    supplied_ms  when the supplier last ran to its end, by the store's clock

That partition is leased like any other: the heartbeat renews the lease, it is given back when
the supplier ends or raises, and it is free after its timeout if the process died. A supplier
that outlived its lease makes no more partitions and cannot write the state. The partition is
never COMPLETED, so nothing purges it.

Partitions are made in batches while the supplier continues. A batch is limited in number and in
bytes of text, so that it fits into memory. The map is written after each batch. What the map
holds when a partition is yielded is therefore written once that partition is made.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from coordination.coordinator.lease import Lease
from coordination.coordinator.lease_manager import LeaseManager
from coordination.counters import CoordinationCounters
from coordination.partitions.partition import NewPartition, Partition
from logstore.checked import decode_checked, encode_checked
from logstore.errors import Conflict, Damaged, LeaseLost

GLOBAL: Final = "GLOBAL"
BATCH_CHARACTERS: Final = 8 << 20
"""Of the keys and the progress of a batch, beside the one that goes beyond."""


@dataclass(slots=True)
class SharedState:
    """The state that suppliers of a type share; a supplier may change both fields."""

    map: dict[str, Any] = field(default_factory=dict)
    """Anything JSON."""
    finished: bool = False
    """Whether there will be no more new partitions: the supplier is not asked again."""


Supplier: TypeAlias = Callable[[SharedState], AsyncGenerator[NewPartition, None]]
"""An async generator. It is closed where it stands if the lease is lost."""


class Supply:
    """Runs the supplier of one type in one process; without one, partitions are made by hand."""

    def __init__(
        self,
        manager: LeaseManager,
        counters: CoordinationCounters,
        *,
        base: str,
        kind: str,
        supplier: Supplier | None,
    ) -> None:
        self._manager = manager
        self._counters = counters
        self._own = CoordinationCounters()  # the shared state is nobody's piece of work
        self._source = f"{base}|{GLOBAL}"
        self._target = f"{base}|{kind}"
        self._kind = kind
        self._supplier = supplier
        self._running = False
        self._finished = False
        self._not_before = {True: 0.0, False: 0.0}

    async def finished(self) -> bool:
        """Whether a supplier of any process said that no more partitions will come."""
        if not self._finished:
            found = await self._manager.store.get(self._source, self._kind)
            self._finished = _decoded(found)[0].finished
        return self._finished

    async def finish(self) -> None:
        """Declares that no more will be made by hand. Raises `Conflict` while a supplier runs."""
        if await self.finished():
            return
        held = await self._take()
        if held is None:
            raise Conflict("a supplier is at work", hint="It says itself when it is finished.")
        try:
            state, supplied_ms = _decoded(held.partition)
            state.finished = True
            await held.give_up(progress=_encoded(state, supplied_ms))
        except BaseException:
            await self._manager.hand_over(held)
            raise
        self._finished = True

    async def run(self, *, idle: bool) -> bool:
        """Runs the supplier if it is due, sooner for an `idle` worker; returns whether it ran.

        Raises what the supplier raises, and as `LeaseManager.acquire`.
        """
        now = self._manager.clock.monotonic()
        if self._supplier is None or self._running or self._finished:
            return False
        if now < self._not_before[idle]:
            return False
        self._running = True
        try:
            wait_ms = await self._wait_ms(idle=idle)
            if wait_ms <= 0:
                held = await self._take()
                wait_ms = round(self._manager.limits.supplier_pause_seconds * 1000)
            else:
                held = None
            if held is None:
                self._not_before[idle] = now + wait_ms / 1000
                return False
            return await self._supply_while(held, self._supplier)
        finally:
            self._running = False

    async def _wait_ms(self, *, idle: bool) -> int:
        """Milliseconds for which no process is to run the supplier yet."""
        limits = self._manager.limits
        found = await self._manager.store.get(self._source, self._kind)
        state, supplied_ms = _decoded(found)
        self._finished = state.finished
        passed_ms = self._manager.store.time.at_most_ms() - supplied_ms
        due_seconds = limits.supplier_pause_seconds if idle else limits.supplier_seconds
        due_ms = round(due_seconds * 1000)
        return due_ms if state.finished else due_ms - passed_ms

    async def _take(self) -> Lease | None:
        await self._manager.store.create(self._source, [NewPartition(self._kind)])
        held = await self._manager.acquire(self._source, 1, self._own, only=self._kind)
        return held[0] if held else None

    async def _supply_while(self, held: Lease, supplier: Supplier) -> bool:
        """Whether the supplier came to its end without losing the lease."""
        try:
            await self._supply(held, supplier)
        except LeaseLost:
            self._counters.supplies_lost += 1
            return False
        except BaseException:
            await self._manager.hand_over(held)
            raise
        return True

    async def _supply(self, held: Lease, supplier: Supplier) -> None:
        state, supplied_ms = _decoded(held.partition)
        self._counters.supplied += 1
        clock, limits = self._manager.clock, self._manager.limits
        batch: list[NewPartition] = []
        since, characters = clock.monotonic(), 0
        async with aclosing(supplier(state)) as new:
            async for one in new:
                batch.append(one)
                characters += len(one.key) + len(one.progress or "")
                late = clock.monotonic() - since >= limits.supplier_batch_seconds
                full = len(batch) >= limits.supplier_batch or characters >= BATCH_CHARACTERS
                if late or full:
                    await self._make(held, batch)
                    await held.save(_encoded(state, supplied_ms))
                    batch, since, characters = [], clock.monotonic(), 0
        await self._make(held, batch)
        await held.give_up(progress=_encoded(state, self._manager.store.time.at_most_ms()))
        self._finished = state.finished

    async def _make(self, held: Lease, batch: list[NewPartition]) -> None:
        if not held.valid():
            raise LeaseLost("another process may supply by now")
        made = await self._manager.store.create(self._target, batch)
        self._counters.created += len(made)


def _encoded(state: SharedState, supplied_ms: int) -> str:
    value = {"map": state.map, "finished": state.finished, "supplied_ms": supplied_ms}
    return encode_checked(value).decode()


def _decoded(found: Partition | None) -> tuple[SharedState, int]:
    if found is None or found.progress is None:
        return SharedState(), 0
    try:
        value = decode_checked(found.progress.encode())
        return SharedState(value["map"], value["finished"]), int(value["supplied_ms"])
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"the shared state of {found.source!r} is not one: {error}") from error
