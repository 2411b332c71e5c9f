"""What a web page can make a browser send, against the service as it is installed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.service_process import BASE, ServiceProcess

RUN = f"{BASE}/p/r"
FOREIGN = [
    *("evil.example", "evil.example:8790", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("127.0.0.1@evil.example", "evil.example#localhost", "intranet", "evil.local", ""),
]
OURS = ["localhost", "LOCALHOST:1", "a.localhost", "127.0.0.1", "10.1.2.3:80", "[::1]:8790"]
CHANGES = [
    ("POST", RUN),
    ("POST", f"{RUN}/close"),
    ("DELETE", RUN),
    ("DELETE", f"{BASE}/p"),
    ("POST", "/segments/next?group=theirs"),
    ("GET", "/segments/next?group=theirs"),
    ("GET", "/segments/n%65xt?group=theirs"),
    ("POST", "/segments/groups/ours/reset?to=now"),
    ("DELETE", "/segments/groups/ours"),
    ("POST", "/leases/reset?source=s&key=k"),
    ("POST", "/verify?repair=true"),
    ("PUT", "/api/v1/services/ingestionPipelines/p/pipelineStatus"),
]
PAGES = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:1"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    {"sec-fetch-site": "same-site", "origin": "http://localhost:1"},
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """With a run whose appends take the fast path, and a consumer group."""
    running = ServiceProcess(tmp_path_factory.mktemp("browsers") / "node")
    running.start()
    with httpx.Client(base_url=running.url, timeout=120) as client:
        assert append(client, b"mine\n", {}).status_code == 200
        assert client.post("/segments/next?group=ours").status_code in (200, 204)
        yield running
    assert running.stop() == 0
    assert "Traceback" not in running.output()


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=60) as client:
        before = stored(client)
        yield client
        assert stored(client) == before, "a refused request changed something"


def append(client: httpx.Client, text: bytes, headers: dict[str, str]) -> httpx.Response:
    return client.post(RUN, content=text, headers={"content-type": "text/plain", **headers})


def stored(client: httpx.Client) -> tuple[str, str, list[str]]:
    """The run's text and state, and the names of all groups."""
    page = client.get(RUN).json()
    groups = client.get("/segments/groups").json()["groups"]
    return client.get(f"{RUN}/download").text, page["state"], [g["group"] for g in groups]


@pytest.mark.parametrize("host", FOREIGN)
def test_a_name_that_is_not_ours_is_served_nothing(client: httpx.Client, host: str) -> None:
    reads = [("GET", RUN), ("GET", "/query"), ("GET", "/metrics"), ("GET", "/docs")]
    for method, path in [*reads, *CHANGES]:
        answer = client.request(method, path, headers={"host": host})
        assert answer.status_code == 421, (method, path)
        assert answer.json()["type"] == "misdirected-request"
        assert "server.allowed_hosts" in answer.json()["hint"]
        assert "mine" not in answer.text


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_another_origin_changes_nothing(
    client: httpx.Client, page: dict[str, str]
) -> None:
    for method, path in CHANGES:
        if method == "GET" and set(page) == {"origin"}:
            continue  # the older browsers that this stands for send none with a GET
        answer = client.request(method, path, headers=page)
        assert (answer.status_code, answer.json()["type"]) == (403, "cross-origin"), (method, path)


def test_an_older_browsers_get_leases_nothing(client: httpx.Client) -> None:
    answer = client.get(
        "/segments/next?group=theirs", headers={"referer": "http://evil.example/page"}
    )
    assert answer.status_code == 403


def test_a_page_of_another_origin_may_link_here_but_not_load_from_here(
    client: httpx.Client,
) -> None:
    visit = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/docs", headers={**visit, "sec-fetch-dest": "document"}).status_code == 200
    assert client.get("/docs", headers={**visit, "sec-fetch-dest": "iframe"}).status_code == 403
    image = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert client.get("/query", headers=image).status_code == 403


def test_our_names_and_our_own_pages_are_served(service: ServiceProcess) -> None:
    """Also by the fast path: the same `Host` twice, the second time it is known."""
    sent = []
    with httpx.Client(base_url=service.url, timeout=60) as client:
        before = stored(client)[0]
        own = {"origin": service.url, "sec-fetch-site": "same-origin"}
        names = [{"host": host} for host in [*OURS, *OURS, socket.gethostname()]]
        for number, headers in enumerate([*names, {"origin": service.url}, own, {}]):
            text = f"{number} {headers}\n"
            assert append(client, text.encode(), headers).status_code == 200, headers
            sent.append(text)
        assert stored(client)[0] == before + "".join(sent)


def test_a_request_without_host_comes_from_no_browser(service: ServiceProcess) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        connection.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert connection.makefile("rb").readline().split()[1] == b"200"


@pytest.mark.in_turn(3)
def test_the_operator_adds_names_and_origins(tmp_path: Path) -> None:
    added = {
        "TAILRACE_SERVER__ALLOWED_HOSTS": "logs.example.com, .inside.example",
        "TAILRACE_SERVER__ALLOWED_ORIGINS": "https://logs.example.com",
    }
    service = ServiceProcess(tmp_path / "node", store=None, **added)
    service.start()
    try:
        with httpx.Client(base_url=service.url, timeout=60) as client:
            page = {"origin": "https://logs.example.com", "sec-fetch-site": "cross-site"}
            taken = [{"host": "logs.example.com:80"}, {"host": "a.b.inside.example"}, page]
            refused = [{"host": "example.com"}, {"host": "xinside.example"}, PAGES[0]]
            assert [append(client, b"y\n", h).status_code for h in taken] == [200] * 3
            assert [append(client, b"n\n", h).status_code for h in refused] == [421, 421, 403]
            assert client.get(f"{RUN}/download").text == "y\n" * 3
        assert service.output().count("refused a request for the host 'example.com'") == 1
    finally:
        service.stop()
