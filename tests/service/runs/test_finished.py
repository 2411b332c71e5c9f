"""What a node has finished stays finished: closes and deletions, over starts of a real node.

The journal of these nodes is the real one. A dictionary in its place that forgets a close when
it is told to hid that the journal did not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from service.ingest.batch import IncomingBatch
from service.journal.recovery import recover
from service.node import Node
from service.tail import Watcher
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound, RunDeleted
from tests.service.client_model import downloaded
from tests.service.simulated_node import DATA, START_MS, Life
from tests.simulation.backing import open_store
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

RUN = RunKey("service.pipeline", "run-1")
JOURNAL = f"{DATA}/journal"


def live(scenario: Callable[[VirtualClock], Awaitable[None]]) -> None:
    """Plays it in leaping time."""

    async def go(clock: VirtualClock) -> None:
        await scenario(clock)

    simulate(go, start_ms=START_MS)


def sent(clock: VirtualClock, text: bytes, key: RunKey = RUN, ahead_ms: int = 0) -> IncomingBatch:
    """A batch with an id of now, or of later."""
    lines = text.count(b"\n")
    ulid = ulids.lowest_at(clock.now_ms() + ahead_ms) | 7 << ulids.LINE_BITS
    return IncomingBatch(key, text, lines, lines, ulid)


async def killed(fs: PowerCutFileSystem, life: Life) -> None:
    """As kill -9: nothing is brought to an end."""
    life.node.run_logs.closer.stop()
    for task in life.node._tasks:
        task.cancel()
    await asyncio.gather(*life.node._tasks, return_exceptions=True)
    fs.end_processes()


async def begun(life: Life) -> Node:
    """A node that has taken up what was left to it."""
    await life.node.start()
    await life.clock.sleep(3.0)
    return life.node


def still(watcher: Watcher) -> bool:
    """Whether the reader was told of no end."""
    return watcher.channel.ended is None


# --- closes -------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [True, False])
def test_a_finished_close_is_not_taken_up_again(stopped: bool) -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        life = Life(fs, clock)
        node = await begun(life)
        await node.append(sent(clock, b"one\n"))
        assert await node.close_run(RUN) == "closed"
        await clock.sleep(2.0)
        assert node.writer.journal.state.closes == {}
        await (node.stop() if stopped else killed(fs, life))
        for start in range(2):
            again = Life(fs, clock, seed=start + 1)
            node = await begun(again)
            assert node.run_logs.closer.closes == 0, "nothing was left to be closed"
            assert recover(fs, JOURNAL).state is not None
            await node.stop()
        state = recover(fs, JOURNAL).state
        assert state is not None
        assert state.closes == {}

    live(scenario)


def test_readers_of_a_run_that_goes_on_hear_of_no_end_after_a_restart() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        node = await begun(Life(fs, clock))
        await node.append(sent(clock, b"one\n"))
        assert await node.close_run(RUN) == "closed"
        await node.append(sent(clock, b"late\n"))
        await clock.sleep(6.0)
        await node.stop()

        again = Life(fs, clock, seed=1).node
        await again.start()
        watcher = again.tail.watch(RUN)
        await again.append(sent(clock, b"later\n"))
        await clock.sleep(5.0)
        assert still(watcher), "a close from before its last lines was taken up"
        assert await downloaded(again, RUN) == b"one\nlate\nlater\n"
        await again.stop()

    live(scenario)


def test_a_close_that_must_be_taken_up_ends_no_reader_of_later_lines() -> None:
    """Killed before the close was known to be finished: it is done again, behind later lines."""

    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        faults = dict.fromkeys(range(1, 100_000), Fault.UNAVAILABLE)
        store = FaultyStore(open_store(fs, clock, Random(1)), Schedule({}))
        life = Life(fs, clock, store=store)
        node = await begun(life)
        await node.append(sent(clock, b"one\n"))
        store.schedule = Schedule(faults)
        assert await node.close_run(RUN) == "closing"
        await node.append(sent(clock, b"later\n"))
        await clock.sleep(2.0)
        await killed(fs, life)

        again = Life(fs, clock, seed=1).node
        await again.start()
        watcher = again.tail.watch(RUN)
        await clock.sleep(5.0)
        assert again.run_logs.closer.closes == 1
        assert still(watcher)
        await clock.sleep(30.0)
        assert not still(watcher), "nobody wrote for reopened_seconds"
        assert await downloaded(again, RUN) == b"one\nlater\n"
        await again.stop()

    live(scenario)


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_that_is_begun_again_is_not_closed_by_a_close_from_before(finished: bool) -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        store = FaultyStore(open_store(fs, clock, Random(1)), Schedule({}))
        node = await begun(Life(fs, clock, store=store))
        await node.append(sent(clock, b"old\n"))
        if not finished:  # the segment with the line does not get away: the close waits for it
            faults = dict.fromkeys(range(1, 100_000), Fault.UNAVAILABLE)
            store.schedule = Schedule(faults, applies=lambda call: "segments/" in call)
        assert await node.close_run(RUN) == ("closed" if finished else "closing")
        await node.delete_run(RUN)
        await clock.sleep(0.1)
        store.schedule = Schedule({})
        await node.append(sent(clock, b"new\n"))
        await clock.sleep(20.0)
        manifest = (await node.run_logs.manifests.get(RUN)).manifest
        assert (manifest.state, manifest.closes) == ("open", {})
        await node.stop()

        again = await begun(Life(fs, clock, seed=1))
        watcher = again.tail.watch(RUN)
        await clock.sleep(60.0)
        manifest = (await again.run_logs.manifests.get(RUN)).manifest
        assert (manifest.state, manifest.closes) == ("open", {})
        assert still(watcher)
        assert await downloaded(again, RUN) == b"new\n"
        # Its own close closes it.
        assert await again.close_run(RUN) == "closed"
        assert not still(watcher)
        await again.stop()

    live(scenario)


# --- deletions ----------------------------------------------------------------------


def test_a_finished_deletion_is_not_done_again_and_brings_no_forgotten_record_back() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        node = await begun(Life(fs, clock))
        runs = [RunKey("p", str(number)) for number in range(5)]
        for key in runs:
            await node.append(sent(clock, b"x\n", key))
        await node.delete_run(runs[0])
        await node.delete_pipeline("p")
        await clock.sleep(2.0)
        assert node.writer.journal.state.tombstones == {}
        await node.stop()

        store = FaultyStore(open_store(fs, clock, Random(1)), Schedule({}))
        forgotten = [info.key async for info in store.list(keys.DELETED)]
        assert len(forgotten) >= 2
        await store.delete(forgotten)
        for start in range(2):
            store.calls.clear()
            node = await begun(Life(fs, clock, seed=start + 1, store=store))
            assert not [call for call in store.calls if call.startswith(f"put {keys.DELETED}")]
            assert [info async for info in store.list(keys.DELETED)] == []
            for key in runs:
                with pytest.raises(NotFound):
                    await downloaded(node, key)
            await node.stop()

    live(scenario)


def test_a_deletion_that_was_not_finished_is_finished_by_the_next_start() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        store = FaultyStore(open_store(fs, clock, Random(1)), Schedule({}))
        node = await begun(Life(fs, clock, store=store))
        await node.append(sent(clock, b"x\n"))
        await clock.sleep(6.0)
        faults = dict.fromkeys(range(1, 100), Fault.CRASH_BEFORE)
        store.schedule = Schedule(faults, applies=lambda call: keys.DELETED in call)
        with pytest.raises(BaseException, match=keys.DELETED):
            await node.delete_run(RUN)
        store.schedule = Schedule({})
        assert list(node.writer.journal.state.tombstones) == [tuple(RUN)]
        await node.stop()
        again = await begun(Life(fs, clock, seed=1, store=store))
        assert len([info async for info in store.list(keys.DELETED)]) == 1
        await clock.sleep(2.0)
        assert again.writer.journal.state.tombstones == {}
        assert again.writer.journal.state.deleted.all().keys() == {tuple(RUN)}
        await again.stop()

    live(scenario)


def test_what_is_deleted_is_refused_after_a_start_without_the_store() -> None:
    """Also an id above the clock: what the node mints then is above it, and stays."""

    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        node = await begun(Life(fs, clock))
        batch = sent(clock, b"x\n", ahead_ms=300_000)
        await node.append(batch)
        await node.delete_run(RUN)
        await clock.sleep(2.0)
        await node.stop()

        faults = dict.fromkeys(range(1, 100_000), Fault.UNAVAILABLE)
        store = FaultyStore(open_store(fs, clock, Random(1)), Schedule(faults))
        again = await begun(Life(fs, clock, seed=1, store=store))
        assert again.writer.journal.state.tombstones == {}
        with pytest.raises(RunDeleted):
            await again.append(batch)
        plain = IncomingBatch(RUN, b"anew\n", 1, 1)
        receipt = await again.append(plain)
        assert batch.ulid is not None
        assert receipt.ulid > batch.ulid
        faults.clear()
        await clock.sleep(10.0)
        assert await downloaded(again, RUN) == b"anew\n"
        await again.stop()

    live(scenario)
