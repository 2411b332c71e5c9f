"""What bounds a search: time, memory, a queue, patience; and what stopping gives back.

`engine_of` checks at the end of each test that slots, pins and spill files are given back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from service.query.engine import RunningSearch
from service.query.request import QueryRequest
from tailrace.logstore import ulid
from tailrace.logstore.batch import Batches
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import LimitReached, Unavailable
from tailrace.logstore.search.conditions import Contains
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import record_batches
from tests.service.query.world import NOW_MS, RUNS, World, engine_of, search
from tests.simulation.hand_clock import HandClock

ALL = QueryRequest()
TIGHT: dict[str, Any] = {"memory_bytes": 16 << 20, "spill_bytes": 1 << 20}


def big(root: Path, batches: int, lines: int) -> World:
    """Much data in the journal: a search over it takes many pieces. The model has none of it."""
    world = World(root)
    rng = random.Random(1)
    text = "".join(f"{rng.getrandbits(400):x}\n" for _ in range(lines)).encode()
    entries = [(RUNS[0], ulid.lowest_at(NOW_MS + i) | i << 25, text) for i in range(batches)]
    world.unflushed(entries, known=False)
    return world


def endless(root: Path) -> World:
    """A search over it never ends by itself."""
    world = big(root, 1, 1_000)

    def encode(batches: Batches) -> Iterator[pa.RecordBatch]:
        records = list(record_batches(batches, Carry()))
        while True:
            yield from records

    world.encode = encode
    return world


async def at_rest(running: RunningSearch) -> None:
    """Once it has found the batch behind the one that it gave last."""
    if running._following is not None:
        await asyncio.wait({running._following})


async def test_time_is_limited(tmp_path: Path) -> None:
    clock = HandClock()
    world = endless(tmp_path)
    async with engine_of(world, clock, time_limit_seconds=5) as engine:
        async with await engine.open(ALL) as running:
            counting = asyncio.ensure_future(running.count())
            await clock.advance(4.9)
            assert not counting.done()
            await clock.advance(0.2)
            with pytest.raises(LimitReached, match="after 5 s"):
                await counting
            with pytest.raises(LimitReached):
                await anext(running.batches())
        assert engine.stopped == 1


async def test_time_that_the_client_takes_is_not_work(tmp_path: Path) -> None:
    clock = HandClock()
    world = big(tmp_path, 40, 1_000)
    async with engine_of(world, clock, time_limit_seconds=5, stall_seconds=20) as engine:
        async with await engine.open(ALL) as running:
            rows = 0
            async for batch in running.batches():
                rows += batch.num_rows
                await at_rest(running)
                await clock.advance(10)
        assert rows == 40_000


async def test_a_client_that_takes_nothing_is_let_go(tmp_path: Path) -> None:
    clock = HandClock()
    world = big(tmp_path, 40, 1_000)
    async with engine_of(world, clock, max_concurrent=1, stall_seconds=20) as engine:
        running = await engine.open(ALL)
        batches = running.batches()
        await anext(batches)
        await clock.advance(21)
        # Its slot is free although nobody closed it.
        found, _ = await search(engine, replace(ALL, limit=1))
        assert len(found) == 1
        with pytest.raises(LimitReached, match="nothing was taken"):
            await anext(batches)
        await running.close()


async def test_memory_is_limited(tmp_path: Path) -> None:
    world = big(tmp_path, 300, 1_000)
    async with engine_of(world, **TIGHT) as engine:
        with pytest.raises(LimitReached, match="16 MiB of memory") as caught:
            await search(engine, ALL)
        assert caught.value.hint
        found, _ = await search(engine, replace(ALL, condition=Contains("no such text")))
        assert found == []


async def test_what_memory_cannot_hold_is_spilled(tmp_path: Path) -> None:
    world = big(tmp_path, 600, 1_000)
    async with engine_of(world, memory_bytes=128 << 20, threads=1) as engine:
        async with await engine.open(ALL) as running:
            rows, spilled = 0, 0
            async for batch in running.batches():
                rows += batch.num_rows
                with suppress(FileNotFoundError):  # its threads remove what was read again
                    files = (f for f in (tmp_path / "scratch").rglob("*") if f.is_file())
                    for file in files:
                        spilled = max(spilled, file.stat().st_size)
        assert rows == 600_000
        assert spilled > 0


async def test_cancelling_stops_the_work(tmp_path: Path) -> None:
    world = endless(tmp_path)
    async with engine_of(world) as engine:
        running = await engine.open(ALL)
        counting = asyncio.ensure_future(running.count())
        await asyncio.sleep(0.05)
        counting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await counting
        await running.close()
        await running.close()
        assert engine.stopped == 1


async def test_leaving_in_the_middle_stops_the_work(tmp_path: Path) -> None:
    world = big(tmp_path, 100, 1_000)
    async with engine_of(world) as engine:
        async with await engine.open(ALL) as running:
            batches = running.batches()
            assert (await anext(batches)).num_rows > 0
            await batches.aclose()


async def test_a_queue_and_behind_it_a_refusal(tmp_path: Path) -> None:
    world = big(tmp_path, 1, 10)
    async with engine_of(world, max_concurrent=1, max_waiting=1) as engine:
        first = await engine.open(ALL)
        second = asyncio.ensure_future(engine.open(ALL))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable) as caught:
            await engine.open(ALL)
        assert caught.value.retry_after_seconds > 0
        assert engine.refused == 1
        await first.close()
        await (await second).close()


async def test_who_leaves_the_queue_leaves_no_trace(tmp_path: Path) -> None:
    world = big(tmp_path, 1, 10)
    async with engine_of(world, max_concurrent=1, max_waiting=1) as engine:
        first = await engine.open(ALL)
        second = asyncio.ensure_future(engine.open(ALL))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
        await first.close()
        found, _ = await search(engine, ALL)
        assert len(found) == 10


async def test_pieces_of_a_large_result_are_small(tmp_path: Path) -> None:
    world = big(tmp_path, 300, 1_000)
    async with engine_of(world, memory_bytes=256 << 20) as engine:
        async with await engine.open(ALL) as running:
            largest, total = 0, 0
            async for batch in running.batches():
                largest = max(largest, batch.get_total_buffer_size())
                total += batch.num_rows
        assert total == 300_000
        assert largest < 8 << 20


async def test_leftovers_of_a_killed_process_go(tmp_path: Path) -> None:
    left = tmp_path / "scratch" / "7"
    left.mkdir(parents=True)
    (left / "duckdb_temp_storage_DEFAULT-0.tmp").write_bytes(b"x")
    async with engine_of(World(tmp_path), SystemClock()):
        assert not left.exists()
