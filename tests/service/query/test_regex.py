"""Regular expressions over lines that stand in the journal only: RE2's, in linear time.

Linear is not quick: with a large program over a long line one look at one line takes minutes,
and nothing within the process can end it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest

from service.query.engine import QueryEngine
from tailrace.logstore import ulid
from tailrace.logstore.batch import Batches
from tailrace.logstore.errors import InvalidInput, LimitReached, Unavailable
from tailrace.logstore.search.conditions import Matches
from tests.e2e.processes import children_of, works
from tests.service.query.test_limits import ALL, big
from tests.service.query.world import NOW_MS, RUNS, World, engine_of, search
from tests.simulation.hand_clock import HandClock
from tests.waiting import until

LINE = b"a" * 100_000 + b"!\n"


def unflushed(root: Path) -> World:
    world = World(root)
    world.unflushed([(RUNS[0], ulid.lowest_at(NOW_MS), LINE + b"b\n")])
    return world


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", "^(.*)*x$", "^(a|a?)+$"])
async def test_what_backtracks_for_ever_elsewhere_is_linear(tmp_path: Path, pattern: str) -> None:
    """Of 100,000 characters a search that goes back would not end in this universe."""
    async with engine_of(unflushed(tmp_path)) as engine:
        assert (await search(engine, replace(ALL, condition=Matches(pattern))))[0] == []
        found, _ = await search(engine, replace(ALL, condition=Matches("^(a+)+!$")))
        assert len(found) == 1


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=a)", "(?<!a)b", "a++"])
async def test_what_is_not_linear_is_refused(tmp_path: Path, pattern: str) -> None:
    async with engine_of(unflushed(tmp_path)) as engine:
        with pytest.raises(InvalidInput, match="q is not a regular expression"):
            await search(engine, replace(ALL, condition=Matches(pattern)))


SLOW = replace(ALL, condition=Matches("(a|b)*a(a|b){900}c"))
"""37 s a MiB of `a` and `b` in no order, on a machine of two cores."""


def slow(root: Path) -> tuple[World, Event]:
    """One line, on which `SLOW` works for five minutes; the event is set once it is asked for."""
    dice = random.Random(1)
    world, asked = World(root), Event()
    line = dice.randbytes(8 << 20).translate(b"ab" * 128)
    world.unflushed([(RUNS[0], ulid.lowest_at(NOW_MS), line + b"\n")])
    encode = world.encode

    def noting(batches: Batches) -> Iterator[pa.RecordBatch]:
        asked.set()
        yield from encode(batches)

    world.encode = noting
    return world, asked


async def test_one_that_is_slow_on_one_line_is_stopped_at_its_limit(tmp_path: Path) -> None:
    clock = HandClock()
    world, asked = slow(tmp_path)
    async with engine_of(world, clock, time_limit_seconds=5) as engine:
        async with await engine.open(SLOW) as running:
            counting = asyncio.ensure_future(running.count())
            await until(asked.is_set)
            await asyncio.sleep(0.5)  # it works on its line
            await clock.advance(5.1)
            with pytest.raises(LimitReached, match="after 5 s"):
                await counting
        # Its slot and its threads are free again.
        for _ in range(engine.settings.max_concurrent + 1):
            assert len((await search(engine, ALL))[0]) == 1


@pytest.mark.parametrize("moment", ["at work", "before it"])
async def test_one_whose_process_is_stopped_ends_at_its_limit(tmp_path: Path, moment: str) -> None:
    clock = HandClock()
    world, asked = slow(tmp_path)
    async with engine_of(world, clock, time_limit_seconds=5) as engine:
        async with await engine.open(SLOW) as running:
            (child,) = children_of(os.getpid(), "service.query.duckdb_process")
            if moment == "before it":
                os.kill(child, signal.SIGSTOP)
            counting = asyncio.ensure_future(running.count())
            if moment == "at work":
                await until(asked.is_set)
                os.kill(child, signal.SIGSTOP)
            await asyncio.sleep(0.5)
            await clock.advance(5.1)
            with pytest.raises((LimitReached, Unavailable)):
                await counting
        assert not works(child)
        assert len((await search(engine, ALL))[0]) == 1


async def test_one_whose_process_is_stopped_while_it_starts_ends_at_its_limit(
    tmp_path: Path,
) -> None:
    clock = HandClock()
    world, _ = slow(tmp_path)

    async def counted(engine: QueryEngine) -> int:
        async with await engine.open(SLOW) as running:
            return await running.count()

    async with engine_of(world, clock, time_limit_seconds=5) as engine:
        counting = asyncio.ensure_future(counted(engine))
        await until(lambda: bool(children_of(os.getpid(), "service.query.duckdb_process")))
        (child,) = children_of(os.getpid(), "service.query.duckdb_process")
        os.kill(child, signal.SIGSTOP)
        while not counting.done():
            await clock.advance(5.1)
            await asyncio.sleep(0.05)
        with pytest.raises(LimitReached, match="after 5 s"):
            await counting
        assert not works(child)
        assert len((await search(engine, ALL))[0]) == 1


async def test_its_client_goes_away(tmp_path: Path) -> None:
    world, asked = slow(tmp_path)
    async with engine_of(world) as engine:
        running = await engine.open(SLOW)
        counting = asyncio.ensure_future(running.count())
        await until(asked.is_set)
        await asyncio.sleep(0.5)
        counting.cancel()
        await running.close()
        assert engine.stopped == 1


async def test_its_spill_goes_with_its_process(tmp_path: Path) -> None:
    world = big(tmp_path, 600, 1_000)
    everything = replace(ALL, condition=Matches("."))
    async with engine_of(world, memory_bytes=128 << 20, threads=1) as engine:
        async with await engine.open(everything) as running:
            assert (await anext(running.batches())).num_rows > 0
            assert any(path.is_file() for path in (tmp_path / "scratch").rglob("*"))
        assert list((tmp_path / "scratch").iterdir()) == []
