"""`GET /query/histogram` as a client meets it: shape, statuses, problems, leaving early."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from service.query.request import QueryRequest
from tailrace.logstore import ulid
from tests.service.http.query_client import Connection, app_of, client_of, mixed
from tests.service.query.test_limits import TIGHT, big, endless
from tests.service.query.world import NOW_MS, RUNS, World, engine_of, entry

AT = "/query/histogram"
DAY_MS = 86_400_000


async def test_the_answer_has_every_bucket_and_the_stats(tmp_path: Path) -> None:
    world = World(tmp_path)
    text = b"plain\nERROR one\nWARN two\n"
    world.unflushed([(RUNS[0], ulid.lowest_at(NOW_MS), text)])
    world.merge([(RUNS[1], ulid.lowest_at(NOW_MS - 120_000), b"ERROR x\n")], {})
    asked = {"from": f"{NOW_MS - 150_000}", "to": f"{NOW_MS}", "step": "1m"}
    async with engine_of(world) as engine, client_of(engine) as client:
        response = await client.get(AT, params=asked)
        narrow = await client.get(AT, params=asked | {"q": "one", "level": "ERROR", "buckets": ""})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    stats = body.pop("stats")
    assert body == {
        "from": "2026-11-21T09:57:30.000Z",
        "to": "2026-11-21T10:00:00.000Z",
        "step_ms": 60_000,
        "by": "arrival",
        "buckets": [
            {"at": "2026-11-21T09:57:00.000Z", "count": 0, "levels": {}},
            {"at": "2026-11-21T09:58:00.000Z", "count": 1, "levels": {"ERROR": 1}},
            {"at": "2026-11-21T09:59:00.000Z", "count": 0, "levels": {}},
            {
                "at": "2026-11-21T10:00:00.000Z",
                "count": 3,
                "levels": {"WARN": 1, "ERROR": 1, "null": 1},
            },
        ],
    }
    assert (stats["matches"], stats["complete"], stats["files"]) == (4, True, 1)
    assert [bucket["count"] for bucket in narrow.json()["buckets"]] == [0, 0, 0, 1]


async def test_it_counts_what_the_search_gives(tmp_path: Path) -> None:
    world = await mixed(tmp_path)
    async with engine_of(world) as engine, client_of(engine) as client:
        body = (await client.get(AT, params={"from": "1", "to": f"{NOW_MS + DAY_MS}"})).json()
    assert sum(bucket["count"] for bucket in body["buckets"]) == len(world.records)
    days = Counter(bucket["at"][10:] for bucket in body["buckets"])
    assert days.keys() == {"T00:00:00.000Z"}


async def test_a_partial_count_is_206(tmp_path: Path) -> None:
    world = await mixed(tmp_path)
    bad = await world.segment([entry(random.Random(2))])
    Path(world.store.uri(bad)).write_bytes(b"not a segment at all, but as long as one might be")
    async with engine_of(world) as engine, client_of(engine) as client:
        response = await client.get(AT, params={"from": "0", "to": f"{NOW_MS + DAY_MS}"})
    assert response.status_code == 206
    assert response.json()["stats"]["unreadable"] == [bad]


@pytest.mark.parametrize(
    ("query", "field"),
    [("limit=1", "limit"), ("step=x", "step"), ("step=1m&step=2m", "step"), ("q=(", "q"),
     ("regex=1&q=(", "q"), ("buckets=0", "buckets")],
)  # fmt: skip
async def test_what_is_wrong_is_a_problem_with_its_field(
    tmp_path: Path, query: str, field: str
) -> None:
    async with engine_of(World(tmp_path)) as engine, client_of(engine) as client:
        response = await client.get(f"{AT}?{query}")
    assert response.status_code == 400
    assert response.json()["field"] == field


async def test_a_count_past_its_limit_is_a_problem(tmp_path: Path) -> None:
    world = big(tmp_path, 300, 1_000)
    async with engine_of(world, **TIGHT) as engine, client_of(engine) as client:
        response = await client.get(AT, params={"from": "0", "to": f"{NOW_MS + DAY_MS}"})
    assert response.status_code == 422
    assert response.json()["type"] == "limit-reached"


async def test_a_client_that_leaves_ends_its_count(tmp_path: Path) -> None:
    async with engine_of(endless(tmp_path)) as engine:
        connection = Connection(AT, f"from=0&to={NOW_MS + DAY_MS}".encode())
        answering = asyncio.ensure_future(
            app_of(engine)(connection.scope, connection.receive, connection.send)
        )
        while not engine.running:
            await asyncio.sleep(0.01)
        connection.gone.set()
        connection.reading.set()  # whatever is sent to nobody is taken at once
        await asyncio.wait_for(answering, 120)
        assert engine.running == 0


async def test_from_the_beginning_is_from_the_first_record(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.unflushed([(RUNS[0], ulid.lowest_at(NOW_MS), b"late\n")])
    world.merge([(RUNS[0], ulid.lowest_at(NOW_MS - 3_600_000), b"early\n")], {})
    world.merge([(RUNS[1], ulid.lowest_at(NOW_MS - 7_200_000), b"of another run\n")], {})
    asked = {"from": "0", "to": f"{NOW_MS}", "step": "10m", "q": "late"}
    async with engine_of(world) as engine, client_of(engine) as client:
        every = (await client.get(AT, params=asked)).json()
        one = (await client.get(AT, params=asked | {"fqn": RUNS[0].fqn, "run": RUNS[0].run})).json()
        none = (await client.get(AT, params=asked | {"fqn": "nobody"})).json()
        wrong = await client.get(AT, params=asked | {"step": "1ms"})
    assert (every["from"], len(every["buckets"])) == ("2026-11-21T08:00:00.000Z", 13)
    assert (one["from"], len(one["buckets"])) == ("2026-11-21T09:00:00.000Z", 7)
    assert every["buckets"][-1]["count"] == one["buckets"][-1]["count"] == 1
    assert [bucket["count"] for bucket in none["buckets"]] == [0]
    assert wrong.status_code == 400
    assert wrong.json()["field"] == "step"


async def test_lines_that_came_late_are_counted_and_found_by_their_own_time(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    days = [f"2025-03-{day:02} 10:00:00 ERROR late {day}" for day in (1, 2, 2, 5)]
    entries = [
        (RUNS[0], ulid.lowest_at(NOW_MS - n * 1_000), f"{line}\n".encode())
        for n, line in enumerate(days)
    ]
    world.merge(entries[:2], {})
    await world.segment(entries[2:3])
    world.unflushed([entries[3], entries[0]])
    async with engine_of(world) as engine, client_of(engine) as client:
        asked = "from=2025-03-02&to=2025-03-05&by=ts"
        reply = (await client.get(f"/query/histogram?{asked}&step=1d")).json()
        counts = {bucket["at"][:10]: bucket["count"] for bucket in reply["buckets"]}
        assert counts == {
            "2025-03-02": 2, "2025-03-03": 0, "2025-03-04": 0, "2025-03-05": 0
        }  # fmt: skip
        assert (reply["by"], reply["stats"]["by"], reply["stats"]["matches"]) == ("ts", "ts", 2)
        whole = (await client.get("/query/histogram?from=0&by=ts")).json()
        assert (whole["from"][:10], whole["stats"]["matches"]) == ("2025-03-01", 4)
        assert sum(bucket["levels"].get("ERROR", 0) for bucket in whole["buckets"]) == 4
        arrived = (await client.get(f"/query/histogram?{asked.removesuffix('ts')}arrival")).json()
        assert (arrived["by"], arrived["stats"]["matches"]) == ("arrival", 0)
        request = QueryRequest.parse(
            {"from": "2025-03-02", "to": "2025-03-05 10:00", "by": "ts", "q": "late"},
            now_ms=NOW_MS,
        )
        async with await engine.open(request) as running:
            found = [text async for batch in running.batches()
                     for text in batch.column("message").to_pylist()]  # fmt: skip
        assert sorted(found) == sorted(days[1:])
        assert (await client.get("/query/histogram?by=late")).json()["field"] == "by"
        assert (await client.get("/query/histogram?time=late")).json()["field"] == "time"
        assert (await client.get("/query/histogram?by=ts&time=arrival")).json()["field"] == "by"
