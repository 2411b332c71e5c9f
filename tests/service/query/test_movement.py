"""Searches while lines move: from the journal to segments to the table, between any two steps.

The store of these tests moves everything on at a chosen moment, which is what a flush, a
compaction and a clean-up do to a search that is just being opened. The journal is a real one: a
flush drains it, so what is not pinned before is not in it any more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from service.query.request import QueryRequest
from service.query.sources import Deletion, SearchSources
from service.runtime.counters import MeteredStore, StoreCounters
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import Listing
from tests.service.query.shipped import Shipped
from tests.service.query.world import World, engine_of, entry, search

Move = Callable[[str], Awaitable[None]]
MOMENTS = ("before the listing", "after the listing", "after the snapshot")
STEPS = [
    ("flush",),
    ("merge",),
    ("flush", "merge"),
    ("merge", "flush"),
    ("merge", "remove"),
    ("flush", "merge", "remove"),
]


class MovingStore(LocalStore):
    """A store whose listing is preceded and followed by a movement."""

    def __init__(self, root: str, move: Move) -> None:
        super().__init__(root, Disk(), SystemClock(), random.Random(2))
        self._move = move
        self._loop = asyncio.get_running_loop()

    def listed(self, prefix: str, *, after: str = "") -> Listing:
        """In a thread of the search."""
        self._wait_for(MOMENTS[0])
        yield from super().listed(prefix, after=after)
        self._wait_for(MOMENTS[1])

    def _wait_for(self, moment: str) -> None:
        asyncio.run_coroutine_threadsafe(_moved(self._move, moment), self._loop).result()


async def _moved(move: Move, moment: str) -> None:
    await move(moment)


async def moving(world: World) -> Shipped:
    """Nine batches in the table, nine in a segment above its mark, nine in the journal."""
    rng = random.Random(1)
    node = Shipped(world)
    for step in (node.flush, node.merge), (node.flush,), ():
        await node.append([entry(rng) for _ in range(9)])
        for move in step:
            await move()
    return node


def sources_of(world: World, node: Shipped, moment: str, steps: Sequence[str]) -> SearchSources:
    """Sources that do the steps at the moment, once; their store is counted, as a node's is."""
    left = list(steps)

    async def move(reached: str) -> None:
        while left and reached == moment:
            await getattr(node, left.pop(0))()

    async def deletions() -> Sequence[Deletion]:
        await move(MOMENTS[2])  # they are read behind the snapshot
        return []

    moving_store = MovingStore(str(world.root / "store"), move)
    store = MeteredStore(moving_store, SystemClock(), StoreCounters())
    return replace(world.sources(), store=store, pin=node.pin, deletions=deletions)


@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_each_record_once_while_lines_move(
    tmp_path: Path, moment: str, steps: tuple[str, ...], limit: int | None
) -> None:
    world = World(tmp_path)
    node = await moving(world)
    asked = QueryRequest(limit=limit)
    sources = sources_of(world, node, moment, steps)
    async with engine_of(world, sources=sources) as engine:
        found, stats = await search(engine, asked)
    await node.journal.close()
    assert node.seq == 2 + ("flush" in steps), "it has moved"
    assert node.mark == 1 + ("merge" in steps) * (1 + (steps[0] == "flush"))
    if moment == MOMENTS[2] and "remove" in steps:
        # Only a clean-up without its grace comes between the snapshot and its segments.
        assert not stats["complete"]
        return
    assert found == world.expected(asked)
    assert stats["complete"]
    listed = node.seq if moment == MOMENTS[0] else 2
    mark = 1 if moment == MOMENTS[2] else node.mark
    # A segment at the mark is in the table: it is not read, though it would do no harm.
    kept = listed - mark if listed > mark else 0
    assert stats["segments"] == kept
