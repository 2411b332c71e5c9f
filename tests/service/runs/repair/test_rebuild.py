"""A run of which only segments or table rows are left reads whole; a deleted one does not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from service.query.context import run_records
from service.query.request import QueryRequest
from service.settings import Tuning
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RecordMeta, RunKey
from tailrace.logstore.errors import LimitReached, NotFound
from tailrace.logstore.runs.deletions import Deletion
from tailrace.logstore.runs.report import raise_watermark
from tests.batches import Entry
from tests.service.query.world import NODE, NOW_MS, engine_of, lake_in
from tests.service.query.world import World as Lake
from tests.service.runs.world import World

pytestmark = pytest.mark.usefixtures("every_store")

RUN = RunKey("service.pipeline", "run-1")
OTHER = RunKey("service.pipeline", "run-2")
TUNING = Tuning(merge_above=3, merge_width=2, chunk_bytes=200)


class Reader(World):
    """A node that never saw the run."""


@asynccontextmanager
async def reading(lake: Lake, *, seed: int = 1) -> AsyncIterator[Reader]:
    async with engine_of(lake) as engine:
        reader = Reader(store=lake.store, tuning=TUNING, seed=seed)
        reader.records = run_records(engine)
        await reader.run_logs.start()
        yield reader
        await reader.run_logs.stop()


def entries(count: int, key: RunKey = RUN, *, seed: int = 7, lines: int = 4) -> list[Entry]:
    dice = random.Random(seed)
    found: list[Entry] = []
    for number in range(count):
        batch = ulid.lowest_at(NOW_MS + number * 60_000) | dice.getrandbits(55) << 25
        found.append((key, batch, b"".join(b"%d line %d\r\n" % (number, i) for i in range(lines))))
    return found


def text_of(*batches: Entry) -> bytes:
    return b"".join(entry[2] for entry in batches)


async def flushed(lake: Lake, node: str = NODE) -> None:
    """All of the node's segments are in chunks, says its watermark."""
    await raise_watermark(lake.store, node, fresh_id=lambda: "x", seq=99, pos=10**9)


async def agree(reader: World, expected: bytes, state: str = "open") -> None:
    assert await reader.whole(RUN) == expected
    assert await reader.paged(RUN, 7) == expected
    assert await reader.caught_up(RUN) == expected
    assert (await reader.run_logs.reader.size(RUN)).state == state


async def gone(reader: World) -> None:
    with pytest.raises(NotFound):
        await reader.run_logs.reader.page(RUN, after=None, limit=5)
    assert reader.run_logs.rebuilder.rebuilt == 0


@pytest.mark.repairs(reason="all but the records is taken away")
@pytest.mark.on_servers(where=("both",))
@pytest.mark.parametrize("where", ["segments", "table", "both"])
async def test_only_segments_or_table_are_left(tmp_path: Path, where: str) -> None:
    lake = lake_in(tmp_path)
    batches = entries(40)
    others = entries(40, OTHER, seed=8)
    in_table = {"segments": 0, "table": 40, "both": 25}[where]
    if in_table:
        lake.merge([*batches[:in_table], *others], {NODE: 1})
        await lake.segment([*others, *batches[:in_table]])
    if in_table < 40:
        await lake.segment([*batches[20:], *others])
        await lake.segment([*others[3:9], *batches[:20]])
    await flushed(lake)
    async with reading(lake) as reader:
        await agree(reader, text_of(*batches))
        assert reader.run_logs.rebuilder.rebuilt == 1
        assert [run.run for run in await reader.listed(RUN.fqn, 5)] == [RUN.run]
        assert await reader.run_logs.close_run(RUN) == "closed"
        await agree(reader, text_of(*batches), "closed")
        logs = await lake.store.get(keys.logs("pipeline-logs", RUN))
        assert logs[1] == text_of(*batches)


