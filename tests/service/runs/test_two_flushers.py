"""A node and one that took it for lost flush the same segments: each line is there once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from random import Random
from typing import Any, TypeVar

import pytest

from service.run_log.cursors import parse_token
from service.settings import Tuning
from tailrace.coordination.named_leases import text_lease
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import Damaged, NotFound
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.report import read_watermark
from tests.seeds import some
from tests.service.runs.world import FakeJournal, World
from tests.simulation.backing import on_disk
from tests.simulation.faulty_store import Crash, FaultyStore, Schedule

pytestmark = pytest.mark.usefixtures("every_store")

T = TypeVar("T")
RUN = RunKey("service.pipeline", "run")
TUNING = Tuning(merge_above=3, merge_width=2, chunk_bytes=64, partial_seconds=0.0)
HEIR = "node-B"


class Yielding(FaultyStore):
    """Others get their turn before and after each call."""

    def __init__(self, inner: ObjectStore, dice: Random, most: int) -> None:
        super().__init__(inner, Schedule.none())
        self._dice = dice
        self._most = most

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self._pause()
        result = await super()._step(name, key, work)
        await self._pause()
        return result

    async def _pause(self) -> None:
        for _ in range(self._dice.randint(0, self._most)):
            await asyncio.sleep(0)


def lines(first: int, count: int) -> bytes:
    return b"".join(b"line %04d\n" % number for number in range(first, first + count))


async def two(seed: int) -> tuple[World, World]:
    """The node has six segments that no run has; the heir finds its lease expired."""
    away = World(tuning=TUNING, seed=seed)
    await away.run_logs.start()
    for number in range(6):
        away.append(RUN, lines(number * 3, 3))
        await away.confirm()
    heir = World(
        store=away.disk_store, tuning=TUNING, journal=FakeJournal(node=HEIR), seed=seed + 1000
    )
    heir.clock.ms = away.clock.ms + 3_600_000
    await heir.run_logs.start()
    await heir.run_logs.takeover.look()
    assert heir.run_logs.takeover.inherited == 6
    return away, heir


async def check(world: World, expected: bytes) -> None:
    assert await world.whole(RUN) == expected
    assert await world.paged(RUN, 4) == expected
    assert await world.caught_up(RUN) == expected


@pytest.mark.parametrize("chunk", some(range(4), 2, "both flush at once"))
async def test_both_flush_at_once(chunk: int) -> None:
    conflicts = 0
    for seed in range(chunk * 10, chunk * 10 + (10 if on_disk() else 1)):
        away, heir = await two(seed)
        await away.restart(Yielding(away.disk_store, Random(seed), 5 * seed % 40))
        await heir.restart(Yielding(heir.disk_store, Random(seed + 1), 3))
        heir.clock.ms += 3_600_000
        await heir.run_logs.takeover.look()
        await asyncio.gather(away.run_logs.flusher.drain(), heir.run_logs.flusher.drain())
        for world in (away, heir):
            await check(world, lines(0, 18))
            conflicts += world.run_logs.run_flush._manifests.conflicts
        assert (await read_watermark(away.disk_store, away.journal.node)).seq == 6
        await heir.run_logs.takeover.look()
        assert not heir.run_logs.backlog.inherited
        assert await heir.run_logs.leases.held_by(text_lease("node-A")) is None
        away.append(RUN, lines(18, 2))
        await away.confirm()
        await away.run_logs.flusher.drain()
        await check(away, lines(0, 20))
        await check(heir, lines(0, 20))
    assert conflicts > 0 or not on_disk(), "they never met"


async def test_an_heir_that_is_killed_at_any_step_leaves_the_rest_to_the_next() -> None:
    for step in some(range(1, 400), 3 if on_disk() else 13, "an heir that is killed"):
        away, heir = await two(step)
        schedule = Schedule.crash(step, after=step % 2 == 0)
        await heir.restart(FaultyStore(heir.disk_store, Schedule.none()))
        heir.store.schedule = schedule  # type: ignore[attr-defined]
        try:
            await heir.run_logs.takeover.look()
            await heir.run_logs.flusher.drain()
            await heir.run_logs.takeover.look()
        except Crash:
            pass
        if not schedule.fired:
            return
        heir.clock.ms += 3_600_000
        await heir.restart()
        await heir.run_logs.takeover.look()
        await heir.run_logs.flusher.drain()
        await check(heir, lines(0, 18))
        await heir.run_logs.takeover.look()
        assert (await read_watermark(heir.disk_store, away.journal.node)).seq == 6
        await away.restart()
        await away.run_logs.flusher.drain()
        await check(away, lines(0, 18))
    pytest.fail("it never got through")


@pytest.mark.parametrize("body", [b"", b"{", b'{"seq":9}'])
async def test_a_mark_that_is_damaged_while_an_heir_looks_after_its_node(body: bytes) -> None:
    away, heir = await two(3)
    await heir.disk_store.put(keys.watermark(away.journal.node), body)
    with pytest.raises(Damaged):
        await heir.run_logs.flusher.drain()
    await heir.run_logs.takeover.look()
    assert len(heir.marks.problems()) == 1
    await heir.run_logs.flusher.drain()
    await heir.run_logs.takeover.look()
    mark = await read_watermark(heir.disk_store, away.journal.node)
    assert (mark.seq, mark.pos) == (6, 18)
    assert not heir.run_logs.backlog.inherited
    assert await heir.run_logs.leases.held_by(text_lease(away.journal.node)) is None
    await check(heir, lines(0, 18))


async def test_a_long_backlog_is_taken_in_parts() -> None:
    away = World(tuning=TUNING)
    await away.run_logs.start()
    for number in range(21):
        away.append(RUN, lines(number, 1))
        await away.confirm()
    heir = World(store=away.disk_store, tuning=TUNING, journal=FakeJournal(node=HEIR), seed=9)
    heir.clock.ms = away.clock.ms + 3_600_000
    await heir.run_logs.start()
    parts = []
    for _ in range(4):
        await heir.run_logs.takeover.look()
        parts.append(len(heir.run_logs.backlog.inherited))
        await heir.run_logs.flusher.drain()
    assert parts == [8, 8, 5, 0]
    assert await heir.run_logs.leases.held_by(text_lease("node-A")) is None
    await check(heir, lines(0, 21))


async def test_what_another_node_deleted_stays_away_though_nobody_told_the_heir() -> None:
    away = World(tuning=TUNING)
    await away.run_logs.start()
    heir = World(store=away.disk_store, tuning=TUNING, journal=FakeJournal(node=HEIR), seed=9)
    await heir.run_logs.start()
    away.append(RUN, lines(0, 3))
    await away.confirm()
    await away.run_logs.delete_pipeline(RUN.fqn)
    heir.clock.ms = away.clock.ms + 3_600_000
    await heir.run_logs.takeover.look()
    await heir.run_logs.flusher.drain()
    with pytest.raises(NotFound):
        await heir.run_logs.reader.page(RUN, after=None, limit=5)
    assert await heir.listed(RUN.fqn, 5) == []


async def test_a_lost_node_costs_a_busy_one_no_watermark() -> None:
    """The mark of a lost node rises while the heir's own runs always have news."""
    away, heir = await two(1)
    other = RunKey("service.pipeline", "busy")
    heir.append(other, b"news\n")
    await heir.confirm()
    await heir.run_logs.flusher.flush(RUN)
    assert len(heir.run_logs.flusher.pending) == 1
    await heir.run_logs.flusher.raise_marks(force=True)
    assert (await read_watermark(heir.disk_store, away.journal.node)).seq == 6
    assert heir.run_logs.flushed_pos == 0, "its own lines are not flushed by that"


