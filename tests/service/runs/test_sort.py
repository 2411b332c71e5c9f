"""Runs of two nodes: a close brings their lines into one order, and no reader loses its place."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from service.run_log.backlog import NoOtherNodes
from service.settings import Tuning
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.position import Cursor
from tailrace.logstore.runs.manifest import Manifest, decode_manifest
from tests.seeds import seeds, some
from tests.service.runs.world import FakeJournal, World
from tests.simulation.backing import on_disk
from tests.simulation.faulty_store import AT_EACH_STEP, Crash, Fault, FaultyStore, Schedule

RUN = RunKey("service.pipeline", "run")
LOGS = keys.logs(keys.PREFIX, RUN)
TUNING = Tuning(merge_above=3, merge_width=2, chunk_bytes=64, partial_seconds=0.0)


class Company(NoOtherNodes):
    """There are other nodes, and the test speaks for them."""

    def __bool__(self) -> bool:
        return True


class SharedWorld(World):
    """A node that is not alone."""

    others = Company()


async def two_nodes(tuning: Tuning = TUNING) -> tuple[World, World]:
    a = SharedWorld(tuning=tuning)
    journal = FakeJournal(node="node-B")
    b = SharedWorld(store=a.disk_store, tuning=tuning, journal=journal, seed=2)
    for world in (a, b):
        await world.run_logs.start()
    return a, b


async def flushed(world: World) -> None:
    await world.confirm()
    await world.run_logs.flusher.flush(RUN)


async def manifest_of(world: World) -> Manifest:
    return decode_manifest((await world.disk_store.get(keys.run_manifest(RUN)))[1])


class Reader:
    """Reads what is stored, by pages or as a live stream does, at any of the nodes."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self.place: str | None = None
        self.text = b""

    async def read(self, world: World) -> bool:
        """Reads a little; whether there was something."""
        reader = world.run_logs.reader
        if not (await reader.size(RUN)).total_lines:
            return False
        if self._dice.random() < 0.5:
            page = await reader.page(RUN, after=self.place, limit=self._dice.randint(1, 5))
            if page.after is None:
                return False
            self.text, self.place = self.text + page.text, page.after
            return True
        return await self.follow(world, self._dice.choice([1, 40]))

    async def follow(self, world: World, size: int = 1 << 20) -> bool:
        place: Cursor | int | None = None
        if self.place is not None:
            place = int(self.place) if self.place.isdigit() else Cursor.decode(self.place)
        piece = (await world.run_logs.reader.batches_after(RUN, place, max_bytes=size)).piece
        if piece is None:
            return False
        self.text, self.place = self.text + piece.text, piece.cursor.encode()
        return True

    async def read_all(self, worlds: Sequence[World], dice: Random) -> bytes:
        """Reads to the end; all lines that it ever read, sorted."""
        while await self.read(dice.choice(worlds)) or await self.follow(dice.choice(worlds)):
            pass
        return b"".join(sorted(self.text.splitlines(keepends=True)))


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("seed", seeds(12))
async def test_a_close_sorts_by_ulid_and_readers_get_each_line_once(seed: int) -> None:
    """Producers with clocks apart, at random nodes; chunks that overlap, and chunks that do not."""
    dice = Random(f"sort {seed}")
    worlds = await two_nodes()
    skews = [0, *(dice.choice([0, 1, 50, 5000]) for _ in range(2))]
    sent: list[tuple[int, bytes]] = []
    readers = [Reader(dice) for _ in range(4)]

    async def write(count: int) -> None:
        for _ in range(count):
            which = dice.randrange(len(skews))
            ms = max(world.clock.ms for world in worlds) + 1 + dice.randrange(3)
            for each in worlds:
                each.clock.ms = ms
            world = worlds[dice.randrange(2)]
            ulid = ms + skews[which] << 80 | dice.getrandbits(55) << 25
            text = b"".join(
                b"%d %04d.%d\n" % (which, len(sent), n) for n in range(dice.randint(1, 3))
            )
            world.append(RUN, text, ulid)
            sent.append((ulid, text))
            if dice.random() < 0.2:
                await flushed(world)
            if dice.random() < 0.3:
                await dice.choice(readers).read(dice.choice(worlds))

    def expected(some: Sequence[tuple[int, bytes]]) -> bytes:
        return b"".join(text for _, text in sorted(some))

    await write(40)
    a, b = worlds
    assert await b.run_logs.closer.close_here(RUN, a.journal.node) == "closed"
    assert (await manifest_of(a)).logs is None, "it is sealed by the node that asks"
    assert await a.run_logs.close_run(RUN) == "closed"
    first = expected(sent)
    assert (await a.disk_store.get(LOGS))[1] == first
    assert await a.whole(RUN) == await b.whole(RUN) == first
    assert await a.paged(RUN, 3) == await b.caught_up(RUN, 30) == first
    late = len(sent)
    for reader in readers[:2]:
        await reader.read(dice.choice(worlds))
    await write(15)
    for world in (b, a):
        await flushed(world)
    assert await b.run_logs.closer.close_here(RUN, a.journal.node) == "closed"
    assert await a.run_logs.close_run(RUN) == "closed"
    whole = first + expected(sent[late:])
    assert (await a.disk_store.get(LOGS))[1] == whole, "what was closed keeps its place"
    assert await a.paged(RUN, 7) == await b.caught_up(RUN, 30) == whole
    lines = b"".join(sorted(whole.splitlines(keepends=True)))
    for reader in readers:
        assert await reader.read_all(worlds, dice) == lines
    for world in worlds:
        await world.run_logs.stop()