@pytest.mark.repairs(reason="all but the records is taken away")
async def test_records_that_hold_newlines(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    text = b"a\nb\nc\nd\n"
    meta = RecordMeta([4, 8], [None, None], [None, None], [None, None])
    entry: Entry = (RUN, entries(1)[0][1], text, None, meta)
    await lake.segment([entry])
    await flushed(lake)
    async with reading(lake) as reader:
        await agree(reader, text)


@pytest.mark.repairs(reason="all but the records is taken away")
async def test_a_copy_that_comes_later_is_left_out(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    batches = entries(6)
    await lake.segment(batches)
    await flushed(lake)
    async with reading(lake) as reader:
        await agree(reader, text_of(*batches))
        key, batch, text = batches[3][:3]
        reader.append(key, text, ulid=batch)
        reader.append(key, b"new\n", ulid=ulid.lowest_at(NOW_MS) + (1 << 79))
        await reader.confirm()
        await reader.run_logs.flusher.drain()
        await agree(reader, text_of(*batches) + b"new\n")


async def test_lines_that_a_node_will_flush_are_left_to_it(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    await lake.segment(entries(6))
    async with reading(lake) as reader:
        await gone(reader)


async def test_what_was_deleted_stays_away(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    batches = entries(6)
    await lake.segment(batches)
    lake.merge(batches, {NODE: 0})
    await flushed(lake)
    async with reading(lake) as reader:
        t = batches[-1][1] | ulid.LINE_MASK
        await reader.run_logs.deletions.record(Deletion(RUN.fqn, None, t, "x"))
        await gone(reader)


@pytest.mark.repairs(reason="all but the records is taken away")
async def test_only_what_was_deleted_stays_away(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    batches = entries(6)
    await lake.segment(batches)
    await flushed(lake)
    async with reading(lake) as reader:
        t = batches[2][1] | ulid.LINE_MASK
        await reader.run_logs.deletions.record(Deletion(RUN.fqn, RUN.run, t, "x"))
        await agree(reader, text_of(*batches[3:]))


async def test_a_run_whose_manifest_says_deleted_is_not_remade(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    await lake.segment(entries(6))
    await flushed(lake)
    async with reading(lake) as reader:
        reader.clock.ms = NOW_MS + 3_600_000
        await reader.run_logs.delete_run(RUN)
        await gone(reader)
        await reader.restart()
        await gone(reader)


@pytest.mark.repairs(reason="all but the records is taken away")
async def test_with_a_segment_that_cannot_be_read_nothing_is_remade(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    await lake.segment(entries(3))
    where = await lake.segment(entries(6)[3:])
    await flushed(lake)
    body = (await lake.store.get(where))[1]
    async with reading(lake) as reader:
        await lake.store.put(where, body[:-40])
        await gone(reader)
        await lake.store.put(where, body)
        reader.clock.pass_seconds(61)
        await agree(reader, text_of(*entries(6)))


async def test_a_run_that_never_was_costs_no_search(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    await lake.segment(entries(6, OTHER))
    await flushed(lake)
    async with engine_of(lake, max_concurrent=1, max_waiting=0) as engine:
        reader = Reader(store=lake.store, tuning=TUNING)
        reader.records = run_records(engine)
        await reader.run_logs.start()
        async with await engine.open(QueryRequest()):  # the only place is taken
            await gone(reader)
        assert (reader.run_logs.rebuilder.put_off, engine.refused) == (0, 0)


async def test_while_searches_are_busy_it_is_a_run_that_never_was(tmp_path: Path) -> None:
    def busy(*_: object) -> AsyncIterator[pa.RecordBatch]:
        raise LimitReached("busy")

    async with reading(lake_in(tmp_path)) as reader:
        reader.records = busy
        await gone(reader)
        assert reader.run_logs.rebuilder.put_off == 1


@pytest.mark.repairs(reason="all but the records is taken away")
async def test_two_nodes_remake_it_once(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    batches = entries(30)
    await lake.segment(batches)
    await flushed(lake)
    async with reading(lake) as one:
        two = Reader(store=lake.store, tuning=TUNING, seed=2)
        two.records = one.records
        await two.run_logs.start()
        found = await asyncio.gather(*[reader.whole(RUN) for reader in (one, two, one, two)])
        assert set(found) == {text_of(*batches)}
        await agree(one, text_of(*batches))
        await agree(two, text_of(*batches))


async def test_what_a_clone_ships_while_a_reader_looks_is_left_to_it(tmp_path: Path) -> None:
    """A copy of this node's folder lives under its name, so its marker says nothing to this node.

    Its segment comes after the reader looked for lines that others hold, and before it searches.
    """
    lake = lake_in(tmp_path)
    async with reading(lake) as reader:
        search = reader.records
        assert search is not None
        name = reader.journal.node
        await lake.store.put(keys.active("pipeline-logs", RUN, name), b"")

        async def shipped_first(key: RunKey, low: int, high: int) -> AsyncIterator[pa.RecordBatch]:
            await lake.segment(entries(6), node=name)
            async for part in search(key, low, high):
                yield part

        reader.records = shipped_first
        await gone(reader)
        assert [info.key async for info in lake.store.list("pipeline-logs/service")] == []


async def test_a_run_that_begins_while_a_reader_looks_was_not_gone(tmp_path: Path) -> None:
    """Its own flush was first: what the search made of its segment is dropped, and no repair."""
    lake = lake_in(tmp_path)
    (first,) = entries(1)
    async with reading(lake) as reader:
        search = reader.records
        assert search is not None

        async def begun_first(key: RunKey, low: int, high: int) -> AsyncIterator[pa.RecordBatch]:
            reader.append(RUN, first[2], ulid=first[1])
            lake.know(first)
            await reader.confirm()
            await reader.run_logs.flusher.drain()
            async for part in search(key, low, high):
                yield part

        reader.records = begun_first
        await agree(reader, first[2])
        assert reader.run_logs.rebuilder.rebuilt == 0
        chunks = keys.chunks_of("pipeline-logs", RUN)
        assert len([info.key async for info in lake.store.list(chunks)]) == 2  # text and index
