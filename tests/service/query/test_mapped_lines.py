"""Lines of compressed row groups are found by their maps, as DuckDB finds them without."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from service.query import table_reads, text_scan
from service.query.engine import QueryEngine
from service.query.request import QueryRequest
from service.query.text_scan import Prefilter
from tailrace.logstore import keys, ulid
from tailrace.logstore.search.conditions import AnyOf, Contains
from tailrace.logstore.table.line_map import GroupReader, PagePlace
from tailrace.logstore.table.skip_index import parse
from tests.service.query.scattered import ALL
from tests.service.query.test_prefilter import statements
from tests.service.query.test_scan_copies import files_of, put_with_attributes, records
from tests.service.query.test_skipping import put_in_table
from tests.service.query.world import NOW_MS, RUNS, World, engine_of, search

NEEDLE = replace(ALL, condition=Contains("needle"))


def put(world: World, *, every: int = 10, runs: int = 3, group_rows: int = 400) -> None:
    """Batches of several runs, in which the text is everywhere."""
    rng, entries = random.Random(4), []
    for number in range(30):
        lines = [f"ERROR {rng.getrandbits(64):016x} é {i}" for i in range(rng.randrange(1, 90))]
        lines[::every] = [f"{line} needle\0{'x' * rng.choice([0, 300])}" for line in lines[::every]]
        at = ulid.batch_of(ulid.lowest_at(NOW_MS + number) + rng.getrandbits(80))
        text = "".join(f"{line}\n" for line in lines)
        entries.append((RUNS[number % runs], at, text.encode()))
    put_in_table(world, entries, group_rows=group_rows)


async def by_maps_alone(
    engine: QueryEngine, request: QueryRequest, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """The records of a search for which nothing is decoded, and DuckDB is asked nothing."""
    with monkeypatch.context() as patch, statements() as made:
        patch.setattr(Prefilter, "_decoded", None)
        found = await records(engine, request)
    assert made == []
    return found


@pytest.mark.parametrize("group_rows", [7, 400, 10_000])
async def test_a_text_that_is_everywhere_is_found_by_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int
) -> None:
    monkeypatch.setattr(table_reads, "_BATCH_LINES", 20)
    world = World(tmp_path)
    put(world, group_rows=group_rows)
    await world.index()
    either = replace(ALL, condition=AnyOf((Contains("needle"), Contains("needle\0x"))))
    asked = [NEEDLE, either, replace(NEEDLE, limit=7), replace(NEEDLE, fqn="nobody")]
    asked += [replace(NEEDLE, fqn=run.fqn, run=run.run) for run in RUNS[:3]]
    asked.append(replace(NEEDLE, fqn=RUNS[0].run, run=RUNS[0].fqn))  # names of another column
    async with engine_of(world, scan_copies_bytes=0) as engine:
        for request in asked:
            found = await by_maps_alone(engine, request, monkeypatch)
            assert (await search(engine, request))[0] == world.expected(request)
            with monkeypatch.context() as patch:
                patch.setattr(text_scan, "sure_texts", lambda _: ())
                assert await records(engine, request) == found
        assert len(found) == 0 < len(await records(engine, NEEDLE))


async def test_what_is_in_too_many_lines_is_left_to_duckdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    put(world, every=2)
    await world.index()
    async with engine_of(world, scan_copies_bytes=0) as engine:
        expected = await by_maps_alone(engine, NEEDLE, monkeypatch)
        monkeypatch.setattr(text_scan, "_MOST_LINES", 20)
        with statements() as made:
            assert await records(engine, NEEDLE) == expected
        assert len(made) == 1


async def test_lines_with_attributes_are_left_to_duckdb(tmp_path: Path) -> None:
    world = World(tmp_path)
    put_with_attributes(world, ["needle"])
    (file,) = await world.index()
    body = Path(world.store.uri(keys.skip_index(file.path))).read_bytes()
    assert not any(size for _, size in parse(body, size=file.size).head.maps)
    async with engine_of(world, scan_copies_bytes=0) as engine:
        with statements() as made:
            assert await records(engine, NEEDLE)
        assert len(made) == 1


@pytest.mark.parametrize("how", ["damaged", "cut off", "gone"])
async def test_a_map_that_does_not_read_leaves_its_row_group_to_duckdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    world = World(tmp_path)
    put(world)
    (file,) = await world.index()
    path = Path(world.store.uri(keys.skip_index(file.path)))
    body = path.read_bytes()
    begin, size = parse(body, size=file.size).head.maps[1]
    async with engine_of(world, scan_copies_bytes=0) as engine:
        expected = await by_maps_alone(engine, NEEDLE, monkeypatch)
        if how == "gone":
            path.unlink()
        elif how == "cut off":
            path.write_bytes(body[: begin + size // 2])
        else:
            path.write_bytes(body[: begin + 20] + b"?" + body[begin + 21 :])
        with statements() as made:
            assert await records(engine, NEEDLE) == expected
        assert len(made) == 1
        assert engine.indexes.damaged == (how != "gone")


async def test_what_is_read_in_one_pipeline_is_announced_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, announced, read = World(tmp_path), list[tuple[int, int]](), list[int]()
    exact = list[int]()  # files of which the system reads no more than is asked
    put(world, runs=3, group_rows=100)
    await world.index()
    before = list[bool]()  # whether a page was announced when it was read
    advise, page = os.posix_fadvise, GroupReader._page

    def noting(number: int, at: int, size: int, advice: int) -> None:
        if advice == os.POSIX_FADV_WILLNEED:
            announced.append((at, at + size))
        if advice == os.POSIX_FADV_RANDOM:
            exact.append(number)
        advise(number, at, size, advice)

    def reading(self: GroupReader, place: PagePlace) -> bytearray:
        if place in self._map.messages:
            read.append(place.at)
            before.append(any(low <= place.at < end for low, end in announced))
        return page(self, place)

    monkeypatch.setattr(GroupReader, "_page", reading)
    async with engine_of(world, scan_copies_bytes=0) as engine:
        everything = await by_maps_alone(engine, NEEDLE, monkeypatch)
        of_all = len(read)
        monkeypatch.setattr(os, "posix_fadvise", noting)
        assert await by_maps_alone(engine, NEEDLE, monkeypatch) == everything
        assert announced == []
        assert exact == []
        read.clear()
        before.clear()
        asked = replace(NEEDLE, fqn=RUNS[0].fqn)
        assert (await search(engine, asked))[0] == world.expected(asked)
        assert all(before)
        assert len(announced) == len(read)  # a page for each row group
        assert len(exact) == 2 * len(read)  # once to announce it, once to read it
        assert 0 < len(read) < of_all


async def test_a_page_that_is_damaged_is_told_of(tmp_path: Path) -> None:
    world = World(tmp_path)
    put(world, runs=1)
    (file,) = await world.index()
    (path,) = [Path(file.uri) for file in files_of(world)]
    chunk = pq.read_metadata(path).row_group(0).column(7)
    assert chunk.path_in_schema == "message"
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    body = path.read_bytes()
    path.write_bytes(body[:middle] + bytes(8) + body[middle + 8 :])
    async with (
        engine_of(world, scan_copies_bytes=0) as engine,
        await engine.open(NEEDLE) as running,
    ):
        assert [batch async for batch in running.batches()] == []
        stats = running.stats()
    assert not stats["complete"]
    assert stats["files_failed"] == 1
    assert file.path in stats["unreadable"][0]
