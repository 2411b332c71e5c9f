"""Nodes with roles, as real processes: one that takes, and one that only reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.settings import load_settings
from tailrace.cli.main import main
from tailrace.logstore.errors import InvalidInput
from tests.e2e.service_process import BASE, ServiceProcess
from tests.service.peers.test_over_http import LAZY, SECRET, events, lines, post


def node(folder: Path, name: str, role: str) -> ServiceProcess:
    return ServiceProcess(
        folder / name,
        store=folder / "store",
        TAILRACE_NODE_ID=name,
        TAILRACE_NODES__SECRET=SECRET,
        TAILRACE_SERVER__ROLE=role,
        **LAZY,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roles")


@pytest.fixture(scope="module")
def writer(folder: Path) -> Iterator[ServiceProcess]:
    yield from _running(node(folder, "w", "ingest"))


@pytest.fixture(scope="module")
def reader(folder: Path, writer: ServiceProcess) -> Iterator[ServiceProcess]:
    yield from _running(node(folder, "r", "query"))


def _running(service: ServiceProcess) -> Iterator[ServiceProcess]:
    service.start()
    try:
        yield service
    finally:
        with suppress(AssertionError):
            service.kill()


def found(service: ServiceProcess, fqn: str) -> httpx.Response:
    params = {"fqn": fqn, "from": "0", "format": "text", "order": "asc"}
    return httpx.get(f"{service.url}/query", params=params, timeout=30)


def test_a_node_that_only_reads_shows_what_the_others_have_just_taken(
    writer: ServiceProcess, reader: ServiceProcess
) -> None:
    path = f"{BASE}/svc.read/run"
    post(writer, path, "one\ntwo\n")
    assert lines(reader, path) == "one\ntwo"
    assert httpx.get(f"{reader.url}{path}/download", timeout=60).text == "one\ntwo\n"
    listed = httpx.get(f"{reader.url}{BASE}/svc.read", timeout=60).raise_for_status().json()
    assert (listed["runs"], "silent" in listed) == (["run"], False)
    assert found(reader, "svc.read").text == "one\ntwo\n"
    stream = events(reader, "svc.read", None)
    assert [next(stream)[1], next(stream)[1]] == ["one", "two"]
    post(writer, path, "three\n")
    assert next(stream)[1] == "three"
    assert httpx.post(f"{writer.url}{path}/close", timeout=60).json()["state"] == "closed"
    assert "three" not in [line for _, line in stream]  # it has ended, and nothing came twice
    assert lines(reader, path) == "one\ntwo\nthree"
    assert httpx.get(f"{reader.url}/health/ready", timeout=60).json() == {
        "status": "ready",
        "problems": [],
    }


def test_it_takes_nothing_and_has_no_journal(
    folder: Path, writer: ServiceProcess, reader: ServiceProcess
) -> None:
    path = f"{reader.url}{BASE}/svc.nothing/run"
    text = {"content-type": "text/plain"}
    status = f"{reader.url}{BASE.removesuffix('/logs')}/svc.nothing/pipelineStatus"
    for reply in (
        httpx.post(path, content="x\n", headers=text, timeout=60),
        httpx.post(
            path, content="x\n", headers={**text, "tailrace-durability": "fast"}, timeout=60
        ),
        httpx.post(f"{path}/close", timeout=60),
        httpx.delete(path, timeout=60),
        httpx.put(
            status, json={"runId": "run", "pipelineState": "success", "timestamp": 1}, timeout=60
        ),
    ):
        kind = reply.json()["type"].rpartition("/")[2]
        assert (reply.status_code, kind, "retry-after" in reply.headers) == (
            503,
            "other-role",
            True,
        )
    assert not (folder / "r" / "journal").exists()
    assert httpx.get(f"{writer.url}{BASE}/svc.nothing", timeout=60).status_code == 404
    metrics = httpx.get(f"{reader.url}/metrics", timeout=60).raise_for_status().text
    assert "tailrace_cluster_size 2" in metrics
    assert "tailrace_journal_bytes" not in metrics


def test_a_node_that_only_ingests_makes_no_searches(writer: ServiceProcess) -> None:
    post(writer, f"{BASE}/svc.ingest/run", "one\n")
    assert lines(writer, f"{BASE}/svc.ingest/run") == "one"
    for path in ("/query", "/query/stream", "/query/histogram"):
        reply = httpx.get(f"{writer.url}{path}", timeout=60)
        assert (reply.status_code, "all or query" in reply.json()["hint"]) == (503, True)


def test_it_hears_of_deletions_at_once(writer: ServiceProcess, reader: ServiceProcess) -> None:
    path = f"{BASE}/svc.deleted/run"
    post(writer, path, "gone\n")
    assert found(reader, "svc.deleted").text == "gone\n"
    assert httpx.delete(f"{writer.url}{path}", timeout=60).status_code == 200
    assert found(reader, "svc.deleted").text == ""
    assert httpx.get(f"{reader.url}{path}", timeout=60).status_code == 404


def test_operators_see_it_and_need_not_let_it_go(
    folder: Path,
    reader: ServiceProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert reader.running
    monkeypatch.setenv("TAILRACE_STORE", str(folder / "store"))
    assert main(["leases", "--json", "nodes"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    states = {row["state"]: row["node"] for row in rows}
    assert states.keys() == {"live", "reader"}
    assert main(["leases", "forget-node", states["reader"]]) == 1
    assert "three minutes" in capsys.readouterr().err


@pytest.mark.in_turn(3)
def test_nobody_misses_it_when_it_is_killed(writer: ServiceProcess, reader: ServiceProcess) -> None:
    path = f"{BASE}/svc.killed/run"
    post(writer, path, "one\n")
    assert lines(reader, path) == "one"
    reader.kill()
    page = httpx.get(f"{writer.url}{path}", timeout=60).json()
    assert (page["logs"], "silent" in page) == ("one", False)
    assert httpx.get(f"{writer.url}/health/ready", timeout=60).json()["problems"] == []
    assert httpx.post(f"{writer.url}{path}/close", timeout=60).json()["state"] == "closed"
    silent = httpx.delete(f"{writer.url}{path}", timeout=60)
    assert silent.status_code == 202  # it might live and show the lines: they are gone at its start
    reader.start()
    assert httpx.get(f"{reader.url}{path}", timeout=60).status_code == 404
    assert found(reader, "svc.killed").text == ""
    assert reader.stop() == 0
    assert httpx.delete(f"{writer.url}{path}", timeout=60).status_code == 200


def test_it_does_not_start_on_the_folder_of_a_node_with_a_journal(
    folder: Path, writer: ServiceProcess
) -> None:
    with pytest.raises(RuntimeError, match="holds the journal"):
        node(folder, "w", "query").start()


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"nodes": {"secret": SECRET}}, "store"), ({"store": "/store"}, "nodes.secret")],
)
def test_it_needs_the_store_of_others_and_a_way_to_them(
    settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        load_settings({"server": {"role": "query"}, **settings})
    assert error.value.field == field
