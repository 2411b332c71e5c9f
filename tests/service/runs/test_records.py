"""Runs as records: each once with its ULID and text, in both orders, at every stage."""

from __future__ import annotations

import re
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.run_log.lines import HeldPlace, RecordPart, as_records, read_parts
from service.run_log.read_records import encode_place
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey, line_ends
from tailrace.logstore.errors import InvalidCursor, NotFound
from tailrace.logstore.position import Cursor
from tests.batches import MemoryBatches
from tests.logstore.segments.corpora import many_batches
from tests.seeds import some
from tests.service.runs.test_large_batch import snapshot_of
from tests.service.runs.world import World

KEY = RunKey("service.pipeline", "run-1")


def shown(parts: list[RecordPart]) -> list[tuple[int, bytes]]:
    """ULID and line of each record."""
    found = []
    for part in parts:
        lines = part.text.splitlines(keepends=True)
        assert (part.records, part.lines) == (len(lines), len(lines))
        found += [(part.low + n, line) for n, line in enumerate(lines)]
    return found


def expected(world: World) -> list[tuple[int, bytes]]:
    return [
        (ulid + n, line)
        for ulid, text in [entry[1:3] for entry in world.journal.entries]
        for n, line in enumerate(text.splitlines(keepends=True))
    ]


async def paged(world: World, limit: int, *, by_ulid: bool) -> list[RecordPart]:
    parts: list[RecordPart] = []
    after = None
    while True:
        found = await world.run_logs.records.page(
            KEY, after=after, limit=limit, by_ulid=by_ulid, max_bytes=97
        )
        parts += found.parts
        assert sum(part.lines for part in found.parts) == found.page.lines <= limit
        after = found.page.after
        if after is None:
            return parts


async def paged_back(world: World, limit: int, *, by_ulid: bool) -> list[RecordPart]:
    found = await world.run_logs.records.page(KEY, tail=limit, limit=limit, by_ulid=by_ulid)
    parts = list(found.parts)
    while (before := found.page.before) is not None:
        found = await world.run_logs.records.page(KEY, before=before, limit=limit, by_ulid=by_ulid)
        parts = [*found.parts, *parts]
    return parts


async def caught_up(world: World) -> list[RecordPart]:
    parts: list[RecordPart] = []
    cursor: Cursor | HeldPlace | None = None
    while True:
        after = await world.run_logs.records.after(KEY, cursor, max_bytes=61)
        if after.piece is not None:
            parts += after.piece.parts
            cursor = after.piece.cursor
        if not after.more:
            return parts


async def downloaded(world: World, *, by_ulid: bool) -> list[RecordPart]:
    parts: list[RecordPart] = []
    async for found in world.run_logs.records.whole(KEY, by_ulid=by_ulid, max_bytes=83):
        parts += found
    return parts


