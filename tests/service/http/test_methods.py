"""Methods and unknown paths: HEAD wherever GET is, `Allow`, and errors that clients understand."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httpx
import pytest

from service.http.app import Door, build_app
from tests.service.http.conftest import Serve
from tests.service.http.memory_node import MemoryNode

pytestmark = pytest.mark.anyio
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
    app = build_app(MemoryNode(), Door(reported_version="1.11.14"))
    transport = httpx.ASGITransport(cast("Any", app))
    async with httpx.AsyncClient(base_url="http://localhost", transport=transport) as client:
        reply = await client.get("/api/v1/system/version")
    assert reply.json()["version"] == "1.11.14"
    app.append.shut()
