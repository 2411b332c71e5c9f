"""Segments are fetched before they are asked for, within bounds, and each is asked for once."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import StoreUnavailable
from tailrace.pipelines.events import Origin
from tailrace.pipelines.process import PipelinesProcess
from tailrace.pipelines.sources.segments import (
    EventSegment,
    Fetched,
    Prefetch,
    Prefetcher,
    SegmentSource,
)
from tailrace.pipelines.sources.stored import StoredSegments
from tailrace.pipelines.worker import AppenderWorker
from tests.pipelines.events import events
from tests.pipelines.lake import Lake
from tests.pipelines.remembering import Remembering, forget, pipeline, until

__all__ = ["forget"]


class Store:
    """Segments that come when they are let go, and cannot be fetched where it says so."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.failing: set[int] = set()
        self.go = asyncio.Event()

    async def fetch(self, origin: Origin) -> Fetched:
        self.asked.append(origin.seq)
        await self.go.wait()
        if origin.seq in self.failing:
            raise StoreUnavailable("it is away")
        return lambda: EventSegment(events([f"{origin.seq}"]), 0)


class Clock(SystemClock):
    """A clock that can be put forward."""

    shift = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.shift


class Counting(StoredSegments):
    """Segments of a store; says which were asked for."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake.store)
        self.asked: list[int] = []

    async def fetch(self, origin: Origin) -> Fetched:
        self.asked.append(origin.seq)
        return await super().fetch(origin)


def ahead(store: Store, most_bytes: int) -> Prefetcher:
    return Prefetcher(store.fetch, SystemClock(), most_bytes)


async def test_no_more_is_fetched_than_may_be_held() -> None:
    store = Store()
    fetches = ahead(store, 250)
    assert [fetches.begin(Origin("n", seq), 100) for seq in (1, 2, 3)] == [True, True, False]
    assert fetches.begin(Origin("n", 2), 100)
    store.go.set()
    assert (await fetches.take(Origin("n", 1)))().events.column("message").to_pylist() == ["1"]
    assert fetches.begin(Origin("n", 3), 100)
    await fetches.take(Origin("n", 3))
    assert store.asked == [1, 2, 3]
    many = ahead(store, 1 << 30)
    assert sum(many.begin(Origin("n", seq), 1) for seq in range(100)) == 8
    await many.close()
    await fetches.close()


async def test_what_could_not_be_fetched_is_asked_for_again() -> None:
    store = Store()
    store.failing.add(1)
    fetches = ahead(store, 100)
    fetches.begin(Origin("n", 1), 1)
    store.go.set()
    with pytest.raises(StoreUnavailable):
        await fetches.take(Origin("n", 1))
    store.failing.clear()
    await fetches.take(Origin("n", 1))
    assert store.asked == [1, 1, 1]


async def test_what_nobody_takes_makes_room() -> None:
    store, clock = Store(), Clock()
    fetches = Prefetcher(store.fetch, clock, 100)
    assert fetches.begin(Origin("n", 1), 100)
    assert not fetches.begin(Origin("n", 2), 100)
    clock.shift = 61
    assert fetches.begin(Origin("n", 2), 100)
    await fetches.close()


async def test_a_source_reads_each_segment_once(tmp_path: Path) -> None:
    """Whatever was fetched ahead; and what follows was asked for before it is read."""
    lake = Lake(tmp_path)
    for number in range(20):
        await lake.put(str(number))
    stored = Counting(lake)
    source = SegmentSource(stored, SystemClock(), prefetch_bytes=1 << 20)
    await source.refresh()
    for seq in range(1, 21):
        found = await source.read("n", seq)
        assert found.events.column("message").to_pylist() == [str(seq - 1)]
        assert len(stored.asked) > seq or seq == 20
    assert sorted(stored.asked) == list(range(1, 21))
    await source.close()


async def test_a_pipeline_has_a_bound_of_its_own_beside_the_others() -> None:
    """And all together have one, whatever their files say."""
    store = Store()
    fetches = Prefetcher(store.fetch, SystemClock(), 100, 250)
    own, none = Prefetch("own", 100), Prefetch("none", 0)
    assert fetches.begin(Origin("n", 1), 100)
    assert not fetches.begin(Origin("n", 2), 1), "of those that share"
    assert not fetches.begin(Origin("n", 2), 1, none)
    assert fetches.begin(Origin("n", 1), 100, none), "it is fetched already"
    assert fetches.begin(Origin("n", 2), 100, own)
    assert not fetches.begin(Origin("n", 3), 1, own)
    more = Prefetch("more", 1 << 40)
    assert not fetches.begin(Origin("n", 3), 51, more), "of all"
    assert fetches.begin(Origin("n", 3), 50, more)
    await fetches.close()


@pytest.mark.parametrize(
    ("own", "asked"), [({}, [1, 2, 3]), ({"prefetch_bytes": 0}, [1]), ({"prefetch_bytes": 1}, [1])]
)
async def test_a_pipelines_file_says_what_is_fetched_ahead_for_it(
    tmp_path: Path, own: dict[str, int], asked: list[int]
) -> None:
    """Its appender hangs with the first segment: what was asked for meanwhile."""
    lake = Lake(tmp_path)
    for number in range(3):
        await lake.put(str(number))
    stored = Counting(lake)
    async with lake.world() as world:
        process = PipelinesProcess(
            dataclasses.replace(world, segments=stored), [pipeline("hangs", **own)]
        )
        task = asyncio.ensure_future(process.run())
        await until(lambda: any(gives(one) for one in process.workers))
        found = sorted(stored.asked)
        process.stop()
        Remembering.hanging.set()
        await task
    assert found == asked


def gives(worker: AppenderWorker) -> bool:
    return worker.progress is not None and worker.progress.buffer.frontier is not None
