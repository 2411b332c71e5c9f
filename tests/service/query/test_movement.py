"""Searches while lines move: from the journal to segments to the table, between any two steps.

The store of these tests moves everything one step further at a chosen moment, which is
what a flush and a compaction do to a search that is just being opened.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from logstore.clock import SystemClock
from logstore.disk import Disk
from logstore.objects.local import LocalStore
from logstore.objects.store import ObjectInfo
from service.query.request import QueryRequest
from service.query.view import Deletion
from tests.service.query.world import NODE, World, engine_of, entry, search

pytestmark = pytest.mark.anyio

Move = Callable[[str], Awaitable[None]]
MOMENTS = ("before the listing", "after the listing", "after the snapshot")


class MovingStore(LocalStore):
    """A store whose listing is preceded and followed by a movement."""

    def __init__(self, root: str, move: Move) -> None:
        super().__init__(root, Disk(), SystemClock(), random.Random(2))
        self._move = move

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._move(MOMENTS[0])
        async for info in super().list(prefix, after=after):
            yield info
        await self._move(MOMENTS[1])


@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("steps", [("flush",), ("merge",), ("flush", "merge"), ("merge", "flush")])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_each_record_once_while_lines_move(
    tmp_path: Path, moment: str, steps: tuple[str, ...], limit: int | None
) -> None:
    rng = random.Random(1)
    world = World(tmp_path)
    merged, flushed, hot = ([entry(rng) for _ in range(9)] for _ in range(3))
    await world.segment(merged)
    world.merge(merged, {NODE: 1})
    await world.segment(flushed)
    world.hot(hot)

    async def move(reached: str) -> None:
        for step in steps if reached == moment else ():
            if step == "flush":
                await world.segment(hot)
            else:
                world.merge(flushed, {NODE: 2})

    async def deletions() -> Sequence[Deletion]:
        await move(MOMENTS[2])  # they are read behind the snapshot
        return []

    sources = replace(
        world.sources(), store=MovingStore(str(tmp_path / "store"), move), deletions=deletions
    )
    async with engine_of(world, sources=sources) as engine:
        asked = QueryRequest(limit=limit)
        found, stats = await search(engine, asked)
        assert found == world.expected(asked)
        assert stats["complete"]
