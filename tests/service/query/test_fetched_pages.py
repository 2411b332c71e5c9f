"""Lines of files on S3 are found by their maps, with few requests, as they are in a folder."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from service.query import text_scan
from service.query.request import QueryRequest, TimeRangeSizes
from service.query.text_scan import Prefilter
from tailrace.logstore import keys, ulid
from tailrace.logstore.errors import LimitReached
from tailrace.logstore.objects.s3.client import BlockingBucket
from tailrace.logstore.search.conditions import AnyOf, Contains
from tailrace.logstore.table.skip_index import parse
from tailrace.logstore.table.table import open_table
from tests.faults.kinds import Kind
from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy
from tests.seeds import seeds, some
from tests.servers.minio import Bucket
from tests.service.query.scattered import scattered, some_requests
from tests.service.query.test_mapped_lines import NEEDLE, by_maps_alone, put
from tests.service.query.test_prefilter import statements
from tests.service.query.test_scan_copies import records
from tests.service.query.test_skipping import put_in_table
from tests.service.query.world import HOUR_MS, NOW_MS, RUNS, World, engine_of, search
from tests.simulation.hand_clock import HandClock
from tests.waiting import until

pytestmark = pytest.mark.minio
IN_PIPELINE = replace(NEEDLE, fqn=RUNS[0].fqn)


@pytest.fixture
async def world(bucket: Bucket, tmp_path: Path) -> AsyncIterator[World]:
    async with bucket.open() as store:
        yield World(tmp_path, bucket, store)


async def groups_of(world: World) -> int:
    """Makes the skip index of its only file; how many row groups that has."""
    (file,) = await world.index()
    body = (await world.store.get(keys.skip_index(file.path)))[1]
    return len(parse(body, size=file.size).rows)


def noted_gets(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The end of the key and the range of each read of the bucket from now on, but of the log."""
    noted, get = list[tuple[str, str]](), BlockingBucket.get

    def noting(self: BlockingBucket, what: str, key: str, range_: str = "") -> bytes:
        if "_delta_log" not in key:
            noted.append((key.rpartition(".")[2], range_))
        return get(self, what, key, range_)

    monkeypatch.setattr(BlockingBucket, "get", noting)
    return noted


@pytest.mark.parametrize("group_rows", [7, 400, 10_000])
async def test_a_text_that_is_everywhere_is_found_by_maps(
    world: World, monkeypatch: pytest.MonkeyPatch, group_rows: int
) -> None:
    put(world, group_rows=group_rows)
    await world.index()
    either = replace(NEEDLE, condition=AnyOf((Contains("needle"), Contains("needle\0x"))))
    asked = [NEEDLE, either, replace(NEEDLE, limit=7), replace(NEEDLE, fqn="nobody")]
    asked += [replace(NEEDLE, fqn=run.fqn, run=run.run) for run in RUNS[:3]]
    async with engine_of(world, scan_copies_bytes=0, file_cache_bytes=0) as engine:
        for request in asked:
            await by_maps_alone(engine, request, monkeypatch)
            assert (await search(engine, request))[0] == world.expected(request)


@pytest.mark.parametrize("seed", some(seeds(2), 2, "fetched pages"))
async def test_each_answer_is_that_of_a_plain_list(world: World, seed: int) -> None:
    await scattered(world, seed)
    await world.index()
    dice = random.Random(seed)
    async with engine_of(world, file_cache_bytes=0) as engine:
        for request in some_requests(dice):
            for asked in (request, replace(request, condition=Contains("read"))):
                found, stats = await search(engine, asked)
                assert found == world.expected(asked)
                assert stats["complete"]


