"""What each mode of durability promises, held against just what it survives, and what it does not.

| mode | survives | may be lost with |
| --- | --- | --- |
| `fast` | kill -9 | the power |
| `durable` | a power cut, which takes what no sync has written | the disk |
| `bulk` | the destruction of the node's disk | the store |

Two nodes on one store, in leaping time; the node that took the batch is harmed at the moment at
which it has answered. Then both read the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from service.ingest.batch import Durability
from tests.seeds import seeds
from tests.service.client_model import batches_in, exists
from tests.service.cluster import LEASE, RUN, Cluster, read_whole
from tests.service.peers.worlds import cluster
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock

Harm: TypeAlias = Callable[[Cluster], None]


def killed(_: Cluster) -> None:
    """kill -9, with which each stretch of a cluster's time ends: the page cache stays."""


def without_power(world: Cluster) -> None:
    world.fs = world.fs.reboot(world.seed)


def without_disk(world: Cluster) -> None:
    destroy(world.fs, "/a")


def destroy(fs: PowerCutFileSystem, folder: str) -> None:
    """All files of a node: its journal and its name."""
    for name, is_folder in list(fs.scan(folder)):
        path = f"{folder}/{name}"
        if is_folder:
            destroy(fs, path)
        else:
            fs.unlink(path)
    fs.remove_folder(folder)


def kept(seed: int, mode: Durability, harm: Harm, *, lazy: bool = True) -> bool:
    """Whether the batch is there afterwards; if so, it is at both nodes, in every way to read."""
    world, _ = cluster(seed, lazy=lazy)
    found: list[bool] = []

    async def before(clock: VirtualClock) -> None:
        node = await world.start(clock, "a")
        await world.start(clock, "b")
        await clock.sleep(1.0)
        sent = await world.clients.send(node, clock, RUN, durability=mode)
        assert sent.receipt is not None

    async def after(clock: VirtualClock) -> None:
        nodes = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(LEASE + 30)
        for node in nodes:
            there = await exists(node, RUN) and batches_in(await read_whole(node, RUN)) == [0]
            found.append(there)

    world.play(before)
    harm(world)
    world.play(after)
    assert found in ([True, True], [False, False]), "a line is at all nodes or at none"
    return found[0]


SURVIVES: list[tuple[Durability, Harm]] = [
    ("fast", killed),
    ("durable", killed),
    ("durable", without_power),
    ("bulk", killed),
    ("bulk", without_power),
    ("bulk", without_disk),
]


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize(("mode", "harm"), SURVIVES)
def test_a_mode_survives_what_it_promises(mode: Durability, harm: Harm, seed: int) -> None:
    assert kept(seed, mode, harm)


@pytest.mark.parametrize(
    ("mode", "harm"), [("fast", without_power), ("fast", without_disk), ("durable", without_disk)]
)
def test_what_no_mode_promises_is_really_destroyed(mode: Durability, harm: Harm) -> None:
    """Or these tests would show nothing of the modes that survive it."""
    assert not all(kept(seed, mode, harm) for seed in range(5))


@pytest.mark.parametrize("seed", seeds(2))
def test_what_was_flushed_survives_the_disk_whatever_its_mode(seed: int) -> None:
    """A batch sent as `bulk` takes along all that its node took before it."""
    world, _ = cluster(seed)

    async def before(clock: VirtualClock) -> None:
        node = await world.start(clock, "a")
        await world.start(clock, "b")
        await clock.sleep(1.0)
        modes: tuple[Durability, ...] = ("fast", "durable")
        for _ in range(8):
            await world.clients.send(node, clock, RUN, durability=world.dice.choice(modes))
        await world.clients.send(node, clock, RUN, durability="bulk")

    async def after(clock: VirtualClock) -> None:
        nodes = [await world.start(clock, name) for name in "ba"]
        await clock.sleep(LEASE + 30)
        for node in nodes:
            world.clients.check(RUN, await read_whole(node, RUN), where="log")
            assert batches_in(await read_whole(node, RUN)) == list(range(9))

    world.play(before)
    without_disk(world)
    world.play(after)
