"""A batch that asks the store about its run as the node forks: told to try again, stored once."""

from __future__ import annotations

import asyncio
from random import Random

from service.http.errors import problem
from service.ingest.batch import AppendReceipt, IncomingBatch
from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NodeNotReady
from tests.service.client_model import downloaded
from tests.service.shipping.test_readers_in_a_fork import take_next_number, until_forked
from tests.service.simulated_node import START_MS, Life
from tests.simulation.backing import open_store
from tests.simulation.hanging_store import HangingStore
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

ASKED = RunKey("service.pipeline", "asked")
OTHER = RunKey("service.pipeline", "other")


def sent_after(tenths: int) -> AppendReceipt | BaseException:
    """What the batch is told that was sent so long after the line which shows the fork.

    Whatever that is, its retry is answered, and it is stored once.
    """
    told: list[AppendReceipt | BaseException] = []

    async def go(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        store = HangingStore(open_store(fs, clock, Random(1)), lambda call: ASKED.run in call)
        node = Life(fs, clock, seed=1, store=store).node
        await node.start()
        await clock.sleep(10.0)  # it has looked
        await take_next_number(node)
        await node.append(IncomingBatch(OTHER, b"other\n", 1, 1))
        await clock.sleep(tenths / 10)
        assert node.forks == 0
        batch = IncomingBatch(ASKED, b"asked\n", 1, 1, ulid.lowest_at(clock.now_ms()) | 1 << 25)
        store.gate.clear()
        sent = asyncio.create_task(node.append(batch))
        while node.forks == 0:
            await clock.sleep(0.01)
        store.gate.set()
        told.extend(await asyncio.gather(sent, return_exceptions=True))
        await until_forked(node, clock, 1)
        again = await node.append(batch)
        assert again.duplicate is isinstance(told[0], AppendReceipt)
        assert (await node.append(batch)).duplicate
        await clock.sleep(10.0)
        assert await downloaded(node, ASKED) == b"asked\n"
        await node.stop()

    simulate(go, start_ms=START_MS)
    return told[0]


def test_it_is_told_to_try_again_and_its_retry_is_exact() -> None:
    told = [sent_after(tenths) for tenths in range(0, 20, 4)]
    refused = [error for error in told if isinstance(error, BaseException)]
    assert refused, "none was in its look-up then"
    for error in refused:
        assert isinstance(error, NodeNotReady)
        answer = problem(error, "id")
        assert answer.status == 503
        assert b"retry-after" in dict(answer.headers)
