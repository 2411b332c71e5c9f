"""What clients of Loki ask, over the whole app: Grafana's requests, and a token's own pipelines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.access.access import Access
from service.access.audit import AuditLog
from service.http.app import HttpApi, build_app
from service.http.authorization import AccessControl
from tailrace.logstore import ulid
from tailrace.logstore.batch import RecordMeta, RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tests.service.access.rules_file import rule, token_of, written
from tests.service.http.memory_node import MemoryNode
from tests.service.query.world import NOW_MS, World, engine_of
from tests.settings import http_settings

AT = "/loki/api/v1"
END_NS = NOW_MS * 1_000_000
RANGE = {"start": str(END_NS - 3_600_000_000_000), "end": str(END_NS)}
SHOP, BOTH = token_of("shop"), token_of("both")
Get = Callable[..., Any]


def world_of(root: Path) -> World:
    """Two pipelines, with lines in the journal and in the table, which name it everywhere."""
    world = World(root)
    for number, fqn in enumerate(("shop", "bank")):
        for part in range(2):
            line = f'{{"in_{fqn}": "line of {fqn}", "status": {200 + part}}}\n'
            meta = RecordMeta(
                [len(line)],
                [(NOW_MS - 60_000 * (part + 1)) * 1_000],
                ["INFO"],
                [{f"label_{fqn}": f"value of {fqn}", "service.name": f"{fqn}-service"}],
            )
            at = ulid.lowest_at(NOW_MS - 120_000) | (number * 2 + part + 1) << 25
            entry = (RunKey(fqn, f"run-{fqn}"), at, line.encode(), None, meta)
            if part:
                world.unflushed([entry], known=False)
            else:
                world.merge([entry], {})
    return world


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The app with rules, asked with the token of `shop` alone unless a request has another."""
    clock = SystemClock()
    rules = written(
        tmp_path / "rules.yaml", rule(SHOP, {"read": ["shop"]}), rule(BOTH, {"read": ["*"]})
    )
    audit = AuditLog(str(tmp_path / "audit.log"), Disk(), clock)
    control = AccessControl(Access(rules, clock), audit, clock, lambda: "id")
    async with engine_of(world_of(tmp_path)) as engine:
        app = build_app(
            MemoryNode(), HttpApi(http_settings(), query=lambda: engine, control=control)
        )
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        headers = {"authorization": f"Bearer {SHOP}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", headers=headers
        ) as made:
            yield made
        app.append.shut()
    await audit.close()


# --- A token's own pipelines --------------------------------------------------------------------


EVERYTHING = '{pipeline=~".+"}'
COUNTED = f"sum by (pipeline, run, label_bank, label_shop) (count_over_time({EVERYTHING}[1h]))"
ROUTES: Sequence[tuple[str, Mapping[str, str]]] = (
    ("/query_range", {"query": EVERYTHING}),
    ("/query_range", {"query": f"{EVERYTHING} | json"}),
    ("/query_range", {"query": COUNTED, "step": "1h"}),
    ("/query_range", {"query": COUNTED.replace(EVERYTHING, f"{EVERYTHING} | json"), "step": "1h"}),
    ("/query", {"query": COUNTED, "time": RANGE["end"]}),
    ("/labels", {}),
    ("/label", {}),
    ("/label/pipeline/values", {}),
    ("/label/run/values", {}),
    ("/label/service_name/values", {}),
    ("/series", {"match[]": EVERYTHING}),
    ("/index/stats", {"query": EVERYTHING}),
    ("/index/volume", {"query": EVERYTHING}),
    ("/index/volume_range", {"query": EVERYTHING, "step": "1h"}),
    ("/detected_labels", {"query": EVERYTHING}),
    ("/detected_fields", {"query": EVERYTHING}),
    ("/detected_field/in_bank/values", {"query": EVERYTHING}),
    ("/patterns", {"query": EVERYTHING}),
)


async def test_a_token_sees_its_pipelines_alone_on_every_route(client: httpx.AsyncClient) -> None:
    tailed = {"/tail", "/push", "/status/buildinfo"}  # test_loki_tail; a door; no lines
    names = {"in_bank": "{name}", "pipeline": "{name}", "run": "{name}", "service_name": "{name}"}
    schema = (await client.get("/openapi.json")).json()["paths"]
    served = {path.removeprefix(AT) for path in schema if path.startswith(AT)} - tailed
    asked = set()
    for path, _ in ROUTES:
        parts = [names.get(part, part) for part in path.split("/")]
        asked.add("/".join(parts))
    assert asked == served, "a new route needs a row"
    both_see = {"authorization": f"Bearer {BOTH}"}
    for path, given in ROUTES:
        parameters = {**RANGE, **given}
        mine = await client.get(AT + path, params=parameters)
        both = await client.get(AT + path, params=parameters, headers=both_see)
        assert (mine.status_code, both.status_code) == (200, 200), (path, mine.text)
        assert "bank" not in mine.text, (path, mine.text)
        if path == "/index/stats":
            assert (mine.json()["entries"], both.json()["entries"]) == (2, 4)
        elif path != "/patterns":
            assert "bank" in both.text, (path, both.text)
    form = await client.post(f"{AT}/query_range", data={**RANGE, "query": EVERYTHING})
    assert form.status_code == 200
    assert "bank" not in form.text
    for selector in ('{pipeline="bank"}', '{pipeline="bank", run="run-bank"}'):
        refused = await client.get(AT + "/query_range", params={**RANGE, "query": selector})
        assert refused.status_code == 403


# --- Grafana ------------------------------------------------------------------------------------


