"""Copies of a record that say something else of its level: the oldest copy counts, everywhere.

A line that continues a record has the level of the line before it from the same writer and run. A
writer that was started in between does not know it, so copies of one line may differ.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from service.query.facets import HistogramRequest, histogram
from service.query.request import QueryRequest
from tailrace.logstore import ulid
from tailrace.logstore.search.conditions import Contains
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import record_batches
from tests.batches import Entry, make_batches
from tests.service.query.world import NODE, NOW_MS, RUNS, World, engine_of

SOURCES = ("table", "segments", "journal")
COUNT = 40


def before(level: str) -> Carry:
    """The state of a writer whose last line of each run had the level."""
    carry = Carry()
    entries: list[Entry] = [(run, n << 25, f"{level} x\n".encode()) for n, run in enumerate(RUNS)]
    for _ in record_batches(make_batches(NODE, entries), carry, save=True):
        pass
    return carry


async def stored(world: World, levels: dict[str, str], entries: list[Entry]) -> None:
    """The entries in several sources, in each with the level that its writer knew."""
    for entry in entries:
        world.know(entry)
    for source, level in levels.items():
        if source == "table":
            batches = make_batches(NODE, entries)
            world.write_table(pa.Table.from_batches(record_batches(batches, before(level))), {})
        elif source == "segments":
            await world.segment(entries, carry=before(level))
        else:
            world.encode = partial(record_batches, carry=before(level))
            world.unflushed(entries)


def some_entries(dice: random.Random) -> list[Entry]:
    times = [NOW_MS - dice.randrange(10_000) for _ in range(COUNT)]
    return [
        (dice.choice(RUNS), ulid.lowest_at(at) | dice.getrandbits(55) << 25, b"  plain\n")
        for at in times
    ]


async def levels_of(world: World, request: QueryRequest) -> list[str | None]:
    async with engine_of(world) as engine, await engine.open(request) as search:
        return [
            level async for batch in search.batches() for level in batch.column("level").to_pylist()
        ]


@pytest.mark.parametrize("sources", [SOURCES, ("table", "journal"), ("segments", "journal")])
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("limit", [None, 1, 7])
async def test_the_oldest_copy_counts(
    tmp_path: Path, sources: tuple[str, ...], descending: bool, limit: int | None
) -> None:
    world = World(tmp_path)
    every = dict(zip(SOURCES, ["WARN", "INFO", "ERROR"], strict=True))
    levels = {source: every[source] for source in sources}
    await stored(world, levels, some_entries(random.Random(1)))
    request = QueryRequest(descending=descending, limit=limit)
    found = await levels_of(world, request)
    assert found == [levels[sources[0]]] * (limit or COUNT)


@pytest.mark.parametrize("seed", range(4))
async def test_of_two_nodes_the_lower_position_counts(tmp_path: Path, seed: int) -> None:
    dice, world = random.Random(seed), World(tmp_path)
    entries = some_entries(dice)
    others = some_entries(dice)
    nodes = [("a", "WARN", [*others, *entries]), ("b", "ERROR", entries)]
    dice.shuffle(nodes)
    for node, level, some in nodes:
        await world.segment(some, node, carry=before(level))
    low = ulid.lowest_at(NOW_MS - 20_000)
    request = QueryRequest(low=low, high=ulid.highest_at(NOW_MS))
    async with engine_of(world) as engine:
        async with await engine.open(request) as search:
            found = {
                row["ulid"]: row["level"]
                async for batch in search.batches()
                for row in batch.to_pylist()
            }
        # A chart of lines of text has those that continue others, too.
        text = replace(request, condition=Contains("plain"))
        async with await engine.open(text) as search:
            asked = HistogramRequest(text, 60_000)
            buckets = await search.totals(lambda running: histogram(running, asked))
    twice = {ulid.encode(entry[1]) for entry in entries}
    assert {level for at, level in found.items() if at in twice} == {"ERROR"}
    counted = {"WARN": 0, "ERROR": 0}
    for bucket in buckets:
        for name, count in bucket.levels.items():
            counted[str(name)] += count
    assert counted == {"WARN": COUNT, "ERROR": COUNT}
