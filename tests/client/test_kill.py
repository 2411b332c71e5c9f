"""`kill -9` of the program and of the service: each record once, and each that was logged.

The program prints a record's number when the call that logged it has returned: from then on it
is in the spool, says the documentation of `write_through`.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tailrace_client import Handler
from tests.client.programs import (
    FQN,
    ROOT,
    finish,
    left_in,
    messages,
    run_program,
    start,
    state_of,
    until,
)
from tests.e2e.service_process import ServiceProcess
from tests.faults.kinds import KNOWABLE, Kind
from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy

COUNTING = """
first, last = int(sys.argv[4]), int(sys.argv[5])
made = handler(close_run=False, options=Options(linger_seconds=0.02, batch_bytes=2000))
for number in range(first, last):
    log.info("record %d", number)
    os.write(1, b"%d\\n" % number)
    if number % 50 == 0:
        time.sleep(0.01)
"""
DELIVERING = """
made = handler(outcome="success", options=Options(exit_seconds=60))
"""
ROUNDS = 5


def _killed(url: str, spool: Path, run: str, first: int, after: int) -> int:
    """Starts a program and kills it once it has logged so many; the number behind its last."""
    process = start(COUNTING, url, spool, run, str(first), str(first + 100_000))
    assert process.stdout is not None
    logged = first
    for line in process.stdout:
        logged = int(line) + 1
        if logged - first >= after:
            break
    process.send_signal(signal.SIGKILL)
    # What it wrote to the pipe before it died counts as well.
    for line in process.stdout:
        logged = int(line) + 1 if line.endswith("\n") else logged
    process.wait(timeout=60)
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()
    return logged


def _numbers(url: str, run: str) -> list[int]:
    found = messages(url, run)
    assert all(message.startswith("record ") for message in found)
    return [int(message.removeprefix("record ")) for message in found]


def test_a_program_is_killed_again_and_again_behind_a_bad_network(
    service: ServiceProcess, tmp_path: Path
) -> None:
    spool, dice = tmp_path / "spool", Random(15)
    kinds = [kind for kind in KNOWABLE if kind is not Kind.ERROR_IN_200]
    schedule = Schedule(15, evenly(0.3, kinds))
    expected: list[int] = []
    with fault_proxy(service.url, schedule) as url:
        for number in range(ROUNDS):
            first = number * 1_000_000
            behind = _killed(url, spool, "r", first, dice.randrange(200, 2000))
            expected += range(first, behind)
        schedule.calm()
        run_program(DELIVERING, url, spool, "r")
    stored = _numbers(service.url, "r")
    # One call may have been between its write and its return.
    may_be = {number + 1 for number in expected if number + 1 not in set(expected)}
    assert sorted(set(stored)) == sorted(stored)
    assert set(expected) <= set(stored) <= set(expected) | may_be
    assert stored == sorted(stored)
    assert sum(schedule.injected.values()) > 0
    assert left_in(spool) == []
    assert state_of(service.url, "r") == ("closed", "success")


@pytest.mark.in_turn(4)
def test_the_service_is_killed_while_a_program_logs(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "node")
    service.start()
    code = """
    made = handler(outcome="auto", options=Options(linger_seconds=0.02, exit_seconds=60))
    for number in range(2000):
        log.info("record %d", number)
        time.sleep(0.001)
    """
    process = start(code, service.url, tmp_path / "spool", "r")
    for _ in range(2):
        until(lambda: len(messages(service.url, "r")) > 0)
        service.kill()
        service.start()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert _numbers(service.url, "r") == list(range(2000))
    assert state_of(service.url, "r") == ("closed", "success")
    assert left_in(tmp_path / "spool") == []
    assert "no answer from" in errors
    service.stop()


FAILING = """
made = handler(outcome="auto", options=Options(exit_seconds=0.1))
for number in range(2000):
    log.info("record %d", number)
raise RuntimeError("the work failed")
"""


def _left_behind(url: str, spool: Path, run: str) -> None:
    errors = finish(start(FAILING, url, spool, run), status=1)[1]
    assert "2001 records could not be delivered in time" in errors
    assert f"python -m tailrace_client send {spool}" in errors
    # A thread's sentence may come between the pieces in which Python writes a traceback.
    assert "RuntimeError: the work failed" in re.sub("tailrace-client: .*\n", "", errors)


def _is_whole(url: str, run: str) -> None:
    found = messages(url, run)
    assert found[:-1] == [f"record {number}" for number in range(2000)]
    assert found[-1].startswith("unhandled exception\nTraceback")
    assert found[-1].endswith("RuntimeError: the work failed")
    assert state_of(url, run) == ("closed", "failed")


def test_what_was_left_when_the_service_was_away_is_delivered_later(
    service: ServiceProcess, tmp_path: Path
) -> None:
    spool, schedule = tmp_path / "spool", Schedule()
    with fault_proxy(service.url, schedule) as url:
        schedule.refuse(Kind.RESET)
        for run in ("by-hand", "by-another-program"):
            _left_behind(url, spool / run, run)
        schedule.relent()
        command = [sys.executable, "-m", "tailrace_client", "send", str(spool / "by-hand")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        assert "2001 records delivered" in done.stderr
        _is_whole(service.url, "by-hand")
        assert left_in(spool / "by-hand") == []
        other = Handler(url, FQN, "other", spool=str(spool / "by-another-program"))
        other.handle(logging.makeLogRecord({"msg": "begins", "levelno": logging.INFO}))
        until(lambda: left_in(spool / "by-another-program") == [])
        other.close()
    _is_whole(service.url, "by-another-program")
    assert messages(service.url, "other") == ["begins"]
