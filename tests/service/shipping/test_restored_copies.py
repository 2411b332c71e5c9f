"""A restored or cloned folder whose numbers were used, consumed and removed by somebody else.

Nothing in the store but marks tells that. However many segments the copy is behind, and
however many it has cut before it can look: what is acknowledged is in the texts, and in
the table or in a segment that the table will take.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from service.ingest.batch import Durability
from service.node import Node
from tailrace.logstore.errors import NodeNotReady
from tests.seeds import some
from tests.service.client_model import Sent, downloaded
from tests.service.cluster import Line
from tests.service.shipping.copies import CLONE, COMMON, MINE, YOURS, Copies
from tests.service.simulated_node import DATA
from tests.simulation.virtual_time import VirtualClock

DURABILITIES: list[tuple[Durability, bool]] = [
    ("durable", True),
    ("durable", False),
    ("fast", True),
    ("fast", False),
    ("bulk", True),
    ("bulk", False),
]


async def go_on(copies: Copies, clock: VirtualClock, node: Node, segments: int) -> None:
    """So many segments more, all of which are consumed and removed."""
    for _ in range(segments):
        await copies.clients.send(node, clock, MINE, durability="bulk")
    await clock.sleep(30.0)  # flushed, and marked
    if segments:
        await copies.consume(clock, node.identity.node)


def behind_by(segments: int) -> Copies:
    """A folder that was restored: its other life had shipped so many segments more."""
    copies = Copies(segments)
    copies.before()
    copies.copy(DATA, CLONE)

    async def newer(clock: VirtualClock) -> None:
        node = copies.life(clock).node
        await node.start()
        await go_on(copies, clock, node, segments)

    if segments:
        copies.play(newer)
    copies.remove(DATA)
    copies.copy(CLONE, DATA)
    return copies


def end(copies: Copies, *folders: str) -> None:
    async def look(clock: VirtualClock) -> None:
        await copies.check_taken(clock)

    copies.end_well(*folders, kept=False)
    copies.play(look)


@pytest.mark.parametrize("away_seconds", [0.0, 60.0])
@pytest.mark.parametrize("more", [-1, 0, 2])
@pytest.mark.parametrize("behind", some(range(7), 2, "restored"))
def test_a_restored_folder(behind: int, more: int, away_seconds: float) -> None:
    """It takes as many segments' worth of lines as it is behind, or some more or fewer."""
    copies = behind_by(behind)

    async def older(clock: VirtualClock) -> None:
        line = Line(copies.store(clock), Random(behind))
        line.cut = away_seconds > 0
        node = copies.life(clock, store=line).node
        await node.start()
        for _ in range(behind + more):
            await copies.clients.send(node, clock, YOURS)
            await clock.sleep(2.5)  # a segment is cut every 2 s
        await clock.sleep(max(away_seconds - 2.5 * (behind + more), 0.0))
        line.cut = False
        await clock.sleep(60.0)
        await copies.clients.send(node, clock, YOURS, durability="bulk")
        assert node.forks == (behind > 0)
        await node.stop()

    copies.play(older)
    end(copies)


@pytest.mark.parametrize("away_seconds", [0.0, 60.0])
@pytest.mark.parametrize(("durability", "named"), DURABILITIES)
def test_by_every_kind_of_append(durability: Durability, named: bool, away_seconds: float) -> None:
    """Also those who wait for the store hear of their lines: nobody waits for ever in a fork."""
    copies = behind_by(3)

    async def older(clock: VirtualClock) -> None:
        line = Line(copies.store(clock), Random(3))
        line.cut = away_seconds > 0
        node = copies.life(clock, store=line).node
        await node.start()
        sending = []
        for _ in range(3):
            send = copies.clients.send(node, clock, YOURS, durability=durability, named=named)
            sending.append(asyncio.create_task(send))
            await clock.sleep(2.5)
        closing = asyncio.create_task(node.close_run(COMMON))
        await clock.sleep(away_seconds)
        line.cut = False
        async with asyncio.timeout(120.0):
            await asyncio.gather(*sending)
            assert await closing in ("closed", "closing")
        if durability != "bulk":  # whose answer comes after the look at the store
            await clock.sleep(10.0)
        assert node.forks == 1
        if durability == "bulk":  # what was promised stands in the store, under the new name
            confirmed = node.writer.journal.state.confirmed.end
            assert confirmed == node.writer.journal.next_pos
        await clock.sleep(10.0)

    copies.play(older)
    end(copies)


@pytest.mark.parametrize("idle_seconds", [0.0, 30.0, 590.0, 4000.0])
@pytest.mark.parametrize("behind", some(range(1, 7), 3, "idle"))
def test_two_live_clones_of_which_one_idles(behind: int, idle_seconds: float) -> None:
    """While the one idles the other ships, and what it ships is consumed and removed."""
    copies = Copies(behind)
    copies.before()

    async def settle(clock: VirtualClock) -> None:
        await copies.live(clock, DATA, COMMON, 1)

    copies.play(settle)
    copies.copy(DATA, CLONE)

    async def both(clock: VirtualClock) -> None:
        original, clone = copies.life(clock).node, copies.life(clock, CLONE).node
        await asyncio.gather(original.start(), clone.start())
        await clock.sleep(5.0)
        await go_on(copies, clock, original, behind)
        await clock.sleep(idle_seconds)
        for _ in range(behind):
            await copies.clients.send(clone, clock, YOURS)
            await clock.sleep(2.5)
        await copies.clients.send(clone, clock, YOURS, durability="bulk")
        assert (original.forks, clone.forks) == (0, 1)
        await copies.clients.send(original, clock, MINE, durability="bulk")
        await asyncio.gather(original.stop(), clone.stop())

    copies.play(both)
    end(copies, CLONE)


def test_an_idle_clone_finds_out_without_a_line_of_its_own() -> None:
    copies = Copies(1)
    copies.before()

    async def settle(clock: VirtualClock) -> None:
        await copies.live(clock, DATA, COMMON, 1)

    copies.play(settle)
    copies.copy(DATA, CLONE)

    async def both(clock: VirtualClock) -> None:
        original, clone = copies.life(clock).node, copies.life(clock, CLONE).node
        await asyncio.gather(original.start(), clone.start())
        await clock.sleep(5.0)
        await go_on(copies, clock, original, 2)
        await clock.sleep(700.0)
        assert (original.forks, clone.forks) == (0, 1)

    copies.play(both)
    end(copies, CLONE)


def test_a_node_that_stops_tells_who_waits_for_the_store() -> None:
    """Its lines are in the journal: the batch may be sent again with its id."""
    copies = behind_by(0)

    async def older(clock: VirtualClock) -> None:
        line = Line(copies.store(clock), Random(1))
        node = copies.life(clock, store=line).node
        await node.start()
        await copies.clients.send(node, clock, YOURS)
        line.cut = True
        sent = Sent(len(copies.clients.sent), YOURS, b"00007 0/1 bulk\n", None, "bulk")
        waiting = asyncio.create_task(node.append(sent.incoming()))
        await clock.sleep(1.0)
        await node.stop()
        with pytest.raises(NodeNotReady, match="in its journal"):
            await waiting
        node = copies.life(clock).node
        await node.start()
        assert b"00007 0/1 bulk" in await downloaded(node, YOURS)

    copies.play(older)
