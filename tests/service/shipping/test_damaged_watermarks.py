"""A damaged watermark does not end the node, and costs no line: it is taken again."""

from __future__ import annotations

from random import Random

import orjson
import pytest

from tailrace.logstore import keys
from tailrace.logstore.errors import Damaged
from tailrace.logstore.runs.report import decode_watermark, read_watermark
from tests.service.shipping.copies import COMMON, MINE, YOURS, Copies
from tests.service.simulated_node import DATA
from tests.simulation.backing import open_store
from tests.simulation.virtual_time import VirtualClock

DAMAGE = [b"", b"{", b"null", b'{"seq":1}', b'{"seq":"9","pos":1,"low":1,"version":""}']


@pytest.mark.parametrize("body", [*DAMAGE, b'{"seq":-1,"pos":0,"low":0,"version":""}'])
def test_what_is_no_mark_is_damaged(body: bytes) -> None:
    with pytest.raises(Damaged):
        decode_watermark(body)


def test_a_mark_of_today_reads() -> None:
    mark = decode_watermark(orjson.dumps({"seq": 3, "pos": 9, "low": 2, "version": "v"}))
    assert (mark.seq, mark.pos, mark.low) == (3, 9, 2)


async def damage(copies: Copies, clock: VirtualClock, node: str, body: bytes) -> None:
    await copies.store(clock).put(keys.watermark(node), body)


@pytest.mark.usefixtures("every_store")
@pytest.mark.parametrize("consumed", [False, True])
def test_a_node_starts_with_a_damaged_mark(consumed: bool) -> None:
    """Segments are there, or all are consumed and removed; some lines are in no chunk yet."""
    copies = Copies(5)
    copies.before()

    async def go(clock: VirtualClock) -> None:
        node = await copies.live(clock, DATA, MINE, 3)
        name = node.identity.node
        was = await read_watermark(copies.store(clock), name)
        if consumed:
            await copies.consume(clock, name)
        await damage(copies, clock, name, DAMAGE[1])
        node = copies.life(clock).node
        await node.start()
        await copies.clients.send(node, clock, YOURS, durability="bulk")
        await clock.sleep(10.0)
        assert any("watermark" in problem for problem in node.problems())
        assert not node.failed.done()
        assert node.forks == 0
        mark = await read_watermark(copies.store(clock), name)
        assert mark.seq > was.seq
        assert mark.low == (was.seq + 1 if consumed else 1)
        await node.stop()
        await copies.check_taken(clock)

    copies.play(go)
    copies.end_well(kept=not consumed)


@pytest.mark.parametrize("body", DAMAGE)
def test_a_node_that_runs_goes_on(body: bytes) -> None:
    copies = Copies(6)
    copies.before()

    async def go(clock: VirtualClock) -> None:
        node = copies.life(clock).node
        await node.start()
        await copies.write(node, clock, MINE, 3)
        await damage(copies, clock, node.identity.node, body)
        await copies.write(node, clock, YOURS, 3)
        await clock.sleep(30.0)
        assert not node.failed.done()
        assert node.forks == 0
        mark = await read_watermark(copies.store(clock), node.identity.node)
        assert mark.seq == node.writer.journal.state.confirmed.seq
        await node.stop()

    copies.play(go)
    copies.end_well()


def test_what_was_in_no_chunk_comes_there_though_the_mark_was_damaged() -> None:
    """The mark says no more than what the segments that are there leave open."""
    copies = Copies(7)

    async def shipped(clock: VirtualClock) -> None:
        node = copies.life(clock).node
        await node.start()
        await copies.clients.send(node, clock, COMMON, durability="bulk")
        # Killed before a flush: the line is in a segment, and in no chunk.

    async def again(clock: VirtualClock) -> None:
        store = open_store(copies.fs, clock, Random(1))
        (node,) = [name async for name in store.folders(keys.SEGMENTS)]
        await store.put(keys.watermark(node), b"?")
        await copies.live(clock, DATA, COMMON, 1)
        assert (await read_watermark(store, node)).seq >= 1

    copies.play(shipped)
    copies.play(again)
    copies.end_well()
