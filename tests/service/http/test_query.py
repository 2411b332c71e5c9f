"""`GET /query` as a client meets it: formats, statuses, headers, problems, leaving early."""

from __future__ import annotations

import asyncio
import io
import random
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pyarrow.parquet as pq
import pytest

from service.query.request import QueryRequest, TimeRangeSizes
from tailrace.logstore import ulid
from tests.service.http.query_client import Connection, app_of, client_of, mixed, records
from tests.service.query.test_limits import TIGHT, big, endless
from tests.service.query.world import NOW_MS, RUNS, World, engine_of, entry
from tests.simulation.hand_clock import HandClock


async def test_ndjson_ends_with_stats(tmp_path: Path) -> None:
    world = await mixed(tmp_path)
    async with engine_of(world) as engine, client_of(engine) as client:
        response = await client.get("/query", params={"from": "0", "limit": "12"})
        found, last = records(response)
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/x-ndjson"
        expected = world.expected(QueryRequest(limit=12))
        assert [(r["ulid"], r["fqn"], r["run_id"]) for r in found] == expected
        for key, record in zip(expected, found, strict=True):
            assert record["message"] == world.records[key].message
            assert record["ts"].endswith("Z")
            assert set(record) == {
                "ulid", "ts", "fqn", "run_id", "level", "connector_id", "pos", "message",
                "attributes",
            }  # fmt: skip
        assert last["stats"]["matches"] == 12
        assert last["stats"]["complete"] is True
        after = last["stats"]["next"]
        rest, last = records(await client.get("/query", params={"from": "0", "after": after}))
        assert len(found) + len(rest) == len(world.records)
        assert last["stats"]["next"] is None


async def test_long_lists_are_posted_and_all_hits_are_counted(tmp_path: Path) -> None:
    async with engine_of(await mixed(tmp_path)) as engine, client_of(engine) as client:
        whole, _ = records(await client.get("/query?from=0"))
        wanted = {record["run_id"] for record in whole[:3]}
        values = [*wanted, *(f"run-{n}" for n in range(5_000))]
        asked: dict[str, Any] = {"q": f"run:in({', '.join(values)})", "from": "0", "limit": 7}
        found, last = records(await client.post("/query", json=asked))
        assert [one["ulid"] for one in found] == [
            record["ulid"] for record in whole if record["run_id"] in wanted
        ][:7]
        assert last["stats"]["next"]
        assert (await client.get("/query", params=asked)).status_code == 413, "too long for a URL"
        for reply in (
            await client.get("/query/count?from=0&by=level,run&limit=2"),
            await client.post("/query/count", json={"from": "0", "by": "level,run", "limit": 2}),
        ):
            counts = reply.json()
            expected = Counter((one["level"], one["run_id"]) for one in whole).most_common()
            assert [row["records"] for row in counts["counts"]] == [n for _, n in expected[:2]]
            assert counts["by"] == ["level", "run"]
            assert (counts["records"], counts["all_counts"]) == (len(whole), False)
        nothing = (await client.get("/query/count?from=0&q=json.no:1")).json()
        assert (nothing["records"], nothing["counts"]) == (0, [])


@pytest.mark.parametrize(
    ("query", "field"),
    [("by=no", "by"), ("by=level,,run", "by"), ("by=fqn,run,level,ts,pos", "by"), ("by=*", "by"),
     ("limit=0", "limit"), ("order=asc", "order")],
)  # fmt: skip
async def test_counts_that_nobody_can_give_are_refused(
    tmp_path: Path, query: str, field: str
) -> None:
    async with engine_of(World(tmp_path)) as engine, client_of(engine) as client:
        response = await client.get(f"/query/count?{query}")
        assert (response.status_code, response.json()["field"]) == (400, field)
        mixed_up = await client.post("/query?from=0", json={"q": "a"})
        assert (mixed_up.status_code, mixed_up.json()["field"]) == (400, "body")


async def test_text_and_parquet_by_format_or_accept(tmp_path: Path) -> None:
    world = await mixed(tmp_path)
    keys = world.expected(QueryRequest(descending=False))
    messages = [world.records[key].message for key in keys]
    asked = {"from": "0", "order": "asc"}
    async with engine_of(world) as engine, client_of(engine) as client:
        for extra, accept in (({"format": "text"}, "*/*"), ({}, "text/html, text/plain;q=0.5")):
            response = await client.get("/query", params=asked | extra, headers={"accept": accept})
            assert response.text == "".join(f"{message}\n" for message in messages)
        for extra, accept in (({"format": "parquet"}, ""), ({}, "application/vnd.apache.parquet")):
            response = await client.get("/query", params=asked | extra, headers={"accept": accept})
            file = pq.ParquetFile(io.BytesIO(response.content))
            assert file.read().column("message").to_pylist() == messages
            stats = orjson.loads(file.metadata.metadata[b"tailrace.stats"])
            assert stats["matches"] == len(messages)
            file.close()


async def test_stats_only_and_head_send_no_records(tmp_path: Path) -> None:
    world = await mixed(tmp_path)
    async with engine_of(world) as engine, client_of(engine) as client:
        response = await client.get("/query", params={"from": "0", "stats_only": "true"})
        found, last = records(response)
        assert found == []
        assert last["stats"]["matches"] == len(world.records)
        assert last["stats"]["bytes"] > 0
        response = await client.head("/query", params={"from": "0"})
        assert response.content == b""
        assert response.headers["tailrace-matches"] == str(len(world.records))
        assert response.headers["tailrace-node-count"] == "1"
        assert response.headers["tailrace-segment-count"] == "1"
        assert int(response.headers["tailrace-size"]) > 0