async def every_reading_agrees(world: World, limit: int) -> None:
    arrival = expected(world)
    assert shown(await paged(world, limit, by_ulid=False)) == arrival
    assert shown(await paged_back(world, limit, by_ulid=False)) == arrival
    assert shown(await caught_up(world)) == arrival
    assert shown(await downloaded(world, by_ulid=False)) == arrival
    by_ulid = sorted(arrival)
    assert shown(await paged(world, limit, by_ulid=True)) == by_ulid
    assert shown(await paged_back(world, limit, by_ulid=True)) == by_ulid
    assert shown(await downloaded(world, by_ulid=True)) == by_ulid
    ulid, line = by_ulid[len(by_ulid) // 2]
    around = await world.run_logs.records.page(KEY, around=ulid, limit=limit, by_ulid=True)
    assert (ulid, line) in shown(list(around.parts))
    assert around.page.lines == min(limit, len(arrival))


@pytest.mark.usefixtures("every_store")
@pytest.mark.parametrize("seed", some(range(2), 2, "records at every stage"))
async def test_each_record_is_there_once_in_both_orders_at_every_stage(seed: int) -> None:
    world, dice = World(seed=seed), Random(seed)
    await world.run_logs.start()
    for number in range(15):
        clock = -3_600_000 if dice.random() < 0.4 else 0  # of another producer
        ulid = (world.clock.ms + clock + number) << 80 | dice.getrandbits(55) << 25
        lines = dice.choice([1, 1, 2, 7])
        world.append(KEY, b"".join(b"%d of %d\n" % (n, number) for n in range(lines)), ulid)
        if number % 5 == 4:
            limit = dice.choice([1, 3, 10, 1000])
            await every_reading_agrees(world, limit)
            await world.confirm()
            await every_reading_agrees(world, limit)
            await world.run_logs.flusher.flush(KEY)
            await every_reading_agrees(world, limit)
    assert await world.run_logs.close_run(KEY) == "closed"
    await every_reading_agrees(world, 4)
    world.append(KEY, b"late\n")
    await every_reading_agrees(world, 1000)


async def test_a_long_batch_is_read_in_parts_with_the_numbers_of_its_records() -> None:
    world = World()
    await world.run_logs.start()
    lines = b"".join(b"%05d %s\n" % (n, b"x" * 40) for n in range(5000))
    world.append(KEY, b"first\n")
    world.append(KEY, lines)
    world.append(KEY, b"last\n")
    for _ in range(2):
        parts: list[RecordPart] = []
        async for found in world.run_logs.records.whole(KEY, by_ulid=False, max_bytes=30_000):
            assert sum(len(part.text) for part in found) < 100_000
            parts += found
        assert shown(parts) == expected(world)
        middle = await world.run_logs.records.page(KEY, after="2500", limit=3)
        assert shown(list(middle.parts)) == expected(world)[2500:2503]
        await world.confirm()
        await world.run_logs.flusher.flush(KEY)


async def test_places_of_one_order_are_refused_by_the_other() -> None:
    world = World()
    await world.run_logs.start()
    ulid = world.append(KEY, b"a\nb\n")
    records = world.run_logs.records
    with pytest.raises(InvalidCursor, match="not a place"):
        await records.page(KEY, after="1", limit=3, by_ulid=True)
    with pytest.raises(InvalidCursor):
        await records.page(KEY, after=encode_place(ulid), limit=3)
    with pytest.raises(NotFound, match="no record"):
        await records.page(KEY, around=ulid + 2, limit=3, by_ulid=True)
    with pytest.raises(NotFound, match="no run"):
        await records.page(RunKey("service.pipeline", "other"), limit=3, by_ulid=True)


async def test_a_deletion_ends_the_reading_of_a_whole_run() -> None:
    world = World()
    await world.run_logs.start()
    world.append(KEY, b"a\nb\nc\n")
    pieces = world.run_logs.records.whole(KEY, by_ulid=True, max_bytes=1)
    assert shown(list(await anext(pieces))) == expected(world)[:1]
    await world.run_logs.delete_run(KEY)
    world.append(KEY, b"again\n", world.mint_above(ulids.highest_at(world.clock.ms)))
    with pytest.raises(NotFound, match="deleted meanwhile"):
        await anext(pieces)


@settings(deadline=None, max_examples=25)
@given(many_batches(repeat=False), st.integers(1, 9), st.integers(1, 90))
async def test_records_with_newlines_are_whole_whatever_the_pieces(
    batches: MemoryBatches, lines: int, room: int
) -> None:
    snapshot, at, parts = snapshot_of(batches, 1 << 40), 0, list[RecordPart]()
    while at < snapshot.lines:
        found = await read_parts(snapshot, at, at + lines, room)
        assert found.start == at < found.end
        parts += found.parts
        at = found.end
    expected = []
    for index, row in enumerate(batches.rows):
        text, meta = batches.text(np.array([index])), batches.meta(index)
        ends = list(meta.ends) if meta else line_ends(text).tolist()
        ulid = int(row["ulid_hi"]) << 64 | int(row["ulid_lo"])
        for number, (low, high) in enumerate(zip([0, *ends], ends, strict=False)):
            constant = batches.constant_attributes(index)
            carried = meta.attributes[number] if meta else constant
            message = text[low : high - 1].decode()
            pos = int(row["pos"]) + number
            expected.append((ulids.encode(ulid + number), pos, message, carried or None))
    batch = as_records(KEY, parts)
    columns = [batch.column(name).to_pylist() for name in ("ulid", "pos", "message")]
    attributes = [dict(a) if a else None for a in batch.column("attributes").to_pylist()]
    assert [*zip(*columns, attributes, strict=True)] == expected


@settings(deadline=None, max_examples=25)
@given(many_batches(repeat=False), st.data())
async def test_a_read_that_begins_within_a_record_begins_with_it(
    batches: MemoryBatches, data: st.DataObject
) -> None:
    snapshot = snapshot_of(batches, 1 << 40)
    if not snapshot.lines:
        return
    line = data.draw(st.integers(0, snapshot.lines - 1))
    found = await read_parts(snapshot, line, line + 1, 1 << 20)
    whole = re.findall(rb"[^\n]*\n", batches.text(np.arange(len(batches.rows))))
    text = b"".join([part.text for part in found.parts])
    assert found.start <= line < found.end
    assert text == b"".join(whole[found.start : found.end])
    assert sum([part.records for part in found.parts]) == 1
