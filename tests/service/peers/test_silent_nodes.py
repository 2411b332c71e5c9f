"""Nodes that are stopped by a signal, killed for good, let go, and come back: real processes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.cli.main import main
from tests.e2e.service_process import BASE, ServiceProcess
from tests.service.peers.processes import Nodes
from tests.service.peers.test_following import Following
from tests.service.peers.test_over_http import SECRET, lines, post

PATIENT = {"TAILRACE_FLUSH__SEGMENT_SECONDS": "3600", "TAILRACE_COORDINATION__LEASE_SECONDS": "15"}
"""Nothing leaves the journals; the register is read as often as it is by default."""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Nodes]:
    made = [
        ServiceProcess(
            tmp_path / name,
            store=tmp_path / "store",
            TAILRACE_NODE_ID=name,
            TAILRACE_NODES__SECRET=SECRET,
            **PATIENT,
        )
        for name in "ab"
    ]
    try:
        for one in made:
            one.start()
        yield made[0], made[1]
    finally:
        for one in made:
            if one.running:
                os.kill(one.pid, signal.SIGCONT)
            with suppress(AssertionError):
                one.kill()


@pytest.fixture
def leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    monkeypatch.setenv("TAILRACE_STORE", str(tmp_path / "store"))

    def report(*words: str) -> tuple[int, list[dict[str, Any]], str]:
        status = main(["leases", "--json", *words])
        said = capsys.readouterr()
        return status, [json.loads(line) for line in said.out.splitlines()], said.err

    return report


@pytest.mark.in_turn(4)
def test_a_node_is_stopped_and_later_killed_for_good_let_go_and_returns(
    two: Nodes, leases: Any
) -> None:
    a, b = two
    gone, kept, closed = (f"{BASE}/svc.silent/{run}" for run in ("gone", "kept", "closed"))
    for path in (gone, kept, closed):
        post(b, path, "one\n")
    post(a, closed, "two\n")
    followed = f"{BASE}/svc.followed/run"
    search = Following(a, "svc.followed", None)
    post(b, followed, "before\n")
    assert search.next() == "before"

    # Stopped for longer than a deletion waits, and for less than three looks at the register.
    os.kill(b.pid, signal.SIGSTOP)
    reply = httpx.delete(f"{a.url}{gone}", timeout=30)
    post(a, followed, "meanwhile\n")
    assert sorted([search.next(), search.next()]) == ["meanwhile", "silent"]
    assert [name.partition("-")[0] for name in search.silent] == ["b"]
    os.kill(b.pid, signal.SIGCONT)
    assert found(b) == {"kept", "closed"}
    assert reply.status_code == 202
    (silent,) = reply.json()["silent"]
    assert silent.startswith("b-")
    assert lines(b, gone) == ""
    assert lines(b, kept) == "one"
    post(b, followed, "afterwards\n")
    assert sorted([search.next(), search.next()]) == ["afterwards", "silent"]
    assert search.silent == []
    search.close()

    (there,) = [row["node"] for row in leases("nodes")[1] if row["node"].startswith("b-")]
    status, _, said = leases("forget-node", there)
    assert (status, "lives" in said) == (1, True)
    while not _marked(b, {"kept", "closed"}):  # behind the acknowledgement
        time.sleep(0.2)

    b.kill()
    page = httpx.get(f"{a.url}{closed}", params={"limit": 5}, timeout=60).json()
    assert (page["logs"], page["silent"]) == ("two", [there])
    assert httpx.get(f"{a.url}{kept}", timeout=60).json()["silent"] == [there]
    for path in (closed, kept):  # of which `a` has a line, and none
        records = httpx.get(f"{a.url}{path}", params={"format": "ndjson"}, timeout=60)
        stats = json.loads(records.text.splitlines()[-1])["stats"]
        assert (records.status_code, stats["complete"], stats["silent"]) == (206, False, [there])
    _lists_and_downloads_name(a, there)
    assert httpx.post(f"{a.url}{closed}/close", timeout=60).json()["state"] == "closing"
    rows = _until_over(leases, there)
    assert rows[0]["state"] == "forgotten"
    assert {run["run"] for run in rows[0]["runs"]} >= {"kept", "closed"}
    assert rows[0]["stored_pos"] == 0
    status, _, said = leases("forget-node", there)
    assert (status, "a-" in said) == (1, True)  # which nodes there are
    reply = httpx.delete(f"{a.url}{BASE}/svc.silent/nothing", timeout=30)
    assert reply.status_code == 200
    assert httpx.get(f"{a.url}/health/ready", timeout=60).json().get("problems", []) == []
    listed = httpx.get(f"{a.url}{BASE}/svc.silent", timeout=60).json()
    assert (listed["runs"], "silent" in listed) == (["closed"], False)

    b.start()
    assert lines(b, kept) == lines(a, kept) == "one"
    states = {row["state"]: row["node"] for row in leases("nodes")[1] if row["node"] == there}
    assert states.keys() >= {"returned"}
    assert "was let go" in b.output()


def _lists_and_downloads_name(service: ServiceProcess, node: str) -> None:
    def get(path: str) -> httpx.Response:
        return httpx.get(f"{service.url}{BASE}{path}", timeout=60)

    for path in ("", "/svc.silent", "/svc.nobody.knows"):
        assert get(path).raise_for_status().json()["silent"] == [node]
    assert get("/svc.silent").json()["runs"] == ["closed"]
    for path in ("/svc.silent/last", "/svc.silent/last/download", "/svc.silent/closed/download"):
        reply = get(path).raise_for_status()
        assert (reply.headers["tailrace-silent"], "two" in reply.text) == (node, True)
    assert get("/svc.nobody.knows/last").headers["tailrace-silent"] == node
    for path in ("/svc.silent/kept/download", "/svc.nobody.knows/last/download"):
        reply = get(path)  # which only the silent node might have
        assert (reply.status_code, node in reply.json()["detail"]) == (503, True)


def _marked(service: ServiceProcess, runs: set[str]) -> bool:
    store = Path(service.settings["TAILRACE_STORE"])
    marks = (store / "pipeline-logs" / ".active" / "svc.silent").glob("*/b-*")
    return runs <= {mark.parent.name for mark in marks}


def found(service: ServiceProcess) -> set[str]:
    """The runs of which a search finds lines."""
    params = {"fqn": "svc.silent", "from": "0", "format": "ndjson"}
    reply = httpx.get(f"{service.url}/query", params=params, timeout=30)
    rows = [json.loads(line) for line in reply.text.splitlines()]
    return {row["run_id"] for row in rows if "run_id" in row}


def _until_over(leases: Any, node: str) -> list[dict[str, Any]]:
    """What `forget-node` says once the lease of the node is over."""
    deadline = time.monotonic() + 120
    while True:
        status, rows, said = leases("forget-node", node)
        if status == 0:
            return list(rows)
        assert "lives" in said
        assert time.monotonic() < deadline
        time.sleep(0.5)
