"""What is found before DuckDB is what DuckDB finds, by way of it and without it."""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from service.query import scan_copies, text_scan
from service.query import search as search_module
from service.query import table_reads as row_groups
from service.query.duckdb import Database
from service.query.engine import QueryEngine
from service.query.footers import TableFileFooter
from service.query.request import QueryRequest, RecordKey, UlidRange
from service.query.table_reads import TableReads, table_reads
from service.query.text_scan import places
from tailrace.logstore import ulid
from tailrace.logstore.errors import LimitReached
from tailrace.logstore.search.conditions import (
    All,
    AnyOf,
    Column,
    Condition,
    Contains,
    Is,
    Matches,
    Not,
)
from tests.seeds import seeds, some
from tests.service.query.scattered import ALL, scattered, some_requests
from tests.service.query.test_scan_copies import copied, files_of, put_with_attributes, records
from tests.service.query.test_skipping import batch_at, put_in_table, requests_like
from tests.service.query.world import NOW_MS, RUNS, World, engine_of, entry, search


@contextmanager
def statements() -> Iterator[list[str]]:
    """Those that DuckDB is asked meanwhile."""
    asked: list[str] = []
    run = Database.run

    def noting(self: Database, statement: str, parameters: Any) -> Any:
        asked.append(statement)
        return run(self, statement, parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "run", noting)
        yield asked


def plain_requests(words: list[str], rng: random.Random) -> list[QueryRequest]:
    """Those that need no DuckDB where all is in the table."""
    a, b = (Contains(rng.choice(words)) for _ in range(2))
    run = rng.choice(RUNS)
    conditions: list[Condition] = [
        a,
        All((a, b)),
        AnyOf((a, b)),
        All((AnyOf((a, b)), Is("svc.pipe", Column("fqn")))),
    ]
    return [
        QueryRequest(
            condition=one,
            fqn=rng.choice([None, None, run.fqn, "svc.pipe"]),
            run=rng.choice([None, None, run.run, "run"]),
            levels=rng.choice([(), (), ("ERROR",), ("ERROR", "INFO")]),
            limit=rng.choice([None, 1, 3, 50]),
            descending=rng.random() < 0.5,
            low=ulid.lowest_at(NOW_MS - rng.randrange(3_600_000)) if rng.random() < 0.2 else 0,
        )
        for one in conditions
        for _ in range(3)
    ]


