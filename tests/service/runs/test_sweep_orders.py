"""What happens to a run just between two steps of its sweeper."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from service.settings import Tuning
from tailrace.coordination.named_leases import sweep_lease
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tests.service.runs.interrupted import Interrupted
from tests.service.runs.world import FakeJournal, World

pytestmark = pytest.mark.usefixtures("every_store")

RUN = RunKey("service.pipeline", "run")
DAY = 86_400
LOOK = f"list {keys.active_nodes(keys.PREFIX, RUN)}"
INTENT = f"put {keys.run_manifest(RUN)}"


async def abandoned() -> tuple[World, World, Interrupted]:
    """A node that sweeps a run of a day ago, and another one that takes lines of it."""
    world = World()
    await world.run_logs.start()
    world.append(RUN, b"one\n")
    await world.confirm()
    await world.run_logs.drain()
    world.clock.pass_seconds(DAY + 1)
    store = Interrupted(world.disk_store)
    await world.restart(store)
    other = World(store=world.disk_store, journal=FakeJournal(node="node-B"), seed=2)
    other.clock.ms = world.clock.ms
    await other.run_logs.start()
    return world, other, store


def flush_of(other: World) -> Callable[[], Awaitable[None]]:
    async def flush() -> None:
        other.append(RUN, b"two\n")
        await other.confirm()
        await other.run_logs.drain()

    return flush


@pytest.mark.parametrize("at", [LOOK, INTENT])
async def test_lines_that_are_flushed_while_it_looks_keep_the_run_open(at: str) -> None:
    """Its client lives: to readers the run is not over."""
    world, other, store = await abandoned()
    store.before(at, flush_of(other))
    await world.run_logs.sweeper.sweep()
    assert store.done
    assert world.ended == []
    assert world.run_logs.sweeper.finalised == 0
    assert (await world.run_logs.reader.size(RUN)).state == "open"
    assert await world.whole(RUN) == b"one\ntwo\n"


async def test_lines_that_move_from_a_segment_to_a_chunk_while_it_looks_are_seen() -> None:
    world, other, store = await abandoned()
    other.append(RUN, b"two\n")
    await other.confirm()

    async def flush() -> None:
        await other.run_logs.drain()

    store.before(f"get {keys.run_manifest(RUN)}", flush, skip=1)
    await world.run_logs.sweeper.sweep()
    assert store.done
    assert (await world.run_logs.reader.size(RUN)).state == "open"
    assert await world.whole(RUN) == b"one\ntwo\n"


async def test_one_that_was_held_up_past_its_lease_leaves_the_run_to_its_successor() -> None:
    world, other, store = await abandoned()

    async def held_up() -> None:
        world.clock.pass_seconds(3600)
        other.clock.ms = world.clock.ms
        assert await other.run_logs.leases.acquire(sweep_lease(RUN)) is not None

    store.before(LOOK, held_up)
    await world.run_logs.sweeper.sweep()
    assert store.done
    assert world.run_logs.sweeper.finalised == 0
    assert (await world.run_logs.reader.size(RUN)).state == "open"


async def test_a_chunk_that_no_manifest_names_yet_stays() -> None:
    """It was written a moment ago, by a flush that is about to name it."""
    world, other, _ = await abandoned()
    # The store's clock is another one than ours here: nothing in it is so old.
    world.tuning = Tuning(orphan_seconds=1e10)
    await world.restart()
    store = Interrupted(world.disk_store)
    await other.restart(store)

    async def sweep() -> None:
        await world.run_logs.sweeper.sweep()

    other.append(RUN, b"two\n")
    await other.confirm()
    store.before(INTENT, sweep)
    await other.run_logs.drain()
    assert store.done
    assert await world.whole(RUN) == b"one\ntwo\n"
    assert world.run_logs.sweeper.orphans == 0
    assert world.run_logs.chunk_repairer.vanished == other.run_logs.chunk_repairer.vanished == 0
