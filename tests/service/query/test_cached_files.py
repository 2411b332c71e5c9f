"""Searches read files of S3 that are kept on this machine there, and find what they did before."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from service.query.engine import QueryEngine
from service.query.request import QueryRequest
from tailrace.logstore import keys
from tailrace.logstore.search.conditions import Contains, Matches, Not
from tests.seeds import seeds, some
from tests.servers.minio import Bucket
from tests.service.query.scattered import ALL, scattered, some_requests
from tests.service.query.test_mapped_lines import NEEDLE, by_maps_alone, put
from tests.service.query.test_scan_copies import (
    cut,
    files_of,
    overwritten,
    put_with_attributes,
    records,
    removed,
)
from tests.service.query.test_skipping import batch_at, put_in_table, requests_like
from tests.service.query.test_unread import HOURLY
from tests.service.query.world import HOUR_MS, World, engine_of, search
from tests.waiting import until

pytestmark = pytest.mark.minio


@pytest.fixture
async def world(bucket: Bucket, tmp_path: Path) -> AsyncIterator[World]:
    async with bucket.open() as store:
        yield World(tmp_path, bucket, store)


def kept(engine: QueryEngine) -> Sequence[Path]:
    return sorted(Path(engine.files.folder).glob("*"))


async def all_kept(engine: QueryEngine, world: World, *, indexed: bool = True) -> None:
    """Searches, and waits until all files of the table are here.

    The cache says so, since the folder shows a file before it was checked.
    """
    await search(engine, replace(ALL, limit=1))
    files = files_of(world)
    await until(lambda: set(engine.files.paths()) == {file.path for file in files})
    await until(lambda: all(engine.files.has_index(file) == indexed for file in files))
    assert len(kept(engine)) == len(files) * (2 if indexed else 1)


def empty_bucket(world: World) -> None:
    """Removes the files of the table and their indexes. Its log stays."""
    assert world.bucket is not None
    client, bucket = world.bucket.client(), world.bucket
    for file in files_of(world):
        for key in (f"{keys.TABLE}/{file.path}", keys.skip_index(file.path)):
            client.delete_object(Bucket=bucket.name, Key=f"{bucket.prefix}/{key}")


@pytest.mark.parametrize("seed", some(seeds(3), 3, "cached files"))
@pytest.mark.parametrize("indexed", [False, True])
async def test_searches_find_here_what_is_in_the_bucket(
    world: World, seed: int, indexed: bool
) -> None:
    rng = random.Random(seed)
    words = [f"word{rng.randrange(10**6):06}" for _ in range(40)]
    await scattered(world, seed)
    entries = [
        batch_at(n, [f"{rng.choice(words)} key={rng.choice(words)} {n}-{i}" for i in range(30)])
        for n in range(40)
    ]
    put_in_table(world, entries, group_rows=50)
    put_with_attributes(world, words)
    if indexed:
        await world.index()
    asked = [*requests_like(words, rng), *some_requests(rng)]
    asked += [
        replace(ALL, condition=Matches(f"{words[0][:8]}[0-9]+")),
        replace(ALL, condition=Not(Contains(words[0]))),
    ]
    async with engine_of(world, scan_copies_bytes=0, file_cache_bytes=0) as engine:
        plain = [await records(engine, request) for request in asked]
        assert not kept(engine)
    async with engine_of(world, scan_copies_bytes=0) as engine:
        await all_kept(engine, world, indexed=indexed)
        empty_bucket(world)
        for request, expected in zip(asked, plain, strict=True):
            assert await records(engine, request) == expected
    async with engine_of(world, scan_copies_bytes=0) as engine:  # as after a restart
        for request, expected in zip(asked, plain, strict=True):
            assert await records(engine, request) == expected


async def one_file(world: World) -> None:
    rng = random.Random(4)
    lines = [f"{rng.getrandbits(64):016x} word" for _ in range(200)]
    put_in_table(world, [batch_at(0, lines)], group_rows=40)
    await world.index()


def other_bytes(path: Path) -> None:
    path.write_bytes(random.Random(7).randbytes(path.stat().st_size))


@pytest.mark.parametrize("harm", [removed, cut, overwritten, other_bytes])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    "asked",
    some(
        [
            ALL,
            replace(ALL, limit=7),
            replace(ALL, condition=Contains("word")),
            replace(ALL, condition=Matches("0.*word")),
            replace(ALL, condition=Contains("not there")),
        ],
        2,
        "what is asked",
    ),
)
async def test_what_is_harmed_here_changes_no_answer(
    world: World, harm: Callable[[Path], None], which: int, asked: QueryRequest
) -> None:
    await one_file(world)
    async with engine_of(world, scan_copies_bytes=0) as engine:
        await all_kept(engine, world)
        harm(kept(engine)[which])
        for _ in range(2):
            found, stats = await search(engine, asked)
            assert found == world.expected(asked)
            assert stats["complete"]
            assert stats["files_failed"] == 0


def flip(path: Path, share: float) -> None:
    """Turns a bit, as a disk does: the time of change stays."""
    was, body = path.stat(), bytearray(path.read_bytes())
    body[int(len(body) * share)] ^= 4
    path.write_bytes(bytes(body))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("which", [0, 1])
async def test_a_bit_that_flips_here_changes_no_answer(
    world: World, which: int, restarted: bool
) -> None:
    await one_file(world)
    asked = [ALL, replace(ALL, condition=Contains("word"))]
    for share in (0.3, 0.6):
        async with engine_of(world, scan_copies_bytes=0) as engine:
            await all_kept(engine, world)
            path = kept(engine)[which]
            if not restarted:
                flip(path, share)
                await find_all(engine, world, asked)
        if restarted:
            flip(path, share)
            async with engine_of(world, scan_copies_bytes=0) as engine:
                await find_all(engine, world, asked)
        for path in Path(engine.files.folder).iterdir():
            path.unlink()


async def find_all(engine: QueryEngine, world: World, asked: Sequence[QueryRequest]) -> None:
    for request in asked:
        found, stats = await search(engine, request)
        assert found == world.expected(request)
        assert stats["complete"]


async def test_what_was_harmed_comes_again(world: World) -> None:
    await one_file(world)
    (file,) = files_of(world)
    async with engine_of(world, scan_copies_bytes=0) as engine:
        await all_kept(engine, world)
        cut(kept(engine)[0])
        assert (await search(engine, ALL))[0] == world.expected(ALL)
        assert engine.files.nearest(file) is file
        engine.files.note_read(file, file.size)  # as searches do that read all of it
        await all_kept(engine, world)
        empty_bucket(world)
        assert (await search(engine, ALL))[0] == world.expected(ALL)


async def test_files_of_other_hours_than_the_harmed_one_stay(world: World) -> None:
    await one_file(world)
    batch = batch_at(7, ["another word"] * 50)
    put_in_table(world, [(batch[0], batch[1] - (5 * HOUR_MS << 80), batch[2])])
    await world.index()
    harmed, other = sorted(files_of(world), key=lambda file: -file.end_ms)
    async with engine_of(world, sizes=HOURLY, scan_copies_bytes=0) as engine:
        await all_kept(engine, world)
        for asked in (ALL, replace(ALL, condition=Contains("word"))):
            overwritten(Path(engine.files.nearest(harmed).uri))
            assert (await search(engine, asked))[0] == world.expected(asked)
            assert engine.files.nearest(harmed) is harmed
            assert engine.files.nearest(other) is not other
            engine.files.note_read(harmed, harmed.size)
            await all_kept(engine, world)


async def test_a_scan_copy_is_made_of_the_file_here(world: World) -> None:
    await one_file(world)
    async with engine_of(world) as engine:
        await all_kept(engine, world)
        empty_bucket(world)
        for _ in range(2):
            await search(engine, ALL)
        await until(lambda: engine.copies.made == 1)
        assert (await search(engine, ALL))[0] == world.expected(ALL)


async def test_a_file_of_which_much_was_read_is_fetched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one_file(world)
    (file,) = files_of(world)
    async with engine_of(world, scan_copies_bytes=0) as engine:
        await all_kept(engine, world)
        noted: list[float] = []
        monkeypatch.setattr(engine.files, "note_read", lambda _, size: noted.append(size))
        await search(engine, ALL)
        assert not noted, "it is here"
        engine.files.forget(file.path)
        await search(engine, ALL)
        assert noted == [file.size]


async def test_indexes_are_read_here_and_their_maps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(world, group_rows=50)
    await world.index()
    (file,) = files_of(world)
    nowhere = replace(ALL, condition=Contains("nowhere to be found"))
    async with engine_of(world, scan_copies_bytes=0, file_cache_bytes=0) as engine:
        expected = await records(engine, NEEDLE)
    async with engine_of(world, scan_copies_bytes=0) as engine:
        await all_kept(engine, world)
    async with engine_of(world, scan_copies_bytes=0) as engine:  # it has nothing in memory
        empty_bucket(world)
        assert await by_maps_alone(engine, NEEDLE, monkeypatch) == expected
        _, stats = await search(engine, nowhere)
        assert stats["bytes"] < file.size * 0.05


async def test_in_place_of_a_harmed_index_here_that_of_the_bucket_is_read(world: World) -> None:
    await one_file(world)
    (file,) = files_of(world)
    async with engine_of(world, scan_copies_bytes=0) as engine:
        await all_kept(engine, world)
        overwritten(Path(engine.files.index_place(file.path)))
        _, stats = await search(engine, replace(ALL, condition=Contains("nowhere to be found")))
        assert engine.indexes.damaged == 1
        assert stats["bytes"] < file.size * 0.05
