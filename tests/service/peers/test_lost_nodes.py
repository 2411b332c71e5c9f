"""What a lost node brought into the store is in its runs, whoever closes and reads them."""

from __future__ import annotations

import pytest

from logstore import keys
from service.node import Node
from service.peers.forgotten import forget
from tests.service.client_model import batches_in, downloaded
from tests.service.cluster import LEASE, OTHER, RUN
from tests.service.peers.worlds import PATIENT, cluster
from tests.settings import settings_with
from tests.simulation.virtual_time import VirtualClock

QUICKLY = settings_with(PATIENT, runs={"partial_flush_interval_minutes": 0.5})


async def let_go(node: Node, lost: str, clock: VirtualClock) -> None:
    """As `tailrace leases forget-node` does, once the lease is over."""
    store = node.store

    async def nobody(_: str) -> None:
        return None

    made = await forget(
        *(store, lost),
        held_by=nobody,
        prefix=keys.PREFIX,
        now_ms=clock.now_ms(),
        fresh_id=lambda: "01J00000000000000000000001",
    )
    assert made.stored_seq == 1
    register = node.members.register
    assert register is not None
    await register.look()
    assert not register.others


@pytest.mark.parametrize(("forgotten", "damaged"), [(False, False), (True, False), (True, True)])
def test_a_close_has_what_it_brought_into_the_store(forgotten: bool, damaged: bool) -> None:
    world, board = cluster(3)
    world.settings = QUICKLY

    async def go(clock: VirtualClock) -> None:
        a, b = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(5.0)
        a.run_logs.takeover._interval = 3600.0  # it looks once more, and not soon again
        await clock.sleep(5.0)
        await world.clients.send(a, clock, RUN)
        await world.clients.send(b, clock, RUN, durability="bulk")
        board.kill("b-2")
        world.lines["b"].cut = True
        await clock.sleep(LEASE + 10.0)
        if forgotten:
            await let_go(a, b.identity.node, clock)
        if damaged:
            await a.store.put(keys.forgotten(b.identity.node), b"{")
        assert a.run_logs.takeover.inherited == 0
        # The lines are awaited; one that may yet answer is awaited until the close is over.
        assert await a.close_run(RUN) == ("closed" if forgotten else "closing")
        while not forgotten and a.journal.state.closes:  # it is recorded until all is closed
            await clock.sleep(1.0)
        assert len(batches_in(await downloaded(a, RUN))) == 2
        assert (await a.run_logs.manifests.get(RUN)).manifest.state == "closed"
        if forgotten:  # and nobody waits for it any more
            await world.clients.send(a, clock, OTHER)
            assert await a.close_run(OTHER) == "closed"

    world.play(go)


def test_readers_at_any_node_hear_of_a_takeover() -> None:
    world, board = cluster(3, lazy=True)

    async def go(clock: VirtualClock) -> None:
        a, b, c = [await world.start(clock, name) for name in "abc"]
        await clock.sleep(1.0)
        await world.clients.send(a, clock, RUN)
        await world.clients.send(b, clock, RUN, durability="bulk")
        readers = [node.tail.watch(RUN) for node in (a, c)]
        for node in (a, c):
            node.run_logs.takeover.stop()
        board.kill("b-2")
        world.lines["b"].cut = True
        await clock.sleep(2 * LEASE + 60.0)
        marks = [reader.channel.mark() for reader in readers]
        await clock.sleep(60.0)
        behind = [r.channel.take(m, None).behind for r, m in zip(readers, marks, strict=True)]
        assert behind == [False, False], "all was said of the node that does not answer"
        await a.run_logs.takeover.look()
        assert a.run_logs.takeover.inherited == 1
        await clock.sleep(5.0)
        behind = [r.channel.take(m, None).behind for r, m in zip(readers, marks, strict=True)]
        assert behind == [True, True]

    world.play(go)
