"""Nothing starves: whatever comes steadily, everything else is done in bounded time."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from tailrace.coordination.partitions import NewPartition, Status
from tailrace.coordination.settings import CoordinatorLimits
from tailrace.coordination.work_queue import WorkQueue
from tests.coordination.processes import World, told
from tests.seeds import seeds

STEP_MS = 60_000
SECONDS = 5400


@dataclass
class Waits:
    """How long partitions of a class were free before they were acquired, seconds."""

    longest: float = 0.0
    done: int = 0
    free_since: dict[str, float] = field(default_factory=dict)

    def begin(self, key: str, now: float) -> None:
        self.free_since[key] = now

    def end(self, key: str, now: float) -> None:
        self.longest = max(self.longest, now - self.free_since.pop(key))
        self.done += 1

    def oldest(self, now: float) -> float:
        return max([now - since for since in self.free_since.values()], default=0.0)


async def flood(
    world: World, work: WorkQueue, random: Random, load: dict[str, float]
) -> dict[str, Waits]:
    """Each class comes up at its rate a second for `SECONDS`, one partition is done a second.

    `again` are 200 that close for a time; `new N` are new ones of priority N.
    """
    waits = {name: Waits() for name in load}
    made = 0
    for name in load:
        if name == "again":
            keys = [f"again {i:03d}" for i in range(200)]
            await work.create([NewPartition(key) for key in keys])
            for i, held in enumerate(await work.acquire(200)):
                await held.close(i)
                waits[name].begin(held.key, world.clock.monotonic() + i)
    for _ in range(SECONDS):
        for name, rate in load.items():
            if name != "again" and random.random() < rate:
                made += 1
                key = f"{name} {made:06d}"
                await work.create([NewPartition(key, float(name.split()[-1]))])
                waits[name].begin(key, world.clock.monotonic())
        for held in await work.acquire():
            now = world.clock.monotonic()
            name = held.key.rpartition(" ")[0]
            waits[name].end(held.key, now)
            if name == "again":
                after = 200 / load[name] * (0.5 + random.random())
                await held.close(after)
                waits[name].begin(held.key, now + after)
            else:
                await held.complete()
        await world.clock.sleep(1.0)
    return waits


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize(
    "load",
    [
        {"new 0": 0.99, "again": 0.05},  # upstream would never reopen one
        {"new 0": 0.05, "again": 0.99},  # nor, before its #3327, begin a new one
        {"new 0": 0.8, "new 3": 0.2, "new -3": 0.02, "again": 0.05},
        {"new -5": 0.97, "new 5": 0.04, "again": 0.02},
    ],
    ids=["new ones", "due again", "all", "urgent ones"],
)
def test_a_steady_inflow_of_one_kind_starves_no_other(seed: int, load: dict[str, float]) -> None:
    async def scenario(world: World) -> None:
        limits = CoordinatorLimits(lease_seconds=600.0, ageing_ms=STEP_MS)
        work = world.coordinator(limits=limits).work("file", random=False, balance=False)
        waits = await flood(world, work, Random(seed), load)
        now = world.clock.monotonic()
        # More comes than is done, so the queue grows, but for each class alike.
        excess = max(sum(load.values()) - 1.0, 0.0) + 0.05
        queue = SECONDS * excess
        steps = [float(name.split()[-1]) if name != "again" else 0.0 for name in load]
        bound = queue + (max(steps) - min(steps)) * STEP_MS / 1000 + 60.0
        for name, one in waits.items():
            assert one.done > 50, name
            assert max(one.longest, one.oldest(now)) < bound, name

    told(scenario)


def test_what_kills_its_workers_holds_up_the_rest_for_bounded_time() -> None:
    async def scenario(world: World) -> None:
        limits = CoordinatorLimits(lease_seconds=10.0, max_attempts=3)
        poison = [NewPartition(f"poison {i}") for i in range(20)]
        fine = [NewPartition(f"fine {i}") for i in range(100)]
        await world.store.create("pipeline|file", [*poison, *fine])
        turns = 0
        while True:
            counts = await world.store.counts("pipeline|file")
            if counts.get(Status.COMPLETED, 0) == 100:
                break
            turns += 1
            work = world.coordinator(str(turns), limits=limits).work(
                "file", random=False, balance=False
            )
            while held := await work.acquire():
                if held[0].key.startswith("poison"):
                    break  # it killed this process
                await held[0].complete()
            await world.clock.sleep(13.0)
        assert turns <= 20 * 3 + 1
        await world.clock.sleep(60.0)
        await work.acquire(200)
        counts = await world.store.counts("pipeline|file")
        assert counts == {Status.COMPLETED: 100, Status.FAILED: 20}

    told(scenario)
