"""Appends, closes and the sweepers of several nodes at once, and sweepers that die half-way.

In leaping time, with a store that takes its time. Runs are abandoned after seconds, so
that sweepers, late batches and clients' closes meet all the time. In the end every run is
closed, its `logs.txt` holds each line once, and no lease is left.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from service.node import Node
from tailrace.coordination.named_leases import SWEEP
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound
from tailrace.logstore.objects.store import ObjectStore
from tests.seeds import seeds, some
from tests.service.cluster import QUICK, RUN, Cluster, read_whole
from tests.settings import settings_with
from tests.simulation.backing import on_disk, open_store
from tests.simulation.virtual_time import VirtualClock

IDLE = 6.0
HASTY = settings_with(
    QUICK,
    coordination={"lease_seconds": 12.0},
    runs={
        "cleanup_interval_minutes": 2.0 / 60,
        "stream_timeout_minutes": IDLE / 60,
        "reopen_idle_seconds": IDLE,
    },
)
RUNS = [RUN, RunKey("service.pipeline", "second"), RunKey("other", "third")]


async def settled(cluster: Cluster, nodes: list[Node], clock: VirtualClock) -> None:
    """Every run is closed and whole, for every node and in the store."""
    store = open_store(cluster.fs, clock, Random(0))
    for key in cluster.clients.runs():
        texts = [await read_whole(node, key) for node in nodes]
        assert len(set(texts)) == 1
        cluster.shipped(key, texts[0])
        for node in nodes:
            assert (await node.run_logs.reader.size(key)).state == "closed"
        assert (await store.get(keys.logs(keys.PREFIX, key)))[1] == texts[0]
        with pytest.raises(NotFound):
            await store.head(keys.partial(keys.PREFIX, key))
    assert await sweep_leases(store) == []
    await cluster.check_store(clock)


async def sweep_leases(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list(keys.leases_of(SWEEP))]


@pytest.mark.parametrize("seed", some(seeds(12), 3, "sweepers race"))
def test_appends_closes_and_sweepers_race(seed: int) -> None:
    cluster = Cluster(seed, HASTY)
    dice = cluster.dice
    finalised: list[int] = []

    async def scenario(clock: VirtualClock) -> None:
        nodes = [await cluster.start(clock, name) for name in "abc"]

        async def client(key: RunKey) -> None:
            for _ in range(10 if on_disk() else 5):
                node = dice.choice(nodes)
                await cluster.clients.send(node, clock, key)
                if key != RUNS[2] and dice.random() < 0.15:  # that one nobody closes
                    await cluster.clients.close(dice.choice(nodes), key)
                await clock.sleep(dice.choice([0.1, 1.0, IDLE - 1, IDLE + 0.5, IDLE + 3, 15.0]))

        await asyncio.gather(*[client(key) for key in RUNS])
        await clock.sleep(90)
        await settled(cluster, nodes, clock)
        for node in nodes:
            assert not node.failed.done()
            assert node.problems() == []
            await node.stop()
        finalised.append(sum(node.run_logs.sweeper.finalised for node in nodes))

    cluster.play(scenario)
    assert finalised[0] > 0


def died_at(step: int, seed: int) -> bool:
    """A node dies at its `step`-th call once its sweeper is about to close; whether it did."""
    cluster = Cluster(seed, HASTY)
    reached: list[bool] = []

    async def scenario(clock: VirtualClock) -> None:
        dying = await cluster.start(clock, "a")
        line = cluster.lines["a"]
        await cluster.write(dying, clock, RUN, 5)
        await clock.sleep(IDLE)  # all is flushed, and it is about to be swept
        line.dies_at = len(line.calls) + step
        other = await cluster.start(clock, "b")
        if seed % 2:
            await cluster.clients.send(other, clock, RUN)
        await clock.sleep(60)
        reached.append(len(line.calls) >= line.dies_at)
        assert (await other.run_logs.reader.size(RUN)).state == "closed"
        cluster.shipped(RUN, await read_whole(other, RUN))
        await other.stop()

    async def back(clock: VirtualClock) -> None:
        nodes = [await cluster.start(clock, name) for name in "ab"]
        await clock.sleep(60)
        await settled(cluster, nodes, clock)
        for node in nodes:
            await node.stop()

    cluster.play(scenario)
    cluster.play(back)
    return reached[0]


@pytest.mark.parametrize("part", range(4))
def test_a_sweeper_dies_between_any_two_of_its_steps(part: int) -> None:
    for step in some(range(1 + part, 45, 4), 3, part):
        assert died_at(step, seed=step), "it never came so far"