async def in_pages(engine: QueryEngine, request: QueryRequest) -> list[dict[str, Any]]:
    """All that match, a few at a time, each page behind the cursor of the one before."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        page = replace(request, limit=5, after=after)
        keys, _ = await search(engine, page)
        found += await records(engine, page)
        if len(keys) < 5:
            return found
        after = keys[-1]


def lines_of(words: list[str], number: int, rng: random.Random) -> list[str]:
    starts = ["INFO ", "ERROR ", "", "späße 🎉 "]
    return [f"{rng.choice(starts)}{rng.choice(words)} {number}-{i}" for i in range(30)]


async def filled(world: World, words: list[str], rng: random.Random) -> None:
    """Files of small and large row groups, with and without attributes, and deletions."""
    entries = [batch_at(n, lines_of(words, n, rng)) for n in range(40)]
    put_in_table(world, entries[:20], group_rows=50)
    put_in_table(world, entries[20:], group_rows=400)
    put_in_table(world, [entry(rng, lines=40) for _ in range(20)], group_rows=90)
    put_with_attributes(world, words)
    world.deletions = [
        ("svc.pipe", rng.choice([None, "run"]), entries[rng.randrange(20)][1]),
        (RUNS[0].fqn, RUNS[0].run, ulid.highest_at(NOW_MS)),
    ]


@pytest.mark.parametrize("seed", some(seeds(4), 4, "prefilter"))
@pytest.mark.parametrize("with_copies", [False, True])
async def test_each_answer_is_that_of_duckdb_alone_and_of_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, with_copies: bool
) -> None:
    rng = random.Random(seed)
    words = [f"word{rng.randrange(10**6):06}" for _ in range(40)]
    world = await scattered(World(tmp_path), seed) if seed % 2 else World(tmp_path)
    await filled(world, words, rng)
    if seed % 4 > 1:
        await world.index()
    monkeypatch.setattr(text_scan, "_PIECE_ROWS", 7 + seed % 3 * 100)
    monkeypatch.setattr(row_groups, "_BATCH_LINES", 1 + seed % 3 * 10)
    monkeypatch.setattr(scan_copies, "_WORTH_A_LOOK", seed % 2 << 20)
    asked = [*plain_requests(words, rng), *requests_like(words, rng), *some_requests(rng)]
    paged = asked[:6]
    with monkeypatch.context() as patch:
        patch.setattr(text_scan, "sure_texts", lambda _: ())
        async with engine_of(world, scan_copies_bytes=0) as engine:
            expected = [await records(engine, request) for request in asked]
            pages = [await in_pages(engine, request) for request in paged]
    settings: dict[str, Any] = {} if with_copies else {"scan_copies_bytes": 0}
    async with engine_of(world, **settings) as engine:
        if with_copies:
            await copied(engine, len(files_of(world)))
        for request, found in zip(asked, expected, strict=True):
            assert await records(engine, request) == found, request
            if not request.levels:  # of which the model knows nothing
                keys, _ = await search(engine, request)
                assert keys == world.expected(request), request
            if request.limit is None:
                async with await engine.open(request) as running:
                    assert await running.count() == len(found), request
        assert [await in_pages(engine, request) for request in paged] == pages
        assert engine.copies.failed == 0


@pytest.mark.parametrize("with_copies", [False, True])
async def test_a_text_that_only_the_table_may_have_needs_no_database_and_one_turn(
    tmp_path: Path, with_copies: bool
) -> None:
    world, rng = World(tmp_path), random.Random(3)
    lines = [f"{rng.getrandbits(64):016x} done" for _ in range(2_000)]
    lines[777] = "needle-in-a-haystack is here"
    put_in_table(world, [batch_at(0, lines)], group_rows=100)
    asked = [replace(ALL, condition=Contains(text)) for text in ("needle-in-a-haystack", "nowhere")]
    asked.append(replace(asked[0], limit=1))
    async with engine_of(world) as engine:
        if with_copies:  # without an index
            await copied(engine, 1)
        else:
            await world.index()
        with statements() as made, pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.databases, "take", None)
            turn = Mock(side_effect=engine.in_thread)
            patch.setattr(engine, "in_thread", turn)
            for request in asked:
                assert (await search(engine, request))[0] == world.expected(request)
            assert turn.call_count == len(asked)
            assert not made
        with statements() as made:
            two = replace(ALL, condition=Matches("needle-in.a-haystack"))
            assert len((await search(engine, two))[0]) == 1
            assert "found" in made[0]
            assert "read_parquet" not in made[0]


@pytest.mark.parametrize("with_copies", [False, True])
async def test_coloured_text_is_found_in_the_few_row_groups_that_have_some(
    tmp_path: Path, with_copies: bool
) -> None:
    world, rng = World(tmp_path), random.Random(3)
    lines = [f"{rng.getrandbits(64):016x} done" for _ in range(2_000)]
    lines[777] = "step \x1b[32mdeploy\x1b[0m failed"
    lines[1_200] = "step deploy failed"
    lines[1_500] = "\x1b[1mother\x1b[0m"
    put_in_table(world, [batch_at(0, lines)], group_rows=100)
    await world.index()
    asked = replace(ALL, condition=Contains("step deploy failed"))
    settings: dict[str, Any] = {} if with_copies else {"scan_copies_bytes": 0}
    async with engine_of(world, **settings) as engine:
        if with_copies:
            await copied(engine, 1)
        assert [row["message"] for row in await records(engine, asked)] == [
            lines[1_200],
            lines[777],
        ]
        whole = (await search(engine, ALL))[1]["bytes"]
        keys, stats = await search(engine, asked)
        assert len(keys) == 2
        assert stats["bytes"] < whole / 4, "the index leaves out the rest"
        for text in ("step \x1b[32mdeploy", "deploy\x1b[0m failed"):
            found, _ = await search(engine, replace(ALL, condition=Contains(text)))
            assert found == keys[1:], "what is stored is found as well"
        no, _ = await search(engine, replace(ALL, condition=Not(Contains("step deploy failed"))))
        assert len(no) == 1_998


@contextmanager
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Where the row groups begin whose bytes are looked through meanwhile."""
    begun: list[int] = []

    def noting(path: str, span: tuple[int, int], *given: Any) -> list[int]:
        begun.append(span[0])
        return places(path, span, *given)

    with monkeypatch.context() as patch:
        patch.setattr("service.query.text_scan.places", noting)
        yield begun


