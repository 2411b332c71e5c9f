"""Copies of table files change how long a search takes, and never what it finds."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service import settings as settings_module
from service.query.engine import QueryEngine
from service.query.request import QueryRequest
from service.runtime import free_disk
from service.settings import QuerySettings
from tailrace.logstore import keys
from tailrace.logstore.search.conditions import Attribute, Contains, Exists
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import record_batches
from tailrace.logstore.table.snapshot import TableFile
from tests.batches import Entry, make_batches
from tests.seeds import seeds, some
from tests.servers.minio import Bucket as S3Bucket
from tests.service.query.scattered import ALL, scattered, some_requests
from tests.service.query.test_skipping import batch_at, put_in_table, requests_like
from tests.service.query.world import NODE, World, engine_of, search
from tests.simulation.hand_clock import HandClock
from tests.waiting import until


async def records(engine: QueryEngine, request: QueryRequest) -> list[dict[str, Any]]:
    """What is found, without what differs between two copies of a record at two nodes."""
    found: list[dict[str, Any]] = []
    async with await engine.open(request) as running:
        async for batch in running.batches():
            found += batch.drop_columns(["pos", "level"]).to_pylist()
        assert running.stats()["complete"]
    return found


async def copied(engine: QueryEngine, number: int) -> None:
    """Reads everything until so many files have a copy."""
    await search(engine, ALL)
    await until(lambda: engine.copies.made == number)


def files_of(world: World) -> Sequence[TableFile]:
    return world.table.snapshot().files


def kept(engine: QueryEngine) -> list[Path]:
    return sorted(Path(engine.copies.folder).glob("*"))


def put_given(world: World, entries: Sequence[Entry], given: Sequence[Any], rows: int) -> None:
    """Files of batches whose lines have these attributes in turn, so many in a row group."""
    for entry in entries:
        world.know(entry)
    table = pa.Table.from_batches(record_batches(make_batches(NODE, entries), Carry()))
    place = table.schema.get_field_index("attributes")
    field = table.schema.field(place)
    column = pa.array([given[n % len(given)] for n in range(len(table))], field.type)
    world.write_table(table.set_column(place, field, column), {}, group_rows=rows)


def put_with_attributes(world: World, words: Sequence[str]) -> None:
    entries = [batch_at(90 + n, [f"{word} with more"]) for n, word in enumerate(words)]
    maps = [[("k", word)] if n % 3 else [] for n, word in enumerate(words)]
    put_given(world, entries, maps, rows=5)


@pytest.mark.parametrize("seed", some(seeds(3), 3, "scan copies"))
@pytest.mark.parametrize("indexed", [False, True])
async def test_searches_find_in_copies_what_is_in_the_files(
    tmp_path: Path, seed: int, indexed: bool
) -> None:
    rng = random.Random(seed)
    words = [f"word{rng.randrange(10**6):06}" for _ in range(40)]
    world = await scattered(World(tmp_path), seed)
    entries = [
        batch_at(n, [f"{rng.choice(words)} key={rng.choice(words)} {n}-{i}" for i in range(30)])
        for n in range(40)
    ]
    put_in_table(world, entries[:20], group_rows=50)
    put_in_table(world, entries[20:], group_rows=7)
    put_with_attributes(world, words)
    if indexed:
        await world.index()
    asked = [
        *requests_like(words, rng),
        *some_requests(rng),
        replace(ALL, condition=Exists(Attribute("k"))),
    ]
    async with engine_of(world, scan_copies_bytes=0) as engine:
        plain = [await records(engine, request) for request in asked]
        assert not kept(engine)
    async with engine_of(world) as engine:
        await copied(engine, len(files_of(world)))
        for request, expected in zip(asked, plain, strict=True):
            assert await records(engine, request) == expected
            counting = replace(request, limit=None, after=None)
            async with await engine.open(counting) as running:
                counted = await running.count()
            if request.limit is None and request.after is None:
                assert counted == len(expected)
        assert engine.copies.failed == 0
        bare = [copy for file in files_of(world) if (copy := engine.copies.of(file)) and copy.bare]
        assert 0 < len(bare) < len(files_of(world))
        for file in files_of(world):  # nothing of the answers is from the files themselves
            Path(file.uri).write_bytes(b"")
        for request, expected in zip(asked, plain, strict=True):
            assert await records(engine, request) == expected


async def one_file(world: World, lines: int = 200) -> TableFile:
    rng = random.Random(4)
    put_in_table(world, [batch_at(0, [f"{rng.getrandbits(64):016x} word" for _ in range(lines)])])
    (file,) = files_of(world)
    return file


async def test_a_file_is_copied_once_as_much_of_it_was_read_as_it_has(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = await one_file(world)
    async with engine_of(world) as engine:
        for _ in range(3):
            engine.copies.note_read(file, file.size * 0.3)
        await asyncio.sleep(0.1)
        assert engine.copies.made == 0
        engine.copies.note_read(file, file.size * 0.11)
        await until(lambda: engine.copies.made == 1)
        await copied(engine, 1)
        assert [path.suffix for path in kept(engine)] == [".parquet", ".rows"]
        assert engine.copies.bytes == sum(path.stat().st_size for path in kept(engine))
        footer, copy = pq.read_metadata(file.uri), pq.read_metadata(kept(engine)[0])
        rows = [[m.row_group(n).num_rows for n in range(m.num_row_groups)] for m in (footer, copy)]
        assert rows[0] == rows[1]
        assert {copy.row_group(0).column(n).compression for n in range(copy.num_columns)} == {
            "UNCOMPRESSED"
        }


@pytest.mark.parametrize(
    ("request_", "times"),
    [
        (replace(ALL, limit=1), 40),  # reads some four rows of 200
        (replace(ALL, fqn="svc.pipe", run="run"), 9),
        (replace(ALL, run="run", condition=Contains("word")), 9),
    ],
)
async def test_searches_that_read_little_of_a_file_ask_late_for_a_copy(
    tmp_path: Path, request_: QueryRequest, times: int
) -> None:
    world = World(tmp_path)
    await one_file(world)
    async with engine_of(world) as engine:
        for _ in range(times):
            assert (await search(engine, request_))[0] == world.expected(request_)
        await asyncio.sleep(0.1)
        assert engine.copies.made == 0
        for _ in range(times):
            await search(engine, request_)
        await until(lambda: engine.copies.made == 1)


def removed(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwritten(path: Path) -> None:
    path.write_bytes(b"PAR1" + bytes(1000) + b"PAR1")


def flipped(path: Path) -> None:
    """One bit, in the middle."""
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


@pytest.mark.parametrize("harm", [removed, cut, overwritten, flipped])
@pytest.mark.parametrize("counting", [False, True])
@pytest.mark.parametrize(
    ("which", "asked"), [(0, ALL), (1, replace(ALL, condition=Contains("word")))]
)
async def test_a_harmed_copy_changes_no_answer(
    tmp_path: Path, harm: Callable[[Path], None], counting: bool, which: int, asked: QueryRequest
) -> None:
    world = World(tmp_path)
    await one_file(world)
    async with engine_of(world) as engine:
        await copied(engine, 1)
        harm(kept(engine)[which])
        if counting:
            async with await engine.open(asked) as running:
                assert await running.count() == len(world.expected(asked))
                assert running.stats()["complete"]
        else:
            found, stats = await search(engine, asked)
            assert found == world.expected(asked)
            assert stats["complete"]
            assert stats["files_failed"] == 0
        assert not engine.copies.bytes
        await copied(engine, 2)
        assert await records(engine, ALL)


async def test_a_damaged_file_gets_no_copy_and_is_reported(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = await one_file(world)
    path = Path(file.uri)
    body = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(2).column(7)
    assert chunk.path_in_schema == "message"
    start = chunk.data_page_offset
    body[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(body)
    async with engine_of(world) as engine:
        engine.copies.note_read(file, file.size)
        await until(lambda: engine.copies.failed == 1)
        assert not kept(engine)
        _, stats = await search(engine, replace(ALL, condition=Contains("word")))
        assert stats["files_failed"] == 1
        engine.copies.note_read(file, file.size * 7)
        await asyncio.sleep(0.1)
        assert engine.copies.failed == 1  # only after a while it is tried again
        engine.copies.note_read(file, file.size * 3)
        await until(lambda: engine.copies.failed == 2)


async def test_copies_keep_to_their_budget_and_those_in_use_stay(tmp_path: Path) -> None:
    world, clock = World(tmp_path), HandClock()
    for number in range(3):
        lines = [f"{number} {i} {'x' * 50}" for i in range(500)]
        put_in_table(world, [batch_at(number, lines)])
    files = files_of(world)
    async with engine_of(world) as engine:
        await copied(engine, 3)
        sizes = [copy.size for file in files if (copy := engine.copies.of(file))]
    budget = sizes[0] + sizes[1] + sizes[2] // 2
    async with engine_of(world, clock, scan_copies_bytes=budget) as engine:
        for file in files[:2]:
            engine.copies.note_read(file, file.size)
        await until(lambda: engine.copies.made == 2)
        engine.copies.note_read(files[2], files[2].size)
        await asyncio.sleep(0.2)
        assert [engine.copies.of(file) is None for file in files] == [False, False, True]
        await clock.advance(400)
        assert engine.copies.of(files[0])
        await clock.advance(300)
        engine.copies.note_read(files[2], files[2].size * 10)
        await until(lambda: engine.copies.made == 3)
        assert [engine.copies.of(file) is None for file in files] == [False, True, False]
        assert engine.copies.bytes <= budget
        assert len(kept(engine)) == 4


async def test_without_enough_free_disk_nothing_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(free_disk, "_FREE_BYTES", 1 << 60)
    world = World(tmp_path)
    file = await one_file(world)
    async with engine_of(world) as engine:
        engine.copies.note_read(file, file.size)
        await asyncio.sleep(0.2)
        assert engine.copies.made == engine.copies.failed == 0
        assert not kept(engine)


async def test_a_copy_goes_soon_after_its_file_left_the_table(tmp_path: Path) -> None:
    world, clock = World(tmp_path), HandClock()
    await one_file(world)
    put_in_table(world, [batch_at(1, ["another file"] * 60)])
    async with engine_of(world, clock) as engine:
        for file in files_of(world):  # no search, of which something would sleep as well
            engine.copies.note_read(file, file.size)
        await until(lambda: engine.copies.made == 2)
        await clock.advance(61)
        await until(lambda: clock.sleeping == 1)  # a thread has looked; the next look is due later
        assert len(kept(engine)) == 4
        delta = world.table.create().delta
        assert delta is not None
        delta.delete()
        await clock.advance(61)
        await until(lambda: not kept(engine))
        assert engine.copies.bytes == 0


async def test_a_copy_goes_in_time_though_another_file_is_being_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, clock = World(tmp_path), HandClock()
    await one_file(world)
    put_in_table(world, [batch_at(1, ["another file"] * 60)])
    async with engine_of(world, clock) as engine:
        first, second = files_of(world)
        engine.copies.note_read(first, first.size)
        engine.copies.note_read(second, second.size)
        copying = asyncio.Event()
        made = engine.copies._made

        async def slowly(file: TableFile) -> bool:
            if engine.copies.made:
                await copying.wait()
            return await made(file)

        monkeypatch.setattr(engine.copies, "_made", slowly)
        await until(lambda: engine.copies.made == 1)
        delta = world.table.create().delta
        assert delta is not None
        delta.delete()
        await clock.advance(61)
        await until(lambda: not kept(engine))
        copying.set()


async def test_a_copy_that_nobody_uses_goes_after_an_hour(tmp_path: Path) -> None:
    world, clock = World(tmp_path), HandClock()
    await one_file(world)
    async with engine_of(world, clock) as engine:
        await copied(engine, 1)
        for _ in range(50):
            await clock.advance(61)
            await asyncio.sleep(0.01)
        assert len(kept(engine)) == 2
        for _ in range(12):
            await clock.advance(61)
            await asyncio.sleep(0.05)
        await until(lambda: not kept(engine))


@pytest.mark.minio
async def test_files_of_a_bucket_are_copied_and_asked_for_no_more(
    tmp_path: Path, bucket: S3Bucket
) -> None:
    async with bucket.open() as store:
        world = World(tmp_path, bucket, store)
        await one_file(world)
        put_with_attributes(world, ["one", "two", "three"])
        async with engine_of(world) as engine:
            plain = await records(engine, ALL)
            assert len(plain) == len(world.expected(ALL))
            await copied(engine, 2)
            await store.delete([f"{keys.TABLE}/{file.path}" for file in files_of(world)])
            assert await records(engine, ALL) == plain
            assert len(kept(engine)) == 4


async def test_nothing_is_left_when_it_closes_beside_a_copy(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = await one_file(world, lines=2_000)
    for pause in range(12):
        async with engine_of(world) as engine:  # which looks for what is left
            engine.copies.note_read(file, file.size)
            if pause:  # else the wish comes after the end
                await asyncio.sleep(pause * 0.002)
        await asyncio.sleep(0.05)
        assert not list((tmp_path / "scratch").glob("*"))


def test_no_copies_is_a_setting() -> None:
    assert QuerySettings.model_validate({"scan_copies_bytes": "0"}).copies_budget == 0


@pytest.mark.parametrize(("memory", "indexes"), [(1 << 30, 64 << 20), (64 << 30, 1 << 30)])
def test_what_is_not_set_depends_on_how_much_memory_there_is(
    monkeypatch: pytest.MonkeyPatch, memory: int, indexes: int
) -> None:
    monkeypatch.setattr(settings_module, "memory_limit", lambda: memory)
    sized = QuerySettings().sized()
    assert (sized.index_bytes, sized.scan_copies_bytes) == (indexes, memory // 2)
    given = QuerySettings(index_bytes=1, scan_copies_bytes=2)
    assert given.sized() == given