async def test_a_partial_result_is_206(tmp_path: Path) -> None:
    world = await mixed(tmp_path)
    bad = await world.segment([entry(random.Random(2))])
    Path(world.store.uri(bad)).write_bytes(b"not a segment at all, but as long as one might be")
    async with engine_of(world) as engine, client_of(engine) as client:
        response = await client.get("/query", params={"from": "0"})
        assert response.status_code == 206
        stats = records(response)[1]["stats"]
        assert stats["unreadable"] == [bad]
        assert (stats["segments"], stats["segments_failed"]) == (1, 1)
        head = await client.head("/query", params={"from": "0"})
        assert (head.status_code, head.headers["tailrace-complete"]) == (206, "false")
        assert head.headers["tailrace-failed-count"] == "1"
        counted = await client.get("/query", params={"from": "0", "stats_only": "true"})
        assert counted.status_code == 206
        assert records(counted)[1]["stats"]["segments_failed"] == 1


@pytest.mark.parametrize(
    ("query", "field"),
    [("from=now&to=now-1h", "from"), ("q=(&regex=true", "q"), ("after=5", "after"),
     ("level=LOUD", "level"), ("format=xml", "format"), ("limit=1&limit=2", "limit"),
     ("until=now", "until"), ("fqn=", "fqn"), ("from=%00", "from")],
)  # fmt: skip
async def test_bad_input_is_a_problem_that_names_the_field(
    tmp_path: Path, query: str, field: str
) -> None:
    async with engine_of(World(tmp_path)) as engine, client_of(engine) as client:
        response = await client.get(f"/query?{query}")
        assert response.status_code == 400
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["field"] == field
        assert response.json()["hint"]


async def test_a_search_past_its_limit_is_a_problem_while_nothing_was_sent(tmp_path: Path) -> None:
    world = big(tmp_path, 300, 1_000)
    async with engine_of(world, **TIGHT) as engine, client_of(engine) as client:
        response = await client.get("/query?from=0")
        assert response.status_code == 422
        assert response.json()["type"] == "limit-reached"


async def test_a_full_queue_is_503_with_retry_after(tmp_path: Path) -> None:
    world = big(tmp_path, 1, 10)
    async with (
        engine_of(world, max_concurrent=1, max_waiting=0) as engine,
        client_of(engine) as client,
    ):
        running = await engine.open(QueryRequest())
        response = await client.get("/query?from=0")
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        await running.close()


@pytest.mark.parametrize("moment", ["before the first byte", "in the middle"])
async def test_a_client_that_leaves_ends_its_search(tmp_path: Path, moment: str) -> None:
    early = moment == "before the first byte"
    world = endless(tmp_path) if early else big(tmp_path, 100, 1_000)
    async with engine_of(world) as engine:
        connection = Connection("/query", b"from=0&stats_only=1" if early else b"from=0")
        answering = asyncio.ensure_future(
            app_of(engine)(connection.scope, connection.receive, connection.send)
        )
        if early:
            while not engine.running:
                await asyncio.sleep(0.01)
        else:
            await connection.taken.wait()
        connection.gone.set()
        if early:
            connection.reading.set()  # whatever is sent to nobody is taken at once
        await asyncio.wait_for(answering, 120)
        assert engine.running == 0


async def test_what_nothing_follows_leaves_with_the_stats_and_the_rest_as_it_is_found(
    tmp_path: Path,
) -> None:
    world = await mixed(tmp_path)
    async with engine_of(world, sizes=TimeRangeSizes(1, 1)) as engine:
        page, stream = Connection("/query", b"from=0&limit=1"), Connection("/query", b"from=0")
        page.reading.set()
        await app_of(engine)(page.scope, page.receive, page.send)
        assert (page.body.count(b"\n"), page.messages) == (2, 1)
        with pytest.MonkeyPatch.context() as patch:
            turn = Mock(side_effect=engine.in_thread)
            patch.setattr(engine, "in_thread", turn)
            answering = asyncio.ensure_future(
                app_of(engine)(stream.scope, stream.receive, stream.send)
            )
            await stream.taken.wait()
            assert turn.call_count == 2, "one more hour is looked for, and no other"
            assert 0 < stream.body.count(b"\n") < len(world.records)
            stream.reading.set()
            await answering
        assert stream.body.count(b"\n") == len(world.records) + 1


async def test_ndjson_that_breaks_off_says_why_and_has_no_stats(tmp_path: Path) -> None:
    clock = HandClock()
    world = World(tmp_path)
    text = b"x" * 100 + b"\n"
    world.unflushed([(RUNS[0], ulid.lowest_at(NOW_MS) | i << 25, text * 1_000) for i in range(60)])
    async with engine_of(world, clock, stall_seconds=5) as engine:
        connection = Connection("/query", b"from=0")
        answering = asyncio.ensure_future(
            app_of(engine)(connection.scope, connection.receive, connection.send)
        )
        await connection.taken.wait()
        await clock.advance(6)
        connection.reading.set()
        await answering
        last = orjson.loads(connection.body.splitlines()[-1])
        assert last["error"]["type"] == "limit-reached"
        assert b'"stats"' not in connection.body


async def test_the_parameters_are_documented(tmp_path: Path) -> None:
    async with engine_of(World(tmp_path)) as engine:
        documented = app_of(engine).openapi()["paths"]["/query"]["get"]
        names = {parameter["name"] for parameter in documented["parameters"]}
        assert names == {
            "q", "regex", "from", "to", "fqn", "run", "level", "limit", "order", "after",
            "format", "stats_only", "context", "time", "by", "context_before", "context_after",
        }  # fmt: skip
        assert {"200", "206", "400", "422", "503"} <= set(documented["responses"])
