"""A run is deleted while a node is dead, and is written again: real nodes and real clients.

The deletion reaches eleven minutes ahead, because the silent node may hold such ids.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.logstore import ulid as ulids
from tailrace_client import Run, RunDeleted, system
from tailrace_client.records import BatchIds
from tests.client.programs import left_in, until
from tests.e2e.service_process import BASE, ServiceProcess
from tests.forwarder.forwarder_process import ForwarderProcess
from tests.nodes.torture.clock import AHEAD
from tests.servers.ports import free_port
from tests.service.peers.processes import Nodes, running

FQN = "shop.orders"
AHEAD_MS = 11 * 60_000


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """`a`, and `b` that was killed and has not lost its lease."""
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
        b.kill()
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
    replies: list[httpx.Response] = []

    def answers() -> bool:
        replies.append(httpx.get(url, timeout=60))
        return replies[-1].status_code in (200, 206, 404)

    until(answers)
    return replies[-1].text.splitlines() if replies[-1].status_code != 404 else []


def ms_of(record: dict[str, Any]) -> int:
    return int(datetime.fromisoformat(record["ts"]).timestamp() * 1000)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.in_turn(3)
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


class Command:
    """`tailrace run` of a program that prints what it reads, with a clock that is behind."""

    def __init__(self, url: str, run: str, spool: Path, behind_ms: int) -> None:
        words = ("--url", url, "--fqn", FQN, "--run", run, "--spool", str(spool))
        program = [sys.executable, "-m", "tests.nodes.torture.clock", "run", *words]
        clock = {**os.environ, AHEAD: f"{-behind_ms}", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [*program, "--exit-seconds", "60", "--", "cat"],
            env=clock,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def write(self, line: str) -> None:
        """Returns when the line is passed on."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{line}\n"

    def end(self) -> str:
        """What it said. Its status must be that of the command."""
        _, said = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, said
        return said


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("behind_ms", [0, 90_000])
def test_a_command_keeps_all_lines_from_after_the_deletion_and_none_from_before(
    a: ServiceProcess, run: str, tmp_path: Path, behind_ms: int
) -> None:
    command = Command(a.url, run, tmp_path, behind_ms)
    before = [f"before {number}" for number in range(5)]
    for line in before:
        command.write(line)
    until(lambda: log_of(a, run) == before)
    delete(a, run)
    after = [f"after {number}" for number in range(20)]
    for line in after:
        command.write(line)
    command.end()
    assert log_of(a, run) == [*after, "cat exited with 0"]
    assert left_in(tmp_path) == []


def test_lines_that_wait_in_the_spool_are_told_apart_also_after_a_kill(
    a: ServiceProcess, run: str, tmp_path: Path
) -> None:
    """One batch has lines from before and after it, and the client is killed in between."""
    stored_id(post(a, run, "stored\n"))
    away = f"http://127.0.0.1:{free_port()}"
    spool = tmp_path / "spool"
    first = Command(away, run, spool, 60_000)

    def write(line: str) -> None:
        """Returns when the line is in the spool: it is passed on before that."""
        first.write(line)
        until(lambda: any(line.encode() in path.read_bytes() for path in spool.glob("*/*.batch")))

    write("before")
    delete(a, run)
    write("after 1")
    write("after 2")
    first.process.kill()
    first.process.communicate()
    for target in spool.glob("*/target.json"):
        target.write_text(target.read_text().replace(away, a.url))
    second = Command(a.url, run, spool, 60_000)
    second.write("after 3")
    said = second.end()
    assert log_of(a, run) == ["after 1", "after 2", "after 3", "cat exited with 0"]
    assert f"run {FQN}/{run} was deleted: 1 records from before that are dropped" in said
    assert left_in(spool) == []


def test_an_append_begins_a_deleted_run_again_unless_its_batch_is_of_an_earlier_call(
    a: ServiceProcess, run: str
) -> None:
    slow = BatchIds(now_ms=lambda: system.now_ms() - 70_000)
    with Run(a.url, FQN, run, ids=slow, report=False) as client:
        first = client.append("before\n")
        assert first is not None
        delete(a, run)
        for number in range(3):
            client.append(f"after {number}\n")
        with pytest.raises(RunDeleted) as refused:
            client.append("before\n", batch=first.batch)
    assert refused.value.next_batch is not None
    assert refused.value.moment_ms is not None
    assert log_of(a, run) == ["after 0", "after 1", "after 2"]


@pytest.mark.in_turn(3)
def test_a_forwarder_sends_what_it_read_after_the_deletion_also_after_a_kill(
    a: ServiceProcess, run: str, tmp_path: Path
) -> None:
    forwarder = ForwarderProcess(tmp_path, a.url, run=run)
    log = forwarder.logs / "a.log"

    def write(*lines: str) -> None:
        with log.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    write("before 1", "before 2")
    forwarder.start()
    forwarder.until(lambda: log_of(a, run) == ["before 1", "before 2"])
    delete(a, run)
    write("after 1", "after 2")
    forwarder.until(lambda: log_of(a, run) == ["after 1", "after 2"])
    forwarder.kill()
    write("after 3")
    forwarder.start()
    write("after 4")
    forwarder.until(lambda: log_of(a, run) == [f"after {number}" for number in range(1, 5)])
    assert forwarder.stop() == 0
