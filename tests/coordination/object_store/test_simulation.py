"""Processes that share partitions over a store that fails, in leaping time: by seeds.

Every call takes a while, and one in eight fails: it did nothing, or it is not known whether it
did. Workers save, complete, give up and let leases run out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import TypeVar

import pytest

from tailrace.coordination.lease import MARGIN_MS
from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.coordination.partitions import Partition, Status, completed, given_up, saved
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import OutcomeUnknown, PreconditionFailed, StoreUnavailable
from tailrace.logstore.objects.store import ObjectStore
from tests.coordination.object_store.counted import (
    SOURCE,
    START_MS,
    Slow,
    claim_at,
    many,
    on_disk,
    process,
)
from tests.seeds import seeds, some
from tests.simulation.faulty_store import Fault, Schedule
from tests.simulation.virtual_time import VirtualClock, simulate

T = TypeVar("T")
COUNT = 40
PROCESSES = 4
LEASE_MS = 5000
RATE = 0.12


class Dice(Schedule):
    """A fault now and then."""

    def __init__(self, seed: str) -> None:
        super().__init__({})
        self._dice = Random(seed)
        self.calm = False

    def next(self, call: str) -> Fault | None:
        if self.calm or call.split(" ", 1)[0] == "list" or self._dice.random() > RATE:
            return None
        self.fired += 1
        kinds = [Fault.UNAVAILABLE, Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE]
        return self._dice.choice(kinds)


class Simulation:
    """What all workers did, as they were told."""

    def __init__(self, clock: Clock, seed: int) -> None:
        self.clock = clock
        self.seed = seed
        self.given: Counter[tuple[str, int]] = Counter()
        self.held: dict[str, int] = {}
        self.done: Counter[str] = Counter()
        self.unclear: set[str] = set()

    def got(self, one: Partition) -> None:
        """Nobody else may hold it now, and its epoch is above all that were."""
        self.given[one.key, one.epoch] += 1
        assert self.given[one.key, one.epoch] == 1
        assert one.epoch > self.held.get(one.key, 0)
        self.held[one.key] = one.epoch

    async def changed(
        self, store: ObjectPartitions, old: Partition, new: Partition
    ) -> Partition | None:
        """None if it was refused, or nobody knows."""
        try:
            stored = await store.change(old, new)
        except OutcomeUnknown:
            self.unclear.add(old.key)
            return None
        except StoreUnavailable:
            return None
        except PreconditionFailed:
            late = self.clock.now_ms() > old.until_ms + MARGIN_MS
            assert late, "nobody takes from a holder what is its own"
            return None
        self.done[old.key] += new.status is Status.COMPLETED
        return stored


async def _work(scenario: Simulation, store: ObjectPartitions, owner: str, dice: Random) -> None:
    for _ in range(60):
        claim = claim_at(scenario.clock, owner, LEASE_MS)
        try:
            brought = await store.acquire(
                SOURCE, claim, dice.choice([1, 2, 5]), random=dice.random() < 0.7
            )
        except (StoreUnavailable, OutcomeUnknown):
            continue
        for one in brought.partitions:
            scenario.got(one)
        await asyncio.gather(*[_do(scenario, store, one, dice) for one in brought.partitions])
        await scenario.clock.sleep(dice.uniform(0.0, 2.0))


async def _do(scenario: Simulation, store: ObjectPartitions, one: Partition, dice: Random) -> None:
    held: Partition | None = one
    if dice.random() < 0.4:
        until_ms = scenario.clock.now_ms() + LEASE_MS
        held = await scenario.changed(store, one, saved(one, f"{dice.random()}", until_ms))
    if held is None or dice.random() < 0.2:  # it hangs, or lost it
        return
    now_ms = scenario.clock.now_ms()
    wanted = given_up(held, now_ms) if dice.random() < 0.3 else completed(held, now_ms)
    await scenario.changed(store, held, wanted)


async def _made(store: ObjectPartitions, dice: Random, clock: Clock) -> None:
    while True:
        try:
            await store.create(SOURCE, many(COUNT))
        except (StoreUnavailable, OutcomeUnknown):
            await clock.sleep(dice.random())
        else:
            return


@pytest.mark.parametrize("seed", some(seeds(12), 3, "object store"))
def test_each_is_held_by_one_and_completed_once(seed: int) -> None:
    async def run(clock: VirtualClock) -> None:
        disk, scenario = on_disk(clock), Simulation(clock, seed)

        async def live(number: int) -> None:
            dice, objects = Random(f"{seed} {number}"), faulty(disk, clock, f"{seed}/{number}")
            store = process(objects, clock, seed=seed * 10 + number, shards=3, cache_bytes=4000)
            await _made(store, dice, clock)
            await _work(scenario, store, f"host-{number}/A", dice)
            await store.close()
            assert objects.schedule.fired

        await asyncio.gather(*[live(number) for number in range(PROCESSES)])
        page = await process(disk, clock).page(SOURCE)
        assert len(page.partitions) == COUNT
        for one in page.partitions:
            assert scenario.done[one.key] <= 1
            if one.key not in scenario.unclear:
                assert scenario.done[one.key] == (one.status is Status.COMPLETED)
        assert scenario.done.total() > COUNT / 2

    simulate(run, start_ms=START_MS)


def faulty(disk: ObjectStore, clock: Clock, seed: str) -> Slow:
    objects = Slow(disk, clock, len(seed))
    objects.schedule = Dice(seed)
    return objects
