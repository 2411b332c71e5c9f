"""A skip index changes how much a search reads, and never what it finds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.query import table_reads
from service.query.request import QueryRequest
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.search.conditions import (
    All,
    AnyOf,
    Condition,
    Contains,
    Is,
    LogfmtField,
    Matches,
    Not,
)
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import record_batches
from tailrace.logstore.table.skip_index import PAGE_BYTES, head_bytes
from tailrace.logstore.table.snapshot import TableFile
from tests.batches import Entry, make_batches
from tests.seeds import seeds, some
from tests.service.query.scattered import scattered, some_requests
from tests.service.query.world import HOUR_MS, NODE, NOW_MS, World, engine_of, search

GROUP_ROWS = 50
RUN = RunKey("svc.pipe", "run")


def batch_at(number: int, lines: Sequence[str]) -> Entry:
    at = ulid.lowest_at(NOW_MS - HOUR_MS) | number << ulid.LINE_BITS
    return RUN, at, "".join(f"{line}\n" for line in lines).encode()


def put_in_table(world: World, entries: Sequence[Entry], group_rows: int = GROUP_ROWS) -> None:
    for entry in entries:
        world.know(entry)
    rows = pa.Table.from_batches(record_batches(make_batches(NODE, entries), Carry()))
    world.write_table(rows, {}, group_rows=group_rows)


def requests_like(words: Sequence[str], rng: random.Random) -> list[QueryRequest]:
    """Conditions of every form, of words that are there and of some that are not."""
    some = [Contains(rng.choice(words)[: rng.randrange(3, 12)]) for _ in range(4)]
    a, b = some[:2]
    conditions: list[Condition] = [
        *some,
        Contains(rng.choice(words).swapcase(), ignore_case=True),
        All((a, b)),
        AnyOf((a, b)),
        Not(a),
        All((a, Not(b))),
        Matches(rf"{rng.choice(words)}\d?"),
        Is(rng.choice(words), LogfmtField("key")),
        Contains("nowhere to be found"),
    ]
    limits = [None, 1, 7, 500]
    return [
        QueryRequest(condition=one, limit=rng.choice(limits), descending=rng.random() < 0.5)
        for one in conditions
    ]


@pytest.mark.parametrize("seed", some(seeds(4), 4, "skipping"))
async def test_searches_find_what_they_find_without_an_index(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    words = [f"word{rng.randrange(10**6):06}" for _ in range(40)]
    world = await scattered(World(tmp_path), seed)
    entries = [
        batch_at(n, [f"{rng.choice(words)} key={rng.choice(words)} {n}-{i}" for i in range(30)])
        for n in range(40)
    ]
    rng.shuffle(entries)
    put_in_table(world, entries[:20], group_rows=GROUP_ROWS)
    put_in_table(world, entries[20:], group_rows=7)
    asked = [*requests_like(words, rng), *some_requests(rng)]
    async with engine_of(world) as engine:
        plain = [await search(engine, request) for request in asked]
    await world.index()
    async with engine_of(world) as engine:
        for request, (found, stats) in zip(asked, plain, strict=True):
            assert found == world.expected(request)
            indexed, less = await search(engine, request)
            assert indexed == found
            assert less["matches"] == stats["matches"]
            counting = replace(request, limit=None, after=None)
            async with await engine.open(counting) as running:
                assert await running.count() == len(world.expected(counting))
        assert engine.indexes.damaged == 0


async def rare_word(world: World) -> TableFile:
    """A file of a hundred row groups, of which two have the word `needle-in-a-haystack`."""
    rng = random.Random(5)
    lines = [f"request {rng.getrandbits(64):016x} done" for _ in range(100 * GROUP_ROWS)]
    lines[17 * GROUP_ROWS + 3] = lines[60 * GROUP_ROWS] = "needle-in-a-haystack is here"
    put_in_table(world, [batch_at(0, lines)])
    (file,) = await world.index()
    return file


async def alike(world: World, file: TableFile, number: int) -> list[TableFile]:
    """Names of so many files with the index of this one."""
    body = (await world.store.get(keys.skip_index(file.path)))[1]
    files = [replace(file, path=f"{n}.parquet") for n in range(number)]
    for one in files:
        await world.store.put(keys.skip_index(one.path), body)
    return files


RARE = QueryRequest(condition=Contains("needle-in-a-haystack"))


async def test_what_cannot_match_is_not_read(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = await rare_word(world)
    path = Path(file.uri)
    body, footer = bytearray(path.read_bytes()), pq.read_metadata(path)
    assert footer.num_row_groups == 100
    for group in set(range(100)) - {17, 60}:
        for number in range(footer.num_columns):
            chunk = footer.row_group(group).column(number)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            size = chunk.total_compressed_size
            body[start : start + size] = bytes(size)
    path.write_bytes(body)
    async with engine_of(world) as engine:
        found, stats = await search(engine, RARE)
        assert found == world.expected(RARE)
        assert len(found) == 2
        assert stats["bytes"] < file.size * 0.05
        async with await engine.open(RARE) as running:
            assert await running.count() == 2


def truncated(body: bytes) -> bytes:
    return body[: len(body) // 2]


def altered(body: bytes) -> bytes:
    """Another bit in each page."""
    changed = bytearray(body)
    for at in range(len(body) - 1, head_bytes(body), -(PAGE_BYTES // 2)):
        changed[at] ^= 1
    return bytes(changed)


def misheaded(body: bytes) -> bytes:
    return body[:40] + bytes([body[40] ^ 1]) + body[41:]


def newer(body: bytes) -> bytes:
    return b"TRSKIP99" + body[8:]


HARMS = [truncated, altered, misheaded, newer, lambda _: b"", lambda _: b"x" * 100]


@pytest.mark.usefixtures("no_maps")  # filters are to be harmed
@pytest.mark.parametrize("harm", HARMS)
async def test_a_harmed_index_is_no_index(tmp_path: Path, harm: Callable[[bytes], bytes]) -> None:
    world = World(tmp_path)
    file = await rare_word(world)
    key = keys.skip_index(file.path)
    body = (await world.store.get(key))[1]
    await world.store.put(key, harm(body))
    async with engine_of(world) as engine:
        found, stats = await search(engine, RARE)
        assert found == world.expected(RARE)
        assert stats["complete"]
        assert stats["bytes"] == file.size
        assert engine.indexes.damaged == 1


async def test_the_index_of_another_file_is_no_index(tmp_path: Path) -> None:
    world = World(tmp_path)
    await rare_word(world)
    put_in_table(world, [batch_at(1, ["nothing of the kind"] * 60)])
    rare, other = sorted(await world.index(), key=lambda file: -file.size)
    body = (await world.store.get(keys.skip_index(other.path)))[1]
    await world.store.put(keys.skip_index(rare.path), body)
    async with engine_of(world) as engine:
        assert (await search(engine, RARE))[0] == world.expected(RARE)
        assert engine.indexes.damaged == 1


async def test_too_many_ranges_are_read_as_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_reads, "MOST_RANGES", 3)
    world, rng = World(tmp_path), random.Random(8)
    for number in range(3):
        lines = [f"request {rng.getrandbits(64):016x} done" for _ in range(40 * GROUP_ROWS)]
        for place in range(2 * number + 1):
            lines[place * 6 * GROUP_ROWS] = "needle-in-a-haystack is here"
        put_in_table(world, [batch_at(number, lines)])
    await world.index()
    async with engine_of(world) as engine:
        found, stats = await search(engine, RARE)
        assert found == world.expected(RARE)
        assert len(found) == 1 + 3 + 5
        sizes = sorted(file.size for file in world.table.snapshot().files)
        assert sizes[0] < stats["bytes"] < sum(sizes)