async def test_row_groups_side_by_side_come_with_one_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(world, group_rows=50)
    groups = await groups_of(world)
    (file,) = world.table.snapshot().files
    assert groups > 20
    noted = noted_gets(monkeypatch)
    async with engine_of(world, scan_copies_bytes=0, file_cache_bytes=0) as engine:
        everything = await by_maps_alone(engine, NEEDLE, monkeypatch)
        assert [end for end, _ in noted] == ["skip4", "parquet"]
        noted.clear()
        monkeypatch.setattr(text_scan, "FETCHED_BYTES", 3 * file.size // groups)
        assert await by_maps_alone(engine, NEEDLE, monkeypatch) == everything
    assert len(noted) == -(-groups // 3)
    ranges = [range_.removeprefix("bytes=").split("-") for _, range_ in noted]
    bounds = sorted((int(low), int(high)) for low, high in ranges)
    assert all(before[1] < after[0] for before, after in pairwise(bounds))


async def test_in_one_pipeline_its_row_groups_are_fetched_and_the_footer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(world, group_rows=50)
    (file,) = await world.index()
    async with engine_of(world, scan_copies_bytes=0, file_cache_bytes=0) as engine:
        await by_maps_alone(engine, NEEDLE, monkeypatch)
        noted = noted_gets(monkeypatch)
        monkeypatch.setattr(text_scan, "_TAIL_BYTES", 16)  # less than a footer
        await by_maps_alone(engine, IN_PIPELINE, monkeypatch)
        first, second, *pages = [range_.removeprefix("bytes=") for _, range_ in noted]
        assert first == "-16"
        assert second.startswith("-")
        (low, high) = pages[0].split("-")
        assert len(pages) == 1
        assert 0 < int(high) - int(low) < file.size // 2  # a third of the lines is of it
        noted.clear()
        assert (await search(engine, IN_PIPELINE))[0] == world.expected(IN_PIPELINE)
        assert len(noted) == 1  # the footer is kept


@pytest.mark.parametrize("harm", ["a page", "cut off", "gone"])
async def test_a_file_that_does_not_read_is_left_out_and_named(world: World, harm: str) -> None:
    put(world, runs=1)
    (file,) = await world.index()
    key = f"{keys.TABLE}/{file.path}"
    body = (await world.store.get(key))[1]
    async with engine_of(world, scan_copies_bytes=0, file_cache_bytes=0) as engine:
        async with await engine.open(NEEDLE) as running:
            if harm == "gone":
                await world.store.delete([key])
            elif harm == "cut off":
                await world.store.put(key, body[: len(body) // 4])
            else:
                half = len(body) // 2
                await world.store.put(key, body[:half] + bytes(8) + body[half + 8 :])
            assert [batch async for batch in running.batches()] == []
            stats = running.stats()
    assert not stats["complete"]
    assert stats["files_failed"] == 1
    assert file.path in stats["unreadable"][0]


async def test_a_map_that_does_not_read_leaves_the_search_to_duckdb(world: World) -> None:
    put(world)
    (file,) = await world.index()
    key = keys.skip_index(file.path)
    body = (await world.store.get(key))[1]
    begin, _ = parse(body, size=file.size).head.maps[1]
    await world.store.put(key, body[: begin + 20] + b"?" + body[begin + 21 :])
    async with engine_of(world, scan_copies_bytes=0, file_cache_bytes=0) as engine:
        with statements() as made:
            assert (await search(engine, NEEDLE))[0] == world.expected(NEEDLE)
        assert len(made) == 1
        assert engine.indexes.damaged == 1


async def test_row_groups_of_very_long_lines_are_left_to_duckdb(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_scan, "_MOST_BYTES", 100)
    put(world)
    await world.index()
    async with engine_of(world, scan_copies_bytes=0, file_cache_bytes=0) as engine:
        with statements() as made:
            assert (await search(engine, NEEDLE))[0] == world.expected(NEEDLE)
        assert len(made) == 1


class Silent:
    """A bucket whose ranges come when it is told to give them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = list[str]()
        self.given = threading.Event()
        get = BlockingBucket.get

        def hanging(bucket: BlockingBucket, what: str, key: str, range_: str = "") -> bytes:
            if range_:
                self.asked.append(range_)
                self.given.wait()
            return get(bucket, what, key, range_)

        monkeypatch.setattr(BlockingBucket, "get", hanging)


@pytest.mark.parametrize("request_", [NEEDLE, IN_PIPELINE], ids=["pages", "a footer"])
async def test_a_server_that_says_nothing_does_not_hold_a_search_past_its_time(
    world: World, monkeypatch: pytest.MonkeyPatch, request_: QueryRequest
) -> None:
    put(world)
    await world.index()
    clock, silent = HandClock(), Silent(monkeypatch)
    async with engine_of(world, clock, file_cache_bytes=0, time_limit_seconds=5) as engine:
        async with await engine.open(request_) as running:
            first = asyncio.ensure_future(anext(running.batches()))
            await until(lambda: len(silent.asked) == 1)
            await clock.advance(6)
            try:
                async with asyncio.timeout(120):
                    with pytest.raises(LimitReached):
                        await first
            finally:
                silent.given.set()


async def test_a_search_that_is_stopped_asks_for_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(world, group_rows=7)
    await world.index()
    monkeypatch.setattr(text_scan, "_PAGES_AT_ONCE", 1)
    monkeypatch.setattr(text_scan, "FETCHED_BYTES", 1)
    silent = Silent(monkeypatch)
    async with engine_of(world, file_cache_bytes=0) as engine:
        running = await engine.open(NEEDLE)
        batches = running.batches()
        first = asyncio.ensure_future(anext(batches))
        assert engine._fetcher is not None
        waiting = engine._fetcher.threads._work_queue
        await until(lambda: len(silent.asked) == 1 and waiting.qsize() > 10)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        await batches.aclose()
        await running.close()
        silent.given.set()
        await until(waiting.empty)
        assert len(silent.asked) == 1


async def test_so_much_is_asked_for_ahead_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(world, group_rows=20)
    groups = await groups_of(world)
    (file,) = world.table.snapshot().files
    monkeypatch.setattr(text_scan, "FETCHED_BYTES", 1)
    monkeypatch.setattr(text_scan, "_FETCHED_AHEAD", 3 * (file.size // groups))
    silent, waits, wait_for = Silent(monkeypatch), threading.Event(), Prefilter.wait_for

    def noting(self: Prefilter, fetched: Future[Any]) -> None:
        waits.set()
        wait_for(self, fetched)

    monkeypatch.setattr(Prefilter, "wait_for", noting)
    async with engine_of(world, scan_copies_bytes=0, file_cache_bytes=0) as engine:
        searching = asyncio.ensure_future(search(engine, NEEDLE))
        await until(lambda: waits.is_set() and len(silent.asked) >= 3)
        assert engine._fetcher is not None
        assert len(silent.asked) + engine._fetcher.threads._work_queue.qsize() == 3
        silent.given.set()
        assert (await searching)[0] == world.expected(NEEDLE)
    assert len(silent.asked) == groups


async def test_lines_do_not_wait_for_the_footer_of_the_next_time_range(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"{number} needle\n" for number in range(100)).encode()
    for hour in range(2):
        at = ulid.lowest_at(NOW_MS - hour * HOUR_MS)
        put_in_table(world, [(RUNS[0], at, text)], group_rows=10)
    await world.index()
    newest = max(world.table.snapshot().files, key=lambda file: file.start_ms)
    given, get = threading.Event(), BlockingBucket.get

    def hanging(bucket: BlockingBucket, what: str, key: str, range_: str = "") -> bytes:
        if range_ and not key.endswith(newest.path):
            given.wait()
        return get(bucket, what, key, range_)

    monkeypatch.setattr(BlockingBucket, "get", hanging)
    async with (
        engine_of(world, sizes=TimeRangeSizes(1, 1), file_cache_bytes=0) as engine,
        await engine.open(IN_PIPELINE) as running,
    ):
        batches = running.batches()
        try:
            async with asyncio.timeout(120):
                found = [await anext(batches)]
        finally:
            given.set()
        found += [batch async for batch in batches]
    assert sum(batch.num_rows for batch in found) == len(world.expected(IN_PIPELINE)) == 200


async def test_once_the_text_is_in_many_lines_no_more_is_fetched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(world, every=2, group_rows=20)
    groups = await groups_of(world)
    expected = world.expected(NEEDLE)
    monkeypatch.setattr(text_scan, "_MOST_LINES", 5)
    monkeypatch.setattr(text_scan, "FETCHED_BYTES", 1)
    monkeypatch.setattr(text_scan, "_PAGES_AT_ONCE", 1)
    noted = noted_gets(monkeypatch)
    async with engine_of(world, scan_copies_bytes=0, file_cache_bytes=0) as engine:
        assert (await search(engine, NEEDLE))[0] == expected
        assert engine._fetcher is not None
        engine._fetcher.threads.shutdown(wait=True)
    assert len(noted) < groups // 2


@pytest.mark.in_turn(4)
async def test_it_survives_single_faults_of_any_request(world: World) -> None:
    put(world, group_rows=50)
    (file,) = await world.index()
    straight, rates = world.bucket, evenly(0.1) | {Kind.CUT_RESPONSE: 0.2}
    schedule = Schedule(1, rates, most_in_a_row=1, delay_seconds=0.005)
    assert straight is not None
    with pytest.MonkeyPatch.context() as patch, fault_proxy(straight.endpoint_url, schedule) as url:
        patch.setattr(text_scan, "FETCHED_BYTES", file.size // 8)
        through = straight.through(url, backoff_milliseconds=5)
        async with through.open() as store:
            world.bucket, world.store, world.table = through, store, open_table(through.settings)
            for request in (NEEDLE, IN_PIPELINE) * 3:
                async with engine_of(world, scan_copies_bytes=0, file_cache_bytes=0) as engine:
                    found, stats = await search(engine, request)
                    assert (found, stats["complete"]) == (world.expected(request), True)
                    assert await records(engine, replace(request, limit=5))
    assert schedule.injected[Kind.CUT_RESPONSE] > 0
