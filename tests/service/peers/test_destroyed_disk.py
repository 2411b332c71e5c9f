"""The disk of a real node is destroyed: what it had flushed or sent as `bulk` is behind every door.

That lines in a lost node's segments come into their run's log is in `test_promises.py`, in leaping
time: it takes until the node's lease is over.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.service_process import BASE, ServiceProcess
from tests.service.peers.processes import Nodes, running
from tests.service.peers.test_over_http import SECRET, lines, post

QUICK = {
    "TAILRACE_FLUSH__SEGMENT_SECONDS": "0.2",
    "TAILRACE_RUNS__PARTIAL_FLUSH_INTERVAL_MINUTES": "0.005",
    "TAILRACE_NODES__REFRESH_SECONDS": "0.2",
}
FQN = "svc.destroyed"
PATH = f"{BASE}/{FQN}/run"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Nodes]:
    names = {"TAILRACE_NODES__SECRET": SECRET, **QUICK}
    a, b = [
        ServiceProcess(tmp_path / name, store=tmp_path / "store", TAILRACE_NODE_ID=name, **names)
        for name in "ab"
    ]
    with running(a, b):
        yield a, b


@pytest.mark.in_turn(4)
def test_what_was_flushed_or_sent_as_bulk_is_behind_every_door(two: Nodes, tmp_path: Path) -> None:
    a, b = two
    post(b, PATH, "flushed\n")
    _until_flushed(tmp_path / "store")
    headers = {"content-type": "text/plain", "tailrace-durability": "bulk"}
    httpx.post(
        f"{b.url}{BASE}/{FQN}/bulk", content="bulk\n", headers=headers, timeout=60
    ).raise_for_status()
    b.kill()
    shutil.rmtree(b.data)

    _check_doors(a)
    page = httpx.get(f"{a.url}{PATH}", timeout=30).json()
    assert [name.partition("-")[0] for name in page["silent"]] == ["b"]
    b.start()  # with an empty folder, so as somebody else
    for node in (b, a):
        _check_doors(node)


def _check_doors(node: ServiceProcess) -> None:
    assert lines(node, PATH) == "flushed"
    assert httpx.get(f"{node.url}{PATH}/download", timeout=30).text == "flushed\n"
    assert _events(node, f"{BASE}/{FQN}/stream/run?format=text&after=0", 1) == ["flushed"]
    assert "run" in _json(node, f"{BASE}/{FQN}")["runs"]
    assert sorted(_searched(node)) == ["bulk", "flushed"]
    found = _events(node, f"/query/stream?window=0&from=0&fqn={FQN}", 2)
    assert sorted(json.loads(each)["message"] for each in found) == ["bulk", "flushed"]
    assert sorted(_queued(node)) == ["bulk", "flushed"]


def _until_flushed(store: Path) -> None:
    while not [path for path in store.rglob("partial.txt") if path.stat().st_size]:
        time.sleep(0.02)


def _json(node: ServiceProcess, path: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{node.url}{path}", timeout=30).raise_for_status().json()
    return found


def _searched(node: ServiceProcess) -> list[str]:
    parameters = {"format": "ndjson", "fqn": FQN, "from": "0"}
    reply = httpx.get(f"{node.url}/query", params=parameters, timeout=30)
    rows = [json.loads(line) for line in reply.raise_for_status().text.splitlines()]
    return [row["message"] for row in rows if "message" in row]


def _events(node: ServiceProcess, path: str, count: int) -> list[str]:
    """The data of the first events without a name."""
    found: list[str] = []
    name = ""
    with httpx.stream("GET", f"{node.url}{path}", timeout=30) as reply:
        for line in reply.iter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data" and name in ("", "logs"):
                found.append(value)
                if len(found) == count:
                    break
            elif not line:
                name = ""
    return found


def _queued(node: ServiceProcess) -> list[str]:
    """The messages of all segments, to a group of this call's own."""
    group = {"group": f"g{time.monotonic_ns()}", "wait": "0"}
    found: list[str] = []
    while True:
        lease = httpx.post(f"{node.url}/segments/next", params=group, timeout=30)
        if lease.status_code == 204:
            return found
        segment = lease.raise_for_status().json()
        where = f"{node.url}/segments/{segment['id']}"
        body = httpx.get(where, params={"format": "ndjson"}, timeout=30).raise_for_status().text
        found += [json.loads(line)["message"] for line in body.splitlines()]
        done = {"group": group["group"], "epoch": f"{segment['epoch']}"}
        httpx.post(f"{where}/commit", params=done, timeout=30).raise_for_status()
