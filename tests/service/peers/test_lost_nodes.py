"""What a lost node brought into the store is in its runs, whoever closes and reads them."""

from __future__ import annotations

import asyncio

import pytest

from service.node import Node
from service.peers.register import forget
from tailrace.coordination.named_leases import text_lease
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.runs.manifest import Manifest
from tests.service.client_model import batches_in, downloaded
from tests.service.cluster import LEASE, OTHER, RUN
from tests.service.peers.worlds import PATIENT, cluster
from tests.settings import settings_with
from tests.simulation.virtual_time import VirtualClock

QUICKLY = settings_with(
    PATIENT, runs={"partial_flush_interval_minutes": 0.5, "stream_timeout_minutes": 60.0}
)
"""No run is closed for being idle."""


async def let_go(node: Node, lost: str, clock: VirtualClock) -> None:
    """As `tailrace leases forget-node` does, once the lease is over."""
    made = await forget(
        *(node.store, lost),
        held_by=lambda name: node.run_logs.leases.held_by(text_lease(name)),
        prefix=keys.PREFIX,
        now_ms=clock.now_ms(),
        fresh_id=lambda: "01J00000000000000000000001",
    )
    assert made.stored_seq > 0
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
        # Its lease is over: only the lines that it had stored are awaited.
        assert await a.close_run(RUN) == "closed"
        assert len(batches_in(await downloaded(a, RUN))) == 2
        assert (await a.run_logs.manifests.get(RUN)).manifest.state == "closed"
        if forgotten:  # and nobody waits for it any more
            await world.clients.send(a, clock, OTHER)
            assert await a.close_run(OTHER) == "closed"

    world.play(go)


@pytest.mark.parametrize("way_out", ["restored", "let go"])
def test_a_close_waits_for_lines_behind_a_segment_that_is_missing(way_out: str) -> None:
    """Of the lost node's three segments the second is taken away; the third has lines of the run.

    A run without lines there is closed meanwhile.
    """
    world, board = cluster(3)
    world.settings = QUICKLY
    other = RunKey("service.pipeline", "of a alone")

    async def go(clock: VirtualClock) -> None:
        a, b = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(5.0)
        b.run_logs.takeover.stop()
        await b.run_logs.flusher.stop()  # so that nothing of it comes into chunks
        await world.clients.send(a, clock, RUN)
        await world.clients.send(a, clock, other)
        for key in (OTHER, OTHER, RUN):
            await world.clients.send(b, clock, key, durability="bulk")
        board.kill("b-2")
        world.lines["b"].cut = True
        missing = keys.segment(b.identity.node, 2)
        body = (await a.store.get(missing))[1]
        await a.store.delete([missing])
        await clock.sleep(2 * LEASE + 60.0)
        assert any("segment 2 of" in problem for problem in a.problems())
        assert await a.close_run(RUN) == "closing"
        assert await a.close_run(other) == "closed"
        await clock.sleep(60.0)
        size = await a.run_logs.reader.size(RUN)
        assert (size.state, size.silent) == ("closing", (b.identity.node,))
        if way_out == "restored":
            await a.store.put(missing, body)
        else:
            await let_go(a, b.identity.node, clock)
        await clock.sleep(60.0)
        assert await a.close_run(RUN) == "closed"
        assert len(batches_in(await downloaded(a, RUN))) == (2 if way_out == "restored" else 1)

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


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("deleted", [True, False])
def test_a_close_from_before_a_deletion_leaves_the_run_that_began_again_open(
    deleted: bool,
) -> None:
    """All hear of the close late; what is in the run now is of a node that was lost meanwhile."""
    world, board = cluster(3)
    world.settings = QUICKLY

    async def go(clock: VirtualClock) -> None:
        a, b, c = [await world.start(clock, name) for name in "abc"]
        await clock.sleep(5.0)
        await world.clients.send(a, clock, RUN)
        board.sever("a-1", "b-2")
        board.sever("c-3", "b-2")  # else its sweeper asks all, and closes the run
        assert await a.close_run(RUN) == "closing"
        if deleted:
            await world.clients.delete(a, RUN)
            await clock.sleep(15 * 60.0)  # the deletion is of ids of the next 11 minutes too
        await world.clients.send(c, clock, RUN, durability="bulk")
        board.kill("c-3")
        world.lines["c"].cut = True
        await clock.sleep(2 * LEASE + 60.0)
        assert a.run_logs.takeover.inherited + b.run_logs.takeover.inherited == 1
        telling = a.run_logs.closer._notices.is_notifying
        assert telling(RUN), "b has not heard of it"
        board.heal()
        while telling(RUN):
            await clock.sleep(1.0)
        await clock.sleep(5.0)
        manifest = (await a.run_logs.manifests.get(RUN)).manifest
        assert manifest.state == ("open" if deleted else "closed")
        assert manifest.closes.get(a.identity.node, 0) == 0 or not deleted
        assert len(batches_in(await downloaded(a, RUN))) == (1 if deleted else 2)

    world.play(go)


def test_a_close_that_was_about_to_seal_waits_for_what_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, board = cluster(3)
    world.settings = QUICKLY

    async def go(clock: VirtualClock) -> None:
        a, b, c = [await world.start(clock, name) for name in "abc"]
        closer, over = a.run_logs.closer, asyncio.Event()
        knows = closer._gone_writers

        async def slowly(manifest: Manifest) -> list[str]:
            known = await knows(manifest)
            await over.wait()
            return known

        monkeypatch.setattr(closer, "_gone_writers", slowly)
        await clock.sleep(5.0)
        a.run_logs.takeover.stop()
        await world.clients.send(a, clock, RUN)
        await world.clients.send(b, clock, RUN, durability="bulk")
        board.kill("b-2")
        world.lines["b"].cut = True
        closing = asyncio.create_task(a.close_run(RUN))
        while not c.run_logs.takeover.inherited or closer._notices.is_notifying(RUN):
            await clock.sleep(1.0)
        manifest = (await a.run_logs.manifests.get(RUN)).manifest
        # Nobody has written down that it closes: a waits, b is gone, and c has no line of it.
        assert (manifest.state, b.identity.node in manifest.writers) == ("open", True)
        over.set()
        while a.writer.journal.state.closes:
            await clock.sleep(0.1)
        assert (await a.run_logs.manifests.get(RUN)).manifest.state == "closed"
        assert len(batches_in(await downloaded(a, RUN))) == 2
        await closing

    world.play(go)
