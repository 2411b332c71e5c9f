"""A node as a whole: it opens and closes, and it knows who it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import FolderLocked, NodeNotReady
from tests.service.client_model import Clients, downloaded
from tests.service.simulated_node import START_MS, Life
from tests.simulation.backing import open_store
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

pytestmark = pytest.mark.usefixtures("every_store")

RUN = RunKey("service.pipeline", "run-1")


def live(scenario: Callable[[VirtualClock], Awaitable[None]]) -> None:
    """Plays it in leaping time."""

    async def go(clock: VirtualClock) -> None:
        await scenario(clock)

    simulate(go, start_ms=START_MS)


def away(clock: VirtualClock, fs: PowerCutFileSystem) -> tuple[FaultyStore, dict[int, Fault]]:
    """A store that is away until the dictionary is cleared."""
    faults = dict.fromkeys(range(1, 100_000), Fault.UNAVAILABLE)
    return FaultyStore(open_store(fs, clock, Random(1)), Schedule(faults)), faults


def test_a_node_starts_takes_lines_and_leaves_them_in_the_store() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs, clients = PowerCutFileSystem(), Clients()
        node = Life(fs, clock).node
        await node.start()
        await clients.send(node, clock, RUN)
        assert node.ready
        assert node.problems() == []
        await node.stop()
        assert not node.failed.done()
        assert node.writer.journal.state.confirmed.end == node.writer.journal.next_pos
        assert node.run_logs.flushed_pos == node.writer.journal.next_pos
        again = Life(fs, clock, seed=1).node
        await again.start()
        assert again.identity == node.identity
        clients.check(RUN, await downloaded(again, RUN), where="download")
        await again.stop()

    live(scenario)


def test_a_stopping_node_refuses_batches_and_says_so() -> None:
    async def scenario(clock: VirtualClock) -> None:
        clients = Clients()
        node = Life(PowerCutFileSystem(), clock).node
        await node.start()
        await clients.send(node, clock, RUN)
        stopping = asyncio.create_task(node.stop())
        await asyncio.sleep(0)
        assert not node.ready
        assert "the node is stopping" in node.problems()
        with pytest.raises(NodeNotReady):
            await clients.send(node, clock, RUN)
        with pytest.raises(NodeNotReady):
            await node.close_run(RUN)
        await stopping

    live(scenario)


def test_a_folder_belongs_to_one_node_at_a_time() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        node = Life(fs, clock).node
        await node.start()
        with pytest.raises(FolderLocked):
            await Life(fs, clock, seed=1).node.start()
        await node.stop()

    live(scenario)


def test_a_new_node_takes_nothing_before_it_is_registered() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs, clients = PowerCutFileSystem(), Clients()
        store, faults = away(clock, fs)
        node = Life(fs, clock, store=store).node
        await node.start()
        with pytest.raises(NodeNotReady):
            await clients.send(node, clock, RUN)
        with pytest.raises(NodeNotReady, match="its close is not recorded") as refused:
            await node.close_run(RUN)
        assert "Close the run again" in (refused.value.hint or "")
        assert not node.writer.journal.state.closes
        assert [node.ready] == [False]
        assert any("not registered yet" in problem for problem in node.problems())
        faults.clear()
        await clients.send(node, clock, RUN)
        await clock.sleep(2.0)
        assert node.ready
        assert node.problems() == []
        assert node.identity.registered
        await store.inner.head(keys.node_registration(node.identity.node))
        await node.stop()

    live(scenario)


def test_a_known_node_takes_lines_while_the_store_is_away_and_keeps_them() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs, clients = PowerCutFileSystem(), Clients()
        first = Life(fs, clock).node
        await first.start()
        await clients.send(first, clock, RUN)
        await first.stop()
        store, faults = away(clock, fs)
        node = Life(fs, clock, seed=1, store=store).node
        await node.start()
        await clients.send(node, clock, RUN)
        await clock.sleep(30.0)
        assert any("waiting for the object store" in problem for problem in node.problems())
        began = clock.monotonic()
        await node.stop()
        assert clock.monotonic() - began < 35
        assert not node.failed.done()
        faults.clear()
        last = Life(fs, clock, seed=2).node
        await last.start()
        clients.check(RUN, await downloaded(last, RUN), where="download")
        assert await last.close_run(RUN) == "closed"
        await last.stop()

    live(scenario)


def test_a_folder_under_another_name_goes_on_as_a_fork() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs, clients = PowerCutFileSystem(), Clients()
        first = Life(fs, clock, name="first").node
        await first.start()
        await clients.send(first, clock, RUN)
        await first.stop()
        second = Life(fs, clock, name="second", seed=1).node
        await second.start()
        assert second.identity.name == "second"
        assert second.identity.parents == (first.identity.node,)
        await clients.send(second, clock, RUN)
        clients.check(RUN, await downloaded(second, RUN), where="download")
        assert await second.close_run(RUN) == "closed"
        size = await second.run_logs.reader.size(RUN)
        assert size.state == "closed", "the fork closes what its parent began"
        await second.stop()
        third = Life(fs, clock, seed=2).node
        await third.start()
        assert third.identity == second.identity
        await third.stop()

    live(scenario)


def test_a_node_that_finds_itself_a_copy_goes_on_under_its_name() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs, clients = PowerCutFileSystem(), Clients()
        store = open_store(fs, clock, Random(1))
        node = Life(fs, clock, store=store).node
        await node.start()
        before = node.identity
        await store.put(keys.segment(before.node, 3), b"what the original shipped")
        for _ in range(4):
            await clients.send(node, clock, RUN)
            await clock.sleep(4.0)
        assert node.forks == 1
        assert node.ready
        assert node.identity.name == before.name
        assert node.identity.parents == (before.node,)
        clients.check(RUN, await downloaded(node, RUN), where="download")
        await node.stop()
        assert not node.failed.done()

    live(scenario)
