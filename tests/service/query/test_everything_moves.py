"""Random searches while a node flushes and a compactor merges, rewrites, purges and indexes.

What is stored, as a plain list, decides on every answer: with the skip indexes and without them.
Lines come and go between the searches; under them, everything moves.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.context import Compactor
from compactor.report import PassReport
from compactor.runner import once
from compactor.settings import Compaction
from service.query import skip_indexes
from service.query.engine import QueryEngine
from service.query.request import QueryRequest
from tailrace.logstore import ulid
from tailrace.logstore.errors import NotFound
from tailrace.logstore.runs.deletions import Deletion, encode_deletion
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
from tests.compactor.lake import Lake
from tests.compactor.plain_engine import PlainEngine
from tests.seeds import seeds, some
from tests.service.query.indexed import Remote
from tests.service.query.shipped import Shipped
from tests.service.query.world import HOUR_MS, NOW_MS, RUNS, WORDS, World, engine_of, entry, search

ROUNDS = 8
SEARCHES = 6


class Unindexed(Remote):
    """The store, as it is for a reader that finds no skip index."""

    def _before(self, uri: str) -> None:
        raise NotFound("it is not looked at")


def condition(dice: random.Random, depth: int = 0) -> Condition:
    if depth < 3 and dice.random() < 0.5:
        parts = tuple(condition(dice, depth + 1) for _ in range(dice.randrange(1, 4)))
        joined: list[Condition] = [All(parts), AnyOf(parts), Not(parts[0])]
        return dice.choice(joined)
    word = dice.choice(WORDS)
    start = dice.randrange(len(word))
    piece = word[start : start + dice.randrange(1, 12)]
    single: list[Condition] = [
        *[Contains(f"{dice.choice(WORDS)} {dice.randrange(50)}") for _ in range(6)],
        Contains(piece),
        Contains(piece.swapcase(), ignore_case=True),
        Matches(rf"read \d?{dice.randrange(10)}$"),
        Is(dice.choice(RUNS).fqn, Column("fqn")),
        Contains("nowhere to be found"),
    ]
    return dice.choice(single)


def request(dice: random.Random) -> QueryRequest:
    asked = QueryRequest(descending=dice.random() < 0.5, limit=dice.choice([None, None, 3, 40]))
    if dice.random() < 0.8:
        asked = replace(asked, condition=condition(dice))
    if dice.random() < 0.3:
        low = NOW_MS - dice.randrange(5 * HOUR_MS)
        high = low + dice.randrange(3 * HOUR_MS)
        asked = replace(asked, low=ulid.lowest_at(low), high=ulid.highest_at(high))
    if dice.random() < 0.3:
        asked = replace(asked, fqn=dice.choice(RUNS).fqn)
    return asked


async def delete(world: World, dice: random.Random) -> None:
    """A run or a pipeline up to some moment, as a node records it before it answers."""
    run = dice.choice(RUNS)
    until = ulid.highest_at(NOW_MS - dice.randrange(HOUR_MS, 5 * HOUR_MS))
    gone = Deletion(run.fqn, dice.choice([None, run.run]), until, ulid.encode(until))
    await world.store.put(gone.key, encode_deletion(gone))
    world.deletions.append((gone.fqn, gone.run, gone.t))


async def move(node: Shipped, compactor: Compactor, report: PassReport, steps: list[str]) -> None:
    for step in steps:
        if step == "flush":
            await node.flush()
        else:
            await once(compactor, report)


async def compared(engine: QueryEngine, world: World, dice: random.Random) -> int:
    found = 0
    for _ in range(SEARCHES):
        asked = request(dice)
        expected = world.expected(asked)
        records, stats = await search(engine, asked)
        assert records == expected, asked
        assert stats["complete"]
        counting = replace(asked, limit=None)
        async with await engine.open(counting) as running:
            assert await running.count() == len(world.expected(counting)), asked
        found += len(records)
    return found


@pytest.mark.parametrize("seed", some(seeds(3), 3, "everything moves"))
async def test_each_answer_is_that_of_a_plain_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(skip_indexes, "_AGAIN_SECONDS", 0)  # used as soon as it is there
    dice, world = random.Random(seed), World(tmp_path)
    node, lake, report = Shipped(world), Lake(tmp_path), PassReport()
    lake.session = PlainEngine()
    lake.limits = Compaction(index_min_bytes=1, settle_seconds=0, batch_bytes=20_000)

    sources = replace(world.sources(), pin=node.pin)

    found = 0
    async with (
        engine_of(world, sources=sources) as indexed,
        engine_of(replace(world, root=tmp_path / "plain", store=world.store),
                  sources=sources, bucket=Unindexed(world).bucket) as plain,
    ):  # fmt: skip
        for _ in range(ROUNDS):
            await node.append([entry(dice) for _ in range(dice.randrange(1, 25))])
            if dice.random() < 0.3:
                await delete(world, dice)
            steps = dice.choices(["flush", "compact"], k=dice.randrange(1, 4))
            moving = asyncio.ensure_future(move(node, lake.compactor, report, steps))
            for engine in (indexed, plain):
                found += await compared(engine, world, dice)
            await moving
        await move(node, lake.compactor, report, ["flush", "compact"])
        rare = QueryRequest(condition=Contains("nowhere to be found"))
        read = [(await search(engine, rare))[1]["bytes"] for engine in (indexed, plain)]
        assert read[0] == 0 < read[1]
        assert indexed.indexes.damaged == 0
    await node.journal.close()
    assert found > 100
    assert report.files_indexed > 0
    assert report.hours_rewritten > 0
