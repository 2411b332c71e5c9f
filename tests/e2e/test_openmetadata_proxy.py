"""`deploy/nginx/openmetadata.conf` in a real nginx, before a real Tailrace.

OpenMetadata's server is a stand-in that records what reaches it. Requests are written as
OpenMetadata's clients and its page write them, byte for byte.
"""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from service.http.app import documented
from tests.e2e.service_process import ServiceProcess
from tests.servers.nginx import running_nginx
from tests.servers.openmetadata import MARK, TOKEN, StandIn, stand_in
from tests.servers.ports import free_port

pytestmark = pytest.mark.nginx
FILE = Path(__file__).parents[2] / "deploy" / "nginx" / "openmetadata.conf"
ROOT = "/api/v1/services/ingestionPipelines"
ID = "0d9f9c0e-6f0e-4b1e-9a52-6b8d6b0a7c11"
RUN = "6f1c2ab0-9a6e-4a68-8a43-0c1b9d0e7f11"
LIMIT = 64 << 20
JSON = {"Content_Type": "application/json"}
TEXT = {"Content_Type": "text/plain"}

# Each route of ours below OpenMetadata's, and who answers it behind the proxy.
ANSWERS = {
    "GET /logs": "tailrace",
    "GET /logs/{fqn}": "tailrace",
    "DELETE /logs/{fqn}": "openmetadata",
    "GET /logs/{fqn}/last": "tailrace",
    "GET /logs/{fqn}/last/download": "tailrace",
    "GET /logs/{fqn}/stream/{runId}": "tailrace",
    "GET /logs/{fqn}/{runId}": "tailrace",
    "POST /logs/{fqn}/{runId}": "tailrace",
    "DELETE /logs/{fqn}/{runId}": "openmetadata",
    "POST /logs/{fqn}/{runId}/close": "tailrace",
    "GET /logs/{fqn}/{runId}/download": "tailrace",
    "GET /logs/{fqn}/{runId}/logs": "tailrace",
    "GET /logs/{fqn}/{runId}/next": "tailrace",
    "GET /logs/{fqn}/{runId}/prev": "tailrace",
    "POST /metrics/{fqn}/{runId}": "openmetadata",
    "GET /metrics/{fqn}/{runId}": "openmetadata",
    "GET /progress/{fqn}/stream/{runId}": "tailrace",
    "PUT /progress/{fqn}/{runId}": "openmetadata",
    "GET /progress/{fqn}/{runId}": "openmetadata",
    "GET /unfinished/{fqn}/stream/{runId}": "openmetadata",
    "PUT /unfinished/{fqn}/{runId}": "openmetadata",
    "GET /unfinished/{fqn}/{runId}": "openmetadata",
    "PUT /{fqn}/pipelineStatus": "openmetadata",
    "GET /{fqn}/pipelineStatus": "openmetadata",
    "GET /{fqn}/pipelineStatus/{runId}": "openmetadata",
}
THEIRS = [
    ("GET", f"{ROOT}?fields=pipelineStatuses&service=s%2Ft"),
    ("PUT", ROOT),
    ("GET", f"{ROOT}/{ID}"),
    ("PATCH", f"{ROOT}/{ID}"),
    ("GET", f"{ROOT}/name/logs.p%C3%BC%2F%20x?fields=owners"),
    *[("POST", f"{ROOT}/{verb}/{ID}") for verb in ("deploy", "trigger", "toggleIngestion", "kill")],
    ("GET", f"{ROOT}/status"),
    ("GET", f"{ROOT}/{ID}/pipelineStatus?startTs=1&endTs=2"),
    ("DELETE", f"{ROOT}/{ID}/pipelineStatus/{RUN}"),
    ("GET", f"{ROOT}/progress/service/databaseService/s.%22a%2Fb%22/stream"),
    ("GET", f"{ROOT}/progress/service/databaseService/stream/stream"),
    ("GET", f"{ROOT}/logs/{ID}/last?after=1000"),
    ("GET", f"{ROOT}/logs/{ID}/last/download"),
    ("GET", f"{ROOT}/logs/{ID}/stream/{RUN}"),
    ("GET", f"{ROOT}/logsOf/p/{RUN}"),
    ("GET", "/api/v1/system/version"),
    ("GET", "/service/databaseServices/s/agents/metadata"),
    ("GET", "/"),
    # Tailrace's own, which it must not be asked from outside.
    *[("GET", path) for path in ("/query", "/metrics", "/leases", "/segments/next?group=g")],
    ("POST", "/verify?repair=true"),
    # Spelled otherwise, or only looking like a log's once dots and quotes are resolved.
    ("GET", f"{ROOT}/%6Cogs/p/{RUN}"),
    ("GET", f"{ROOT}//logs/p/{RUN}"),
    ("POST", "/leases/..%2Fapi%2Fv1%2Fservices%2FingestionPipelines%2Flogs%2Fp%2Fr"),
    ("POST", f"/verify/..{ROOT}/logs/p/{RUN}"),
]


