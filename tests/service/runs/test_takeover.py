"""Nodes that are lost, or only away: what they brought into the store comes into the runs.

Several nodes on one store, in leaping time. A node is killed, or cut off from the store
while it goes on taking batches, until others have taken up its segments; then it is back.
Whoever flushes what, every line is there once, and closed runs end up sealed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

import pytest

from service.node import Node
from tailrace.logstore import keys
from tailrace.logstore.errors import TailraceError
from tailrace.logstore.runs.report import read_watermark
from tests.seeds import seeds, some
from tests.service.client_model import downloaded, exists, paged
from tests.service.cluster import LEASE, OTHER, RUN, Cluster, read_whole, until_no_news
from tests.simulation.backing import open_store
from tests.simulation.faulty_store import Schedule
from tests.simulation.virtual_time import VirtualClock


async def close(node: Node, clock: VirtualClock) -> None:
    """Closes the run of several nodes; sorting its lines may take longer than the call waits."""
    if await node.close_run(RUN) == "closing":
        await clock.sleep(30)
    assert await node.close_run(RUN) == "closed"


@pytest.mark.on_servers(seed=(0,))
@pytest.mark.usefixtures("every_store")
@pytest.mark.parametrize("seed", seeds(3))
def test_the_lines_of_a_killed_node_are_in_their_run(seed: int) -> None:
    cluster = Cluster(seed)
    names: list[str] = []

    async def before(clock: VirtualClock) -> None:
        node = await cluster.start(clock, "a")
        names.append(node.identity.node)
        await cluster.write(node, clock, RUN, 6)
        await cluster.clients.send(node, clock, RUN, durability="bulk")

    async def without_it(clock: VirtualClock) -> None:
        node = await cluster.start(clock, "b")
        await cluster.clients.send(node, clock, RUN)
        await clock.sleep(LEASE + 30)
        await until_no_news(node.store, names[0], clock)
        assert node.run_logs.takeover.inherited > 0
        # A batch sent as `bulk`, and all that came before it, had left the node.
        cluster.shipped(RUN, await read_whole(node, RUN))
        await close(node, clock)
        size = await node.run_logs.reader.size(RUN)
        assert size.state == "closed"
        cluster.shipped(RUN, await read_whole(node, RUN))
        await node.stop()
        await cluster.check_store(clock)

    async def it_is_back(clock: VirtualClock) -> None:
        node, back = await cluster.start(clock, "b"), await cluster.start(clock, "a")
        assert back.identity.node == names[0]
        await cluster.clients.send(back, clock, RUN)
        await clock.sleep(60)
        for each in (node, back):
            cluster.shipped(RUN, await read_whole(each, RUN))
            assert (await each.run_logs.reader.size(RUN)).state == "closed", "idle, so closed again"
            await each.stop()
        await cluster.check_store(clock)

    cluster.play(before)
    cluster.play(without_it)
    cluster.play(it_is_back)


@pytest.mark.on_servers(body=(b"{",))
@pytest.mark.usefixtures("every_store")
@pytest.mark.parametrize("body", [b"", b"{", b'{"seq":1}'])
def test_the_damaged_watermark_of_a_lost_node_is_taken_again(body: bytes) -> None:
    """Its segments were waited for in vain, or for the node itself to start."""
    cluster = Cluster(3)
    names: list[str] = []

    async def before(clock: VirtualClock) -> None:
        node = await cluster.start(clock, "a")
        names.append(node.identity.node)
        await cluster.write(node, clock, RUN, 6)
        await clock.sleep(5)  # some are in chunks, and its mark says so
        await cluster.clients.send(node, clock, RUN, durability="bulk")

    async def without_it(clock: VirtualClock) -> None:
        store = open_store(cluster.fs, clock, Random(0))
        await store.put(keys.watermark(names[0]), body)
        node = await cluster.start(clock, "b")
        await clock.sleep(LEASE + 30)
        last = [info.key async for info in store.list(keys.segments_of(names[0]))][-1]
        mark = await read_watermark(store, names[0])
        assert keys.segment(names[0], mark.seq) == last
        (problem,) = node.problems()
        assert problem.startswith(f"the watermark of {names[0]} was damaged")
        cluster.shipped(RUN, await read_whole(node, RUN))
        await close(node, clock)
        await node.stop()
        await cluster.check_store(clock)

    cluster.play(before)
    cluster.play(without_it)


@pytest.mark.parametrize("seed", [*seeds(25)[:1], *some(seeds(25)[1:], 4, "cut off")])
@pytest.mark.on_servers(seed=(0,))
@pytest.mark.usefixtures("every_store")
def test_a_node_that_was_cut_off_comes_back_while_others_flush_its_lines(seed: int) -> None:
    cluster = Cluster(seed)
    dice = cluster.dice

    async def together(clock: VirtualClock) -> None:
        nodes = [await cluster.start(clock, name) for name in "abc"]
        away = nodes[0]
        await cluster.write(away, clock, RUN, 4)
        # Its texts fall behind while its segments go out: others will have to do it.
        await clock.sleep(dice.choice([0.5, 2.5, 4.0]))
        cluster.lines["a"].cut = True
        for _ in range(3):
            await cluster.clients.send(away, clock, RUN)
        await asyncio.gather(
            cluster.write(nodes[1], clock, RUN, 3), cluster.write(nodes[2], clock, OTHER, 3)
        )
        for _ in range(int(LEASE) * 20):  # back at the moment when another takes them up
            await clock.sleep(0.1)
            if any(node.run_logs.takeover.inherited for node in nodes):
                break
        await clock.sleep(1.5 + 2 * dice.random())
        cluster.lines["a"].cut = False
        with suppress(TailraceError):
            await away.run_logs.flusher.drain()
        await asyncio.gather(*[cluster.write(node, clock, RUN, 2) for node in nodes])
        await clock.sleep(40)
        for node in nodes:
            text = await downloaded(node, RUN)
            cluster.shipped(RUN, text)
            # The sweeper may close the run between two pages, which sorts its lines.
            lines = sorted((await paged(node, RUN, 3)).splitlines())
            assert lines == sorted(text.splitlines())
        for node in nodes:
            assert await node.close_run(RUN) in ("closed", "closing")
        await clock.sleep(60)
        texts = []
        for node in nodes:
            texts.append(await read_whole(node, RUN))
            cluster.shipped(RUN, texts[-1])
            assert (await node.run_logs.reader.size(RUN)).state == "closed"
            assert not node.failed.done()
            assert node.problems() == []
            await node.stop()
        assert len(set(texts)) == 1
        await cluster.check_store(clock)

    cluster.play(together)


@pytest.mark.usefixtures("every_store")
def test_a_gap_in_a_lost_nodes_segments_is_reported_and_not_skipped() -> None:
    cluster = Cluster(1)
    names: list[str] = []

    async def before(clock: VirtualClock) -> None:
        node = await cluster.start(clock, "a")
        names.append(node.identity.node)
        cluster.lines["a"].schedule = Schedule.none()
        for _ in range(4):
            await cluster.clients.send(node, clock, RUN, durability="bulk")

    async def without_it(clock: VirtualClock) -> None:
        # The gap is made while no process runs: the lost node's own flush would pass it.
        store = open_store(cluster.fs, clock, Random(0))
        mark = await read_watermark(store, names[0])
        found = [i.key async for i in store.list(keys.segments_of(names[0]))]
        left = [key for key in found if key > keys.segment(names[0], mark.seq)]
        assert len(left) >= 3
        await store.delete([left[1]])
        node = await cluster.start(clock, "b")
        await clock.sleep(LEASE + 30)
        assert any("is missing" in problem for problem in node.problems())
        mark = await read_watermark(store, names[0])
        last = [i.key async for i in store.list(keys.segments_of(names[0]))][-1]
        assert keys.segment(names[0], mark.seq) < last
        assert await exists(node, RUN)

    cluster.play(before)
    cluster.play(without_it)
