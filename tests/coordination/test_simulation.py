"""Years of trouble in seconds: crashes, outages, lost answers, wrong clocks, frozen processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from random import Random

import pytest

from tailrace.coordination.partitions import NewPartition, Status
from tailrace.coordination.settings import CoordinatorLimits
from tailrace.coordination.work_queue import SharedState
from tests.coordination.pretended import LINES, Process, Sink
from tests.coordination.processes import World, told
from tests.seeds import seeds

LIMITS = CoordinatorLimits(
    lease_seconds=30.0,
    max_attempts=0,
    supplier_pause_seconds=5.0,
    supplier_batch=7,
    worker_seconds=20.0,
    rotate_seconds=40.0,
)
PARTITIONS = 100
LONGEST_SECONDS = 20_000.0


async def listing(state: SharedState) -> AsyncGenerator[NewPartition, None]:
    """All of them, in portions, from where the last left off."""
    first = state.map.get("next", 0)
    for i in range(first, min(first + 25, PARTITIONS)):
        state.map["next"] = i + 1
        yield NewPartition(f"{i:03d}", priority=float(i % 3))
    state.finished = state.map["next"] == PARTITIONS


def check_owners(processes: list[Process]) -> None:
    """At this true moment no partition has two holders that would go on."""
    owners: dict[str, str] = {}
    for process in processes:
        for held in process.work.held():
            if held.valid():
                other = owners.setdefault(held.key, process.coordinator.owner)
                assert other == process.coordinator.owner, f"{held.key} is held twice"


async def trouble(world: World, random: Random, processes: list[Process], sink: Sink) -> None:
    """Something happens to one of them."""
    i = random.randrange(len(processes))
    match random.choice(("kill", "freeze", "thaw", "outage", "back", "calm", "calm", "stop")):
        case "kill":
            processes[i].kill()
            processes[i] = Process(world, f"P{i}", random, sink, LIMITS, supplier=listing)
        case "stop":
            processes[i].clock.runs.set()
            await processes[i].end()
            processes[i] = Process(world, f"P{i}", random, sink, LIMITS, supplier=listing)
        case "freeze":
            processes[i].clock.runs.clear()
        case "thaw":
            processes[i].clock.runs.set()
        case "outage":
            processes[i].away = True
        case "back":
            processes[i].away = False


@pytest.mark.parametrize("seed", [*seeds(8), 610])
def test_every_partition_is_done_exactly_once_whatever_happens(seed: int) -> None:
    async def scenario(world: World) -> None:
        random = Random(seed)
        sink = Sink()
        processes = [
            Process(world, f"P{i}", random, sink, LIMITS, supplier=listing) for i in range(4)
        ]
        for _ in range(60):
            for _ in range(random.randrange(1, 40)):
                await world.clock.sleep(random.random())
                check_owners(processes)
            await trouble(world, random, processes, sink)
        for process in processes:
            process.away = False
            process.clock.runs.set()
        while not await done(world):
            await world.clock.sleep(1.0)
            check_owners(processes)
            assert [process.failed() for process in processes] == [None] * 4
            assert world.clock.monotonic() < LONGEST_SECONDS, "it goes on for ever"
        keys = [f"{i:03d}" for i in range(PARTITIONS)]
        assert sorted(sink.lines) == keys
        for key in keys:
            taken = sink.lines[key]
            assert [line for line, _ in taken] == list(range(LINES))
            assert [epoch for _, epoch in taken] == sorted([epoch for _, epoch in taken])
            stored = await world.stored(key)
            assert (stored.status, stored.progress) == (Status.COMPLETED, str(LINES))
            assert stored.epoch >= sink.epochs[key]
        for process in processes:
            await process.end()

    told(scenario)


async def done(world: World) -> bool:
    counts = await world.store.counts("pipeline|file")
    return counts.get(Status.COMPLETED, 0) == PARTITIONS


def test_the_same_seed_takes_the_same_course() -> None:
    def course(seed: int) -> list[tuple[str, list[tuple[int, int]]]]:
        async def scenario(world: World) -> list[tuple[str, list[tuple[int, int]]]]:
            sink = Sink()
            random = Random(seed)
            process = Process(world, "P", random, sink, LIMITS, supplier=listing)
            await world.clock.sleep(200.0)
            process.kill()
            await asyncio.sleep(0)
            return list(sink.lines.items())

        return told(scenario)

    assert course(1) == course(1) != course(2)