async def test_a_run_that_is_being_closed_holds_no_place_among_the_flushes() -> None:
    world = World(tuning=TUNING)
    await world.run_logs.start()
    slow = [RunKey("p", f"slow {number}") for number in range(6)]
    for key in [*slow, RUN]:
        world.append(key, b"x\n")
    await world.confirm()
    world.clock.pass_seconds(1000)
    flusher = world.run_logs.flusher
    async with AsyncExitStack() as closes:  # they hold their locks as long as the store takes
        for key in slow:
            await closes.enter_async_context(world.run_logs.locks.of(key))
        for _ in range(4):
            flusher._begin_due()
            await asyncio.sleep(0)
        await asyncio.gather(*flusher._tasks)
        assert flusher.pending.get(RUN) is None
        assert flusher.pending.get(slow[0]) is not None
    assert await world.whole(RUN) == b"x\n"


async def met(seed: int) -> tuple[World, World, dict[str, bytes]]:
    """The heir has lines of its own that readers saw, also unflushed ones, when it inherits."""
    away = World(tuning=TUNING, seed=seed)
    await away.run_logs.start()
    heir = World(
        store=away.disk_store, tuning=TUNING, journal=FakeJournal(node=HEIR), seed=seed + 1000
    )
    await heir.run_logs.start()
    texts = {"away": lines(0, 7), "heir": b"".join(b"heir %d\n" % n for n in range(9))}
    for part in (texts["away"][:20], texts["away"][20:]):
        away.append(RUN, part)
        await away.confirm()
    heir.clock.ms = away.clock.ms + 3_600_000
    for number, part in enumerate(texts["heir"].splitlines(keepends=True)):
        heir.append(RUN, part)
        if number == 3:
            await heir.confirm()
            await heir.run_logs.flusher.drain()
        if number == 5:
            await heir.confirm()
    return away, heir, texts


@pytest.mark.on_servers(limit=(2, 3), seen=(5, 6))
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("seen", [4, 5, 6, 8, 9])
async def test_a_reader_gets_what_becomes_text_before_lines_that_it_has_seen(
    seen: int, limit: int
) -> None:
    for by_pages in (True, False) if on_disk() else (bool(seen % 2),):
        _away, heir, texts = await met(seen)
        page = await heir.run_logs.reader.page(RUN, after=None, limit=seen)
        got = page.text
        after = await heir.run_logs.reader.batches_after(RUN, None, max_bytes=1 << 20)
        assert after.piece is not None
        token = page.after or after.piece.cursor.encode()
        await heir.run_logs.takeover.look()
        if limit % 2:
            await heir.run_logs.flusher.drain()
        got += await rest(heir, token, limit, by_pages)
        expected = sorted((texts["away"] + texts["heir"]).splitlines())
        assert sorted(got.splitlines()) == expected, "each line once"
        for name in ("away", "heir"):
            mine = [line for line in got.splitlines() if line in texts[name].splitlines()]
            assert mine == texts[name].splitlines(), "each writer's in order"


async def rest(world: World, token: str, limit: int, by_pages: bool) -> bytes:
    """What a reader gets who goes on after `token` while lines move."""
    got = b""
    for turn in range(100):
        if turn == 3:
            await world.confirm()
            await world.run_logs.flusher.drain()
        if by_pages:
            page = await world.run_logs.reader.page(RUN, after=token, limit=limit)
            got += page.text
            if page.after is None:
                return got
            token = page.after
        else:
            where = parse_token(token)
            after = await world.run_logs.reader.batches_after(RUN, where, max_bytes=10 * limit)
            if after.piece is None:
                return got
            got += after.piece.text
            token = after.piece.cursor.encode()
    raise AssertionError("it never ends")
