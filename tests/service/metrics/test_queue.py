"""The metrics of the segment queue: each moves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.metrics.declared import MetricSources
from service.metrics.http import QUEUE
from service.queue.catalog import RELIST_SECONDS
from tailrace.coordination.groups import GroupStart, change_group, drop_failed
from tailrace.logstore import keys
from tailrace.logstore.errors import LeaseLost
from tests.service.queue.world import SETTINGS, QueueWorld, commit, playing, take, taken
from tests.settings import changed
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule

MOVE_IN_QUEUES = {metric.name for metric in QUEUE}
ONCE = changed(SETTINGS, max_attempts=1)


def test_the_metrics_of_queues() -> None:
    shown: dict[str, set[str]] = {metric.name: set() for metric in QUEUE}

    async def scenario(world: QueueWorld) -> None:
        queue, other = world.queue(settings=ONCE), world.queue()
        nobody = cast("Any", SimpleNamespace())
        sources = MetricSources(nobody, nobody, queue=queue.counters)

        def look() -> None:
            for metric in QUEUE:
                shown[metric.name].add(str(metric.read(sources)))

        look()
        running = asyncio.ensure_future(queue.run())
        await take(queue)
        waiting = asyncio.ensure_future(take(queue, wait=3.0))
        await world.clock.sleep(1)
        look()
        for _ in range(4):
            await world.put("a")
        given = await waiting
        assert given is not None
        await commit(other, await taken(other))
        await commit(queue, given)
        poison = await taken(queue)
        await queue.fail("g", poison.lease.name, poison.lease.epoch, "poison")
        with pytest.raises(LeaseLost):
            await commit(queue, poison)
        await taken(queue)
        await world.clock.sleep(6)
        look()
        await change_group(
            world.store,
            "g",
            lambda group: drop_failed(group, "a", poison.lease.name.seq),
            fresh_id=lambda: "X",
        )
        await world.low("a", 9)
        await world.delete(*[name for name, _ in queue.catalog.page(None, 9)[0]])
        world.seqs["a"] = 9
        await world.put("a")
        await world.clock.sleep(RELIST_SECONDS + 6)
        look()
        with pytest.raises(Exception, match="evicted"):
            await taken(queue)
        await world.clock.sleep(6)
        look()
        running.cancel()
        await queue.reset("g", GroupStart.NOW)

    async def away(world: QueueWorld) -> None:
        faults = dict.fromkeys(range(1, 5), Fault.UNAVAILABLE)
        down = Schedule(faults, applies=lambda call: keys.GROUPS in call)
        queue = world.queue(FaultyStore(world.store, down))
        running = asyncio.ensure_future(queue.run())
        await world.clock.sleep(1)
        shown["tailrace_queue_report_failures"].add(str(queue.counters.report_failures))
        said = [queue.last_error]
        await world.clock.sleep(60)
        assert [error is None for error in (*said, queue.last_error)] == [False, True]
        running.cancel()

    playing(scenario)
    playing(away)
    assert {name for name, readings in shown.items() if len(readings) < 2} == set()
