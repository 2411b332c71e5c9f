"""Skip indexes of a store that is elsewhere: fetched whole, once, and kept within a budget."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from service.query import skip_indexes
from service.query.skip_indexes import FetchedIndexes
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.search.conditions import Contains
from tailrace.logstore.search.translate import Needs, needs_of
from tailrace.logstore.table.skip_index import SHARE
from tests.service.query.indexed import Hanging, Refusing, Remote
from tests.service.query.test_skipping import RARE, alike, altered, rare_word
from tests.service.query.world import World, engine_of, search
from tests.simulation.hand_clock import HandClock
from tests.waiting import until

NEEDS = cast(Needs, needs_of(Contains("needle-in-a-haystack")))


async def test_it_is_fetched_once_and_tells_what_a_file_tells(tmp_path: Path) -> None:
    world = World(tmp_path)
    await rare_word(world)
    async with engine_of(world) as engine:
        found, stats = await search(engine, RARE)
    store = Remote(world)
    async with engine_of(world, bucket=store.bucket) as engine:
        for _ in range(2):
            assert (await search(engine, RARE))[0] == found == world.expected(RARE)
            assert (await search(engine, RARE))[1]["bytes"] == stats["bytes"]
    assert store.got == 1


@pytest.mark.parametrize("kind", [Refusing, Hanging])
async def test_an_index_that_does_not_come_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Remote]
) -> None:
    monkeypatch.setattr(skip_indexes, "_WAIT_SECONDS", 0.05)
    world = World(tmp_path)
    await rare_word(world)
    store = kind(world)
    async with engine_of(world, bucket=store.bucket) as engine:
        assert (await search(engine, RARE))[0] == world.expected(RARE)
        assert engine.indexes.damaged == 0
        if isinstance(store, Hanging):
            store.given.set()
    assert store.got > 0


async def test_a_page_that_is_damaged_is_found_when_it_is_read(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = await rare_word(world)
    key = keys.skip_index(file.path)
    await world.store.put(key, altered((await world.store.get(key))[1]))
    store = Remote(world)
    async with engine_of(world, bucket=store.bucket) as engine:
        for _ in range(2):
            found, stats = await search(engine, RARE)
            assert found == world.expected(RARE)
            assert stats["bytes"] == file.size
        assert engine.indexes.damaged == 1
    assert store.got == 1  # it is not asked for again at once


async def test_one_that_was_mended_is_used_after_a_while(tmp_path: Path) -> None:
    world, clock = World(tmp_path), HandClock()
    file = await rare_word(world)
    key = keys.skip_index(file.path)
    body = (await world.store.get(key))[1]
    await world.store.put(key, altered(body))
    store = Remote(world)
    indexes = FetchedIndexes(store.get, store.place, clock, 1 << 20)
    assert indexes.which([file], NEEDS) == {}
    await world.store.put(key, body)
    assert indexes.which([file], NEEDS) == {}
    await clock.advance(61)
    found = indexes.which([file], NEEDS)
    assert found[file.path].groups.sum() == 2
    assert indexes.damaged == 1


async def test_an_index_is_fetched_once_and_a_missing_one_again_after_a_while(
    tmp_path: Path,
) -> None:
    world, clock = World(tmp_path), HandClock()
    file = await rare_word(world)
    store = Remote(world)
    indexes = FetchedIndexes(store.get, store.place, clock, 1 << 20)
    assert set(indexes.of([file])) == {file.path}
    assert set(indexes.of([file])) == {file.path}
    assert store.got == 1
    missing = replace(file, path="date=2026-11-21/hour=12/other.parquet")
    for second, got in ((0, 2), (30, 2), (61, 3), (62, 3)):
        await clock.advance(second - clock.monotonic())
        assert indexes.of([missing]) == {}
        assert store.got == got
    key = keys.skip_index(missing.path)
    await world.store.put(key, (await world.store.get(keys.skip_index(file.path)))[1])
    assert indexes.of([missing]) == {}
    await clock.advance(130 - clock.monotonic())
    assert set(indexes.of([missing, file])) == {file.path, missing.path}


async def test_indexes_come_ahead_and_are_fetched_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    files = await alike(world, await rare_word(world), 4)
    store = Remote(world)
    indexes = FetchedIndexes(store.get, store.place, SystemClock(), 1 << 20)
    assert indexes.ahead(files, NEEDS) == {}  # it waits for none
    asked = reversed([*files, files[0]])
    found = await asyncio.gather(*(asyncio.to_thread(indexes.of, [one]) for one in asked))
    assert [list(one) for one in found] == [[one.path] for one in reversed([*files, files[0]])]
    told = indexes.ahead(files, NEEDS)
    assert [one.groups.sum() for one in told.values()] == [2] * 4
    assert list(told) == [file.path for file in files]
    assert store.got == 4


@pytest.mark.usefixtures("no_maps")  # else they are more of so small a file than is assumed
async def test_those_that_come_ahead_do_not_displace_each_other(tmp_path: Path) -> None:
    world = World(tmp_path)
    files = await alike(world, await rare_word(world), 4)
    room = 2 * (int(files[0].size * SHARE) + 600)
    store = Remote(world)
    indexes = FetchedIndexes(store.get, store.place, SystemClock(), room)
    indexes.ahead(files, NEEDS)
    assert set(indexes.of(files[:2])) == {"0.parquet", "1.parquet"}
    assert store.got == 2


async def test_a_fetch_that_ends_leaves_its_file_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    files = await alike(world, await rare_word(world), 2)
    monkeypatch.setattr(skip_indexes, "_FETCHES_AT_ONCE", 1)
    store = Hanging(world)
    indexes = FetchedIndexes(store.get, store.place, SystemClock(), 1 << 20)
    monkeypatch.setattr(skip_indexes, "_WAIT_SECONDS", 60)
    assert indexes.ahead(files, NEEDS) == {}
    waiting = asyncio.ensure_future(asyncio.to_thread(indexes.of, files[1:]))
    await until(lambda: store.got == 1)
    indexes.close()
    assert await waiting == {}
    store.given.set()


async def test_the_least_used_make_room(tmp_path: Path) -> None:
    world = World(tmp_path)
    files = await alike(world, await rare_word(world), 4)
    body = (await world.store.get(keys.skip_index(files[0].path)))[1]
    room = 3 * (len(body) + 600)
    store = Remote(world)
    indexes = FetchedIndexes(store.get, store.place, SystemClock(), room)
    for n in (0, 1, 2, 0, 3):
        assert indexes.of([files[n]])
    assert store.got == 4
    assert indexes.of([files[0], files[2], files[3]])
    assert store.got == 4
    assert indexes.of([files[1]])
    assert store.got == 5