@dataclass
class Reply:
    """A whole answer."""

    status: int
    headers: Any
    body: bytes

    @property
    def value(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class World:
    """The proxy's port and log, and who stands behind it."""

    port: int
    service: ServiceProcess
    server: StandIn
    log: Path

    @contextmanager
    def open(
        self, method: str, path: str, body: bytes = b"", *, port: int = 0, **headers: str
    ) -> Iterator[HTTPResponse]:
        """An answer as it comes; `path` goes over the wire as it is written here."""
        with closing(HTTPConnection("127.0.0.1", port or self.port, timeout=60)) as connection:
            sent = {"Authorization": TOKEN, **{k.replace("_", "-"): v for k, v in headers.items()}}
            connection.request(method, path, body, {k: v for k, v in sent.items() if v})
            yield connection.getresponse()

    def ask(self, method: str, path: str, body: bytes = b"", **more: Any) -> Reply:
        """A whole answer of the proxy, or of whoever is at `port`."""
        with self.open(method, path, body, **more) as reply:
            return Reply(reply.status, reply.headers, reply.read())

    def directly(self, path: str) -> Reply:
        """Tailrace's answer without the proxy."""
        return self.ask("GET", path, port=self.service.port)

    def append(self, path: str, value: object, **headers: str) -> Reply:
        """A batch of JSON, as OpenMetadata's client sends it."""
        return self.ask("POST", path, json.dumps(value).encode(), **JSON, **headers)

    def readers(self) -> float:
        """The live streams that are open at Tailrace."""
        lines = self.directly("/metrics").body.decode().splitlines()
        return sum([float(s.split()[-1]) for s in lines if s.startswith("tailrace_stream_readers")])


def adapted(*, openmetadata: int, tailrace: int, port: int) -> str:
    """The file with ports of this machine instead of its three addresses, and nothing else."""
    text = FILE.read_text()
    for written, meant in [
        ("server openmetadata:8585;", f"server 127.0.0.1:{openmetadata};"),
        ("server tailrace:8790;", f"server 127.0.0.1:{tailrace};"),
        ("listen 80;", f"listen 127.0.0.1:{port};"),
    ]:
        assert text.count(written) == 1
        text = text.replace(written, meant)
    return text


@contextmanager
def proxied(service: ServiceProcess, tailrace: int, folder: Path) -> Iterator[World]:
    port = free_port()
    with stand_in() as server:
        text = adapted(openmetadata=server.port, tailrace=tailrace, port=port)
        with running_nginx(text, folder) as log:
            yield World(port, service, server, log)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Its silent streams send no comments: only the connection tells that a viewer has left."""
    data = tmp_path_factory.mktemp("proxied") / "node"
    running = ServiceProcess(
        data,
        TAILRACE_OPENMETADATA__FINISH_GRACE_SECONDS="0.2",
        TAILRACE_SSE__HEARTBEAT_SECONDS="3600",
    )
    running.start()
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.output()


@pytest.fixture(scope="module")
def proxy(service: ServiceProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with proxied(service, service.port, tmp_path_factory.mktemp("nginx")) as world:
        yield world


@pytest.fixture
def world(proxy: World) -> World:
    proxy.server.take()
    return proxy


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def events(reply: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The data of the events of a stream, as they come."""
    for line in iter(reply.readline, b""):
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


def cookies(reply: Reply) -> str:
    """What a client that keeps cookies sends after this answer."""
    return "; ".join([c.partition(";")[0] for c in reply.headers.get_all("Set-Cookie")])


def operations() -> Iterator[str]:
    for path, verbs in documented().openapi()["paths"].items():
        if path.startswith(ROOT):
            yield from [f"{verb.upper()} {path.removeprefix(ROOT)}" for verb in verbs]


def test_it_is_said_of_each_route_who_answers_it() -> None:
    assert set(ANSWERS) == set(operations())


@pytest.mark.parametrize("operation", ANSWERS)
def test_a_route_is_answered_by_one(world: World, operation: str) -> None:
    method, path = operation.split()
    path = path.format(fqn="routes", runId=RUN)
    body = b"a line\n" if method == "POST" else b""
    with world.open(method, ROOT + path, body, Content_Type="text/plain") as reply:
        answered = "openmetadata" if MARK in reply.headers else "tailrace"
    assert answered == ANSWERS[operation]
    received = [(request.method, request.path) for request in world.server.take()]
    assert received == ([(method, ROOT + path)] if answered == "openmetadata" else [])


@pytest.mark.parametrize(("method", "path"), THEIRS)
def test_all_else_reaches_openmetadata_as_it_was_sent(world: World, method: str, path: str) -> None:
    assert MARK in world.ask(method, path, b"its body", Cookie="a=b").headers
    (request,) = world.server.take()
    assert (request.method, request.path, request.body) == (method, path, b"its body")
    assert request.headers["authorization"] == TOKEN
    assert request.headers["cookie"] == "a=b"
    assert request.headers["host"] == f"127.0.0.1:{world.port}"


def test_a_websocket_of_the_page_reaches_openmetadata(world: World) -> None:
    world.ask("GET", "/api/v1/push/feed", Connection="Upgrade", Upgrade="websocket")
    (request,) = world.server.take()
    assert request.headers["connection"].lower() == "upgrade"
    assert request.headers["upgrade"] == "websocket"


@pytest.mark.parametrize(
    ("fqn", "sent"),
    [
        ("service.pipeline", "service.pipeline"),
        # As the client writes names: blanks and umlauts quoted, slashes not.
        ('Dienst "süß".a/b', "Dienst%20%22s%C3%BC%C3%9F%22.a/b"),
        # Decoded once too often, or with its dots and slashes resolved, it would be another.
        ('ü 100%2F?#+;&=.a//b/../"c"/stream', quote('ü 100%2F?#+;&=.a//b/../"c"/stream', safe="")),
    ],
)
def test_a_connector_ships_and_people_read(world: World, fqn: str, sent: str) -> None:
    path = f"{ROOT}/logs/{sent}/{RUN}"
    meta = {"connectorId": "host-17", "timestamp": 1}
    packed = base64.b64encode(gzip.compress("gepackt ü\n".encode() * 2000)).decode()
    assert world.append(path, meta).status == 200
    assert world.append(path, "raw\n").status == 200
    assert world.append(path, {**meta, "logs": "one ü\n", "lineCount": 2}).status == 200
    assert world.append(path, {**meta, "logs": packed, "compressed": True}).status == 200
    closed = world.append(f"{path}/close", meta)
    assert closed.value["message"] == "Log stream closed successfully"

    text = "raw\none ü\n" + "gepackt ü\n" * 2000
    page = world.ask("GET", f"{path}?after=1&limit=2").value
    assert (page["logs"], page["after"]) == ("one ü\ngepackt ü", "3")
    assert world.ask("GET", f"{path}/download").body.decode() == text
    assert world.ask("GET", f"{ROOT}/logs/{sent}/last/download").body.decode() == text
    own = f"{ROOT}/logs/{quote(fqn, safe='')}/{RUN}/download"
    assert world.directly(own).body.decode() == text
    assert world.server.take() == []


def test_a_clients_cookies_pass(world: World) -> None:
    """By its cookie Tailrace knows what a client has heard, so that only retries are dropped."""
    path, meta = f"{ROOT}/logs/cookies/{RUN}", {"connectorId": "host-17", "timestamp": 1}
    opened = world.append(path, meta)
    assert f"PIPELINE_SESSION=cookies_{RUN}" in str(opened.headers)
    heard = cookies(opened)
    batch = {**meta, "logs": "same\n"}
    first = world.append(path, batch, Cookie=heard)
    assert first.value["duplicate"] is False
    assert world.append(path, batch, Cookie=heard).value == {**first.value, "duplicate": True}
    assert world.append(path, batch, Cookie=cookies(first)).value["duplicate"] is False


def test_a_live_stream_shows_each_line_as_it_comes_and_ends_by_the_status(world: World) -> None:
    run, status = f"{ROOT}/logs/live/{RUN}", f"{ROOT}/live/pipelineStatus"
    with world.open("GET", f"{ROOT}/logs/live/stream/{RUN}?after=0") as reply:
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        coming = events(reply)
        for line in ("one\n", "two\n"):
            world.append(run, line)
            assert next(coming)["logs"] == line
        body = {"runId": RUN, "pipelineState": "success", "timestamp": 1}
        assert MARK in world.ask("PUT", status, json.dumps(body).encode(), **JSON).headers
        end = next(coming)
        assert (end["eventType"], end["reason"]) == ("complete", "runFinished")
        assert list(coming) == []
    assert [(r.method, r.path) for r in world.server.take()] == [("PUT", status)]


def test_reports_reach_both_as_they_were_sent(world: World) -> None:
    fqn = quote('Dienst "süß" 100%.a/b', safe="")
    status = {"runId": RUN, "pipelineState": "running", "timestamp": 1, "metadata": {"n": "ü"}}
    progress = {"runId": RUN, "done": "ü" * 100_000}
    sent = [
        ("PUT", f"{ROOT}/{fqn}/pipelineStatus", status, f"/{RUN}"),
        ("PUT", f"{ROOT}/progress/{fqn}/{RUN}", progress, ""),
        ("POST", f"{ROOT}/metrics/{fqn}/{RUN}", {"runId": RUN, "calls": 1}, ""),
    ]
    for method, path, value, where in sent:
        body = json.dumps(value).encode()
        assert MARK in world.ask(method, path, body, **JSON).headers
        until(lambda path=path, where=where: world.directly(path + where).status == 200)  # type: ignore[misc]
        (request,) = world.server.take()
        assert (request.method, request.path, request.body) == (method, path, body)
    assert world.directly(f"{ROOT}/{fqn}/pipelineStatus/{RUN}").value == status
    with world.open("GET", f"{ROOT}/progress/{fqn}/stream/{RUN}") as reply:
        assert next(events(reply)) == progress


def test_whoever_openmetadata_does_not_know_reaches_nothing(world: World) -> None:
    path = f"{ROOT}/logs/closed/{RUN}"
    assert world.append(path, "known\n").status == 200
    status, report = f"{ROOT}/closed/pipelineStatus", json.dumps({"runId": RUN}).encode()
    for token in ("", "Bearer of-nobody"):
        refused = [
            world.append(path, "unknown\n", Authorization=token),
            world.ask("POST", f"{path}/close", Authorization=token),
            world.ask("GET", path, Authorization=token),
            world.ask("GET", f"{ROOT}/logs/closed/stream/{RUN}", Authorization=token),
            world.ask("PUT", status, report, Authorization=token, **JSON),
        ]
        assert [reply.status for reply in refused] == [401] * 5
        # The client takes an error that mentions it, and is not ours, for success.
        assert [reply for reply in refused if b"code" in reply.body] == []
    assert world.server.take() == []
    page = world.directly(path).value
    assert (page["logs"], page["state"]) == ("known", "open")
    assert world.directly(f"{status}/{RUN}").status == 204


def test_a_body_may_be_as_large_as_tailrace_takes(world: World) -> None:
    path = f"{ROOT}/logs/large/{RUN}"
    text = (b"x" * 1023 + b"\n") * (LIMIT // 1024)
    assert world.ask("POST", path, text, **TEXT).status == 200
    assert world.ask("GET", f"{path}/download").body == text
    # nginx says so where it keeps a body or a reply in a file of its own first.
    assert "/logs/large/" not in world.log.read_text()
    refused = world.ask("POST", path, text + b"\n", **TEXT)
    assert (refused.status, refused.value["code"]) == (413, 413)


def test_a_viewer_that_leaves_ends_its_stream_at_tailrace(world: World) -> None:
    until(lambda: world.readers() == 0)
    with world.open("GET", f"{ROOT}/logs/left/stream/{RUN}"):
        until(lambda: world.readers() == 1)
    until(lambda: world.readers() == 0)


def test_without_tailrace_openmetadata_goes_on(service: ServiceProcess, tmp_path: Path) -> None:
    with proxied(service, free_port(), tmp_path) as world:
        for path in (f"{ROOT}/p/pipelineStatus", "/api/v1/tables"):
            assert MARK in world.ask("PUT", path, b"{}").headers
        assert len(world.server.take()) == 2
        lost = world.append(f"{ROOT}/logs/p/{RUN}", "a line\n")
        assert lost.status == 502
        assert b"code" not in lost.body