def _is_lines(body: Any) -> bool:
    """Streams of [nanoseconds, line, kinds of labels], as its converter reads them."""
    data = body["data"]
    return data["resultType"] == "streams" and all(
        {kind for value in one["values"] for kind in value[2]} <= {"structuredMetadata", "parsed"}
        and all(value[0].isdecimal() and isinstance(value[1], str) for value in one["values"])
        and all(isinstance(text, str) for text in one["stream"].values())
        for one in data["result"]
    )


def _is_numbers(body: Any) -> bool:
    """Series of [seconds, text of a number]."""
    return body["data"]["resultType"] == "matrix" and all(
        isinstance(at, int | float) and float(value) >= 0
        for one in body["data"]["result"]
        for at, value in one["values"]
    )


def _is_names(body: Any) -> bool:
    return body["status"] == "success" and all(isinstance(name, str) for name in body["data"])


GRAFANA: Sequence[tuple[str, str, Mapping[str, str], Callable[[Any], Any]]] = (
    (
        "save & test: two fields, one value, 2",
        "/query",
        {"query": "vector(1)+vector(1)", "direction": "backward", "time": "4000000000"},
        lambda body: [one["value"][1] for one in body["data"]["result"]] == ["2"],
    ),
    (
        "lines",
        "/query_range",
        {"query": '{pipeline="shop"} |= ``', "direction": "backward", "limit": "1000",
         "step": "2000ms"},
        _is_lines,
    ),
    (
        "the volume above the lines",
        "/query_range",
        {"query": 'sum by (level, detected_level) (count_over_time({pipeline="shop"} |= ``'
                  ' | drop __error__ [10s]))', "direction": "backward", "step": "10000ms"},
        _is_numbers,
    ),
    (
        "a sample of the lines of numbers",
        "/query_range",
        {"query": '{pipeline="shop"}', "direction": "backward", "limit": "10", "step": "1000ms"},
        _is_lines,
    ),
    (
        "context after a line: from its time on, oldest first",
        "/query_range",
        {"query": '{pipeline="shop",run="run-shop",service_name="shop-service"}',
         "direction": "forward", "limit": "100", "step": "1000ms"},
        _is_lines,
    ),
    ("labels", "/labels", {}, _is_names),
    ("labels of a selector", "/labels", {"query": '{pipeline="shop"}'}, _is_names),
    ("values", "/label/pipeline/values", {}, lambda body: body["data"] == ["shop"]),
    (
        "values within a selector",
        "/label/run/values",
        {"query": '{pipeline="shop"}'},
        lambda body: body["data"] == ["run-shop"],
    ),
    (
        "series",
        "/series",
        {"match[]": '{pipeline="shop"}'},
        lambda body: body["data"][0]["run"] == "run-shop",
    ),
    (
        "what a query will read",
        "/index/stats",
        {"query": '{pipeline="shop"}'},
        lambda body: {"streams", "chunks", "bytes", "entries"} == body.keys(),
    ),
    (
        "the probe for labels that are detected",
        "/detected_labels",
        {},
        lambda body: {"label": "run", "cardinality": 1} in body["detectedLabels"],
    ),
    (
        "fields of the query builder",
        "/detected_fields",
        {"query": '{pipeline="shop"}', "limit": "1000"},
        lambda body: {
            (one["label"], one["type"], one["parsers"] and one["parsers"][0])
            for one in body["fields"]
        } >= {("status", "int", "json"), ("label_shop", "string", None)},
    ),
    (
        "values of a field",
        "/detected_field/status/values",
        {"query": '{pipeline="shop"}', "limit": "1000"},
        lambda body: sorted(body["values"]) == ["200", "201"],
    ),
    (
        "Drilldown's volumes of services",
        "/index/volume",
        {"query": '{service_name=~".+"}', "targetLabels": "service_name", "limit": "5000"},
        lambda body: body["data"]["result"][0]["metric"] == {"service_name": "shop-service"},
    ),
    ("Drilldown's patterns", "/patterns", {"query": '{pipeline="shop"}'},
     lambda body: body["data"] == []),
    ("the version", "/status/buildinfo", {}, lambda body: body["version"].startswith("3.")),
)  # fmt: skip
"""The requests of the Loki data source and of Logs Drilldown: `pkg/tsdb/loki/api.go` and
`public/app/plugins/datasource/loki` of Grafana 11 and 12."""


@pytest.mark.parametrize(("path", "given", "parses"), [row[1:] for row in GRAFANA],
                         ids=[row[0] for row in GRAFANA])  # fmt: skip
async def test_requests_of_grafana(
    client: httpx.AsyncClient, path: str, given: Mapping[str, str], parses: Callable[[Any], Any]
) -> None:
    headers = {
        "x-loki-response-encoding-flags": "categorize-labels",
        "x-query-tags": "Source=logvolhist",
        "accept-encoding": "gzip",
        "user-agent": "Grafana/12.2.0",
    }
    times = {} if "time" in given else RANGE
    reply = await client.get(AT + path, params={**times, **given}, headers=headers)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("application/json")
    body = json.loads(reply.content)
    assert parses(body), body
    assert body.get("data") != {"resultType": "streams", "result": []}, "lines were found"


async def test_grafana_shows_an_error_as_it_came(client: httpx.AsyncClient) -> None:
    """It takes `message` of JSON, and otherwise the whole text."""
    query = '{pipeline="shop"} | unpack'
    reply = await client.get(f"{AT}/query_range", params={**RANGE, "query": query})
    assert reply.status_code == 400
    assert reply.headers["content-type"].startswith("text/plain")
    assert "unpack is not supported by Tailrace" in reply.text
