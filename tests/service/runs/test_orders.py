"""Steps whose order the design calls the only right one: somebody else acts just in between."""

from __future__ import annotations

import asyncio

import pytest

from service.settings import Tuning
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import Damaged, NotFound, TailraceError
from tailrace.logstore.runs.manifest import Manifest, decode_manifest
from tests.service.runs.interrupted import Interrupted
from tests.service.runs.world import FakeJournal, World
from tests.simulation.faulty_store import Crash, Fault, FaultyStore, Schedule

pytestmark = pytest.mark.usefixtures("every_store")

RUN = RunKey("service.pipeline", "run")
TUNING = Tuning(merge_above=3, merge_width=2, chunk_bytes=1 << 20, partial_seconds=0.0)
LOGS, PARTIAL = keys.logs(keys.PREFIX, RUN), keys.partial(keys.PREFIX, RUN)


async def flushed(world: World, text: bytes) -> None:
    world.append(RUN, text)
    await world.confirm()
    await world.run_logs.flusher.flush(RUN)


async def begun(text: bytes, tuning: Tuning = TUNING) -> tuple[World, Interrupted]:
    world = World(tuning=tuning)
    store = Interrupted(world.disk_store)
    await world.restart(store)
    await flushed(world, text)
    return world, store


async def beside(world: World) -> World:
    """Another node on the same store."""
    other = World(
        store=world.disk_store, tuning=world.tuning, journal=FakeJournal(node="node-B"), seed=2
    )
    other.clock.ms = world.clock.ms + 1000
    await other.run_logs.start()
    return other


async def manifest_of(world: World) -> Manifest:
    return decode_manifest((await world.disk_store.get(keys.run_manifest(RUN)))[1])


async def close(world: World) -> None:
    """All steps of a close, which raise what fails."""
    await world.run_logs.closer.finish(RUN, await world.record_close(RUN))


async def unfinished_close(store: Interrupted, world: World, fault: Fault) -> None:
    """The manifest says what `logs.txt` is about to become, and whoever closes it is dead."""
    schedule = Schedule({1: fault}, applies=lambda call: call == f"compose {LOGS}")
    await world.restart(FaultyStore(world.disk_store, schedule))
    with pytest.raises(Crash):
        await close(world)
    await world.restart(store)
    assert (await manifest_of(world)).closing is not None


async def test_a_close_that_was_overtaken_does_not_write_over_the_longer_text() -> None:
    """`logs.txt` is composed under a condition: what is there must be what was looked at."""
    world, store = await begun(b"one\n")
    other = await beside(world)

    async def overtake() -> None:
        await flushed(other, b"two\n")
        await close(other)
        assert (await manifest_of(other)).sealed

    store.before(f"compose {LOGS}", overtake)
    await close(world)
    assert store.done
    assert (await world.disk_store.get(LOGS))[1] == b"one\ntwo\n"
    manifest = await manifest_of(world)
    assert manifest.logs is not None
    assert manifest.logs.etag == (await world.disk_store.head(LOGS)).etag
    assert await world.whole(RUN) == await other.whole(RUN) == b"one\ntwo\n"


async def test_a_first_close_that_was_overtaken_finds_logs_there() -> None:
    """The same where nothing stood at `logs.txt`, and then the run was reopened."""
    world, store = await begun(b"one\n")
    other = await beside(world)

    async def overtake() -> None:
        await flushed(other, b"two\n")
        await close(other)
        await flushed(other, b"three\n")

    store.before(f"compose {LOGS}", overtake)
    await close(world)
    assert store.done
    assert (await world.disk_store.get(LOGS))[1].startswith(b"one\ntwo\n")
    assert await world.whole(RUN) == b"one\ntwo\nthree\n"
    assert world.run_logs.chunk_repairer.vanished == 0


@pytest.mark.on_servers(killed=(True,))
@pytest.mark.parametrize("killed", [False, True])
async def test_a_second_close_that_was_overtaken_leaves_the_longer_text(killed: bool) -> None:
    """The same where `logs.txt` stood before both, named by the manifest or by nobody yet."""
    world, store = await begun(b"one\n")

    async def overtake() -> None:
        # It starts here: a node that runs finishes a close that it finds begun.
        other = await beside(world)
        await flushed(other, b"three\n")
        await close(other)

    if killed:
        await unfinished_close(store, world, Fault.CRASH_AFTER)
    else:
        await close(world)
        await flushed(world, b"two\n")
    store.before(f"compose {LOGS}", overtake)
    await close(world)
    assert store.done
    expected = b"one\nthree\n" if killed else b"one\ntwo\nthree\n"
    assert (await world.disk_store.get(LOGS))[1] == expected
    assert (await manifest_of(world)).sealed
    assert await world.whole(RUN) == expected
    assert world.run_logs.chunk_repairer.vanished == 0


