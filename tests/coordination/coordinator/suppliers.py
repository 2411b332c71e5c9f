"""Suppliers of tests, and the state that they share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from tailrace.coordination.partitions import NewPartition, Partition
from tailrace.coordination.work_queue import SharedState, Supplier
from tests.coordination.processes import World

GLOBAL = "pipeline|GLOBAL"


def of(*keys: str) -> Supplier:
    """Always supplies the same."""

    async def supplier(state: SharedState) -> AsyncGenerator[NewPartition, None]:
        for key in keys:
            yield NewPartition(key)

    return supplier


def counting(after: Callable[[int], bool] = lambda _: False, size: int = 10) -> Supplier:
    """Supplies numbers from where the last one left off, finished when `after` says so."""

    async def supplier(state: SharedState) -> AsyncGenerator[NewPartition, None]:
        first = state.map.get("next", 0)
        for i in range(first, first + size):
            state.map["next"] = i + 1
            yield NewPartition(f"{i:06d}")
        state.finished = after(first + size)

    return supplier


async def global_of(world: World) -> Partition:
    return await world.stored("file", GLOBAL)
