"""A run is closed only when every node has closed it: real processes, every way to read."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path
from tests.e2e.doors import HEARTBEATS, Statement, disagreements, look
from tests.e2e.service_process import BASE, ServiceProcess
from tests.service.peers.processes import running
from tests.service.peers.test_over_http import SECRET
from tests.waiting import PATIENCE_SECONDS, until

LINES = 20
STREAM = "live stream"
SETTINGS = {
    "TAILRACE_NODES__SECRET": SECRET,
    "TAILRACE_NODES__REFRESH_SECONDS": "0.5",
    "TAILRACE_RUNS__CLOSE_WAIT_SECONDS": "2",
    "TAILRACE_RUNS__PARTIAL_FLUSH_INTERVAL_MINUTES": "60",
    "TAILRACE_OPENMETADATA__FINISH_GRACE_SECONDS": "0",
    **HEARTBEATS,
}


@dataclass(frozen=True)
class Three:
    """Two nodes that take lines, and one that only reads."""

    a: ServiceProcess
    b: ServiceProcess
    reader: ServiceProcess


@pytest.fixture
def three(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Three]:
    lease_seconds: str = getattr(request, "param", "60")

    def node(name: str, role: str = "all") -> ServiceProcess:
        settings = SETTINGS | {
            "TAILRACE_NODE_ID": name,
            "TAILRACE_SERVER__ROLE": role,
            "TAILRACE_COORDINATION__LEASE_SECONDS": lease_seconds,
        }
        return ServiceProcess(tmp_path / name, store=tmp_path / "store", **settings)

    made = Three(node("a"), node("b"), node("r", "query"))
    with running(made.a, made.b, made.reader):
        yield made


def write(service: ServiceProcess, key: RunKey, name: str, durability: str = "bulk") -> None:
    """Lines; `bulk` ones are in a segment of the store, and in no chunk."""
    headers = {"content-type": "text/plain", "tailrace-durability": durability}
    text = "".join([f"{name} {number}\n" for number in range(LINES)])
    url = f"{service.url}{run_path(key)}"
    httpx.post(url, content=text, headers=headers, timeout=60).raise_for_status()


def close(service: ServiceProcess, key: RunKey) -> str:
    reply = httpx.post(f"{service.url}{run_path(key, verb='close')}", timeout=60)
    return str(reply.raise_for_status().json()["state"])


def close_at_last(service: ServiceProcess, key: RunKey) -> None:
    """Asks until it is closed; each time the node waits for a while before it answers."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while close(service, key) != "closed":
        assert time.monotonic() < deadline


def agreed(service: ServiceProcess, key: RunKey, lines: int = 2 * LINES) -> list[Statement]:
    """What all ways to read the run say; they say one thing."""
    said = look(service.url, key)
    assert disagreements(said, lines) == []
    return said


def check_it_goes_on(service: ServiceProcess, key: RunKey, silent: str) -> None:
    """Nobody says that the run has ended, and everybody names the node that is silent."""
    said = agreed(service, key)
    assert not [one.door for one in said if one.ended]
    assert {one.state for one in said if one.state is not None} == {"closing"}
    (named,) = {one.silent for one in said if one.silent is not None}
    assert [name.partition("-")[0] for name in named] == [silent]


def check_it_has_ended(service: ServiceProcess, key: RunKey, lines: int = 2 * LINES) -> None:
    said = agreed(service, key, lines)
    assert [one.door for one in said if one.ended is False] == []
    assert {one.lines for one in said if one.lines is not None} == {lines}


@pytest.mark.in_turn(4)
def test_a_run_is_closing_at_every_node_while_one_is_killed(three: Three) -> None:
    a, b, reader = three.a, three.b, three.reader
    key = RunKey("svc.killed", "run")
    write(a, key, "a")
    write(b, key, "b")
    a.kill()
    assert close(b, key) == "closing"
    for service in (b, reader):
        check_it_goes_on(service, key, "a")
    found = [one.lines for one in look(b.url, key) if one.door == "search"]
    assert found == [2 * LINES]  # those of the killed node are in a segment and in no chunk
    b.kill()
    b.start()  # while it is closing
    check_it_goes_on(b, key, "a")
    # The node's lease runs out; another one brings what it stored into the run.
    close_at_last(b, key)
    for service in (b, reader):
        check_it_has_ended(service, key)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("three", ["600"], indirect=True)
def test_a_reported_end_completes_no_stream_while_a_node_is_frozen(three: Three) -> None:
    """The client has reported the end: the run is open, and lines of the frozen node may follow."""
    a, b, reader = three.a, three.b, three.reader
    key = RunKey("svc.reported", "run")
    write(a, key, "a", durability="durable")
    write(b, key, "b", durability="durable")
    reported = f"{b.url}{BASE.removesuffix('/logs')}/{key.fqn}/pipelineStatus"
    with ExitStack() as thaw:
        os.kill(a.pid, signal.SIGSTOP)
        thaw.callback(os.kill, a.pid, signal.SIGCONT)
        status = {"runId": key.run, "pipelineState": "success", "timestamp": 1}
        httpx.put(reported, json=status, timeout=60).raise_for_status()
        for service in (b, reader):
            assert [one.ended for one in look(service.url, key) if one.door == STREAM] == [False]

    def streamed() -> list[tuple[bool | None, int | None]]:
        found = [one for service in (a, b, reader) for one in look(service.url, key)]
        return [(one.ended, one.lines) for one in found if one.door == STREAM]

    deadline = time.monotonic() + PATIENCE_SECONDS
    while streamed() != [(True, 2 * LINES)] * 3:
        assert time.monotonic() < deadline


# The lease of the frozen node outlasts the reads: nobody takes over its lines between two of them.
@pytest.mark.in_turn(4)
@pytest.mark.parametrize("three", ["600"], indirect=True)
def test_a_run_is_closing_at_every_node_while_one_is_frozen(three: Three) -> None:
    a, b, reader = three.a, three.b, three.reader
    key = RunKey("svc.frozen", "run")
    write(a, key, "a")
    write(b, key, "b")
    with ExitStack() as thaw:
        os.kill(a.pid, signal.SIGSTOP)
        thaw.callback(os.kill, a.pid, signal.SIGCONT)
        assert close(b, key) == "closing"
        for service in (b, reader):
            check_it_goes_on(service, key, "a")
    close_at_last(b, key)
    for service in (a, b, reader):
        check_it_has_ended(service, key)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("three", ["600"], indirect=True)
def test_a_closed_run_is_open_while_a_silent_node_holds_lines_from_after_the_close(
    three: Three, tmp_path: Path
) -> None:
    a, b, reader = three.a, three.b, three.reader
    key = RunKey("svc.late", "run")
    write(a, key, "a")
    write(b, key, "b")
    close_at_last(a, key)
    marker = tmp_path / "store" / keys.active_nodes(keys.PREFIX, key)
    asyncio.run(until(lambda: not marker.exists() or not list(marker.iterdir())))
    write(b, key, "late", durability="durable")
    asyncio.run(until(lambda: marker.exists() and bool(list(marker.iterdir()))))
    b.kill()
    for service in (a, reader):
        said = look(service.url, key)
        assert disagreements(said) == []
        assert not [one.door for one in said if one.ended]
        assert {one.state for one in said if one.state is not None} == {"open"}
        (named,) = {one.silent for one in said if one.silent is not None}
        assert [name.partition("-")[0] for name in named] == ["b"]
    b.start()
    close_at_last(a, key)
    for service in (a, b, reader):
        check_it_has_ended(service, key, 3 * LINES)
