"""Which names a service answers to, by where it listens; the page of routes loads its own only."""

from __future__ import annotations

import re

import pytest

from service.http.static import DOCS_POLICY
from service.settings import load_settings
from service.wiring import browser_guard
from tailrace.logstore.errors import InvalidInput
from tests.service.http.conftest import RUNS, Serve
from tests.service.http.journal_node import JournalNode


def status(guard_of: dict[str, object], host: str) -> int | None:
    settings, _ = load_settings({"server": {"insecure": True, **guard_of}})
    refusal = browser_guard(settings).check("GET", "/query", [(b"host", host.encode())])
    return None if refusal is None else refusal.status


@pytest.mark.parametrize("host", ["tailrace", "tailrace:8790", "logs.tailrace.svc", "a.internal"])
def test_names_that_no_public_server_gives_out_are_ours_beyond_the_loopback(host: str) -> None:
    assert status({"host": "0.0.0.0"}, host) is None
    assert status({"host": "127.0.0.1"}, host) == 421


@pytest.mark.parametrize(
    ("allowed", "host", "expected"),
    [
        ("*", "anything.example", None),
        ("", "anything.example", 421),
        ("logs.example", "LOGS.example.:80", None),
        ("*.example", "a.b.example", None),
        ("*.example", "aexample", 421),
        ("*", "name:port", 421),
        (["a.example", "b.example"], "b.example", None),
    ],
)
def test_what_the_operator_adds(allowed: object, host: str, expected: int | None) -> None:
    assert status({"allowed_hosts": allowed}, host) == expected


def test_the_name_that_is_listened_on_is_ours() -> None:
    assert status({"host": "logs.example.com"}, "logs.example.com:8790") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allowed_hosts", "https://logs.example.com"),
        ("allowed_hosts", "logs.example.com:80"),
        ("allowed_origins", "logs.example.com"),
        ("allowed_origins", "https://logs.example.com/page"),
        ("cors_origins", "*"),
        ("cors_origins", "logs.example.com"),
    ],
)
def test_what_could_never_match_refuses_to_start(name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=f"server.{name}"):
        load_settings({"server": {name: value}})


async def test_the_page_of_routes_loads_what_the_service_has_and_nothing_else(
    serve: Serve,
) -> None:
    served = await serve()
    page = await served.client.get("/docs")
    assert page.headers["content-security-policy"] == DOCS_POLICY
    assert "http" not in DOCS_POLICY
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(loaded) == 4
    texts = {}
    for address in loaded:
        assert address.startswith("docs/")
        answer = await served.client.get(f"/{address}")
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
        texts[address] = answer.text
    assert len(texts["docs/swagger-ui-bundle.js"]) > 1_000_000
    assert "<script>" not in page.text
    assert "SwaggerUIBundle(" in texts["docs/start.js"]
    assert (await served.client.get("/openapi.json")).json()["info"]["title"] == "Tailrace"
    assert (await served.client.get("/docs/__init__.py")).status_code == 404


async def test_every_reply_has_the_headers_that_protect_and_none_of_cors(serve: Serve) -> None:
    """On the fast path, the other one, refusals before any route, files, streams, preflights."""
    node = JournalNode()
    served = await serve(node)
    client, run = served.client, f"{RUNS}/p/r"
    foreign = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    plain = {"content-type": "text/plain"}
    replies = [
        await client.post(run, content=b"first\n", headers=plain),
        await client.post(run, content=b"on the fast path\n", headers=plain),
        await client.get("/health/live"),
        await client.get("/nothing/here"),
        await client.get("/"),
        await client.get("/docs"),
        await client.get("/health/live", headers={"host": "evil.example"}),
        await client.get("/health/live", headers=[("content-type", "a"), ("content-type", "b")]),
        await client.get("/health/live?" + "x" * 10_000),
        await client.get("/health/live", headers=foreign),
        await client.post(run, content=b"foreign\n", headers=foreign | plain),
        await client.options(run, headers=foreign),
    ]
    assert node.taken == 1
    assert {reply.status_code for reply in replies} >= {200, 400, 403, 404, 405, 414, 421}
    async with client.stream("GET", f"{RUNS}/p/stream/r") as stream:
        for reply in [*replies, stream]:
            assert reply.headers["x-content-type-options"] == "nosniff", reply.request.url
            assert reply.headers["x-frame-options"] == "DENY"
            assert reply.headers["referrer-policy"] == "no-referrer"
            assert not [name for name in reply.headers if name.startswith("access-control")]
            assert "strict-transport-security" not in reply.headers
    await node.gated.journal.close()
