"""A node that joins is known to the others when it acknowledges its first line."""

from __future__ import annotations

import pytest

from service.node import Node
from tests.service.cluster import RUN
from tests.service.peers.worlds import cluster
from tests.simulation.virtual_time import VirtualClock


async def page(node: Node) -> bytes:
    return (await node.run_logs.reader.page(RUN, after=None, limit=1000)).text


@pytest.mark.parametrize("store", ["answers", "hangs"])
@pytest.mark.parametrize("seed", range(4))
def test_its_first_lines_are_on_the_pages_of_the_others(seed: int, store: str) -> None:
    world, _ = cluster(seed, lazy=True)

    async def go(clock: VirtualClock) -> None:
        there = [await world.start(clock, name) for name in "ab"]
        await world.clients.send(there[0], clock, RUN)
        await clock.sleep(30.0)
        for name in "cd":
            for known in "ab":  # they cannot read the register meanwhile
                world.lines[known].cut = store == "hangs"
            joins = await world.start(clock, name)
            await world.clients.send(joins, clock, RUN)
            for node in there:
                world.clients.check(RUN, await page(node), where="page", ordered=False)
            there.append(joins)

    world.play(go)


def test_one_that_others_do_not_hear_says_so_and_is_known_once_they_do() -> None:
    world, board = cluster(1, lazy=True)

    async def go(clock: VirtualClock) -> None:
        a, dead = [await world.start(clock, name) for name in ("a", "dead")]
        await clock.sleep(30.0)
        board.kill("dead-2")
        world.lines["a"].cut = True
        board.sever("a-1", "b-3")
        b = await world.start(clock, "b")
        await world.clients.send(b, clock, RUN)
        assert b.cut_off_from == (a.identity.node, dead.identity.node)
        board.heal()
        while a.identity.node in b.cut_off_from:
            await clock.sleep(0.1)
        world.clients.check(RUN, await page(a), where="page", ordered=False)

    world.play(go)