async def watched(
    engine: QueryEngine, world: World, request: QueryRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[int]]:
    """The statements, and the looks, of a search that gives what the model expects."""
    with statements() as made, looks(monkeypatch) as looked:
        assert (await search(engine, request))[0] == world.expected(request)
    return made, looked


async def test_of_a_text_that_is_everywhere_only_the_first_row_groups_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, rng = World(tmp_path), random.Random(3)
    lines = [f"{rng.getrandbits(64):016x} done" for _ in range(8_000)]
    lines[::2] = ["needle-in-a-haystack is here"] * len(lines[::2])
    put_in_table(world, [batch_at(0, lines)], group_rows=400)
    request = replace(ALL, condition=Contains("needle"))
    async with engine_of(world) as engine:
        await copied(engine, 1)
        made, looked = await watched(engine, world, request, monkeypatch)
        assert 0 < len(looked) <= 5  # some are looked at beside the one that tells
        assert len(made) == 1
        assert "file_row_number BETWEEN" not in made[0]  # all of the file is read, in one scan


@pytest.mark.usefixtures("no_maps")
async def test_of_files_without_copies_those_with_the_text_everywhere_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, rng = World(tmp_path), random.Random(3)
    lines = [f"{rng.getrandbits(64):016x} done" for _ in range(2_000)]
    lines[::50] = ["needle-in-a-haystack is here"] * 40
    put_in_table(world, [batch_at(0, lines)], group_rows=300)
    await world.index()
    request = replace(ALL, condition=Contains("needle"))
    async with engine_of(world) as engine:
        made, looked = await watched(engine, world, request, monkeypatch)
        assert (len(made), looked) == (1, [])
        assert "found" not in made[0]


async def test_of_files_all_row_groups_are_looked_at_that_the_index_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, rng = World(tmp_path), random.Random(3)
    lines = [f"{rng.getrandbits(64):016x} done" for _ in range(2_000)]
    lines[50::500] = ["needle-in-a-haystack is here"] * 4
    put_in_table(world, [batch_at(0, lines)], group_rows=100)
    await world.index()
    request = replace(ALL, condition=Contains("needle-in-a-haystack"))
    async with engine_of(world) as engine:
        made, looked = await watched(engine, world, request, monkeypatch)
        assert (made, looked) == ([], [])  # they are decoded


async def test_of_copies_no_row_group_with_the_text_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, rng = World(tmp_path), random.Random(3)
    lines = [f"{rng.getrandbits(64):016x} done" for _ in range(2_000)]
    lines[::10] = ["needle-in-a-haystack is here"] * 200
    put_in_table(world, [batch_at(0, lines)], group_rows=300)
    request = replace(ALL, condition=Contains("needle"))
    async with engine_of(world) as engine:
        await copied(engine, 1)
        monkeypatch.setattr(TableFileFooter, "open", None)
        made, looked = await watched(engine, world, request, monkeypatch)
        assert (len(made), len(looked)) == (0, 7)


