"""The routes between nodes as real processes have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.e2e.service_process import BASE, ServiceProcess

SECRET = "a secret that all nodes share"
PATH = f"{BASE}/svc.p/run"
LAZY = {"TAILRACE_FLUSH__SEGMENT_SECONDS": "3600", "TAILRACE_NODES__REFRESH_SECONDS": "0.2"}


def node(tmp_path: Path, name: str, secret: str = SECRET) -> ServiceProcess:
    return ServiceProcess(
        tmp_path / name,
        store=tmp_path / "store",
        TAILRACE_NODE_ID=name,
        TAILRACE_NODES__SECRET=secret,
        **LAZY,
    )


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    nodes = node(tmp_path, "a"), node(tmp_path, "b")
    try:
        for one in nodes:
            one.start()
        yield nodes
    finally:
        for one in nodes:
            with suppress(AssertionError):
                one.kill()


def post(service: ServiceProcess, text: str, batch: str | None = None) -> None:
    headers = {"content-type": "text/plain"} | ({"tailrace-batch": batch} if batch else {})
    httpx.post(f"{service.url}{PATH}", content=text, headers=headers).raise_for_status()


def lines(service: ServiceProcess, **params: str) -> str:
    return str(httpx.get(f"{service.url}{PATH}", params=params).raise_for_status().json()["logs"])


def test_each_reads_what_the_other_has_just_taken(
    two: tuple[ServiceProcess, ServiceProcess],
) -> None:
    a, b = two
    post(a, "one\n")
    post(b, "two\n")
    big = "".join(f"{n} {'x' * 200}\n" for n in range(20_000))  # beyond what comes at once
    post(b, big)
    for service in two:
        whole = httpx.get(f"{service.url}{PATH}/download").raise_for_status().text
        assert sorted(whole.splitlines()) == sorted(["one", "two", *big.splitlines()])
    records = httpx.get(f"{a.url}{PATH}", params={"format": "ndjson", "tail": "2"}).text
    assert records.count('"message"') == 2


def test_who_is_killed_is_silent_and_is_read_again_when_it_returns(
    two: tuple[ServiceProcess, ServiceProcess],
) -> None:
    a, b = two
    post(b, "two\n")
    assert lines(a) == "two"
    b.kill()
    post(a, "one\n")
    assert lines(a) == "one"
    said = httpx.get(f"{a.url}/health/ready").text
    assert "is silent" in said
    b.start()
    assert sorted(lines(b).splitlines()) == ["one", "two"]


@pytest.mark.parametrize("secret", ["x", "another secret, as long"])
def test_a_question_without_the_secret_is_refused(
    two: tuple[ServiceProcess, ServiceProcess], secret: str
) -> None:
    headers = {"authorization": f"Bearer {secret}", "tailrace-instance": "x"}
    for verb in ("hot", "hello", "nothing"):
        reply = httpx.post(f"{two[0].url}/internal/{verb}", headers=headers)
        assert reply.status_code == 401
        assert SECRET not in reply.text


def test_a_node_without_a_secret_has_no_such_routes(tmp_path: Path) -> None:
    alone = node(tmp_path, "alone", secret="")
    alone.start()
    try:
        assert httpx.post(f"{alone.url}/internal/hello").status_code == 404
        assert not (tmp_path / "store" / "coordination" / "peers").exists()
    finally:
        alone.stop()


def test_a_stop_that_has_stored_everything_leaves_the_register(
    two: tuple[ServiceProcess, ServiceProcess], tmp_path: Path
) -> None:
    a, b = two
    post(b, "two\n")
    assert b.stop() == 0
    entries = [path.name for path in (tmp_path / "store" / "coordination" / "peers").iterdir()]
    assert len(entries) == 1
    assert entries[0].startswith("a-")
    assert lines(a) == "two"
