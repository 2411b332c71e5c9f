"""A run is deleted while a node stands still, and is written again: real nodes and real clients.

The deletion reaches eleven minutes ahead, because the silent node may hold such ids.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest

from logstore import ulid as ulids
from tailrace_client.ids import BatchIds
from tests.e2e.service_process import BASE, ServiceProcess
from tests.service.peers.processes import Nodes, running

FQN = "shop.orders"
AHEAD_MS = 11 * 60_000


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """`a`, and `b` that stands still."""
    folder = tmp_path_factory.mktemp("nodes")
    settings = {
        "TAILRACE_NODES__SECRET": "a secret that all nodes share",
        "TAILRACE_NODES__REFRESH_SECONDS": "0.2",
        "TAILRACE_NODES__TIMEOUT_SECONDS": "0.5",
    }
    a, b = [
        ServiceProcess(folder / name, store=folder / "store", **settings, TAILRACE_NODE_ID=name)
        for name in "ab"
    ]
    with running(a, b):
        os.kill(b.pid, signal.SIGSTOP)
        yield a, b


@pytest.fixture
def a(nodes: Nodes) -> ServiceProcess:
    """The node that answers."""
    return nodes[0]


@pytest.fixture
def run(request: pytest.FixtureRequest) -> str:
    """Each test has its own."""
    return str(request.node.name)


def post(service: ServiceProcess, run: str, text: str, batch: str | None = None) -> httpx.Response:
    headers = {"content-type": "text/plain"} | ({"tailrace-batch": batch} if batch else {})
    return httpx.post(f"{service.url}{BASE}/{FQN}/{run}", content=text, headers=headers, timeout=60)


def stored_id(reply: httpx.Response) -> int:
    """The batch's id. It must have been stored."""
    assert reply.status_code == 200, reply.text
    return ulids.decode(reply.json()["batch"])


def delete(service: ServiceProcess, run: str) -> None:
    """Deletes a run. The deletion must have met the silent node."""
    reply = httpx.delete(f"{service.url}{BASE}/{FQN}/{run}", timeout=60)
    assert reply.status_code == 202, reply.text


def found(service: ServiceProcess, run: str, **bounds: str) -> dict[str, dict[str, Any]]:
    """The records that a search finds, by message."""
    parameters = {"fqn": FQN, "run": run, "format": "ndjson", **bounds}
    reply = httpx.get(f"{service.url}/query", params=parameters, timeout=60)
    values = [json.loads(line) for line in reply.text.splitlines()]
    return {value["message"]: value for value in values if "ulid" in value}


def log_of(service: ServiceProcess, run: str) -> list[str]:
    """The lines of a run, in its order, as far as the node that answers has them."""
    url = f"{service.url}{BASE}/{FQN}/{run}/download"
    return httpx.get(url, timeout=60).raise_for_status().text.splitlines()


def ms_of(record: dict[str, Any]) -> int:
    return int(datetime.fromisoformat(record["ts"]).timestamp() * 1000)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_lines_of_the_run_and_of_others_are_found_and_have_the_time_at_which_they_came(
    a: ServiceProcess, run: str
) -> None:
    began = now_ms()
    stored_id(post(a, run, "before\n"))
    delete(a, run)
    deleted = now_ms()
    again = [stored_id(post(a, run, f"again {number}\n")) for number in range(3)]
    named = post(a, run, "named\n", BatchIds().mint())
    assert named.status_code == 409
    again.append(stored_id(post(a, run, "named\n", named.json()["next_batch"])))
    other = stored_id(post(a, f"{run}-other", "other\n"))

    assert again == sorted(again)
    assert ulids.time_ms(again[0]) > deleted + AHEAD_MS - 60_000
    assert ulids.time_ms(other) <= now_ms(), "a deletion moves no other run's ids"
    for bounds in ({}, {"to": "now"}, {"from": str(began), "to": "now"}):
        records = found(a, run, **bounds)
        assert sorted(records) == ["again 0", "again 1", "again 2", "named"]
        assert all(deleted - 1 <= ms_of(one) <= now_ms() for one in records.values())
        assert [*found(a, f"{run}-other", **bounds)] == ["other"]

    a.kill()
    a.start()
    late = stored_id(post(a, f"{run}-late", "late\n"))
    assert ulids.time_ms(late) <= now_ms(), "nor does it after a restart"
    assert stored_id(post(a, run, "last\n")) > again[-1]
    assert log_of(a, run) == ["again 0", "again 1", "again 2", "named", "last"]
    assert all(ms_of(one) <= now_ms() for one in found(a, run, to="now").values())


def test_the_refusal_says_up_to_which_id_and_when_it_was_deleted(
    a: ServiceProcess, run: str
) -> None:
    ids = BatchIds()
    old = ids.mint()
    stored_id(post(a, run, "before\n", old))
    before = now_ms()
    delete(a, run)
    after = now_ms()
    for batch in (old, ids.mint()):
        refused = post(a, run, "again\n", batch)
        problem = refused.json()
        assert (refused.status_code, problem["type"]) == (409, "run-deleted")
        assert ulids.time_ms(ulids.decode(problem["deleted_through"])) >= before + AHEAD_MS
        assert problem["next_batch"] > problem["deleted_through"] > batch
        assert before <= now_ms() - problem["deleted_ms_ago"]
        moment = datetime.fromisoformat(problem["deleted_at"]).timestamp() * 1000
        assert before <= moment <= after
