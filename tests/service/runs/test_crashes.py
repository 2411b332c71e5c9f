"""Killed between every two calls to the store: started again, every line is there once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from service.run_log.chunks import Moved
from service.settings import Tuning
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound
from tests.seeds import some
from tests.service.runs.world import World
from tests.simulation.backing import on_disk
from tests.simulation.faulty_store import AT_EACH_STEP, Crash, Fault, FaultyStore, Schedule

RUN = RunKey("service.pipeline", "run")
TUNING = Tuning(merge_above=3, merge_width=2, chunk_bytes=64, partial_seconds=0.0)
Act = Callable[[World], Awaitable[None]]


def lines(first: int, count: int) -> bytes:
    return b"".join(b"line %04d\n" % number for number in range(first, first + count))


async def flush(world: World) -> None:
    await world.run_logs.flusher.drain()


async def close(world: World) -> None:
    pos = await world.record_close(RUN)
    world.run_logs.flusher.hold_at(RUN, pos)
    await world.run_logs.closer.finish(RUN, pos)


async def delete(world: World) -> None:
    await world.run_logs.delete_run(RUN)


async def prepared(*, chunks: int, closed: bool, late: bool, kind: type[World] = World) -> World:
    world = kind(tuning=TUNING)
    await world.run_logs.start()
    for number in range(chunks):
        world.append(RUN, lines(number * 2, 2))
        await world.confirm(upload=True)
        await world.run_logs.flusher.drain()
    if closed:
        assert await world.run_logs.close_run(RUN) == "closed"
    if late:
        for number in range(chunks, chunks + 3):
            world.append(RUN, lines(number * 2, 2))
        await world.confirm(upload=True)
    return world


async def check(world: World, expected: bytes) -> None:
    assert await world.whole(RUN) == expected
    assert await world.paged(RUN, 3) == expected
    assert await world.caught_up(RUN) == expected


async def killed_everywhere(
    prepare: Callable[[], Awaitable[World]],
    act: Act,
    fault: Fault,
    verify: Callable[[World], Awaitable[None]],
) -> None:
    name = f"{act.__name__} {fault}"
    for step in some(range(1, 400), 3 if on_disk() else 13, name):
        world = await prepare()
        schedule = Schedule({step: fault})
        await world.restart(FaultyStore(world.disk_store, Schedule.none()))
        world.store.schedule = schedule  # type: ignore[attr-defined]
        died = False
        try:
            await act(world)
        except (Crash, Exception):  # noqa: BLE001 -- the process is gone either way
            died = True
        await world.run_logs.stop()
        if not schedule.fired:
            assert not died
            return
        await world.restart()
        await verify(world)
    pytest.fail("it never got through")


@pytest.mark.parametrize("fault", AT_EACH_STEP)
@pytest.mark.parametrize("chunks", [0, 3])
async def test_flush(fault: Fault, chunks: int) -> None:
    async def verify(world: World) -> None:
        expected = lines(0, 2 * chunks + 6)
        await check(world, expected)
        await flush(world)
        await check(world, expected)
        world.journal.first = world.run_logs.flushed_pos
        assert world.run_logs.flushed_pos == world.journal.confirmed
        await check(world, expected)

    await killed_everywhere(
        lambda: prepared(chunks=chunks, closed=False, late=True), flush, fault, verify
    )


@pytest.mark.parametrize("fault", AT_EACH_STEP)
@pytest.mark.parametrize("closed", [False, True])
async def test_close(fault: Fault, closed: bool) -> None:
    async def verify(world: World) -> None:
        expected = lines(0, 10)
        await check(world, expected)
        assert await world.run_logs.close_run(RUN) == "closed"
        await check(world, expected)
        assert (await world.run_logs.reader.size(RUN)).state == "closed"
        world.journal.first = world.journal.end
        await check(world, expected)

    await killed_everywhere(
        lambda: prepared(chunks=2, closed=closed, late=True), close, fault, verify
    )


@pytest.mark.parametrize("fault", AT_EACH_STEP)
async def test_delete(fault: Fault) -> None:
    async def verify(world: World) -> None:
        if world.journal.tombstones:
            await world.run_logs.deleter.finish_all()
        else:
            await world.run_logs.delete_run(RUN)
        with pytest.raises(NotFound):
            await world.run_logs.reader.page(RUN, after=None, limit=5)
        await flush(world)
        assert await world.listed(RUN.fqn, 5) == []
        new = world.mint_above(world.run_logs.deletions.horizon(RUN))
        world.append(RUN, b"new\n", ulid=new)
        await check(world, b"new\n")
        await world.confirm()
        await flush(world)
        await check(world, b"new\n")

    await killed_everywhere(
        lambda: prepared(chunks=2, closed=True, late=True), delete, fault, verify
    )


async def test_released_segments_are_flushed_from_the_store() -> None:
    world = await prepared(chunks=2, closed=False, late=True)
    world.journal.first = world.journal.confirmed
    await check(world, lines(0, 10))
    await world.restart()
    await check(world, lines(0, 10))
    await flush(world)
    await check(world, lines(0, 10))


async def test_two_flushers_race_on_one_manifest() -> None:
    world = await prepared(chunks=2, closed=False, late=True)
    twin = World(store=world.disk_store, tuning=TUNING, journal=world.journal)
    await twin.run_logs.start()
    await asyncio.gather(flush(world), flush(twin))
    await check(world, lines(0, 10))
    await check(twin, lines(0, 10))


def test_moved_is_a_not_found() -> None:
    assert issubclass(Moved, NotFound)