async def test_what_begins_in_one_message_and_ends_in_the_next_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    lines = [f"other {number % 7}" for number in range(200)]
    lines[105:111] = ["xx nee", "dle xx", "", "needle", "ne", "edle"]
    put_in_table(world, [batch_at(0, lines)], group_rows=20)
    request = replace(ALL, condition=Contains("needle"))
    async with engine_of(world) as engine:
        assert len((await search(engine, request))[0]) == 1
        await copied(engine, 1)
        made, looked = await watched(engine, world, request, monkeypatch)
        assert (made, len(looked)) == ([], 10)


@pytest.mark.usefixtures("no_maps")
@pytest.mark.parametrize(
    ("limit", "value", "with_copies"),
    [
        *[("_LONGEST_TEXT", 700, with_copies) for with_copies in (False, True)],
        *[("_MOST_FOUND", 700, with_copies) for with_copies in (False, True)],
        ("_FEWEST_ROWS", 1, False),
        ("_MOST_PLACES", 1, True),
    ],
)
async def test_what_is_beyond_a_limit_is_left_to_duckdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, with_copies: bool
) -> None:
    world = World(tmp_path)
    lines = [f"other {number % 7}" for number in range(1_000)]
    for first in (250, 600):
        lines[first : first + 20] = [f"needle-in-a-haystack {number:040}" for number in range(20)]
    put_in_table(world, [batch_at(0, lines)], group_rows=50)
    await world.index()
    request = replace(ALL, condition=Contains("needle-in-a-haystack"))
    async with engine_of(world) as engine:
        if with_copies:
            await copied(engine, 1)
        assert (await watched(engine, world, request, monkeypatch))[0] == []
        module = next(one for one in (text_scan, text_scan, text_scan) if hasattr(one, limit))
        monkeypatch.setattr(module, limit, value)
        monkeypatch.setattr(text_scan, "_MOST_SHARE", 1_000)
        assert len((await watched(engine, world, request, monkeypatch))[0]) == 1


async def test_a_search_that_pauses_holds_no_lines_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "_PIECE_ROWS", 10)
    world = World(tmp_path)
    entries = [
        batch_at(n, [f"{'alpha' if n == 4 else 'beta'} {i}" for i in range(30)]) for n in range(10)
    ]
    put_in_table(world, entries, group_rows=30)
    request = replace(ALL, condition=Contains("alpha"))
    held: list[weakref.ref[TableReads]] = []
    made = TableReads.prefiltered

    def noting(*given: Any) -> TableReads:
        reads = made(*given)
        if reads.found:
            held.append(weakref.ref(reads))
        return reads

    monkeypatch.setattr(TableReads, "prefiltered", noting)
    async with engine_of(world) as engine:
        await copied(engine, 1)
        held.clear()
        async with await engine.open(request) as running:
            batches = running.batches()
            found = [RecordKey.of(await anext(batches))]
            reads = held[0]()
            assert reads is not None
            del reads
            await running.pause()
            assert held[0]() is None
            found += [RecordKey.of(batch) async for batch in batches]
            assert [key for keys in found for key in keys] == world.expected(request)
            assert len(held) > 1


async def test_it_ends_between_two_row_groups(tmp_path: Path) -> None:
    world, rng = World(tmp_path), random.Random(6)
    lines = [f"{rng.getrandbits(64):016x} done" for _ in range(2_000)]
    put_in_table(world, [batch_at(0, lines)], group_rows=10)
    request = replace(ALL, condition=Contains("needle-in-a-haystack"))
    async with engine_of(world) as engine:
        await copied(engine, 1)
        looked = 0

        def check() -> None:
            nonlocal looked
            looked += 1
            if looked > 5:
                raise LimitReached("enough")

        files = files_of(world)
        made = engine.prefilter(request, check)
        reads = table_reads(
            UlidRange(0, (1 << 128) - 1), files, {}, engine.copies.of, engine.indexes.maps
        )
        with pytest.raises(LimitReached):
            await asyncio.to_thread(made.begin(reads, UlidRange(0, (1 << 128) - 1)).finish)
        assert looked == 6
