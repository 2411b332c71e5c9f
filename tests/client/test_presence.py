"""A run exists when it starts, and is lost when its client has died: real clients, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tailrace_client as client
from tailrace_client import system
from tailrace_client.presence import Presence
from tailrace_client.service import Service
from tests.client.programs import FQN, ROOT, left_in, messages, start, until
from tests.e2e.service_process import BASE, ServiceProcess

TEXT = {"content-type": "text/plain"}
STATUS = f"{BASE.removesuffix('/logs')}/{FQN}/pipelineStatus"


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service for which a client is lost after three seconds."""
    data = tmp_path_factory.mktemp("brief") / "node"
    service = ServiceProcess(data, TAILRACE_RUNS__LOST_MINUTES="0.05")
    service.start()
    yield service
    service.stop()


def _command(url: str, spool: Path, run: str, *words: str) -> subprocess.Popen[bytes]:
    options = ["--fqn", FQN, "--run", run, "--spool", str(spool), "--exit-seconds", "60"]
    return subprocess.Popen(
        [sys.executable, "-m", "tailrace_client", "run", "--url", url, *options, "--", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _listed(url: str, run: str) -> dict[str, Any]:
    answer = httpx.get(f"{url}{BASE}/{FQN}", params={"name": run}, timeout=60)
    if answer.status_code == 404:
        return {}
    rows = [row for row in answer.json()["details"] if row["runId"] == run]
    return dict(rows[0]) if rows else {}


def _status(url: str, run: str) -> dict[str, Any]:
    answer = httpx.get(f"{url}{STATUS}/{run}", timeout=60)
    return dict(answer.json()) if answer.status_code == 200 else {}


def test_a_silent_command_is_a_run_at_once_and_took_what_its_client_says(
    brief: ServiceProcess, tmp_path: Path
) -> None:
    process = _command(brief.url, tmp_path, "silent", "cat")
    until(lambda: _listed(brief.url, "silent").get("reported") == "running")
    row = _listed(brief.url, "silent")
    assert (row["state"], row["lines"], row["first"]) == ("open", 0, None)
    page = httpx.get(f"{brief.url}{BASE}/{FQN}/silent", timeout=60)
    assert (page.status_code, page.json()["logs"]) == (200, "")
    out, errors = process.communicate(b"at last\n", timeout=120)
    assert (process.returncode, out, errors) == (0, b"at last\n", b"")
    row = _listed(brief.url, "silent")
    assert (row["outcome"], row["reported"]) == ("succeeded", "success")
    assert row["tookFrom"] == "reported"
    assert row["took"] == row["ended"] - row["started"] > row["last"] - row["first"]
    assert left_in(tmp_path) == []


def test_a_killed_client_is_lost_a_silent_one_is_not_and_lines_undo_it(
    brief: ServiceProcess, tmp_path: Path
) -> None:
    url = brief.url
    killed, alive = (_command(url, tmp_path, run, "cat") for run in ("killed", "alive"))
    for run in ("killed", "alive"):
        until(lambda run=run: _listed(url, run).get("reported") == "running")  # type: ignore[misc]
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    until(
        lambda: (
            (_listed(url, "killed")["outcome"], _listed(url, "alive")["outcome"]) == ("lost", None)
        )
    )
    httpx.post(f"{url}{BASE}/{FQN}/killed", content=b"not dead\n", headers=TEXT, timeout=60)
    assert _listed(url, "killed")["outcome"] is None
    until(lambda: _listed(url, "killed")["outcome"] == "lost")
    alive.communicate(b"", timeout=120)
    assert _listed(url, "alive")["outcome"] == "succeeded"


@pytest.mark.in_turn(4)
def test_a_start_that_the_service_missed_is_reported_later_before_the_lines(
    tmp_path: Path,
) -> None:
    service, spool = ServiceProcess(tmp_path / "node"), tmp_path / "spool"
    service.start()
    service.kill()
    patient, killed = (
        _command(service.url, spool, run, "sh", "-c", "echo one; cat") for run in ("late", "dead")
    )
    until(lambda: len([name for name in left_in(spool) if name.endswith(".batch")]) == 2)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    before = system.now_ms()
    service.start()
    until(lambda: _listed(service.url, "late").get("lines") == 1)
    status = _status(service.url, "late")
    assert (status["pipelineState"], status["heartbeat"]) == ("running", True)
    assert status["startDate"] < before
    patient.communicate(b"", timeout=120)
    assert _listed(service.url, "late")["started"] == status["startDate"]
    send = [sys.executable, "-m", "tailrace_client", "send", str(spool)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    subprocess.run(send, env=environment, check=True, capture_output=True, timeout=120)
    assert messages(service.url, "dead") == ["one"]
    assert _status(service.url, "dead")["pipelineState"] == "running"
    assert _status(service.url, "dead")["startDate"] < before
    assert left_in(spool) == []
    service.stop()


def test_a_run_reports_its_start_before_the_first_line(service: ServiceProcess) -> None:
    with client.Run(service.url, FQN, "with") as run:
        until(lambda: _listed(service.url, "with").get("reported") == "running")
        assert _listed(service.url, "with")["lines"] == 0
        run.append("one\n")
    row = _listed(service.url, "with")
    assert (row["outcome"], row["tookFrom"]) == ("succeeded", "reported")
    bare = client.Run(service.url, FQN, "bare")
    bare.append("one\n")
    assert _status(service.url, "bare")["pipelineState"] == "running"
    bare.close(None)
    row = _listed(service.url, "bare")
    assert (row["outcome"], row["reported"], row["tookFrom"]) == ("unknown", None, "reported")
    with client.Run(service.url, FQN, "unreported", report=False) as run:
        run.append("one\n")
    assert _status(service.url, "unreported") == {}


def test_a_silent_program_with_a_handler_is_a_run(service: ServiceProcess, tmp_path: Path) -> None:
    code = "made = handler()\nthreading.Event().wait()"
    process = start(code, service.url, tmp_path / "spool", "handled")
    until(lambda: _listed(service.url, "handled").get("reported") == "running")
    process.kill()
    process.communicate(timeout=60)


def _put(url: str, status: dict[str, Any]) -> None:
    assert httpx.put(f"{url}{STATUS}", json=status, timeout=60).status_code == 200


@pytest.mark.parametrize(
    ("theirs", "taken"),
    [
        ({}, True),
        ({"pipelineState": "success", "timestamp": 1}, True),
        ({"pipelineState": "failed", "timestamp": 5}, False),
        ({"pipelineState": "running", "startDate": 1, "connector": "theirs"}, False),
        ({"pipelineState": "running", "startDate": 1, "heartbeat": True}, True),
        ({"pipelineState": "running", "startDate": 4, "heartbeat": True}, False),
        ({"pipelineState": None, "endDate": 1}, True),
    ],
)
def test_a_report_does_not_take_the_place_of_another_clients(
    service: ServiceProcess, theirs: dict[str, Any], taken: bool
) -> None:
    run = f"shared-{json.dumps(theirs)}"
    if theirs:
        _put(service.url, {"runId": run, **theirs})
    assert Presence(Service(service.url), FQN, run, 3).report()
    found = _status(service.url, run.replace("%", "%25"))
    assert (found.get("startDate") == 3) is taken
    assert found.get("connector") == theirs.get("connector")


def test_a_deleted_run_begins_again_with_its_next_lines(service: ServiceProcess) -> None:
    presence = Presence(Service(service.url), FQN, "deleted", system.now_ms())
    assert presence.report()
    assert _listed(service.url, "deleted")["reported"] == "running"
    httpx.delete(f"{service.url}{BASE}/{FQN}/deleted", timeout=60).raise_for_status()
    assert presence.report()
    assert _listed(service.url, "deleted") == {}
    presence.lines_delivered()
    assert presence.report()
    assert _listed(service.url, "deleted")["reported"] == "running"