async def prepared() -> tuple[World, World, bytes]:
    """One producer that alternates, with a second one whose clock is behind; b is closed."""
    a, b = await two_nodes()
    sent: list[tuple[int, bytes]] = []
    for number in range(12):
        world = (a, b)[number % 2]
        ms = a.clock.ms + number
        ulid = (ms - (9000 if number % 3 == 2 else 0)) << 80 | 1 << 25
        world.append(RUN, b"%02d\n" % number, ulid)
        sent.append((ulid, b"%02d\n" % number))
        if number % 4 == 3:
            await flushed(a)
            await flushed(b)
    await b.run_logs.closer.close_here(RUN)
    return a, b, b"".join(text for _, text in sorted(sent))


async def test_a_close_that_sorts_gives_the_same_bytes_another_etag() -> None:
    worlds = await two_nodes()
    a, b = worlds
    ids = [a.mint(), a.mint()]
    for world, ulid in zip(worlds, ids[::-1], strict=True):
        world.append(RUN, b"%d\n" % ulid, ulid)
        await flushed(world)
    reader = a.run_logs.reader
    before = await reader.size(RUN)
    assert await b.run_logs.closer.close_here(RUN, a.journal.node) == "closed"
    assert await a.run_logs.close_run(RUN) == "closed"
    after = await reader.size(RUN)
    assert (after.total_bytes, after.stored_bytes) == (before.stored_bytes, before.stored_bytes)
    assert after.etag != before.etag, "a range of one must not be joined to one of the other"


@pytest.mark.parametrize("fault", AT_EACH_STEP)
async def test_killed_between_two_steps_of_a_close(fault: Fault) -> None:
    for step in some(range(1, 400), 5 if on_disk() else 23, f"sort {fault}"):
        a, b, expected = await prepared()
        lines = b"".join(sorted(expected.splitlines(keepends=True)))
        dice = Random(step)
        readers = [Reader(dice) for _ in range(3)]
        for reader in readers:
            await reader.read(b)
        schedule = Schedule({step: fault})
        await a.restart(FaultyStore(a.disk_store, Schedule.none()))
        a.store.schedule = schedule  # type: ignore[attr-defined]
        try:
            await a.run_logs.closer.finish(RUN, await a.record_close(RUN))
        except (Crash, Exception):  # noqa: BLE001 -- the process is gone either way
            assert schedule.fired
        await a.run_logs.stop()
        await a.restart()
        for reader in readers:
            await reader.read(b)
        assert sorted((await b.whole(RUN)).splitlines()) == lines.splitlines()
        assert await a.run_logs.close_run(RUN) == "closed"
        assert (await a.disk_store.get(LOGS))[1] == expected == await b.paged(RUN, 4)
        assert await b.caught_up(RUN, 5) == expected
        for reader in readers:
            assert await reader.read_all((a, b), dice) == lines
        await b.run_logs.stop()
        if not schedule.fired:
            return
    pytest.fail("it never got through")


@pytest.mark.parametrize("failover", [False, True])
async def test_lines_of_one_node_and_lines_in_order_are_only_composed(failover: bool) -> None:
    """A run of one node whose clients' clocks are apart, and one whose client goes to another."""
    a, b = await two_nodes(Tuning(partial_seconds=1e9))
    for number in range(6):
        ms = a.clock.ms + (number if failover else number % 3)
        a.append(RUN, b"a %d\n" % number, ms << 80 | number << 25)
        await flushed(a)
    b.clock.ms = a.clock.ms + 10
    for number in range(3 if failover else 0):
        b.append(RUN, b"b %d\n" % number)
        await flushed(b)
    await b.run_logs.closer.close_here(RUN)
    store = FaultyStore(a.disk_store, Schedule.none())
    await a.restart(store)
    assert await a.run_logs.close_run(RUN) == "closed"
    texts = [call for call in store.calls if call.startswith("get ") and call.endswith(".txt")]
    assert texts == []
    expected = [b"a %d\n" % n for n in range(6)] + [b"b %d\n" % n for n in range(3 * failover)]
    assert (await a.disk_store.get(LOGS))[1] == b"".join(expected)
    assert not (await manifest_of(a)).by_ulid
    for world in (a, b):
        await world.run_logs.stop()
