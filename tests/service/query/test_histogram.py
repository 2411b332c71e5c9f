"""Counts by time and level against a model, over worlds whose records lie in every source."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from service.query.engine import QueryEngine
from service.query.facets import MAX_BUCKETS, HistogramBucket, HistogramRequest, histogram
from service.query.request import TimeRangeSizes
from tailrace.logstore import ulid
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.file_format import LEVELS
from tailrace.logstore.segments.writer import record_batches
from tests.batches import Entry, make_batches
from tests.service.query.scattered import ALL, scattered, some_requests
from tests.service.query.world import HOUR_MS, NODE, NOW_MS, RUNS, World, engine_of

STEPS_MS = (1, 7, 1_000, 60_000, 300_000, HOUR_MS, 5 * HOUR_MS, 24 * HOUR_MS)


def levelled(given: Entry) -> Entry:
    """With a level in each line: lines without one get theirs from those before, in each copy."""
    run, batch, text, *rest = given
    lines = text.decode().splitlines()
    own = [line if line.split()[0] in LEVELS else f"FATAL {line}" for line in lines]
    return run, batch, "".join(f"{line}\n" for line in own).encode(), *rest


async def counted(engine: QueryEngine, asked: HistogramRequest) -> list[HistogramBucket]:
    async with await engine.open(asked.search) as running:
        found = await running.totals(lambda search: histogram(search, asked))
        stats = running.stats()
        assert stats["complete"]
        assert stats["matches"] == sum(bucket.count for bucket in found)
        return found


def expected(world: World, asked: HistogramRequest) -> list[HistogramBucket]:
    """A plain loop over what was acknowledged."""
    counts: dict[int, Counter[str | None]] = {}
    for key in world.expected(asked.search):
        at = ulid.time_ms(ulid.decode(key.ulid)) // asked.step_ms * asked.step_ms
        first = world.records[key].message.split()[0]
        counts.setdefault(at, Counter())[first if first in LEVELS else None] += 1
    begin = asked.start_ms // asked.step_ms * asked.step_ms
    edges = range(begin, asked.end_ms + 1, asked.step_ms)
    assert counts.keys() <= set(edges)
    return [HistogramBucket(at, counts.get(at, {})) for at in edges]


def request(text: str = "", now_ms: int = NOW_MS) -> HistogramRequest:
    """Of `name=value` pairs that are separated by blanks."""
    pairs = dict(pair.split("=", 1) for pair in text.split())
    return HistogramRequest.parse(pairs, now_ms=now_ms)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("largest", [1, 1 << 30])
@pytest.mark.parametrize("seed", range(6))
async def test_the_counts_are_those_of_the_model(tmp_path: Path, seed: int, largest: int) -> None:
    world = await scattered(World(tmp_path), seed, levelled)
    rng = random.Random(seed)
    times = sorted(ulid.time_ms(ulid.decode(key.ulid)) for key in world.records)
    if seed % 2:
        middle = ulid.lowest_at(NOW_MS - 2 * HOUR_MS)
        world.deletions = [(RUNS[0].fqn, RUNS[0].run, middle), (RUNS[5].fqn, None, middle)]
    async with engine_of(
        world, sizes=TimeRangeSizes(first_bytes=1, largest_bytes=largest)
    ) as engine:
        for asked in some_requests(rng):
            # Edges that are records' own times, and any.
            low, high = sorted((rng.choice(times), rng.choice(times) + rng.randrange(2)))
            step = rng.choice([s for s in STEPS_MS if s * 5_000 > high - low])
            bounded = replace(
                asked, low=ulid.lowest_at(low), high=ulid.highest_at(high), limit=None
            )
            whole = replace(asked, low=0, high=ulid.highest_at(times[-1]), limit=None)
            for each in (
                HistogramRequest(bounded, step),
                HistogramRequest(whole, 400 * 24 * HOUR_MS),
            ):
                assert await counted(engine, each) == expected(world, each)


async def test_a_record_has_the_level_of_its_oldest_copy_and_counts_once(tmp_path: Path) -> None:
    """As the search gives it, whatever another copy says."""
    world = World(tmp_path)
    batch: Entry = (RUNS[0], ulid.lowest_at(NOW_MS), b"ERROR one\nplain\nINFO three\n")
    rows = pa.Table.from_batches(record_batches(make_batches(NODE, [batch]), Carry()))
    levels = pa.array(["FATAL", None, "INFO"], rows.schema.field("level").type)
    at = rows.schema.get_field_index("level")
    world.write_table(rows.set_column(at, rows.schema.field("level"), levels), {})
    await world.segment([batch])
    world.unflushed([batch])
    asked = HistogramRequest(replace(ALL, high=ulid.highest_at(NOW_MS)), NOW_MS)
    async with engine_of(world) as engine:
        assert await counted(engine, asked) == [
            HistogramBucket(0, {}),
            HistogramBucket(NOW_MS, {"FATAL": 1, "INFO": 1, None: 1}),
        ]


async def test_edges_belong_to_the_bucket_that_they_begin(tmp_path: Path) -> None:
    world = World(tmp_path)
    at = NOW_MS // 60_000 * 60_000
    for ms in (-60_001, -60_000, -1, 0, 59_999, 60_000, 60_001):
        world.unflushed([(RUNS[0], ulid.lowest_at(at + ms), b"WARN x\n")])
        world.merge([(RUNS[1], ulid.highest_at(at + ms) >> 25 << 25, b"WARN x\n")], {})
    asked = request(f"from={at - 60_000} to={at + 60_000} step=1m", now_ms=at + 60_001)
    async with engine_of(world) as engine:
        found = await counted(engine, asked)
    assert found == [
        HistogramBucket(at - 60_000, {"WARN": 4}),
        HistogramBucket(at, {"WARN": 4}),
        HistogramBucket(at + 60_000, {"WARN": 2}),
    ]


async def test_nothing_stored_is_empty_buckets(tmp_path: Path) -> None:
    async with engine_of(World(tmp_path)) as engine:
        found = await counted(engine, request("from=now-10m step=5m"))
    assert [bucket.levels for bucket in found] == [{}] * 3


def test_the_end_is_now_unless_it_is_given() -> None:
    asked = request("from=now-30m")
    assert (asked.start_ms, asked.end_ms) == (NOW_MS - 30 * 60_000, NOW_MS)
    assert request("to=now-5m").end_ms == NOW_MS - 5 * 60_000
    assert request("to=").end_ms == NOW_MS


@pytest.mark.parametrize(
    ("text", "step_ms"),
    [
        ("", 60_000),
        ("buckets=30", 120_000),
        ("buckets=59", 120_000),
        ("buckets=1", HOUR_MS),
        ("buckets=1000", 5_000),
        ("from=now-1d", 30 * 60_000),
        ("from=now", 1),
        ("from=1 buckets=1", 50_000 * 24 * HOUR_MS),
        ("to=9999-12-31 from=1 buckets=1", 5_000_000 * 24 * HOUR_MS),
        ("step=250ms from=now-1m", 250),
        ("step=1w from=now-30d", 7 * 24 * HOUR_MS),
    ],
)
def test_steps_are_round(text: str, step_ms: int) -> None:
    assert request(text).step_ms == step_ms


def test_there_are_at_most_as_many_buckets_as_were_asked_for_and_one() -> None:
    rng = random.Random(1)
    for _ in range(300):
        most, length = rng.randrange(1, MAX_BUCKETS + 1), int(10 ** rng.uniform(0, 12))
        asked = request(f"from={NOW_MS - length} to={NOW_MS} buckets={most}")
        step = asked.step_ms
        assert asked.end_ms // step - asked.start_ms // step <= most


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("limit=3", "limit"),
        ("bucket=3", "bucket"),
        ("after=x", "after"),
        ("buckets=0", "buckets"),
        ("buckets=1001", "buckets"),
        ("buckets=-1", "buckets"),
        ("buckets=000000000001234567", "buckets"),
        ("buckets=x", "buckets"),
        ("buckets=٣", "buckets"),
        ("step=0m", "step"),
        ("step=5", "step"),
        ("step=-5m", "step"),
        ("step=1s", "step"),
        ("step=5m buckets=3", "step"),
        ("from=now+1h", "from"),
        ("to=99999999999999999", "to"),
        ("to=999999999999999", "to"),
        ("level=LOUD", "level"),
    ],
)
def test_what_is_wrong_is_named(text: str, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        request(text)
    assert caught.value.field == field
    assert caught.value.hint
