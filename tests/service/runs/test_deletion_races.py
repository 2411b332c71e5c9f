"""Deletions and expiry beside flushes, merges and closes: what comes after T stays, all of it.

The other writer acts exactly between two steps of the deletion. In the end the store is looked
at: what the manifest names is there, nothing of what was deleted is.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from service.settings import Settings, Tuning
from tailrace.coordination.named_leases import text_lease
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import JournalFull, NotFound, StoreUnavailable
from tailrace.logstore.runs.manifest import Manifest, decode_manifest
from tests.service.runs.interrupted import Interrupted
from tests.service.runs.world import FakeJournal, World
from tests.settings import SETTINGS, settings_with
from tests.simulation.faulty_store import Crash, Fault, FaultyStore, Schedule

pytestmark = pytest.mark.usefixtures("every_store")

RUN = RunKey("service.pipeline", "run")
TUNING = Tuning(merge_above=3, merge_width=2, chunk_bytes=1 << 20, partial_seconds=0.0)
LOGS = keys.logs(keys.PREFIX, RUN)
DAY = 86_400
OLD, NEW = b"old 1\nold 2\n", b"new 1\nnew 2\nnew 3\n"


async def flushed(world: World, text: bytes = b"") -> None:
    """All that the node holds, and the text, are in chunks."""
    if text:
        world.append(RUN, text)
    await world.confirm()
    await world.run_logs.flusher.drain()


async def two_nodes(settings: Settings = SETTINGS) -> tuple[World, World, Interrupted]:
    """A node that deletes, behind an interrupted store, and another, whose clock leads a little."""
    here = World(settings=settings, tuning=TUNING)
    await here.run_logs.start()
    await flushed(here, OLD)
    other = World(
        store=here.disk_store,
        settings=settings,
        tuning=TUNING,
        journal=FakeJournal(node="node-B"),
        seed=2,
    )
    other.clock.ms = here.clock.ms + 20_000
    await other.run_logs.start()
    await other.run_logs.leases.acquire(text_lease("node-B"))
    store = Interrupted(here.disk_store)
    await here.restart(store)
    return here, other, store


async def manifest_of(world: World) -> Manifest:
    return decode_manifest((await world.disk_store.get(keys.run_manifest(RUN)))[1])


async def stands(worlds: tuple[World, ...], expected: bytes) -> None:
    """Every node reads it in every way, and the store holds these lines and no others."""
    for world in worlds:
        assert await world.whole(RUN) == expected
        assert await world.paged(RUN, 2) == expected
        assert await world.caught_up(RUN) == expected
    manifest = await manifest_of(worlds[0])
    prefix = keys.run_texts(keys.PREFIX, RUN)
    store = worlds[0].disk_store
    there = {info.key: info async for info in store.list(prefix)}
    chunks = keys.chunks_of(keys.PREFIX, RUN)
    for chunk in manifest.chunks:
        if chunk.kind == "chunk":
            assert there[f"{chunks}{chunk.id}.txt"].size == chunk.bytes
        assert there[f"{chunks}{chunk.id}.idx"].size == chunk.index_bytes
    for key in there:
        assert b"old" not in (await store.get(key))[1], f"{key} holds what was deleted"
    for world in worlds:
        assert world.run_logs.chunk_repairer.vanished == 0, "our own fault was repaired"


async def test_a_pipelines_deletion_leaves_what_this_node_flushes_meanwhile() -> None:
    here, other, store = await two_nodes()

    async def meanwhile() -> None:
        here.append(RUN, NEW, here.mint_above(here.run_logs.deletions.horizon(RUN)))
        await flushed(here)

    store.before("put coordination/deleted/", meanwhile)
    assert await here.run_logs.delete_pipeline(RUN.fqn) == [RUN.run]
    assert store.done
    await stands((here, other), NEW)


@pytest.mark.on_servers(
    at=("put runs/", "list pipeline-logs/"),
    mixed=(True,),
    closes=("closes",),
    whole_pipeline=(False,),
)
@pytest.mark.parametrize("whole_pipeline", [False, True])
@pytest.mark.parametrize("closes", ["", "closes", "closes and goes on"])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("at", ["get coordination/deleted/", "put runs/", "list pipeline-logs/"])
async def test_a_deletion_leaves_what_another_node_flushes_meanwhile(
    at: str, mixed: bool, closes: str, whole_pipeline: bool
) -> None:
    """`mixed`: in one chunk with lines from before the deletion, of which it has not heard."""
    here, other, store = await two_nodes()
    other.clock.ms -= 30_000
    if mixed:
        other.append(RUN, b"old 3\n")
    other.clock.ms += 30_000

    async def meanwhile() -> None:
        other.append(RUN, NEW)
        await flushed(other)
        if closes:
            await other.run_logs.close_run(RUN)
        if "goes on" in closes:
            await flushed(other, b"new 4\n")

    store.before(at, meanwhile)
    await (
        here.run_logs.delete_pipeline(RUN.fqn) if whole_pipeline else here.run_logs.delete_run(RUN)
    )
    assert store.done
    await other.run_logs.deletions.load()
    expected = NEW + b"new 4\n" * ("goes on" in closes)
    await stands((here, other), expected)
    manifest = await manifest_of(here)
    assert (manifest.state == "closed") == manifest.sealed
    assert manifest.generation == here.run_logs.deletions.horizon(RUN)
    other.clock.pass_seconds(61)
    assert await other.run_logs.close_run(RUN) == "closed"
    await stands((here, other), expected)


@pytest.mark.on_servers(skip=(1,))
@pytest.mark.parametrize("skip", range(2))
@pytest.mark.parametrize("at", ["get runs/", f"put {LOGS}"])
async def test_a_close_of_what_came_after_a_deletion_keeps_its_text(at: str, skip: int) -> None:
    """`logs.txt` of before stands there: it is emptied and removed while the other closes anew."""
    here, other, store = await two_nodes()
    assert await here.run_logs.close_run(RUN) == "closed"

    async def meanwhile() -> None:
        await flushed(other, NEW)
        assert await other.run_logs.close_run(RUN) == "closed"

    store.before(at, meanwhile, skip=2 + skip if at == "get runs/" else 0)
    await here.run_logs.delete_run(RUN)
    assert store.done
    await stands((here, other), NEW)
    assert (await store.inner.get(LOGS))[1] == NEW


async def test_a_deletion_that_is_taken_up_late_leaves_a_close_alone() -> None:
    here, other, _ = await two_nodes()
    await here.run_logs.delete_run(RUN)
    horizon = here.run_logs.deletions.horizon(RUN)
    other.append(RUN, NEW, other.mint_above(horizon + (1 << 40)))
    await flushed(other)
    closing = Interrupted(here.disk_store)
    await other.restart(closing)

    async def finish() -> None:
        here.run_logs.deletions.note(RUN.fqn, RUN.run, horizon + 1)
        here.run_logs.deleter.resume(RUN.fqn, RUN.run, horizon + 1)
        await here.run_logs.deleter.finish_all()

    closing.before(f"put {keys.run_manifest(RUN)}", finish, skip=1)
    assert await other.run_logs.close_run(RUN) == "closed"
    assert closing.done
    await stands((here, other), NEW)
    assert (await closing.inner.get(LOGS))[1] == NEW


async def test_a_flush_whose_lines_were_all_deleted_meanwhile_names_no_chunk() -> None:
    here, other, _ = await two_nodes()
    store = Interrupted(here.disk_store)
    await other.restart(store)
    other.clock.ms -= 30_000
    other.append(RUN, b"old 3\n")
    await other.confirm()

    async def delete() -> None:
        await here.run_logs.delete_run(RUN)

    store.before(f"put {keys.run_manifest(RUN)}", delete)
    await other.run_logs.flusher.drain()
    assert store.done
    manifest = await manifest_of(other)
    assert (manifest.state, manifest.chunks) == ("deleted", ())
    assert manifest.dealt_with("node-B") == other.journal.end


@pytest.mark.timeout(60)
@pytest.mark.parametrize("later", [b"", NEW])
async def test_a_flush_passes_over_more_deleted_text_than_a_chunk_holds(later: bytes) -> None:
    """The run has no manifest that could say how far the flush is. It went on for ever."""
    world = World(tuning=replace(TUNING, chunk_bytes=len(OLD)))
    await world.run_logs.start()
    for _ in range(5):
        world.append(RUN, OLD)
    await world.run_logs.delete_pipeline(RUN.fqn)
    world.clock.ms += 1_000_000
    if later:
        world.append(RUN, later)
    await world.confirm()
    await world.run_logs.flusher.drain()
    assert list(world.run_logs.flusher.pending.waiting()) == []
    if later:
        assert await world.whole(RUN) == later
    else:
        with pytest.raises(NotFound):
            await manifest_of(world)


@pytest.mark.on_servers(mixed=(True,), step=("put runs/",), whole_pipeline=(True,))
@pytest.mark.parametrize("step", ["put pipeline-logs/", "put runs/"])
@pytest.mark.parametrize("whole_pipeline", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
async def test_a_flush_of_another_node_lives_through_a_deletion(
    mixed: bool, whole_pipeline: bool, step: str
) -> None:
    """Its chunk stands in the store, and no manifest names it yet."""
    here, other, _ = await two_nodes()
    store = Interrupted(here.disk_store)
    await other.restart(store)
    other.clock.ms -= 30_000
    if mixed:
        other.append(RUN, b"old 3\n")
    other.clock.ms += 30_000
    other.append(RUN, NEW)
    await other.confirm()

    async def meanwhile() -> None:
        await (
            here.run_logs.delete_pipeline(RUN.fqn)
            if whole_pipeline
            else here.run_logs.delete_run(RUN)
        )

    store.before(step, meanwhile, skip=step == "put pipeline-logs/")
    await other.run_logs.flusher.drain()
    assert store.done
    assert await other.whole(RUN) == NEW
    assert await here.whole(RUN) == NEW
    assert other.run_logs.chunk_repairer.vanished == here.run_logs.chunk_repairer.vanished == 0
    here.clock.pass_seconds(2 * DAY)
    await here.run_logs.sweeper.sweep()
    await stands((here, other), NEW)


EXPIRING = settings_with(SETTINGS, runs={"expiration_days": 30})


@pytest.mark.on_servers(by_another=(True,))
@pytest.mark.parametrize("by_another", [False, True])
@pytest.mark.parametrize("at", ["put coordination/deleted/", "list pipeline-logs/service.pipe"])
async def test_what_comes_while_a_run_expires_stays(at: str, by_another: bool) -> None:
    here, other, store = await two_nodes(EXPIRING)
    for world in (here, other):
        world.clock.pass_seconds(31 * DAY)
    flushes: list[asyncio.Task[None]] = []

    async def meanwhile() -> None:
        if by_another:
            await flushed(other, NEW)
            return
        flushes.append(asyncio.create_task(flushed(here, NEW)))
        for _ in range(200):  # as far as it comes without us
            await asyncio.sleep(0)

    store.before(at, meanwhile)
    await here.run_logs.sweeper.sweep()
    assert store.done
    await asyncio.gather(*flushes)
    assert here.run_logs.sweeper.expired == 1
    await other.run_logs.deletions.load()
    await stands((here, other), NEW)


async def test_a_run_that_is_written_to_just_as_it_expires_does_not() -> None:
    here, other, store = await two_nodes(EXPIRING)
    for world in (here, other):
        world.clock.pass_seconds(31 * DAY)

    async def meanwhile() -> None:
        await flushed(other, NEW)

    store.before("put runs/", meanwhile)
    await here.run_logs.sweeper.sweep()
    assert store.done
    assert here.run_logs.sweeper.expired == 0
    assert await here.whole(RUN) == await other.whole(RUN) == OLD + NEW


async def test_the_record_of_an_expired_run_that_begins_again_stays() -> None:
    here, other, store = await two_nodes(EXPIRING)
    here.clock.pass_seconds(31 * DAY)
    await here.run_logs.sweeper.sweep()
    here.clock.pass_seconds(31 * DAY)
    other.clock.ms = here.clock.ms

    async def meanwhile() -> None:
        await flushed(other, NEW)

    manifest = f"get {keys.run_manifest(RUN)}"
    store.before(manifest, meanwhile, skip=1)
    await here.run_logs.sweeper.sweep()
    assert store.done
    await stands((here, other), NEW)


async def test_marks_of_nodes_that_live_stay() -> None:
    here, other, _ = await two_nodes()
    other.append(RUN, NEW)
    other.run_logs.appended(RUN, other.journal.end)
    await other.run_logs.active.round()
    stale = keys.active(keys.PREFIX, RUN, "node-C")
    await here.disk_store.put(stale, b"")
    await here.run_logs.delete_run(RUN)
    marks = [info.key async for info in here.disk_store.list(keys.all_active(keys.PREFIX))]
    assert marks == [keys.active(keys.PREFIX, RUN, "node-B")], "its lines are nowhere else"


async def test_a_deletion_that_the_journal_refuses_changes_nothing() -> None:
    here, _, store = await two_nodes()
    record = here.record_tombstone

    async def refuse(fqn: str, run: str | None, t: int) -> None:
        raise JournalFull("full")

    here.record_tombstone = refuse  # type: ignore[method-assign]
    await here.restart(store)
    store.calls.clear()
    for delete in (
        lambda: here.run_logs.delete_run(RUN),
        lambda: here.run_logs.delete_pipeline(RUN.fqn),
    ):
        with pytest.raises(JournalFull):
            await delete()
    assert not [call for call in store.calls if call.split()[0] in ("put", "delete", "compose")]
    await flushed(here, b"more\n")
    assert await here.whole(RUN) == OLD + b"more\n"
    here.record_tombstone = record  # type: ignore[method-assign]
    await here.restart(store)
    assert await here.whole(RUN) == OLD + b"more\n"


@pytest.mark.on_servers(whole_pipeline=(True,))
@pytest.mark.parametrize("whole_pipeline", [False, True])
async def test_what_the_store_refuses_of_a_deletion_is_done_once_it_answers(
    whole_pipeline: bool,
) -> None:
    here, _, _ = await two_nodes()
    faulty = FaultyStore(here.disk_store, Schedule.none())
    await here.restart(faulty)
    work = asyncio.create_task(here.run_logs.deleter.run())
    faulty.schedule = Schedule(
        dict.fromkeys(range(1, 4), Fault.UNAVAILABLE), applies=lambda call: "put runs/" in call
    )
    with pytest.raises(StoreUnavailable):
        await (
            here.run_logs.delete_pipeline(RUN.fqn)
            if whole_pipeline
            else here.run_logs.delete_run(RUN)
        )
    for _ in range(10_000):
        if (await manifest_of(here)).state == "deleted" and not here.run_logs.deleter.unfinished:
            break
        await asyncio.sleep(0)
    here.run_logs.deleter.stop()
    await work
    assert (await manifest_of(here)).state == "deleted"
    assert [i.key async for i in here.disk_store.list(keys.run_texts(keys.PREFIX, RUN))] == []


@pytest.mark.on_servers(resumed=(False,))
@pytest.mark.parametrize("resumed", [False, True])
async def test_no_text_stays_of_a_deletion_that_was_killed_before_it_removed_them(
    resumed: bool,
) -> None:
    here, _, _ = await two_nodes()
    assert await here.run_logs.close_run(RUN) == "closed"
    await here.restart(
        FaultyStore(
            here.disk_store,
            Schedule({1: Fault.CRASH_BEFORE}, applies=lambda call: call.startswith("delete ")),
        )
    )
    with pytest.raises(Crash):
        await here.run_logs.delete_run(RUN)
    if not resumed:
        here.journal.tombstones.clear()  # its folder is lost
    await here.restart()
    if resumed:
        await here.run_logs.deleter.finish_all()
    here.clock.pass_seconds(2 * DAY)
    await here.run_logs.sweeper.sweep()
    assert [i.key async for i in here.disk_store.list(keys.run_texts(keys.PREFIX, RUN))] == []
    with pytest.raises(NotFound):
        await here.whole(RUN)
