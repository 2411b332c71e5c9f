"""Taking in what OpenMetadata wrote: killed between every two calls, and by two nodes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

import pytest

from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound, TailraceError
from tailrace.logstore.objects.store import ObjectStore
from tests.seeds import some
from tests.service.runs.world import World
from tests.simulation.backing import on_disk
from tests.simulation.faulty_store import AT_EACH_STEP, Crash, Fault, FaultyStore, Schedule

RUN = RunKey("service.pipeline", "6f1c0e5e-0d1f-4b7c-8f3a-2a2f3a3b4c5d")
PLAIN = RunKey("plain", RUN.run)
FOLDERS = {
    RUN: f"pipeline-logs/service_pipeline/{RUN.run}",
    PLAIN: f"pipeline-logs/plain/{RUN.run}",
}
T = TypeVar("T")
Act = Callable[[World], Awaitable[object]]


async def prepared(key: RunKey, texts: dict[str, bytes]) -> World:
    world = World()
    for name, body in texts.items():
        await world.disk_store.put(f"{FOLDERS[key]}/{name}.txt", body)
    world.append(key, b"ours\n")
    await world.confirm()
    return world


async def check(world: World, key: RunKey, expected: bytes) -> None:
    assert await world.whole(key) == expected
    assert await world.paged(key, 1) == expected
    assert await world.caught_up(key) == expected


async def acts(world: World, key: RunKey) -> list[Act]:
    async def close(world: World) -> None:
        pos = await world.record_close(key)
        world.run_logs.flusher.hold_at(key, pos)
        await world.run_logs.closer.finish(key, pos)

    return [lambda w: w.whole(key), lambda w: w.run_logs.flusher.drain(), close]


@pytest.mark.parametrize("fault", AT_EACH_STEP)
@pytest.mark.parametrize("act", [0, 1, 2], ids=["page", "flush", "close"])
@pytest.mark.parametrize(
    ("key", "texts", "expected"),
    [
        (RUN, {"partial": b"a\nb"}, b"a\nb\n"),
        (RUN, {"logs": b"a\nb\n"}, b"a\nb\n"),
        (PLAIN, {"logs": b"a\nb\n"}, b"a\nb\n"),
        (PLAIN, {"logs": b"a\nb\n", "partial": b"late\n"}, b"a\nb\nlate\n"),
    ],
    ids=["partial", "logs", "logs in place", "both"],
)
async def test_killed_between_any_two_calls(
    fault: Fault, act: int, key: RunKey, texts: dict[str, bytes], expected: bytes
) -> None:
    whole = expected + b"ours\n"
    for step in some(range(1, 400), 4 if on_disk() else 13, f"{key} {texts} {act} {fault}"):
        world = await prepared(key, texts)
        await world.restart(FaultyStore(world.disk_store, Schedule.none()))
        schedule = Schedule({step: fault})
        world.store.schedule = schedule  # type: ignore[attr-defined]
        try:
            await (await acts(world, key))[act](world)
        except (Crash, TailraceError):
            assert schedule.fired
        await world.run_logs.stop()
        if not schedule.fired:
            return
        await world.restart()
        await check(world, key, whole)
        assert await world.run_logs.close_run(key) == "closed"
        await check(world, key, whole)
        assert (await world.disk_store.get(keys.logs("pipeline-logs", key)))[1] == whole
    pytest.fail("it never got through")


@pytest.mark.parametrize("whole_pipeline", [False, True])
@pytest.mark.parametrize("key", [RUN, PLAIN], ids=["dotted", "plain"])
async def test_a_deletion_killed_anywhere_is_finished_or_did_not_happen(
    whole_pipeline: bool, key: RunKey
) -> None:
    async def delete(world: World) -> None:
        if whole_pipeline:
            await world.run_logs.delete_pipeline(key.fqn)
        else:
            await world.run_logs.delete_run(key)

    for step in some(range(1, 400), 3 if on_disk() else 13, f"{key} {whole_pipeline}"):
        world = await prepared(key, {"logs": b"a\n"})
        await world.restart(FaultyStore(world.disk_store, Schedule.none()))
        schedule = Schedule({step: Fault.CRASH_AFTER})
        world.store.schedule = schedule  # type: ignore[attr-defined]
        done = False
        with suppress(Crash):
            await delete(world)
            done = True  # and killed as what it began in the background went on
        await world.run_logs.stop()
        if not schedule.fired:
            return
        await world.restart()
        if done or world.journal.tombstones:
            await world.run_logs.deleter.finish_all()
            assert await world.listed(key.fqn, 5) == []
            with pytest.raises(NotFound):
                await world.whole(key)
        else:
            await check(world, key, b"a\nours\n")
    pytest.fail("it never got through")


class Slow(FaultyStore):
    """Lets others go first at every call, as often as the dice say."""

    def __init__(self, inner: ObjectStore, random: Random) -> None:
        super().__init__(inner, Schedule.none())
        self._random = random

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        for _ in range(self._random.randrange(5)):
            await asyncio.sleep(0)
        return await super()._step(name, key, work)


@pytest.mark.parametrize("seed", some(range(40), 3, "two nodes at once"))
@pytest.mark.parametrize("key", [RUN, PLAIN], ids=["dotted", "plain"])
async def test_two_nodes_at_once(seed: int, key: RunKey) -> None:
    random = Random(seed)
    texts = random.choice(
        [{"partial": b"a\nb"}, {"logs": b"a\nb\n"}, {"logs": b"a\n", "partial": b"b"}]
    )
    world = await prepared(key, texts)
    twin = World(store=world.disk_store, seed=seed)
    twin.journal.node = "node-B"
    twin.append(key, b"theirs\n")
    for one in (world, twin):
        await one.restart(Slow(one.disk_store, random))
    await twin.confirm()

    async def first(one: World) -> object:
        return await random.choice(await acts(one, key))(one)

    await asyncio.gather(first(world), first(twin), first(world))
    for one in (world, twin):
        await one.run_logs.flusher.drain()
        await one.run_logs.close_run(key)
    text = await world.whole(key)
    assert text in (b"a\nb\nours\ntheirs\n", b"a\nb\ntheirs\nours\n")
    for one in (world, twin):
        await check(one, key, text)
    assert (await world.disk_store.get(keys.logs("pipeline-logs", key)))[1] == text


async def test_many_readers_share_one_scan_and_outlive_the_first() -> None:
    world = await prepared(RUN, {"partial": b"a\n" * 1000})
    slow = Slow(world.disk_store, Random(1))
    await world.restart(slow)
    impatient = asyncio.ensure_future(world.whole(RUN))
    readers = [asyncio.ensure_future(world.whole(RUN)) for _ in range(5)]
    while not any(call.startswith("stream") for call in slow.calls):
        await asyncio.sleep(0)
    impatient.cancel()
    assert set(await asyncio.gather(*readers)) == {b"a\n" * 1000 + b"ours\n"}
    source = f"stream {FOLDERS[RUN]}/partial.txt"
    assert slow.calls.count(source) == 1
    assert world.run_logs.importer.imported == 1
