"""Of files that have no attributes, as their skip indexes say, that column is not read."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from service.query.engine import QueryEngine
from tailrace.logstore import keys
from tailrace.logstore.search.conditions import Attribute, Contains, Exists, Not
from tailrace.logstore.table.skip_index import SkipIndex, parse
from tests.seeds import seeds
from tests.service.query.scattered import ALL
from tests.service.query.test_scan_copies import files_of, put_given, records
from tests.service.query.test_skipping import batch_at, put_in_table, requests_like
from tests.service.query.world import World, engine_of

GIVEN = {"no": None, "empty": [], "some": [("k", "v")]}


def put(world: World, hour: int, words: list[str], given: list[Any]) -> None:
    """A file of an hour, a record for each word, with these attributes in turn."""
    entries = [batch_at(60 * hour + n, [f"{word} {n}"]) for n, word in enumerate(words)]
    put_given(world, entries, given, rows=3)


async def indexes(world: World) -> list[SkipIndex]:
    return [
        parse((await world.store.get(keys.skip_index(file.path)))[1], size=file.size)
        for file in files_of(world)
    ]


@pytest.mark.parametrize(
    ("given", "bare"),
    [(["no"], True), (["empty"], False), (["some"], False), (["no"] * 19 + ["some"], False),
     (["no"] * 19 + ["empty"], False)],
)  # fmt: skip
async def test_an_index_says_whether_a_line_has_attributes(
    tmp_path: Path, given: list[str], bare: bool
) -> None:
    world = World(tmp_path)
    put(world, 0, ["word"] * 20, [GIVEN[one] for one in given])
    await world.index()
    assert [index.bare for index in await indexes(world)] == [bare]


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("seed", seeds(3))
async def test_searches_find_what_they_find_without_an_index(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    world = World(tmp_path)
    words = [f"word{dice.randrange(1000)}" for _ in range(12)]
    for hour in range(5):
        some = dice.sample(list(GIVEN.values()), dice.randrange(1, 3))
        put(world, hour, words, some if hour else [None])
    asked = [*requests_like(words, dice)]
    asked += [replace(one, condition=Exists(Attribute("k"))) for one in asked[:3]]
    asked += [replace(one, condition=Not(Exists(Attribute("k")))) for one in asked[:3]]
    async with engine_of(world, scan_copies_bytes=0) as engine:
        plain = [await records(engine, request) for request in asked]
    await world.index()
    assert any(index.bare for index in await indexes(world))
    async with engine_of(world, scan_copies_bytes=0) as engine:
        for request, expected in zip(asked, plain, strict=True):
            assert await records(engine, request) == expected


async def found(engine: QueryEngine, text: str) -> list[dict[str, Any]]:
    return await records(engine, replace(ALL, condition=Contains(text)))


def damage_attributes(path: str) -> None:
    """Overwrites the column in place; the file counts as the one that was checked before."""
    footer, there = pq.read_metadata(path), os.stat(path)
    with open(path, "r+b") as file:
        for group in range(footer.num_row_groups):
            for leaf in range(footer.num_columns):
                chunk = footer.row_group(group).column(leaf)
                if chunk.path_in_schema.startswith("attributes."):
                    file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
                    file.write(b"\xff" * chunk.total_compressed_size)
    os.utime(path, ns=(there.st_atime_ns, there.st_mtime_ns))


async def test_the_column_is_not_read(tmp_path: Path) -> None:
    """Each page is read once, to compare it with its CRC (decision 143), and not after that."""
    world = World(tmp_path)
    put_in_table(world, [batch_at(0, [f"number{n:04} of all" for n in range(400)])], group_rows=50)
    (file,) = await world.index()
    async with engine_of(world, scan_copies_bytes=0) as engine:
        expected = await found(engine, "of all")
        assert len(expected) == 400
        damage_attributes(file.uri)
        assert await found(engine, "of all") == expected
        rare = await found(engine, "number0207")
        assert rare == [one for one in expected if "number0207" in one["message"]]
    async with engine_of(world, scan_copies_bytes=0) as engine:  # which has not checked it
        async with await engine.open(replace(ALL, condition=Contains("of all"))) as running:
            assert [batch async for batch in running.batches()] == []
            assert [file.uri.endswith(key) for key in running.report.unreadable] == [True]
