"""Copies of table files are made when no search runs, and under any load in the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from service.query import scan_copies
from tailrace.logstore.table.snapshot import TableFile
from tests.service.query.scattered import ALL
from tests.service.query.test_scan_copies import files_of, kept, one_file
from tests.service.query.test_skipping import batch_at, put_in_table
from tests.service.query.world import World, engine_of
from tests.waiting import until


async def test_no_copy_is_made_beside_the_search_that_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_copies, "_GIVES_WAY_SECONDS", 0.0)  # since none is asked for yet
    world = World(tmp_path)
    await one_file(world, lines=30_000)
    async with engine_of(world) as engine:
        async with await engine.open(ALL) as running:
            batches = running.batches()
            await anext(batches)
            await asyncio.sleep(0.2)
            assert engine.copies.made == 0
            assert not kept(engine)
            await batches.aclose()
        await until(lambda: engine.copies.made == 1)


async def some_files(world: World) -> list[TableFile]:
    for hour in range(3):
        put_in_table(world, [batch_at(hour * 60, ["word"] * 2_000)])
    return list(files_of(world))


async def test_a_copy_waits_until_no_search_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_copies, "_GIVES_WAY_SECONDS", 60.0)
    world = World(tmp_path)
    files = await some_files(world)
    async with engine_of(world) as engine:
        async with await engine.open(ALL), await engine.open(ALL):
            for file in files:
                engine.copies.note_read(file, file.size)
            await until(lambda: bool(kept(engine)))  # it has begun
            await asyncio.sleep(0.2)
            assert engine.copies.made == 0
            assert [path.suffix for path in kept(engine)] == [".parquet"]  # nor is its end near
        await until(lambda: engine.copies.made == len(files))


async def test_a_copy_is_made_though_searches_run_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_copies, "_GIVES_WAY_SECONDS", 0.01)
    world = World(tmp_path)
    files = await some_files(world)
    async with engine_of(world) as engine, await engine.open(ALL):
        for file in files:
            engine.copies.note_read(file, file.size)
        await until(lambda: engine.copies.made == len(files))


async def test_closing_does_not_wait_for_searches_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_copies, "_GIVES_WAY_SECONDS", 3.0)
    world = World(tmp_path)
    file = await one_file(world)
    async with engine_of(world) as engine:
        running = await engine.open(ALL)
        engine.copies.note_read(file, file.size)
        await until(lambda: bool(kept(engine)))
        engine.copies.close()
        assert engine._quiet.is_set()  # what waits for it goes on
        await running.close()
