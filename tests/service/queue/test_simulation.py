"""Consumers that crash, dawdle, give back and repeat themselves, at two nodes that die."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from random import Random

import pytest

from service.queue.catalog import SegmentName
from service.queue.queue import SegmentQueue
from tailrace.logstore.errors import LeaseLost, OutcomeUnknown, StoreUnavailable
from tests.service.cluster import Line
from tests.service.queue.world import SETTINGS, QueueWorld, playing, take
from tests.settings import changed

LEASE = 8.0
SEGMENTS = 24


class Simulation:
    """One group, its consumers, and what they were told."""

    def __init__(self, world: QueueWorld, dice: Random) -> None:
        self.world = world
        self.dice = dice
        self.nodes = [self._node() for _ in range(2)]
        self.delivered: set[SegmentName] = set()
        self.acknowledged: dict[SegmentName, set[int]] = defaultdict(set)
        self.refused = 0
        self.poison = {SegmentName("a", 3), SegmentName("b", 1)}

    def _node(self) -> tuple[SegmentQueue, Line]:
        line = Line(self.world.way(), Random(self.dice.random()))
        return self.world.queue(line, changed(SETTINGS, outstanding=5)), line

    async def kill(self) -> None:
        """From time to time a node hears and says nothing more, and another takes its place."""
        while True:
            await self.world.clock.sleep(self.dice.uniform(5, 25))
            at = self.dice.randrange(2)
            self.nodes[at][1].dies_at = 0
            self.nodes[at] = self._node()

    async def consume(self) -> None:
        """A consumer as bad as they come; it never ends by itself."""
        while True:
            queue = self.nodes[self.dice.randrange(2)][0]
            try:
                async with asyncio.timeout(30):  # as a client that hears nothing
                    await self._once(queue)
            except (TimeoutError, StoreUnavailable, OutcomeUnknown):
                await self.world.clock.sleep(1)
            except LeaseLost:
                self.refused += 1

    async def _once(self, queue: SegmentQueue) -> None:
        given = await take(queue, wait=5.0, lease=LEASE)
        if given is None:
            return
        name, epoch, what = given.lease.name, given.lease.epoch, self.dice.random()
        self.delivered.add(name)
        if what < 0.15 or name in self.poison:
            return  # it died with it
        if what < 0.3:
            await queue.fail("g", name, epoch, "not today")
            return
        if what < 0.5:
            await self.world.clock.sleep(self.dice.uniform(LEASE - 3, LEASE + 10))
        if 0.45 < what < 0.6:
            await queue.renew("g", name, epoch, LEASE)
        await queue.commit("g", name, epoch)
        self.acknowledged[name].add(epoch)
        if what > 0.8:
            await self.nodes[0][0].commit("g", name, epoch)


@pytest.mark.parametrize("chunk", range(4))
def test_everything_is_delivered_and_committed_once(chunk: int) -> None:
    async def scenario(world: QueueWorld) -> Simulation:
        dice = Random(f"consumers {world.seed}")
        told = Simulation(world, dice)
        work = [asyncio.ensure_future(told.consume()) for _ in range(6)]
        killing = asyncio.ensure_future(told.kill())
        names = []
        for _ in range(SEGMENTS):
            names.append(await world.put(dice.choice("ab")))
            await world.clock.sleep(dice.choice([0.0, 0.2, 3.0]))
        await world.clock.sleep(60)
        killing.cancel()
        await world.clock.sleep(240)
        for one in work:
            one.cancel()
        await asyncio.wait(work)
        group = await world.queue().group("g")
        failed = {SegmentName(n, seq) for n, c in group.cursors.items() for seq in c.failed}
        assert told.delivered == set(names)
        assert told.poison & set(names) <= failed
        assert not any(cursor.pending for cursor in group.cursors.values())
        assert {node: cursor.decided for node, cursor in group.cursors.items()} == world.seqs
        assert group.committed_segments + len(failed) == len(names)
        assert all(len(epochs) == 1 for epochs in told.acknowledged.values())
        assert not failed & set(told.acknowledged)
        return told

    told = [playing(scenario, seed=seed) for seed in range(chunk * 2, chunk * 2 + 2)]
    assert sum(one.refused for one in told) > 0, "no lease was ever lost"
