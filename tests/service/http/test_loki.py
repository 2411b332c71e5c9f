"""Loki's query API as its clients meet it: parameters, shapes, errors, rights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from service.http import errors
from service.http.loki import loki_query_routes
from service.http.loki_labels import loki_label_routes
from tailrace.logstore import ulid
from tailrace.logstore.batch import RecordMeta, RunKey
from tests.service.http.memory_node import MemoryNode
from tests.service.query.test_limits import endless
from tests.service.query.world import NOW_MS, World, engine_of

AT = "/loki/api/v1"
END_S = NOW_MS // 1_000
KEY = RunKey("shop.orders", "nightly 7")
HOUR: dict[str, Any] = {"start": str(END_S - 3_600), "end": str(END_S)}
LINES = (
    ("ERROR it failed", "ERROR", {"k8s.pod": "p1", "run": "mine", "empty": ""}),
    ('{"status": 500, "took": "2s"}', None, {"k8s.pod": "p2", "service.name": "orders"}),
    ("status=200 took=5ms", "INFO", None),
)


def world_of(root: Path) -> World:
    """A line a minute before the end, the first one being the oldest."""
    world = World(root)
    text, ends = b"", []
    for line, _, _ in LINES:
        text += line.encode() + b"\n"
        ends.append(len(text))
    meta = RecordMeta(
        ends=ends,
        ts=[(END_S - 60 * (len(LINES) - n)) * 1_000_000 for n in range(len(LINES))],
        levels=[level for _, level, _ in LINES],
        attributes=[attributes for _, _, attributes in LINES],
    )
    world.unflushed([(KEY, ulid.lowest_at(NOW_MS), text, None, meta)], known=False)
    world.merge([(RunKey("other", "r"), ulid.lowest_at(NOW_MS - 120_000), b"plain\n")], {})
    return world


@asynccontextmanager
async def client_of(engine: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    routes = [loki_query_routes(lambda: engine), loki_label_routes(lambda: engine, MemoryNode())]
    for one in routes:
        app.include_router(one)
    errors.install(app, lambda: "request-1", routes)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        yield client


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with engine_of(world_of(tmp_path)) as engine, client_of(engine) as made:
        yield made


async def found(client: httpx.AsyncClient, query: str, **asked: Any) -> list[dict[str, Any]]:
    response = await client.get(f"{AT}/query_range", params={**HOUR, "query": query, **asked})
    assert response.status_code == 200, response.text
    result: list[dict[str, Any]] = response.json()["data"]["result"]
    return result


def lines(result: list[dict[str, Any]]) -> list[str]:
    pairs = [(int(one[0]), one[1]) for stream in result for one in stream["values"]]
    return [line for _, line in sorted(pairs)]


async def test_labels_of_a_line(client: httpx.AsyncClient) -> None:
    (first,) = await found(client, '{pipeline="shop.orders"} |= "failed"')
    assert first["stream"] == {
        "pipeline": "shop.orders", "run": "nightly 7", "service_name": "shop.orders",
        "detected_level": "error", "k8s_pod": "p1", "run_extracted": "mine",
    }  # fmt: skip
    assert first["values"] == [[str((END_S - 180) * 10**9), "ERROR it failed"]]
    flags = {"x-loki-response-encoding-flags": "categorize-labels"}
    asked = {**HOUR, "query": '{service_name="orders"} | json'}
    data = (await client.get(f"{AT}/query_range", params=asked, headers=flags)).json()["data"]
    assert data["encodingFlags"] == ["categorize-labels"]
    (stream,) = data["result"]
    assert stream["stream"] == {
        "pipeline": "shop.orders", "run": "nightly 7", "service_name": "orders",
    }  # fmt: skip
    assert stream["values"][0][2] == {
        "structuredMetadata": {"detected_level": "unknown", "k8s_pod": "p2"},
        "parsed": {"status": "500", "took": "2s"},
    }


SELECTED: Sequence[tuple[str, list[int]]] = (
    ('{run=~"nightly.*"}', [0, 1, 2]),
    ('{detected_level="error"}', [0]),
    ('{detected_level=~"info|unknown", pipeline!="other"}', [1, 2]),
    ('{k8s_pod="p2"}', [1]),
    ('{k8s_pod=~"p.|", pipeline="shop.orders"}', [0, 1, 2]),
    ('{k8s_pod!="", run=~".+"}', [0, 1]),
    ('{service_name="shop.orders"}', [0, 2]),
    ('{run_extracted="mine"}', [0]),
    ('{run="mine"}', []),
    ('{empty="", pipeline="shop.orders"} | k8s_pod="p1" or detected_level="info"', [0, 2]),
    ('{pipeline="shop.orders"} | json | took>1s', [1]),
    ('{pipeline="shop.orders"} | logfmt | status<300', [2]),
)


async def test_every_label_selects(client: httpx.AsyncClient) -> None:
    for query, numbers in SELECTED:
        expected = [LINES[number][0] for number in numbers]
        for direction in ("forward", "backward"):
            assert lines(await found(client, query, direction=direction)) == expected, query


async def test_a_pushed_line_keeps_its_nanoseconds(tmp_path: Path) -> None:
    world, at_us = World(tmp_path), (END_S - 60) * 1_000_000
    exact = {"time_unix_nano": f"{at_us * 1_000 + 789}", "app": "web"}
    meta = RecordMeta([2], [at_us], [None], [exact])
    world.unflushed([(KEY, ulid.lowest_at(NOW_MS), b"x\n", None, meta)], known=False)
    async with engine_of(world) as engine, client_of(engine) as client:
        (stream,) = await found(client, '{app="web"}')
        assert stream["values"] == [[exact["time_unix_nano"], "x"]]
        assert "time_unix_nano" not in stream["stream"]


async def test_pages_by_nanoseconds_have_each_line_once(tmp_path: Path) -> None:
    """As logcli pages: backward before 1 ns after the last line, forward from the last one on."""
    world, at_ns = World(tmp_path), (END_S - 60) * 10**9
    times = [at_ns, at_ns + 1, at_ns + 2, at_ns + 999, at_ns + 1_000]
    text = b"".join(b"%d\n" % number for number in range(len(times)))
    exact = [{"time_unix_nano": str(at)} if at % 1_000 else None for at in times]
    meta = RecordMeta(
        [2 * n + 2 for n in range(len(times))], [at // 1_000 for at in times], [None] * 5, exact
    )
    world.unflushed([(KEY, ulid.lowest_at(NOW_MS), text, None, meta)], known=False)
    async with engine_of(world) as engine, client_of(engine) as client:
        for number, at in enumerate(times):
            before = await found(client, '{run=~".+"}', end=str(at + 1))
            after = await found(client, '{pipeline="shop.orders"}', start=str(at))
            assert lines(before) == [str(n) for n in range(number + 1)]
            assert lines(after) == [str(n) for n in range(number, len(times))]


async def test_a_limit_takes_the_first_by_time_though_others_arrived_first(tmp_path: Path) -> None:
    """Files whose times come later than all that was found are left out."""
    world = World(tmp_path)
    for hour in range(6):  # the newest arrivals have the oldest times
        meta = RecordMeta([2], [(END_S - 60 * (hour + 1)) * 1_000_000], [None], [None])
        at = ulid.lowest_at(NOW_MS - 3_600_000 * (5 - hour))
        world.merge([(KEY, at, b"%d\n" % hour, None, meta)], {})
    async with engine_of(world) as engine, client_of(engine) as client:
        for query in ('{run=~".+"}', '{run=~".+"} | logfmt'):
            newest = await found(client, query, limit=2)
            oldest = await found(client, query, limit=2, direction="forward")
            assert (lines(newest), lines(oldest)) == (["1", "0"], ["5", "4"])


async def test_copies_of_a_line_neither_fill_a_limit_nor_count_twice(tmp_path: Path) -> None:
    """Lines that two nodes shipped, that the journal still holds, and that the table has, too."""
    world, start = World(tmp_path), (END_S - 600) * 1_000_000
    batches = []
    for number in range(6):
        # The times of one batch lie between those of the others.
        times = [start + (number + 6 * n) * 1_000_000 for n in range(5)]
        text = b"".join(b"%d\n" % (number + 6 * n) for n in range(5))
        ends = [text.index(b"%d\n" % (number + 6 * n)) for n in range(1, 5)] + [len(text)]
        attributes = [{"of": "all"}, None, {"of": "all"}, None, {"of": "all"}]
        meta = RecordMeta(ends, times, [None] * 5, attributes)
        batches.append((KEY, ulid.lowest_at(NOW_MS - 1000 * number), text, None, meta))
    world.unflushed(batches[:4], known=False)
    await world.segment(batches[1:], node="node-02")
    await world.segment(batches[:5], node="node-03")
    world.merge(batches[2:4], {})
    async with engine_of(world) as engine, client_of(engine) as client:
        for query in ('{run=~".+"}', '{run=~".+"} != "x"', '{run=~".+"} |~ "."', '{of="all"}'):
            every = [n for n in range(30) if "of" not in query or n // 6 % 2 == 0]
            for limit in (1, 2, 7, len(every), 100):
                newest = await found(client, query, limit=limit)
                oldest = await found(client, query, limit=limit, direction="forward")
                assert lines(newest) == [str(n) for n in every[-limit:]]
                assert lines(oldest) == [str(n) for n in every[:limit]]
            total = await found(client, f"sum(count_over_time({query}[1h]))", step="1h")
            assert [value for _, value in total[0]["values"]] == [str(len(every))]


async def test_numbers(client: httpx.AsyncClient) -> None:
    volume = 'sum by (level, detected_level) (count_over_time({run=~".+"} | drop __error__[1h]))'
    result = await found(client, volume, step="1h")
    at = -(-END_S // 3_600) * 3_600
    counts = {one["metric"]["detected_level"]: one["values"] for one in result}
    assert counts == {"error": [[at, "1"]], "info": [[at, "1"]], "unknown": [[at, "2"]]}
    asked = {"query": 'sum(bytes_over_time({run="nightly 7"}|json|__error__=""[1h]))'}
    reply = await client.get(f"{AT}/query", params={**asked, "time": str(END_S)})
    data = reply.json()["data"]
    assert data["resultType"] == "vector"
    assert data["result"] == [{"metric": {}, "value": [END_S, str(len(LINES[1][0]))]}]
    broken = await client.get(f"{AT}/query", params={"query": 'rate({run=~".+"}|json[999h])'})
    assert broken.status_code == 400
    assert broken.text.startswith("pipeline error: 'JSONParserErr' for series")


async def test_labels_values_and_series(client: httpx.AsyncClient) -> None:
    async def data(path: str, **asked: str) -> Any:
        response = await client.get(AT + path, params={**HOUR, **asked})
        assert response.status_code == 200, response.text
        body = response.json()
        return body.get("data", body)

    every = ["detected_level", "empty", "k8s_pod", "pipeline", "run", "run_extracted"]
    assert await data("/labels") == [*every, "service_name"]
    assert await data("/label", query='{pipeline="other"}') == [
        "detected_level", "pipeline", "run", "service_name",
    ]  # fmt: skip
    assert await data("/label/pipeline/values") == ["other", "shop.orders"]
    assert await data("/label/k8s_pod/values", query='{run=~".+"}') == ["p1", "p2"]
    assert await data("/label/service_name/values") == ["orders", "other", "shop.orders"]
    assert await data("/series", **{"match[]": '{k8s_pod="p1"}'}) == [
        {"pipeline": "shop.orders", "run": "nightly 7", "service_name": "shop.orders",
         "k8s_pod": "p1", "run_extracted": "mine"}
    ]  # fmt: skip
    assert await data("/index/stats", query='{run=~".+"}') == {
        "streams": 2, "chunks": 0, "entries": 4,
        "bytes": len("plain") + sum(len(line) for line, _, _ in LINES),
    }  # fmt: skip
    volume = await data("/index/volume", query='{pipeline=~".+"}')
    assert [one["metric"] for one in volume["result"]] == [
        {"pipeline": "shop.orders"}, {"pipeline": "other"},
    ]  # fmt: skip
    ranged = await data(
        "/index/volume_range",
        query='{run=~".+"}',
        step="1h",
        targetLabels="detected_level",
        aggregateBy="labels",
    )
    assert [one["metric"] for one in ranged["result"]] == [{"detected_level": ""}]
    fields = {
        one["label"]: one for one in (await data("/detected_fields", query='{run=~".+"}'))["fields"]
    }
    assert fields["took"] == {
        "label": "took", "type": "duration", "cardinality": 2, "parsers": ["json", "logfmt"],
    }  # fmt: skip
    assert (fields["status"]["type"], fields["k8s_pod"]["parsers"]) == ("int", None)
    values = await data("/detected_field/status/values", query='{run=~".+"}')
    assert sorted(values["values"]) == ["200", "500"]
    detected = (await data("/detected_labels"))["detectedLabels"]
    assert {"label": "pipeline", "cardinality": 2} in detected
    assert await data("/patterns", query='{run=~".+"}') == []
    assert (await data("/status/buildinfo"))["version"] == "3.7.8"
    assert (await client.get("/ready")).text == "ready\n"


LINE, RATE = '{a="b"}', 'rate({a="b"}[1m])'
REFUSED: Sequence[tuple[str, dict[str, str], str]] = (
    ("/query_range", {"query": "{a="}, "parse error at line 1, col 4: syntax error: unexpected $"),
    (
        "/query_range",
        {"query": LINE, "limit": "10000"},
        "max entries limit per query exceeded, limit > max_entries_limit_per_query (10000 > 5000)",
    ),
    ("/query_range", {"query": LINE, "limit": "0"}, "limit must be a positive value"),
    ("/query_range", {"query": LINE, "limit": "x"}, 'strconv.Atoi: parsing "x": invalid syntax'),
    ("/query_range", {"query": LINE, "start": "2", "end": "1"}, "end timestamp must not be before"),
    ("/query_range", {"query": LINE, "start": "when"}, "could not parse 'start' parameter: 'when'"),
    ("/query_range", {"query": LINE, "direction": "up"}, "invalid direction 'up'"),
    ("/query_range", {"query": RATE, "step": "-1"}, "zero or negative query resolution step"),
    ("/query_range", {"query": RATE, "step": "x"}, 'cannot parse "x" to a valid duration'),
    ("/query_range", {"query": RATE, "start": "1", "step": "1"}, "exceeded maximum resolution of"),
    ("/query", {"query": LINE}, "log queries are not supported as an instant query type"),
    ("/series", {}, "0 matcher groups given"),
    ("/series", {"match[]": RATE}, "parse error : only label matchers are supported"),
    ("/label/a-b/values", {}, "invalid label name 'a-b'"),
    ("/index/volume", {"query": LINE, "aggregateBy": "x"}, "invalid aggregation option"),
    ("/index/volume", {"query": LINE, "limit": "many"}, "limit is 'many'"),
)


async def test_errors_are_lokis_lines_of_text(client: httpx.AsyncClient) -> None:
    for path, asked, message in REFUSED:
        replies = [await client.get(AT + path, params=asked)]
        if "/label/" not in path:
            replies.append(await client.post(AT + path, data=asked))
        for response in replies:
            assert response.status_code == 400, path
            assert response.headers["content-type"] == "text/plain; charset=utf-8"
            assert response.text.startswith(message), response.text


STARTS = (
    *(f"{END_S - 181}", f"{END_S - 181}.5", f"{(END_S - 181) * 10**9}"),
    *("2026-11-21T09:56:59.5Z", "2026-11-21T10:56:59+01:00"),
)


async def test_times_have_every_form(client: httpx.AsyncClient) -> None:
    for start in STARTS:
        assert len(lines(await found(client, '{run=~".+"}', start=start))) == 4, start
    assert len(lines(await found(client, '{run=~".+"}', start="", since="130s"))) == 3


async def test_a_search_above_its_limits_is_refused_in_text(tmp_path: Path) -> None:
    world = endless(tmp_path)
    async with engine_of(world, time_limit_seconds=0.2) as engine, client_of(engine) as client:
        response = await client.get(f"{AT}/query_range", params={**HOUR, "query": '{run=~".+"}'})
        assert response.status_code == 422
        assert response.headers["content-type"].startswith("text/plain")


PARTIAL: Sequence[tuple[str, dict[str, Any]]] = (
    ("/query_range", {"query": '{run=~".+"}'}),
    ("/query", {"query": 'count_over_time({run=~".+"}[1h])'}),
    ("/labels", {}),
    ("/label/run/values", {}),
    ("/series", {"match[]": ['{run=~".+"}', '{pipeline="absent"}']}),
    ("/index/stats", {"query": '{run=~".+"}'}),
    ("/index/volume", {"query": '{run=~".+"}'}),
    ("/index/volume_range", {"query": '{run=~".+"}'}),
    ("/detected_labels", {"query": '{run=~".+"}'}),
    ("/detected_fields", {"query": '{run=~".+"}'}),
    ("/detected_field/status/values", {"query": '{run=~".+"}'}),
)


async def test_each_reply_says_that_a_part_is_missing(tmp_path: Path) -> None:
    """The end of a segment that no index names is cut off."""
    world = world_of(tmp_path)
    path = Path(world.store.uri(await world.segment([(KEY, ulid.lowest_at(NOW_MS), b"lost\n")])))
    whole = path.read_bytes()
    async with engine_of(world) as engine, client_of(engine) as client:
        for body, partial in ((whole, False), (whole[:-4], True)):
            path.write_bytes(body)
            for route, asked in PARTIAL:
                reply = (await client.get(AT + route, params={**HOUR, **asked})).json()
                assert ("warnings" in reply) == partial, (route, reply)
                assert not partial or path.name in reply["warnings"][0], reply
