"""`GET /query/fields` and `/query/values` as a client meets them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import httpx
import pytest

from tailrace.logstore import ulid
from tests.service.http.query_client import Connection, app_of, client_of, mixed
from tests.service.query.test_limits import TIGHT, big, endless
from tests.service.query.world import NOW_MS, RUNS, World, engine_of, entry

FIELDS, VALUES = "/query/fields", "/query/values"
BOTH = pytest.mark.parametrize("at", [FIELDS, f"{VALUES}?field=message"])


async def test_the_answers_name_fields_and_values_of_the_newest_records(tmp_path: Path) -> None:
    world = World(tmp_path)
    text = b'k="a b" n=1\n{"user id":7}\nk=c\n'
    world.unflushed([(RUNS[0], ulid.lowest_at(NOW_MS), text)])
    world.merge([(RUNS[1], ulid.lowest_at(NOW_MS - 120_000), b"k=old\n")], {})
    asked = {"from": f"{NOW_MS - 150_000}", "sample": "3"}
    async with engine_of(world) as engine, client_of(engine) as client:
        fields = await client.get(FIELDS, params=asked)
        values = await client.get(VALUES, params=asked | {"field": 'logfmt."k"', "limit": "1"})
        all_values = await client.get(VALUES, params={"from": "0", "field": "logfmt.k", "q": "k="})
    assert (fields.status_code, values.status_code) == (200, 200)
    assert fields.headers["content-type"] == "application/json"
    body = fields.json()
    stats = body.pop("stats")
    assert (stats["matches"], stats["next"], stats["complete"]) == (3, None, True)
    every = ("fqn", "message", "run", "ts", "ulid")
    assert body == {
        "fields": [
            *[{"name": name, "records": 3, "kind": "text"} for name in every[:2]],
            {"name": "pos", "records": 3, "kind": "number"},
            *[{"name": name, "records": 3, "kind": "text"} for name in every[2:]],
            {"name": "logfmt.k", "records": 2, "kind": "text"},
            {"name": 'json."user id"', "records": 1, "kind": "number"},
            {"name": "logfmt.n", "records": 1, "kind": "number"},
        ],
        "all_fields": True,
        "records": 3,
        "all_records": False,
    }
    body = values.json()
    body.pop("stats")
    assert body == {
        "field": "logfmt.k",
        "values": [{"value": '"a b"', "text": "a b", "records": 1}],
        "all_values": False,
        "records": 3,
        "all_records": False,
    }
    body = all_values.json()
    assert [value["text"] for value in body["values"]] == ["a b", "c", "old"]
    assert (body["records"], body["all_records"], body["all_values"]) == (3, True, True)


@BOTH
async def test_what_is_partial_is_206(tmp_path: Path, at: str) -> None:
    world = await mixed(tmp_path)
    bad = await world.segment([entry(random.Random(2))])
    Path(world.store.uri(bad)).write_bytes(b"not a segment at all, but as long as one might be")
    async with engine_of(world) as engine, client_of(engine) as client:
        response = await client.get(httpx.URL(at).copy_merge_params({"from": "0"}))
    assert response.status_code == 206
    assert response.json()["stats"]["unreadable"] == [bad]


@pytest.mark.parametrize(
    ("query", "field"),
    [("fields?limit=1", "limit"), ("fields?sample=0", "sample"), ("fields?q=(", "q"),
     ("fields?regex=1&q=(", "q"), ("values", "field"), ("values?field=x", "field"),
     ("values?field=level&field=ts", "field"), ("values?field=level&limit=x", "limit")],
)  # fmt: skip
async def test_what_is_wrong_is_a_problem_with_its_field(
    tmp_path: Path, query: str, field: str
) -> None:
    async with engine_of(World(tmp_path)) as engine, client_of(engine) as client:
        response = await client.get(f"/query/{query}")
    assert response.status_code == 400
    assert response.json()["field"] == field


@BOTH
async def test_a_sample_past_its_limit_is_a_problem(tmp_path: Path, at: str) -> None:
    world = big(tmp_path, 300, 1_000)
    parameters = {"from": "0", "sample": "100000"}
    async with engine_of(world, **TIGHT) as engine, client_of(engine) as client:
        response = await client.get(httpx.URL(at).copy_merge_params(parameters))
    assert response.status_code == 422
    assert response.json()["type"] == "limit-reached"


@BOTH
async def test_a_client_that_leaves_ends_its_search(tmp_path: Path, at: str) -> None:
    path, _, query = at.partition("?")
    async with engine_of(endless(tmp_path)) as engine:
        connection = Connection(path, f"{query}&from=0&sample=100000".strip("&").encode())
        answering = asyncio.ensure_future(
            app_of(engine)(connection.scope, connection.receive, connection.send)
        )
        while not engine.running:
            await asyncio.sleep(0.01)
        connection.gone.set()
        connection.reading.set()  # whatever is sent to nobody is taken at once
        await asyncio.wait_for(answering, 120)
        assert engine.running == 0
