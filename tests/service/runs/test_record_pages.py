"""Pages around a record: the record is on them, at the line that they name, at every stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.run_log.cursors import line_of_record
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound
from tests.batches import MemoryBatches
from tests.logstore.segments.corpora import many_batches
from tests.service.runs.test_large_batch import snapshot_of
from tests.service.runs.world import World
from tests.service.test_main import PLAIN, RUN, service, settings_for

KEY = RunKey("service.pipeline", "run-1")
NDJSON = {"content-type": "application/x-ndjson"}


async def every_record_is_found(world: World, limit: int) -> None:
    whole = await world.whole(KEY)
    lines = whole.splitlines(keepends=True)
    number = 0
    for ulid, text in [entry[1:3] for entry in world.journal.entries]:
        for record in range(text.count(b"\n")):
            page = await world.run_logs.reader.page(
                KEY, after=None, limit=limit, around=ulid + record
            )
            assert page.record_line == number
            assert page.text == b"".join(lines[page.first_line : page.first_line + page.lines])
            assert page.first_line <= number < page.first_line + page.lines
            assert page.lines == min(limit, len(lines))
            number += 1
    assert number == len(lines)


@pytest.mark.usefixtures("every_store")
async def test_a_record_is_found_unflushed_confirmed_flushed_merged_and_closed() -> None:
    world = World()
    await world.run_logs.start()
    for number in range(12):
        world.append(KEY, b"".join(b"%d of %d\n" % (n, number) for n in range(1 + number % 4)))
        if number % 3 == 2:
            await every_record_is_found(world, 5)
            await world.confirm()
            await every_record_is_found(world, 1)
            await world.run_logs.flusher.flush(KEY)
            await every_record_is_found(world, 5)
    assert await world.run_logs.close_run(KEY) == "closed"
    await every_record_is_found(world, 7)
    world.append(KEY, b"late\n")
    await every_record_is_found(world, 1000)


async def test_a_record_behind_many_bytes_begins_its_page() -> None:
    world = World()
    await world.run_logs.start()
    world.append(KEY, b"x" * 5000 + b"\n")
    ulid = world.append(KEY, b"found\nnext\n")
    page = await world.run_logs.reader.page(KEY, after=None, limit=3, around=ulid, max_bytes=1000)
    assert (page.text, page.record_line, page.first_line) == (b"found\nnext\n", 1, 1)
    assert page.before is not None


async def test_what_the_run_does_not_hold_is_not_found() -> None:
    world = World()
    await world.run_logs.start()
    ulid = world.append(KEY, b"a\nb\n")
    for _ in range(2):
        for other in (ulid + 2, ulid - (1 << 25), ulid + (1 << 25)):
            with pytest.raises(NotFound, match="no record"):
                await world.run_logs.reader.page(KEY, after=None, limit=3, around=other)
        await world.confirm()
        await world.run_logs.flusher.flush(KEY)


@settings(deadline=None, max_examples=60)
@given(many_batches(repeat=False), st.data())
async def test_records_with_newlines_are_found_behind_the_chunks(
    batches: MemoryBatches, data: st.DataObject
) -> None:
    if len(batches.rows) == 0:
        return
    index = data.draw(st.integers(0, len(batches.rows) - 1))
    row, meta = batches.rows[index], batches.meta(index)
    batch = int(row["ulid_hi"]) << 64 | int(row["ulid_lo"])
    twins = (batches.rows["ulid_hi"] == row["ulid_hi"]) & (
        batches.rows["ulid_lo"] == row["ulid_lo"]
    )
    if twins.sum() > 1:  # of other runs: a snapshot is of one
        return
    number = data.draw(st.integers(0, int(row["records"]) - 1))
    before = int(batches.rows["lines"][:index].sum())
    text = batches.content[int(row["offset"]) : int(row["offset"] + row["size"])]
    within = text[: meta.ends[number - 1]].count(b"\n") if meta and number else number
    assert await line_of_record(snapshot_of(batches, 1 << 40), batch + number) == before + within


async def _hits(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    found = await client.get("/query", params={"from": "0", "order": "asc"})
    records = [json.loads(line) for line in found.text.splitlines()]
    return [record for record in records if "ulid" in record]


async def test_a_hit_of_a_search_opens_in_its_run(tmp_path: Path) -> None:
    stack = [{"message": f"failed {n}\n  at a\n  at b" if n % 2 else f"ok {n}"} for n in range(9)]
    async with service(settings_for(tmp_path)) as (client, _):
        await client.post(RUN, content=b"first\n", headers=PLAIN)
        body = "\n".join(json.dumps(record) for record in stack)
        assert (await client.post(RUN, content=body, headers=NDJSON)).status_code == 200
        hits = await _hits(client)
        assert len(hits) == 10
        for stage in ("hot", "closed"):
            if stage == "closed":
                await client.post(f"{RUN}/close")
            whole = (await client.get(f"{RUN}/download")).text.splitlines()
            for hit in hits:
                reply = await client.get(RUN, params={"at": hit["ulid"].lower(), "limit": "4"})
                page = reply.json()
                lines = hit["message"].splitlines()
                line, first = page["line"], page["firstLine"]
                assert whole[line : line + len(lines)] == lines
                assert page["logs"].splitlines()[line - first] == lines[0]
        assert "line" not in (await client.get(RUN)).json()
        strange = await client.get(RUN, params={"at": "yesterday"})
        assert (strange.status_code, strange.json()["field"]) == (400, "at")
        both = await client.get(RUN, params={"at": hits[0]["ulid"], "tail": "3"})
        assert both.status_code == 400
        other = ulids.encode(ulids.decode(hits[-1]["ulid"]) + 1)
        assert (await client.get(RUN, params={"at": other})).status_code == 404
