"""Methods and unknown paths: HEAD wherever GET is, `Allow`, and errors that clients understand."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httpx
import pytest

from service.http.app import HttpApi, build_app
from tailrace.logstore.batch import RunKey
from tests.service.http.conftest import RUNS, Serve
from tests.service.http.memory_node import MemoryNode

ROOT = "/api/v1/services/ingestionPipelines"


@pytest.mark.parametrize(
    "path",
    [
        "/logs",
        "/logs/p",
        "/logs/p/r",
        "/logs/p/last",
        "/logs/p/r/download",
        "/logs/p/last/download",
        "/logs/p/stream/r",
        "/progress/p/stream/r",
        "/p/pipelineStatus",
    ],
)
async def test_head_is_get_without_a_body(serve: Serve, path: str) -> None:
    served = await serve()
    await served.post("/p/r", b"x\n", content_type="text/plain")
    head = await asyncio.wait_for(served.client.head(ROOT + path), 120)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"]
    if "stream" not in path:
        got = await served.client.get(ROOT + path)
        assert head.headers.get("content-length") == got.headers.get("content-length")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/logs/p/r", "DELETE, GET, HEAD, POST"),
        ("PATCH", "/logs/p", "DELETE, GET, HEAD"),
        ("POST", "/logs", "GET, HEAD"),
        ("DELETE", "/p/pipelineStatus", "GET, HEAD, PUT"),
        ("POST", "/progress/a/b/r", "GET, HEAD, PUT"),
        ("PUT", "/metrics/p/r", "GET, HEAD, POST"),
        ("POST", "/progress/p/stream/r", "GET, HEAD"),
    ],
)
async def test_a_method_that_is_not_taken(
    direct: Serve, method: str, path: str, allow: str
) -> None:
    served = await direct()
    reply = await served.client.request(method, ROOT + path)
    assert (reply.status_code, reply.json()["code"]) == (405, 405)
    assert reply.json()["message"]
    assert reply.headers["allow"] == allow
    assert reply.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/logs/prefix"),  # a `#` in the name cut the rest off, the run with it
        ("POST", "/logs/"),
        ("GET", "/name/svc.pipe"),
        ("GET", "/nothing/at/all/here"),
        ("POST", "/metrics"),
    ],
)
async def test_a_path_that_is_none(direct: Serve, method: str, path: str) -> None:
    """`code` and `message`: without them OpenMetadata's client counts a batch as shipped."""
    served = await direct()
    reply = await served.client.request(method, ROOT + path, json="x")
    assert (reply.status_code, reply.json()["code"]) == (404, 404)
    assert reply.json()["message"]
    assert reply.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("body", [b"", b"{", b'{"connectorId":"c","timestamp":1}', b"x" * 300_000])
async def test_a_close_takes_any_body_or_none(serve: Serve, body: bytes) -> None:
    served = await serve()
    await served.post("/p/r", b"x\n", content_type="text/plain")
    for _ in range(2):
        reply = await served.post("/p/r/close", body, content_type="application/json")
        assert reply.status_code == 200
        assert reply.json()["message"] == "Log stream closed successfully"
    assert (await served.get("/p/r")).json()["state"] == "closed"


async def test_the_reported_version_is_a_setting() -> None:
    """OpenMetadata's client takes only a server of its own major.minor."""
    app = build_app(MemoryNode(), HttpApi(reported_version="1.11.14"))
    transport = httpx.ASGITransport(cast("Any", app))
    async with httpx.AsyncClient(base_url="http://localhost", transport=transport) as client:
        reply = await client.get("/api/v1/system/version")
    assert reply.json()["version"] == "1.11.14"
    app.append.shut()


VERBS = ["close", "download", "last", "next", "prev", "stream"]


@pytest.mark.parametrize("verb", VERBS)
async def test_a_run_that_is_called_like_a_verb_is_named_quoted_everywhere(
    direct: Serve, verb: str
) -> None:
    """Unquoted, half of the routes would take it for the verb, and the other half for a run."""
    served = await direct()
    other = ROOT
    quoted = f"%{ord(verb[0]):02x}{verb[1:]}"
    written = [
        await served.post(f"/p/{quoted}", b"a line\n", content_type="text/plain"),
        await served.client.put(f"{other}/progress/p/{quoted}", json={"n": 1}),
        await served.client.post(f"{other}/metrics/p/{quoted}", json={"m": 1}),
        await served.client.put(f"{other}/p/pipelineStatus", json={"runId": verb}),
        await served.post(f"/p/{quoted}/close"),
    ]
    assert [reply.status_code for reply in written] == [200] * 5, [r.text for r in written]
    [batch] = served.node.batches
    assert batch.key == RunKey("p", verb)
    assert (await served.get(f"/p/{quoted}")).json()["logs"] == "a line"
    assert (await served.get(f"/p/{quoted}/download")).text == "a line\n"
    async with served.client.stream("GET", f"{RUNS}/p/stream/{quoted}") as live:
        text = (await live.aread()).decode()
    assert f'"runId":"{verb}"' in text
    assert (await served.client.get(f"{other}/progress/p/{quoted}")).json() == {"n": 1}
    assert (await served.client.get(f"{other}/metrics/p/{quoted}")).json() == {"data": [{"m": 1}]}
    assert (await served.client.get(f"{other}/p/pipelineStatus/{quoted}")).json()["runId"] == verb

    refused = [
        await served.post(f"/p/{verb}", b"a line\n", content_type="text/plain"),
        await served.post(f"/p/{verb}/close"),
        await served.client.put(f"{other}/progress/p/{verb}", json={"n": 1}),
        await served.client.get(f"{other}/progress/p/{verb}"),
        await served.client.post(f"{other}/metrics/p/{verb}", json={"m": 1}),
        await served.client.get(f"{other}/metrics/p/{verb}"),
        await served.client.get(f"{other}/p/pipelineStatus/{verb}"),
        await served.client.delete(f"{RUNS}/p/{verb}"),
    ]
    for reply in refused:
        assert (reply.status_code, reply.json()["type"]) == (400, "invalid-name"), reply.url
        assert quoted.lower() in reply.json()["hint"].lower()
    assert len(served.node.batches) == 1
    assert (await served.client.delete(f"{RUNS}/p/{quoted}")).status_code in (200, 204)


async def test_a_pipeline_whose_name_ends_in_stream_is_named_quoted(direct: Serve) -> None:
    served = await direct()
    line = {"content_type": "text/plain"}
    refused = await served.post("/a/stream/r", b"a line\n", **line)
    assert (refused.status_code, refused.json()["field"]) == (400, "fqn")
    await served.post("/a%2Fstream/r", b"a line\n", **line)
    [batch] = served.node.batches
    assert batch.key == RunKey("a/stream", "r")
    assert (await served.get("/a%2Fstream/r")).json()["logs"] == "a line"
    assert (await served.get("/a%2Fstream/r/download")).text == "a line\n"
    metrics = f"{ROOT}/metrics/a/stream/r"
    await served.client.post(metrics, json={"m": 1})
    found = await served.node.status.metrics(RunKey("a/stream", "r"))
    assert [report.value for report in found.reports] == [{"m": 1}]