@pytest.mark.parametrize("spoil", ["gone", "other"])
async def test_the_partial_text_stays_until_the_closed_one_was_read_back(spoil: str) -> None:
    world, store = await begun(b"one\n")
    assert (await world.disk_store.get(PARTIAL))[1] == b"one\n"

    async def spoiled() -> None:
        if spoil == "gone":
            await world.disk_store.delete([LOGS])
        else:
            await world.disk_store.put(LOGS, b"x\n")

    store.before(f"head {LOGS}", spoiled, skip=1)
    with pytest.raises((Damaged, NotFound)):
        await close(world)
    assert store.done
    assert (await manifest_of(world)).sealed, "it was the read-back that saw it"
    assert (await world.disk_store.get(PARTIAL))[1] == b"one\n"


async def test_a_flush_beside_a_close_makes_two_chunks() -> None:
    """A chunk with lines from both sides of the close could not become `logs.txt`."""
    world, _ = await begun(b"one\n")
    release = asyncio.Event()

    async def flushed_through(pos: int) -> None:
        await release.wait()

    world._confirmed_through = flushed_through  # type: ignore[method-assign]
    await world.restart()
    world.append(RUN, b"before\n")
    task = world.run_logs.closer.resume(RUN, await world.record_close(RUN))
    world.append(RUN, b"after\n")
    await world.confirm()
    await world.run_logs.flusher.flush(RUN)
    assert [chunk.bytes for chunk in (await manifest_of(world)).chunks] == [4, 7, 6]
    release.set()
    await task
    assert (await world.disk_store.get(LOGS))[1] == b"one\nbefore\n"
    assert await world.whole(RUN) == b"one\nbefore\nafter\n"
    assert not world.run_logs.flusher._barriers, "one is left for each run that was ever closed"


async def test_chunks_are_not_merged_while_the_run_is_closed() -> None:
    most = Tuning(merge_above=99, merge_width=2, partial_seconds=1e9)
    world, store = await begun(b"0\n", most)
    for number in range(1, 6):
        await flushed(world, b"%d\n" % number)
    await unfinished_close(store, world, Fault.CRASH_BEFORE)
    world.tuning = TUNING
    none = FaultyStore(
        world.disk_store,
        Schedule({1: Fault.UNAVAILABLE}, applies=lambda call: call.startswith("compose ")),
    )
    await world.restart(none)
    seen = await manifest_of(world)
    assert await world.run_logs.merger.merge(seen) == seen
    assert not [call for call in none.calls if call.split()[0] in ("put", "compose")]


async def test_a_merge_that_meets_a_close_is_not_swapped_in() -> None:
    """It would shift what the close takes for the chunks behind its own."""
    most = Tuning(merge_above=99, merge_width=2, partial_seconds=1e9)
    world, store = await begun(b"0\n", most)
    for number in range(1, 5):
        await flushed(world, b"%d\n" % number)
    pos = await world.record_close(RUN)
    for number in range(5, 8):
        await flushed(world, b"%d\n" % number)
    merging = World(
        store=world.disk_store, tuning=TUNING, journal=FakeJournal(node="node-B"), seed=2
    )
    await merging.run_logs.start()
    seen = await manifest_of(world)
    assert seen.closing is None

    async def merge() -> None:
        await merging.run_logs.merger.merge(seen)

    store.before(f"compose {LOGS}", merge)
    await world.run_logs.closer.finish(RUN, pos)
    assert store.done
    assert merging.run_logs.merger.merges == 1
    expected = b"".join(b"%d\n" % number for number in range(8))
    assert await world.whole(RUN) == await merging.whole(RUN) == expected
    manifest = await manifest_of(world)
    assert [chunk.lines for chunk in manifest.chunks] == [5, 1, 1, 1]


@pytest.mark.repairs(reason="what was closed is spoiled")
async def test_what_is_spoiled_after_a_close_is_told_not_hidden() -> None:
    """The reader's way to the same fault: it hears of it and gets no other text."""
    world, _ = await begun(b"one\n")
    await close(world)
    await world.disk_store.put(LOGS, b"x\n")
    with pytest.raises(TailraceError):
        await world.whole(RUN)
