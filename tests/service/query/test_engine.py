"""Searches against a model: each record once, in order, whatever lies where."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from service.query.request import QueryRequest, TimeRanges, TimeRangeSizes, UlidRange
from service.query.sources import Deletion
from tailrace.logstore import keys, ulid
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.search.conditions import Matches
from tailrace.logstore.segments.file_format import give_up
from tests.batches import Entry
from tests.service.query.scattered import ALL, scattered, some_requests
from tests.service.query.world import HOUR_MS, NODE, NOW_MS, RUNS, World, engine_of, entry, search
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule


@pytest.mark.parametrize("seed", range(3))
async def test_a_search_gives_what_the_model_gives(tmp_path: Path, seed: int) -> None:
    world = await scattered(World(tmp_path), seed)
    # Time ranges of one hour, so that every edge between time ranges is met.
    async with engine_of(world, sizes=TimeRangeSizes(first_bytes=1, largest_bytes=1)) as engine:
        for request in some_requests(random.Random(seed)):
            for asked in (request, replace(request, descending=False)):
                found, stats = await search(engine, asked)
                assert found == world.expected(asked)
                assert stats["matches"] == len(found)
                assert stats["complete"]


@pytest.mark.parametrize("seed", range(2))
async def test_in_slices_it_is_the_same(tmp_path: Path, seed: int) -> None:
    """Of all ways to fill a limit: by the first slice, by some, by none."""
    world = await scattered(World(tmp_path), seed)
    async with engine_of(world, sizes=TimeRangeSizes(sliced_rows=1)) as engine:
        for limit in (1, 2, 3, 5, 9, 17, 40, 10_000):
            for asked in (replace(ALL, limit=limit), replace(ALL, limit=limit, descending=False)):
                found, stats = await search(engine, asked)
                assert found == world.expected(asked)
                assert stats["matches"] == len(found)


LACKING = replace(ALL, condition=Matches("nowhere"))


@pytest.mark.parametrize(
    ("asked", "budgets"),
    [
        (LACKING, [100, 400, 900, 900]),
        (replace(LACKING, fqn=RUNS[0].fqn), [900, 900, 900, 900]),
        (replace(LACKING, run=RUNS[0].run), [900, 900, 900, 900]),
        (replace(LACKING, run=RUNS[0].run, limit=1), [100, 400, 900, 900]),
    ],
)
async def test_time_ranges_grow_and_those_of_one_pipeline_begin_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: QueryRequest, budgets: list[int]
) -> None:
    world = World(tmp_path)
    for hour in range(4):
        world.merge([(RUNS[0], ulid.lowest_at(NOW_MS - hour * HOUR_MS), b"a line\n")], {})
    taken, take = list[int](), TimeRanges.take

    def noting(self: TimeRanges, budget: int) -> UlidRange | None:
        taken.append(budget)
        return take(self, budget)

    monkeypatch.setattr(TimeRanges, "take", noting)
    async with engine_of(world, sizes=TimeRangeSizes(100, 900)) as engine:
        assert (await search(engine, asked))[0] == []
    assert taken[:4] == budgets


@pytest.mark.parametrize("seed", range(2))
async def test_pages_are_the_unlimited_search_in_pieces(tmp_path: Path, seed: int) -> None:
    world = await scattered(World(tmp_path), seed)
    async with engine_of(world) as engine:
        for descending in (True, False):
            asked = replace(ALL, limit=17, descending=descending)
            pages = []
            while True:
                found, stats = await search(engine, asked)
                pages += found
                if stats["next"] is None:
                    break
                after = QueryRequest.parse({"after": stats["next"]}, now_ms=NOW_MS).after
                asked = replace(asked, after=after)
            assert pages == world.expected(replace(ALL, descending=descending))


@pytest.mark.parametrize("seed", range(3))
async def test_counting_counts_each_record_once(tmp_path: Path, seed: int) -> None:
    world = await scattered(World(tmp_path), seed)
    async with engine_of(world) as engine:
        for request in some_requests(random.Random(seed)):
            async with await engine.open(replace(request, stats_only=True)) as running:
                assert await running.count() == len(world.expected(replace(request, limit=None)))


async def test_copies_do_not_shorten_a_limited_search(tmp_path: Path) -> None:
    world = World(tmp_path)
    rng = random.Random(1)
    entries = [entry(rng, at_ms=NOW_MS + i, lines=1) for i in range(40)]
    for node in ("a", "b", "c"):
        await world.segment(entries, node)
    world.unflushed(entries)
    async with engine_of(world) as engine:
        found, _ = await search(engine, replace(ALL, limit=30))
        assert found == world.expected(replace(ALL, limit=30))


async def test_deleted_records_are_left_out(tmp_path: Path) -> None:
    world = await scattered(World(tmp_path), 4)
    middle = ulid.lowest_at(NOW_MS - 2 * HOUR_MS)
    world.deletions = [
        (RUNS[0].fqn, RUNS[0].run, middle),
        (RUNS[5].fqn, None, middle),
        ("another", None, middle),
    ]
    async with engine_of(world) as engine:
        for request in (ALL, replace(ALL, limit=40), replace(ALL, fqn=RUNS[0].fqn)):
            found, _ = await search(engine, request)
            assert found == world.expected(request)
        assert len(world.expected(ALL)) < len(world.records)


@pytest.mark.parametrize("others", [0, 63, 200])
async def test_deleted_records_are_left_out_however_many_deletions_there_are(
    tmp_path: Path, others: int
) -> None:
    """Few are terms of the statement, many a join."""
    world = await scattered(World(tmp_path), 4)
    middle = ulid.lowest_at(NOW_MS - 2 * HOUR_MS)
    deletions: list[Deletion] = [(RUNS[0].fqn, RUNS[0].run, middle), (RUNS[5].fqn, None, middle)]
    world.deletions = deletions + [("svc.pipe1", f"other {i}", middle) for i in range(others)]
    async with engine_of(world, sizes=TimeRangeSizes(first_bytes=1, largest_bytes=1)) as engine:
        for request in (ALL, replace(ALL, limit=40), replace(ALL, fqn=RUNS[0].fqn, limit=3)):
            for asked in (request, replace(request, descending=False)):
                found, _ = await search(engine, asked)
                assert found == world.expected(asked)
                async with await engine.open(replace(asked, limit=None)) as running:
                    assert await running.count() == len(world.expected(replace(asked, limit=None)))


async def test_a_level_is_found_where_it_stands(tmp_path: Path) -> None:
    world = World(tmp_path)
    lines = b"ERROR one\nINFO two\nERROR three\n"
    batches: list[Entry] = [
        (RUNS[0], ulid.lowest_at(NOW_MS - i * HOUR_MS), lines) for i in range(3)
    ]
    world.merge(batches[:1], {})
    await world.segment(batches[1:2])
    world.unflushed(batches[2:])
    async with engine_of(world) as engine:
        found, _ = await search(engine, replace(ALL, levels=("ERROR",)))
        assert len(found) == 6
        found, _ = await search(engine, replace(ALL, levels=("INFO", "FATAL")))
        assert len(found) == 3


async def test_a_segment_that_was_set_aside_is_reported(tmp_path: Path) -> None:
    world = World(tmp_path)
    rng = random.Random(1)
    await world.segment([entry(rng)])
    await world.store.put(keys.quarantine_marker(NODE, 1), b"checksum")
    kept = [entry(rng)]
    world.records.clear()
    await world.segment(kept)
    async with engine_of(world) as engine:
        found, stats = await search(engine, ALL)
        assert found == world.expected(ALL)
        assert stats["set_aside"] == [keys.quarantine_marker(NODE, 1)]
        assert not stats["complete"]
    await give_up(world.store, keys.segment(NODE, 1), at="2026-11-29T12:00:00Z", version="1")
    async with engine_of(world) as engine:
        found, stats = await search(engine, ALL)
        assert found == world.expected(ALL)
        assert stats["set_aside"] == [keys.quarantine_marker(NODE, 1)]
        assert stats["complete"]


async def test_a_bit_in_any_column_of_a_segment_makes_the_search_partial(tmp_path: Path) -> None:
    world = World(tmp_path)
    key = await world.segment([entry(random.Random(1), lines=20)])
    path = Path(world.store.uri(key))
    body = path.read_bytes()
    group = pq.read_metadata(path).row_group(0)
    async with engine_of(world) as engine:
        for column in range(group.num_columns):
            chunk = group.column(column)
            damaged = bytearray(body)
            damaged[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
            path.write_bytes(damaged)
            found, stats = await search(engine, ALL)
            assert (found, stats["complete"], stats["unreadable"]) == ([], False, [key])
            path.write_bytes(body)
            found, stats = await search(engine, ALL)
            assert (found, stats["complete"]) == (world.expected(ALL), True)


async def test_behind_a_missing_segment_the_result_is_partial(tmp_path: Path) -> None:
    world = World(tmp_path)
    rng = random.Random(1)
    await world.segment([entry(rng)])
    first = world.expected(ALL)
    gone = await world.segment([entry(rng)])
    await world.segment([entry(rng)])
    await world.store.delete([gone])
    async with engine_of(world) as engine:
        found, stats = await search(engine, ALL)
        assert found == first
        assert stats["missing"] == [gone]
        assert not stats["complete"]


@pytest.mark.parametrize("harm", ["footer", "page", "vanished"])
async def test_an_unreadable_segment_is_named_and_the_rest_given(tmp_path: Path, harm: str) -> None:
    world = World(tmp_path)
    rng = random.Random(1)
    world.unflushed([entry(rng)])
    await world.segment([entry(rng)])
    kept = world.expected(ALL)
    bad = await world.segment([entry(rng, lines=400)])
    path = Path(world.store.uri(bad))
    body = bytearray(path.read_bytes())
    async with engine_of(world) as engine:
        if harm == "footer":
            path.write_bytes(body[:-5])
        async with await engine.open(ALL) as running:
            if harm == "page":
                path.write_bytes(bytes(len(body) // 2) + body[len(body) // 2 :])
            elif harm == "vanished":
                path.unlink()
            rows = [batch.num_rows async for batch in running.batches()]
            assert sum(rows) == len(kept)
            assert running.stats()["unreadable"] == [bad]
            assert not running.stats()["complete"]


@pytest.mark.parametrize("harm", ["page", "vanished"])
async def test_an_unreadable_file_of_the_table_is_named_and_the_rest_given(
    tmp_path: Path, harm: str
) -> None:
    world = World(tmp_path)
    rng = random.Random(3)
    world.unflushed([entry(rng)])
    await world.segment([entry(rng)])
    kept = world.expected(ALL)
    world.merge([entry(rng, lines=400)], {})
    async with engine_of(world) as engine:
        async with await engine.open(ALL) as running:
            (path,) = (tmp_path / "store" / keys.TABLE).rglob("*.parquet")
            body = path.read_bytes()
            path.write_bytes(bytes(len(body) // 2) + body[len(body) // 2 :])
            if harm == "vanished":
                path.unlink()
            rows = [batch.num_rows async for batch in running.batches()]
            stats = running.stats()
        async with await engine.open(ALL) as counting:
            assert await counting.count() == len(kept)
            counted = counting.stats()
    assert sum(rows) == len(kept)
    for said in (stats, counted):
        assert said["unreadable"] == [str(path.relative_to(tmp_path / "store"))]
        assert (said["files"], said["files_failed"], said["files_skipped"]) == (1, 1, 0)
        assert (said["segments"], said["segments_failed"]) == (1, 0)
        assert not said["complete"]


async def test_what_cannot_hold_anything_is_skipped_and_counted(tmp_path: Path) -> None:
    world = World(tmp_path)
    rng = random.Random(4)
    for _ in range(3):
        await world.segment([entry(rng)])
    world.merge([entry(rng)], {})
    async with engine_of(world) as engine:
        _, stats = await search(engine, replace(ALL, run="no such run"))
    assert (stats["segments"], stats["segments_skipped"]) == (0, 3)
    assert (stats["files"], stats["files_skipped"]) == (0, 1)
    assert stats["complete"]


async def test_a_regex_that_explodes_elsewhere_is_linear(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.unflushed([(RUNS[0], ulid.lowest_at(NOW_MS), b"a" * 200_000 + b"!\nERROR 42\n")])
    async with engine_of(world) as engine:
        for pattern in ("(a+)+$", "(a|aa)+$", "(.*a){12}$"):
            found, _ = await search(engine, replace(ALL, condition=Matches(pattern)))
            assert found == world.expected(
                ALL, lambda text, p=pattern: len(text) < 99 and re.search(p, text)
            )
        found, _ = await search(engine, replace(ALL, condition=Matches(r"^ERROR \d+$")))
        assert len(found) == 1


@pytest.mark.parametrize("pattern", ["(", "a{1000000}", "(?<=a)b", r"(a)\1", "[[:nope:]]"])
async def test_a_bad_regex_is_refused_with_its_field(tmp_path: Path, pattern: str) -> None:
    world = World(tmp_path)
    async with engine_of(world) as engine:
        with pytest.raises(InvalidInput) as caught:
            await engine.open(replace(ALL, condition=Matches(pattern)))
        assert caught.value.field == "q"
        assert caught.value.hint


async def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    # Seed 3 makes no table: delta-rs does not write below such a folder.
    world = await scattered(World(tmp_path / "od[d] *name?"), 3)
    await scattered(World(tmp_path / "odd my-names"), 2)
    async with engine_of(world) as engine:
        assert (await search(engine, ALL))[0] == world.expected(ALL)


async def test_nothing_stored_is_an_empty_result(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with engine_of(world) as engine:
        found, stats = await search(engine, replace(ALL, limit=5))
        assert (found, stats["next"], stats["complete"]) == ([], None, True)


@pytest.mark.parametrize("step", range(1, 4))
async def test_a_search_that_cannot_begin_lets_the_journal_go(tmp_path: Path, step: int) -> None:
    world = await scattered(World(tmp_path), 1)
    failing = FaultyStore(world.store, Schedule({step: Fault.UNAVAILABLE}))
    async with engine_of(world, sources=replace(world.sources(), store=failing)) as engine:
        async with await engine.open(ALL) as running:  # over what the node holds
            async for _ in running.batches():
                pass
            assert not running.report.complete
        assert world.pins == 0
