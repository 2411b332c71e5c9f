"""What comes of asking a node: every outcome is in replies, readiness, log and metrics."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.e2e.service_process import BASE, ServiceProcess
from tests.service.peers.processes import Nodes, running
from tests.service.peers.test_over_http import lines, post
from tests.waiting import PATIENCE_SECONDS

MOVE_BETWEEN_NODES = {
    *("tailrace_node_questions", "tailrace_node_refusals", "tailrace_nodes_unheard"),
    "tailrace_lines_taken_back",
}
OLD = "the secret of all nodes until now"
NEW = "the secret of all nodes from now on"
LAZY = {"TAILRACE_FLUSH__SEGMENT_SECONDS": "3600", "TAILRACE_NODES__REFRESH_SECONDS": "0.5"}


def node(folder: Path, name: str, secret: str, previous: str = "") -> ServiceProcess:
    return ServiceProcess(
        folder / name,
        store=folder / "store",
        TAILRACE_NODE_ID=name,
        TAILRACE_NODES__SECRET=secret,
        TAILRACE_NODES__PREVIOUS_SECRET=previous,
        **LAZY,
    )


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Nodes]:
    """Two nodes with different secrets."""
    nodes = node(tmp_path, "a", OLD), node(tmp_path, "b", NEW)
    with running(*nodes):
        yield nodes


def problems(service: ServiceProcess) -> list[str]:
    reply = httpx.get(f"{service.url}/health/ready", timeout=60).raise_for_status()
    return list(reply.json()["problems"])


def samples(service: ServiceProcess, name: str) -> dict[str, float]:
    """The values of a metric by its labels, as the text has them."""
    text = httpx.get(f"{service.url}/metrics", timeout=60).raise_for_status().text
    found = re.findall(rf"^tailrace_{name}(?:_total)?(\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def says(service: ServiceProcess, *words: str) -> bool:
    """Whether one of the node's problems has all the words."""
    return any(all(word in problem for word in words) for problem in problems(service))


def told(one: ServiceProcess, said: str) -> list[str]:
    """The lines of the log that name a problem of the node; a refused request names it, too."""
    return [
        line for line in one.output().splitlines() if " service.main: " in line and said in line
    ]


@pytest.mark.in_turn(3)
def test_another_secret_is_reported_at_both_nodes_though_nobody_reads(apart: Nodes) -> None:
    for one, other in (apart, apart[::-1]):
        name = f"the node {other.data.name}-"
        refused_there = (name, "refuses this node", "nodes.secret")
        refused_here = (name, "asks this node with another nodes.secret", "is refused")
        wait_for(lambda: says(one, *refused_there) and says(one, *refused_here))  # noqa: B023
        for said in ("refuses this node, whose", "asks this node with another"):
            wait_for(lambda: bool(told(one, said)))  # noqa: B023
        assert samples(one, "node_questions")['{outcome="wrong-secret"}'] > 0
        assert samples(one, "node_refusals")['{reason="wrong-secret"}'] > 0
        assert samples(one, "nodes_unheard") == {"": 1.0}
    a, b = apart
    run = f"{BASE}/svc.apart/run"
    post(a, run, "one\n")
    post(b, run, "two\n")
    page = httpx.get(f"{a.url}{run}", timeout=60).json()
    assert [name.partition("-")[0] for name in page["silent"]] == ["b"]
    assert httpx.delete(f"{a.url}{run}", timeout=60).status_code == 202
    for one in apart:
        for said in ("refuses this node, whose", "asks this node with another"):
            assert len(told(one, said)) == 1, "it has lasted all the time"


@pytest.mark.in_turn(4)
def test_a_secret_is_replaced_while_nodes_hear_each_other(tmp_path: Path) -> None:
    """Each node is started again with both secrets, then each with the new one alone."""
    folder, run = tmp_path, f"{BASE}/svc.rotated/run"
    with ExitStack() as ends:
        nodes = {name: node(folder, name, OLD) for name in "ab"}
        ends.enter_context(running(*nodes.values()))
        for previous in (OLD, ""):
            for name in "ab":
                nodes[name].stop()
                ends.enter_context(running(made := node(folder, name, NEW, previous)))
                nodes[name] = made
                a, b = nodes.values()
                post(made, run, f"{name} {previous}\n")
                page = httpx.get(f"{a.url}{run}", timeout=60).json()
                assert "silent" not in page
                assert sorted(lines(a, run).splitlines()) == sorted(lines(b, run).splitlines())
                for one in (a, b):
                    assert problems(one) == []
                    assert '{outcome="wrong-secret"}' not in samples(one, "node_questions")
        for one in nodes.values():
            assert "another nodes.secret" not in one.output()


@pytest.mark.in_turn(4)
def test_a_frozen_node_is_reported_though_nobody_reads_and_until_it_answers(
    tmp_path: Path,
) -> None:
    a, b = node(tmp_path, "a", OLD), node(tmp_path, "b", OLD)
    with running(a, b), ExitStack() as thaw:
        wait_for(lambda: '{outcome="answered"}' in samples(a, "node_questions"))
        os.kill(b.pid, signal.SIGSTOP)
        thaw.callback(os.kill, b.pid, signal.SIGCONT)
        wait_for(lambda: says(a, "the node b-", "is silent: it gives no answer in time"))
        assert samples(a, "node_questions")['{outcome="timed-out"}'] > 0
        wait_for(lambda: "it gives no answer in time" in a.output())
        thaw.close()
        wait_for(lambda: problems(a) == [])
        wait_for(lambda: "over: the node b-" in a.output())
        assert samples(a, "nodes_unheard") == {"": 0.0}
        b.kill()
        wait_for(lambda: says(a, "the node b-", "is silent: it cannot be reached"))
