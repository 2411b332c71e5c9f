"""`tailrace run`: the client's command (tests/client/test_command.py) as a verb."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.programs import FQN, records, state_of
from tests.e2e.service_process import ServiceProcess


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    started = ServiceProcess(tmp_path / "node")
    started.start()
    yield started
    started.stop()


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailrace", "run", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.in_turn(3)
def test_a_commands_output_becomes_a_run(service: ServiceProcess, tmp_path: Path) -> None:
    where = ["--url", service.url, "--spool", str(tmp_path / "spool")]
    script = "echo out; echo err >&2; exit 3"
    done = _run(*where, "--fqn", FQN, "--run", "r", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    found = records(service.url, "r")
    streams = {(one["message"], one["attributes"].get("stream")) for one in found[:-1]}
    assert streams == {("out", "stdout"), ("err", "stderr")}
    assert found[-1]["attributes"] == {"exit_code": "3"}
    assert state_of(service.url, "r") == ("closed", "failed")
    killed = _run(*where, "--fqn", FQN, "--run", "k", "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == -9
    assert state_of(service.url, "k") == ("closed", "failed")


def test_what_cannot_be_is_said_with_status_2() -> None:
    wrong = _run("--url", "ftp://x", "--fqn", "F", "--", "true")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: 'ftp://x' is not an address\nhint: ")
    assert _run("--", "true").returncode == 2
