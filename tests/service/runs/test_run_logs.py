"""Runs through their lives: every line once and in order, on every way of reading."""

from __future__ import annotations

import pytest

from service.run_log.backlog import Deletions
from service.runtime.health import ClockSkew
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound, StoreUnavailable
from tests.service.runs.world import World
from tests.settings import SETTINGS, settings_with
from tests.simulation.backing import on_disk
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule

pytestmark = pytest.mark.usefixtures("every_store")

RUN = RunKey("service.pipeline", "run-1")
OTHER = RunKey("service.pipeline", "run-2")


def lines(first: int, count: int) -> bytes:
    return b"".join(b"line %06d\n" % number for number in range(first, first + count))


async def agree(world: World, key: RunKey, expected: bytes) -> None:
    """Download, pages and catching up give the same, and sizes say so."""
    assert await world.whole(key) == expected
    for limit in (1, 7, 1000):
        if len(expected) < 5000 or limit > 100:
            assert await world.paged(key, limit) == expected
    assert await world.caught_up(key, max(len(expected) // 10, 20)) == expected
    size = await world.run_logs.reader.size(key)
    assert (size.total_bytes, size.total_lines) == (len(expected), expected.count(b"\n"))


async def test_text_is_the_same_unflushed_confirmed_flushed_and_closed() -> None:
    world = World()
    await world.run_logs.start()
    for number in range(20):
        world.append(RUN, lines(number * 3, 3))
        world.append(OTHER, b"other\n")
    await agree(world, RUN, lines(0, 60))
    await world.confirm()
    await agree(world, RUN, lines(0, 60))
    await world.run_logs.flusher.flush(RUN)
    await agree(world, RUN, lines(0, 60))
    world.append(RUN, lines(60, 5))
    await agree(world, RUN, lines(0, 65))
    assert await world.run_logs.close_run(RUN) == "closed"
    await agree(world, RUN, lines(0, 65))
    assert (await world.run_logs.reader.size(RUN)).state == "closed"
    await agree(world, OTHER, b"other\n" * 20)
    assert [run.run for run in await world.listed(RUN.fqn, 10)] == ["run-2", "run-1"]
    assert await world.run_logs.listing.pipelines() == [RUN.fqn]


async def test_a_late_batch_reopens_and_idleness_closes_again() -> None:
    world = World()
    await world.run_logs.start()
    world.append(RUN, lines(0, 3))
    await world.run_logs.close_run(RUN)
    world.append(RUN, lines(3, 2))
    assert (await world.run_logs.reader.size(RUN)).state == "open"
    await world.confirm()
    await agree(world, RUN, lines(0, 5))
    await world.run_logs.flusher.flush(RUN)
    assert (await world.run_logs.reader.size(RUN)).state == "open"
    await agree(world, RUN, lines(0, 5))
    world.clock.pass_seconds(61)
    await world.run_logs.closer.close_idle()
    assert (await world.run_logs.reader.size(RUN)).state == "closed"
    await agree(world, RUN, lines(0, 5))


async def test_deleted_is_gone_and_recreated_starts_empty() -> None:
    world = World()
    await world.run_logs.start()
    world.append(RUN, lines(0, 3))
    await world.confirm()
    await world.run_logs.flusher.flush(RUN)
    world.append(RUN, lines(3, 3))
    await world.run_logs.delete_run(RUN)
    with pytest.raises(NotFound):
        await world.run_logs.reader.page(RUN, after=None, limit=10)
    assert await world.listed(RUN.fqn, 10) == []
    world.append(RUN, b"new\n", ulid=world.mint_above(world.run_logs.deletions.horizon(RUN)))
    await agree(world, RUN, b"new\n")
    await world.confirm()
    await world.run_logs.flusher.flush(RUN)
    await agree(world, RUN, b"new\n")
    await world.restart()
    await agree(world, RUN, b"new\n")


@pytest.mark.in_turn(4)
async def test_folding_keeps_the_text() -> None:
    world = World()
    await world.run_logs.start()
    expected = b""
    for number in range(130 if on_disk() else 60):
        world.append(RUN, lines(number, 1))
        expected += lines(number, 1)
        await world.confirm()
        await world.run_logs.flusher.flush(RUN)
        assert world.run_logs.flusher.last_error is None
    assert world.run_logs.merger.merges > 0
    await agree(world, RUN, expected)
    await world.run_logs.close_run(RUN)
    await agree(world, RUN, expected)


async def test_large_batches_page_within_blocks() -> None:
    world = World()
    await world.run_logs.start()
    text = b"".join(b"x" * (number % 300) + b"\n" for number in range(5000))
    world.append(RUN, text)
    world.append(RUN, b"y" * 200_000 + b"\n\n\nz\n")
    expected = text + b"y" * 200_000 + b"\n\n\nz\n"
    await agree(world, RUN, expected)
    await world.confirm()
    await world.run_logs.flusher.flush(RUN)
    await agree(world, RUN, expected)
    page = await world.run_logs.reader.page(RUN, after=None, limit=3, tail=3)
    assert page.text == b"\n\nz\n"
    page = await world.run_logs.reader.page(RUN, after=None, limit=10, before=page.before)
    assert page.text == b"".join(expected.splitlines(keepends=True)[-13:-3])


async def test_tokens_hold_while_lines_move() -> None:
    world = World()
    await world.run_logs.start()
    world.append(RUN, lines(0, 50))
    world.append(RUN, lines(50, 50))
    token = (await world.run_logs.reader.page(RUN, after=None, limit=73)).after
    await world.confirm()
    assert (await world.run_logs.reader.page(RUN, after=token, limit=99)).text == lines(73, 27)
    await world.run_logs.flusher.flush(RUN)
    assert (await world.run_logs.reader.page(RUN, after=token, limit=99)).text == lines(73, 27)
    await world.run_logs.close_run(RUN)
    assert (await world.run_logs.reader.page(RUN, after=token, limit=99)).text == lines(73, 27)


async def test_copies_are_left_out() -> None:
    world = World()
    await world.run_logs.start()
    first = world.append(RUN, lines(0, 3))
    world.append(RUN, lines(0, 3), ulid=first)
    await agree(world, RUN, lines(0, 3))
    await world.confirm()
    await world.run_logs.flusher.flush(RUN)
    world.append(RUN, lines(0, 3), ulid=first)
    await agree(world, RUN, lines(0, 3))
    await world.confirm()
    await world.run_logs.flusher.flush(RUN)
    await agree(world, RUN, lines(0, 3))
    assert await world.run_logs.find_batch(RUN, first) is not None
    assert await world.run_logs.last_ulid(RUN) == first


async def test_a_page_costs_the_manifest_and_one_ranged_get() -> None:
    world = World()
    world.store = FaultyStore(world.disk_store, Schedule.none())
    await world.restart(world.store)
    for number in range(200):
        world.append(RUN, lines(number * 100, 100))
    await world.run_logs.close_run(RUN)
    await world.run_logs.reader.page(RUN, after="5", limit=10)
    world.store.calls.clear()
    for start in (0, 9_990, 19_980):
        page = await world.run_logs.reader.page(RUN, after=str(start), limit=10)
        assert page.text == lines(start, 10)
    assert len(world.store.calls) == 6


@pytest.mark.in_turn(4)
async def test_a_store_that_is_away_costs_no_lines_and_no_memory() -> None:
    world = World()
    faulty = FaultyStore(world.disk_store, Schedule.none())
    await world.restart(faulty)
    faulty.schedule = Schedule(dict.fromkeys(range(1, 10_000), Fault.UNAVAILABLE))
    count = 300 if on_disk() else 30
    for number in range(count):
        world.append(RUN, lines(number, 1))
        await world.confirm()
        with pytest.raises(StoreUnavailable):
            await world.run_logs.flusher.flush(RUN)
    assert len(world.run_logs.flusher.pending) == 1
    assert world.run_logs.problems()
    faulty.schedule = Schedule.none()
    await world.run_logs.drain()
    assert not world.run_logs.problems()
    await agree(world, RUN, lines(0, count))


async def test_what_nobody_closed_is_closed_also_after_a_restart() -> None:
    world = World()
    await world.run_logs.start()
    world.append(RUN, lines(0, 3))
    await world.confirm()
    await world.run_logs.drain()
    await world.restart()
    await world.run_logs.sweeper.sweep()
    assert (await world.run_logs.reader.size(RUN)).state == "open"
    world.clock.pass_seconds(86_401)
    await world.run_logs.sweeper.sweep()
    assert (await world.run_logs.reader.size(RUN)).state == "closed"
    assert world.ended == [RUN]
    await agree(world, RUN, lines(0, 3))


async def test_partial_text_is_there_while_open_only() -> None:
    world = World()
    await world.run_logs.start()
    world.append(RUN, lines(0, 3))
    await world.confirm()
    await world.run_logs.drain()
    where = keys.partial(keys.PREFIX, RUN)
    info, body = await world.store.get(where)
    assert body == lines(0, 3)
    metadata = (await world.store.head(where)).metadata
    assert metadata["total-bytes"] == str(info.size)
    await world.run_logs.close_run(RUN)
    with pytest.raises(NotFound):
        await world.store.get(where)
    assert (await world.store.get(keys.logs(keys.PREFIX, RUN)))[1] == lines(0, 3)


async def test_a_pipeline_is_deleted_with_all_its_runs() -> None:
    world = World()
    await world.run_logs.start()
    world.append(RUN, lines(0, 3))
    await world.confirm()
    await world.run_logs.drain()
    world.append(OTHER, b"hot\n")
    assert await world.run_logs.delete_pipeline(RUN.fqn) == ["run-1", "run-2"]
    assert await world.listed(RUN.fqn, 5) == []
    assert await world.run_logs.listing.pipelines() == []
    assert not await world.run_logs.listing.exists(OTHER)
    assert [info.key async for info in world.store.list(keys.PREFIX)] == []


async def test_expired_runs_go() -> None:
    world = World(settings=settings_with(SETTINGS, runs={"expiration_days": 30}))
    await world.run_logs.start()
    world.append(RUN, lines(0, 3))
    await world.run_logs.close_run(RUN)
    last = await world.run_logs.last_ulid(RUN)
    world.clock.pass_seconds(31 * 86_400)
    await world.run_logs.sweeper.sweep()
    assert await world.listed(RUN.fqn, 5) == []
    assert (await world.run_logs.reader.size(RUN)).state == "deleted"
    # Searches and the compactor learn it from the deletion that the store holds.
    deletions = Deletions(world.store, ClockSkew(None))
    await deletions.load()
    assert deletions.horizon(RUN) > last


async def test_a_run_is_as_old_as_its_last_line_also_if_that_arrived_late() -> None:
    world = World(settings=settings_with(SETTINGS, runs={"expiration_days": 2.5 / 24}))
    await world.run_logs.start()
    made_ms = world.clock.ms
    late = RunKey(RUN.fqn, "late")
    world.clock.pass_seconds(2 * 3_600)
    world.append(late, lines(0, 3), ulid=ulids.lowest_at(made_ms))  # a client's id, kept back
    world.append(RUN, lines(0, 3))
    for key in (late, RUN):
        await world.run_logs.close_run(key)
    await world.run_logs.sweeper.sweep()
    assert [(await world.run_logs.reader.size(key)).state for key in (late, RUN)] == ["closed"] * 2
    world.clock.pass_seconds(3_600)
    await world.run_logs.sweeper.sweep()
    states = [(await world.run_logs.reader.size(key)).state for key in (late, RUN)]
    assert states == ["deleted", "closed"]


async def test_a_pipeline_may_have_a_retention_of_its_own() -> None:
    kept = {"expiration_days": 30, "expiration_days_of": {RUN.fqn: 7, "*": 0}}
    world = World(settings=settings_with(SETTINGS, runs=kept))
    await world.run_logs.start()
    of_others = RunKey("others.pipeline", "run-1")
    for key in (RUN, of_others):
        world.append(key, lines(0, 3))
        await world.run_logs.close_run(key)
    world.clock.pass_seconds(8 * 86_400)
    await world.run_logs.sweeper.sweep()
    assert world.run_logs.sweeper.last_error is None
    states = [(await world.run_logs.reader.size(key)).state for key in (RUN, of_others)]
    assert states == ["deleted", "closed"]
