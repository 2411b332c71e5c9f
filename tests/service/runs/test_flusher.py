"""Whose turn it is: few at once, those that waited longest first, who fails holds no place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from service.runtime.health import LONG_SECONDS
from service.settings import Tuning
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import StoreUnavailable
from tailrace.logstore.objects.store import ObjectStore
from tests.service.runs.world import World
from tests.settings import SETTINGS, settings_with
from tests.simulation.backing import on_disk
from tests.simulation.faulty_store import FaultyStore, Schedule
from tests.simulation.hanging_store import HangingStore
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("every_store")

T = TypeVar("T")
PARALLEL = 2
BUSY = settings_with(
    SETTINGS, flush={"parallel": PARALLEL}, runs={"early_flush_watermark_bytes": 10_000}
)
LARGE = b"line\n" * 1000


class Watching(FaultyStore):
    """Tells which runs' manifests are written, and how many at once; some it refuses."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, Schedule.none())
        self.refused: set[str] = set()
        self.written: list[str] = []
        self.at_once = self.most = 0

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if name != "put" or not key.startswith("runs/"):
            return await super()._step(name, key, work)
        run = key.rpartition("/")[2].removesuffix(".json")
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        for _ in range(5):
            await asyncio.sleep(0)
        self.at_once -= 1
        if run in self.refused:
            raise StoreUnavailable(run)
        self.written.append(run)
        return await super()._step(name, key, work)


async def waiting(count: int, text: bytes = LARGE) -> tuple[World, Watching]:
    """Runs that have waited, the first one longest."""
    world = World(settings=BUSY, tuning=Tuning(partial_seconds=1e9))
    store = Watching(world.disk_store)
    await world.restart(store)
    for number in range(count):
        world.append(RunKey("p", str(number)), text)
        await world.confirm()
        world.clock.pass_seconds(1)
    return world, store


async def turn(world: World, most: int = PARALLEL) -> None:
    """The loop of `run` once, and all that it begins."""
    world.run_logs.flusher._look()
    world.run_logs.flusher._begin_due()
    assert len(world.run_logs.flusher._tasks) <= most
    await asyncio.gather(*world.run_logs.flusher._tasks)


async def test_the_oldest_first_and_few_at_once() -> None:
    world, store = await waiting(7)
    await turn(world)
    assert store.written == [], "nothing is due yet"
    world.clock.pass_seconds(120)
    for _ in range(4):
        await turn(world)
    pairs = [sorted(store.written[n : n + 2]) for n in (0, 2, 4)]
    assert pairs == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert store.written[6:] == ["6"]
    assert store.most <= PARALLEL
    assert store.most == PARALLEL or not on_disk(), "a server may answer one before the other"


async def test_eight_small_runs_share_a_place() -> None:
    world, store = await waiting(20, b"line\n")
    world.append(RunKey("p", "large"), LARGE)
    await world.confirm()
    world.clock.pass_seconds(120)
    await turn(world, 8 * PARALLEL)
    assert sorted(store.written, key=int) == [str(number) for number in range(8 * PARALLEL)]
    await turn(world, 8 * PARALLEL)
    assert len(store.written) == 21
    assert await world.whole(RunKey("p", "large")) == LARGE


async def test_a_run_that_fails_waits_without_holding_a_place() -> None:
    world, store = await waiting(6)
    store.refused = {"0", "1"}
    world.clock.pass_seconds(120)
    for _ in range(3):
        await turn(world)
    assert sorted(store.written) == ["2", "3", "4", "5"]
    pending = world.run_logs.flusher.pending
    assert (len(pending), pending.failing, pending.worst) == (2, 2, 1)
    await turn(world)
    assert pending.worst == 1, "its back-off is not over"
    pauses = []
    for _ in range(9):
        waited = 0
        before = pending.worst
        while pending.worst == before:
            world.clock.pass_seconds(1)
            waited += 1
            await turn(world)
        pauses.append(waited)
    assert pauses == sorted(pauses)
    assert pauses[0] <= 2
    assert pauses[-1] == 60
    assert any("cannot be flushed" in problem for problem in world.run_logs.problems())
    store.refused = set()
    world.clock.pass_seconds(60)
    await turn(world)
    assert len(pending) == 0
    assert await world.whole(RunKey("p", "0")) == LARGE


async def test_early_by_bytes_and_not_by_characters() -> None:
    world, store = await waiting(0)
    world.append(RunKey("p", "wide"), "€".encode() * 3400 + b"\n")  # 3,401 characters, 10,201 bytes
    world.append(RunKey("p", "narrow"), b"x" * 3400 + b"\n")
    await world.confirm()
    await turn(world)
    assert store.written == ["wide"]


async def test_a_flush_that_the_store_never_answers_is_a_problem_with_its_age() -> None:
    """It fails no try and counts no error: only its age says that it hangs."""
    world = World(settings=BUSY, tuning=Tuning(partial_seconds=1e9))
    store = HangingStore(world.disk_store, lambda call: call.startswith("put runs/"))
    await world.restart(store)
    flusher = world.run_logs.flusher
    world.append(RunKey("p", "r"), b"line\n")
    await world.confirm()
    store.gate.clear()
    flushing = asyncio.ensure_future(flusher.flush(RunKey("p", "r")))
    await until(lambda: bool(flusher.ongoing.under_way))
    world.clock.pass_seconds(LONG_SECONDS)
    assert world.run_logs.problems() == []
    world.clock.pass_seconds(9)
    (problem,) = world.run_logs.problems()
    assert problem.startswith("the flush of a run into the store does not end: for 309 s")
    store.gate.set()
    assert await flushing is not None
    assert world.run_logs.problems() == []
