"""Where something ends, a close, a deletion, a flush: what is before it, and what comes behind."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.runs.manifest import Manifest, decode_manifest
from tests.service.runs.world import NODE, World

RUN = RunKey("service.pipeline", "run-1")
OTHER = RunKey("service.pipeline", "run-2")


async def begun() -> World:
    world = World()
    await world.run_logs.start()
    return world


async def stored(world: World, key: RunKey = RUN) -> Manifest:
    return decode_manifest((await world.disk_store.get(keys.run_manifest(key)))[1])


async def confirmed(world: World, key: RunKey, *texts: bytes) -> None:
    """Each in a segment of its own."""
    for text in texts:
        world.append(key, text)
        await world.confirm()


# --- a close -----------------------------------------------------------------------


async def sealed(world: World, end: int) -> Manifest:
    """After a close that says of this node's lines that those below `end` came before it."""
    async with world.run_logs.locks.of(RUN):
        return await world.run_logs.closer._sealer.seal(RUN, lambda _: {NODE: end})


class NothingConfirmed(World):
    """No segment comes into the store: the node stops, or goes on under another name."""

    async def _confirmed_through(self, pos: int) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("asker", ["", "node-B"])
async def test_a_close_that_meets_a_stop_is_answered_once_it_is_recorded(asker: str) -> None:
    """Nothing here would finish it, so its client does not wait for `close_wait_seconds`."""
    world = NothingConfirmed()
    await world.run_logs.start()
    world.append(RUN, b"one\n")
    await world.confirm()
    await world.run_logs.stop()
    closer = world.run_logs.closer
    async with asyncio.timeout(60):
        closing = closer.close_here(RUN, asker) if asker else closer.close(RUN)
        assert await closing == "closing"
    assert world.journal.closes == {RUN: world.journal.end}


async def test_a_close_that_nobody_wants_any_more_leaves_the_run_as_it_was() -> None:
    """Its turn came after that of a deletion, and of what began the run anew."""
    world = await begun()
    await confirmed(world, RUN, b"one\n")
    await world.run_logs.flusher.flush(RUN)
    before = await stored(world)
    assert await world.run_logs.closer.finish(RUN, world.journal.end, lambda: False) is None
    assert await stored(world) == before
    assert before.state == "open"


async def test_what_a_close_knows_of_leaves_the_run_closed_and_what_it_does_not_opens_it() -> None:
    """The close said that it was before it, also where it was flushed behind it."""
    world = await begun()
    await confirmed(world, RUN, b"one\n")
    await world.run_logs.flusher.flush(RUN)
    assert (await sealed(world, 2)).state == "closed"
    await confirmed(world, RUN, b"two\n")
    await world.run_logs.flusher.flush(RUN)
    assert (await stored(world)).state == "closed"
    await confirmed(world, RUN, b"three\n")
    await world.run_logs.flusher.flush(RUN)
    assert (await stored(world)).state == "open"
    assert await world.whole(RUN) == b"one\ntwo\nthree\n"


async def test_a_sealed_beginning_is_no_closed_run() -> None:
    world = await begun()
    await confirmed(world, RUN, b"one\n")
    await world.run_logs.flusher.flush(RUN)
    await confirmed(world, RUN, b"two\n")
    await world.run_logs.flusher.flush(RUN)
    for end, state in ((1, "open"), (2, "closed")):
        manifest = await sealed(world, end)
        assert manifest.logs is not None
        assert (manifest.logs.lines, manifest.state) == (end, state)
    assert await world.whole(RUN) == b"one\ntwo\n"


# --- a flush -----------------------------------------------------------------------


@pytest.mark.parametrize("released", [False, True])
async def test_lines_behind_the_limit_of_a_flush_still_wait(released: bool) -> None:
    """In the journal, or in segments only."""
    world = await begun()
    await confirmed(world, RUN, b"one\n", b"two\n")
    if released:
        world.journal.first = world.journal.end
        await world.restart()
    flusher = world.run_logs.flusher
    await flusher.flush(RUN, end=1)
    assert (await stored(world)).lines == 1
    assert flusher.pending.get(RUN) is not None
    assert world.run_logs.flushed_pos == 1
    assert await world.whole(RUN) == b"one\ntwo\n"
    await flusher.drain()
    assert (await stored(world)).lines == 2
    assert await world.whole(RUN) == b"one\ntwo\n"


async def test_a_run_without_lines_behind_the_limit_waits_no_more() -> None:
    world = await begun()
    await confirmed(world, RUN, b"one\n")
    await confirmed(world, OTHER, b"other\n")
    await world.run_logs.flusher.flush(RUN, end=1)
    assert world.run_logs.flusher.pending.waiting() == [OTHER]


async def test_lines_that_only_segments_have_are_read_from_them() -> None:
    world = await begun()
    await confirmed(world, RUN, b"one\n", b"two\n")
    world.journal.first = world.journal.end
    await world.restart()
    assert await world.whole(RUN) == b"one\ntwo\n"


async def test_lines_of_a_parent_are_read_from_its_segments() -> None:
    world = await begun()
    await confirmed(world, RUN, b"one\n")
    child = World(store=world.disk_store, parents=[NODE])
    child.journal.node = "child"
    await child.restart()
    assert await child.whole(RUN) == b"one\n"


# --- a deletion --------------------------------------------------------------------


async def test_a_batch_older_than_a_deletion_goes_with_it_though_it_came_later() -> None:
    world = await begun()
    world.append(RUN, b"one\n")
    world.clock.pass_seconds(60)
    late = ulids.lowest_at(world.clock.ms - 30_000)
    await world.run_logs.delete_run(RUN)
    assert world.run_logs.deletions.horizon(RUN) >= ulids.lowest_at(world.clock.ms)
    await confirmed(world, OTHER, b"other\n")
    world.append(RUN, b"late\n", late)
    await world.confirm()
    await world.run_logs.flusher.drain()
    assert (await stored(world)).state == "deleted"
    assert await world.whole(OTHER) == b"other\n"


@pytest.mark.parametrize("known", ["the journal", "memory"])
async def test_lines_ahead_of_the_clock_are_deleted(known: str) -> None:
    """After a start only the journal knows them, before they are synced only memory."""
    world = await begun()
    ahead = ulids.lowest_at(world.clock.ms + 300_000)
    world.append(RUN, b"one\ntwo\n", ahead)
    if known == "memory":
        world.journal.entries.clear()
    else:
        world.last.clear()
    await world.run_logs.delete_run(RUN)
    assert world.run_logs.deletions.horizon(RUN) >= ahead + 1
