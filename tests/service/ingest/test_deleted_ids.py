"""A deletion reaches every line that was taken before it, wherever that stands.

Ids may be ahead of the node's clock, by `ingest.max_future_seconds` at most: then it is not
the time of the deletion that tells, but what journal and memory know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from service.ingest.batch import Durability, IncomingBatch
from service.node import Node
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import RunDeleted
from tests.service.client_model import downloaded
from tests.service.simulated_node import SMALL, START_MS, Life
from tests.settings import settings_with
from tests.simulation.backing import open_store
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.turns import turns
from tests.simulation.virtual_time import VirtualClock, simulate

RUN = RunKey("service.pipeline", "run-1")
FEW = settings_with(SMALL, runs={"max_concurrent_streams": 2})
AHEAD_MS = 300_000


class RestlessClock(VirtualClock):
    """Whoever reads it twice sees two times, as with a real one at the end of a millisecond."""

    reads = 0

    def now_ms(self) -> int:
        self.reads += 1
        return super().now_ms() + self.reads


def ahead(clock: VirtualClock, durability: Durability = "durable") -> IncomingBatch:
    """Three lines with an id of five minutes later."""
    ulid = ulids.lowest_at(clock.now_ms() + AHEAD_MS) | 7 << ulids.LINE_BITS
    return IncomingBatch(RUN, b"1\n2\n3\n", 3, 3, ulid, durability=durability)


async def delete(node: Node, what: str) -> None:
    """The run, or its pipeline."""
    if what == "run":
        await node.delete_run(RUN)
    else:
        await node.delete_pipeline(RUN.fqn)


async def check_gone(node: Node, clock: VirtualClock, batch: IncomingBatch) -> None:
    """Nothing of the batch is there, now or later; the run begins anew above its last line."""
    assert batch.ulid is not None
    last = batch.ulid + batch.records - 1
    assert node.run_logs.deletions.horizon(RUN) >= last
    receipt = await node.append(IncomingBatch(RUN, b"new\n", 1, 1))
    assert receipt.ulid > last
    with pytest.raises(RunDeleted):
        await node.append(batch)
    assert await downloaded(node, RUN) == b"new\n"
    await clock.sleep(10.0)
    assert await downloaded(node, RUN) == b"new\n"
    assert (await node.run_logs.manifests.get(RUN)).manifest.lines == 1


def live(scenario: Callable[[VirtualClock], Awaitable[None]]) -> None:
    """Plays it in leaping time."""

    async def go(clock: VirtualClock) -> None:
        await scenario(clock)

    simulate(go, start_ms=START_MS)


@pytest.mark.parametrize("what", ["run", "pipeline"])
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("durability", ["fast", "durable"])
def test_it_reaches_what_is_not_synced_yet_also_of_a_run_that_memory_forgot(
    durability: Durability, crowded: bool, what: str
) -> None:
    async def scenario(clock: VirtualClock) -> None:
        node = Life(PowerCutFileSystem(), clock, settings=FEW).node
        await node.start()
        batch = ahead(clock, durability)
        assert not (await node.append(batch)).duplicate
        for number in range(3 * crowded):
            other = IncomingBatch(RunKey("other", str(number)), b"x\n", 1, 1, durability=durability)
            await node.append(other)
        assert (node.writer.appender.active.peek(RUN) is None) == crowded
        assert (node.writer.journal.synced_pos == 0) == (durability == "fast")
        await delete(node, what)
        await check_gone(node, clock, batch)
        await node.stop()

    live(scenario)


@pytest.mark.parametrize("what", ["run", "pipeline"])
def test_it_reaches_what_only_the_journal_of_an_earlier_start_holds(what: str) -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        store = FaultyStore(open_store(fs, clock, Random(1)), Schedule({}))
        faults = dict.fromkeys(range(1, 100_000), Fault.UNAVAILABLE)
        store.schedule = Schedule(faults, applies=lambda call: call.startswith("put segments/"))
        node = Life(fs, clock, store=store).node
        await node.start()
        batch = ahead(clock)
        await node.append(batch)
        await node.stop()

        again = Life(fs, clock, seed=1, store=store).node
        await again.start()
        await clock.sleep(1.0)
        assert again.writer.journal.state.confirmed.end == 0, "no segment got away"
        assert again.writer.appender.active.peek(RUN) is None
        await delete(again, what)
        faults.clear()
        await check_gone(again, clock, batch)
        await again.stop()

    live(scenario)


def test_lines_that_come_while_it_is_recorded_go_with_it_or_stay_whole() -> None:
    async def scenario(clock: VirtualClock) -> None:
        node = Life(PowerCutFileSystem(), clock, settings=FEW).node
        await node.start()
        batches = [replace_id(ahead(clock), number) for number in range(20)]

        async def one(number: int) -> None:
            await turns(5 * number)
            try:
                await node.append(batches[number])
            except RunDeleted:
                assert node.run_logs.deletions.horizon(RUN) >= (batches[number].ulid or 0)

        async def deletion() -> None:
            await turns(25)
            await node.delete_run(RUN)

        await node.append(ahead(clock))
        await asyncio.gather(deletion(), *[one(number) for number in range(20)])
        await clock.sleep(10.0)
        horizon = node.run_logs.deletions.horizon(RUN)
        left = [b for b in batches if b.ulid is not None and b.ulid > horizon]
        assert 0 < len(left) < len(batches), "some came before it, some behind"
        assert await downloaded(node, RUN) == b"".join(batch.text for batch in left)
        await node.stop()

    live(scenario)


def replace_id(batch: IncomingBatch, number: int) -> IncomingBatch:
    """Another batch, with the id of a later millisecond."""
    assert batch.ulid is not None
    ulid = batch.ulid + ((number + 1) << ulids.RANDOM_BITS)
    return IncomingBatch(batch.key, b"%d\n" % number * 3, 3, 3, ulid)


def test_the_id_that_a_refusal_gives_is_taken_whenever_it_comes() -> None:
    async def scenario(clock: VirtualClock) -> None:
        restless = RestlessClock(clock._loop, clock.start_ms)
        node = Life(PowerCutFileSystem(), restless).node
        await node.start()
        far = ulids.lowest_at(restless.now_ms() + 2 * FEW.ingest.max_future_seconds * 1000)
        node.run_logs.deletions.note(*RUN, far)
        early = ulids.lowest_at(restless.now_ms()) | 7 << ulids.LINE_BITS
        with pytest.raises(RunDeleted) as refused:
            await node.append(IncomingBatch(RUN, b"new\n", 1, 1, early))
        again = IncomingBatch(RUN, b"new\n", 1, 1, refused.value.next_batch)
        assert (await node.append(again)).ulid == refused.value.next_batch
        assert await downloaded(node, RUN) == b"new\n"
        await node.stop()

    live(scenario)
