"""A scenario of everything that a node does, and how it ends well whatever came between.

`first_life` is run while things go wrong. `last_life` comes after: clients send again
what was not acknowledged, everything is closed, and every way to read is held against what
clients were told. `sweeping_life` comes two days later, `check_end` looks at the store.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from service.ingest.batch import Durability
from service.node import Node
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import RunDeleted
from tests.service.client_model import Clients, downloaded, exists, paged
from tests.service.simulated_node import START_MS, Life
from tests.service.store_checks import (
    check_chunks,
    check_leftovers,
    check_marks,
    check_numbers,
    check_shipped,
    view_of,
)
from tests.simulation.backing import copy_of, open_store
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

HOUR_MS = 3_600_000
DAY_MS = 86_400_000

NAMED = RunKey("service.pipeline", "named")
MIXED = RunKey("service.pipeline", "mixed")
BULK = RunKey("service.other", "bulk")
DELETED = RunKey("service.other", "deleted")
HOT = RunKey("service.other", "hot")


async def first_life(life: Life, clients: Clients) -> None:
    """Everything that a node does, four clients at a time, up to its graceful stop."""
    node, clock = life.node, life.clock
    await node.start()
    await clients.go_on(node)

    async def named() -> None:
        for count in range(7):
            sent = await clients.send(node, clock, NAMED)
            if count == 3:
                await clients.repeat(node, sent)
            await clock.sleep(0.9)
        await clients.close(node, NAMED)
        await clients.send(node, clock, NAMED)

    async def mixed() -> None:
        for count in range(8):
            durability: Durability = "fast" if count % 3 == 0 else "durable"
            await clients.send(node, clock, MIXED, durability=durability, named=count % 2 == 0)
            await clock.sleep(0.7)

    async def bulk() -> None:
        for _ in range(2):
            await clients.send(node, clock, BULK, durability="bulk")
            await clock.sleep(2.5)

    async def deleted() -> None:
        for _ in range(3):
            await clients.send(node, clock, DELETED)
            await clock.sleep(2.0)
        await clients.delete(node, DELETED)
        await clients.send(node, clock, DELETED)

    await asyncio.gather(named(), mixed(), bulk(), deleted())
    await clock.sleep(8.0)
    await clients.send(node, clock, HOT, named=False)
    await clients.send(node, clock, HOT)
    await node.stop()


async def last_life(life: Life, clients: Clients, *, forks: bool = False) -> None:
    """Readers find all that was promised; clients go on; all is closed, stopped, swept."""
    node, clock = life.node, life.clock
    await node.start()
    assert not node.writer.recovered.found
    await check_reads(node, clients)
    await clients.go_on(node)
    await send_all_again(node, clients)
    for key in (NAMED, MIXED, HOT):
        await clients.send(node, clock, key)
    await check_reads(node, clients)
    await clock.sleep(5.0)
    await check_reads(node, clients)
    for key in clients.runs():
        assert await node.close_run(key) == "closed"
    await check_reads(node, clients)
    assert forks or node.forks == 0
    assert node.problems() == []
    await node.stop()
    assert not node.failed.done()


async def sweeping_life(life: Life, clients: Clients) -> None:
    """Two days later."""
    await life.node.start()
    await life.clock.sleep(10.0)
    await check_reads(life.node, clients)
    await life.node.stop()


async def send_all_again(node: Node, clients: Clients) -> None:
    """What was acknowledged is acknowledged again; what was deleted stays deleted."""
    for sent in [sent for sent in clients.sent if sent.ulid is not None]:
        if clients.gone(sent):
            with pytest.raises(RunDeleted):
                await clients.repeat(node, sent)
        elif sent.promised:
            await clients.repeat(node, sent)
            assert sent.receipt is not None
            assert sent.receipt.duplicate


async def check_reads(node: Node, clients: Clients) -> None:
    """Pages and downloads say the same, and keep every promise."""
    for key in clients.runs():
        if not await exists(node, key):
            assert key in clients.deleting or not list(clients.owed(key)), f"{key.run} is gone"
            continue
        text = await downloaded(node, key)
        if key not in clients.deleting:
            clients.check(key, text, where="download")
        assert await paged(node, key, 8) == text


async def check_store(fs: PowerCutFileSystem, clock: VirtualClock, clients: Clients) -> None:
    """What any program finds in the store, whatever the node was doing."""
    view = await view_of(open_store(fs, clock, Random(0)))
    check_numbers(view)
    check_marks(view, clients)
    check_chunks(view, clients)


async def check_end(
    fs: PowerCutFileSystem, clock: VirtualClock, clients: Clients, *, forks: bool
) -> None:
    """After everything was closed, stopped and swept."""
    store = open_store(fs, clock, Random(0))
    view = await view_of(store)
    check_numbers(view)
    check_marks(view, clients)
    check_chunks(view, clients)
    check_shipped(view, clients, once=not forks)
    for key in clients.runs():
        if list(clients.owed(key)):
            clients.check(key, view.texts[key], where="logs.txt")
            assert view.manifests[key].state == "closed"
            assert view.manifests[key].sealed
    await check_leftovers(store, fs)


def end_well(fs: PowerCutFileSystem, clients: Clients, seed: int, *, forks: bool = False) -> None:
    """Checks the store, then runs the last lives and checks again."""

    async def go(clock: VirtualClock) -> None:
        await check_store(copy_of(fs), clock, clients)
        await last_life(Life(fs, clock, seed=seed + 1000), clients, forks=forks)

    async def sweep(clock: VirtualClock) -> None:
        await sweeping_life(Life(fs, clock, seed=seed + 2000), clients)
        await check_end(fs, clock, clients, forks=forks)

    simulate(go, start_ms=START_MS + HOUR_MS)
    fs.at_cut_point = None
    simulate(sweep, start_ms=START_MS + 3 * DAY_MS)
