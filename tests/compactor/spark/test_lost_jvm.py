"""Spark's JVM is killed or frozen under a compactor that stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.compactor.lake import HOUR, NOON, Batch, Lake, batch, merging
from tests.compactor.spark.executors import commands_below, first_of, until

JOB = str(Path(__file__).parents[3] / "compactor" / "job.py")
FROZEN_SECONDS = 8  # an idle JVM uses some of a processor in each
JVM = b"org.apache.spark.deploy.SparkSubmit"

STARTS_TWICE = """
import os, signal
from pyspark import SparkContext
from compactor.spark.session import Session
from tailrace.logstore.errors import Unavailable
SparkContext._ensure_initialized()
os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
session = Session("1g")
try:
    session.get()
except Unavailable as error:
    print(error)
print(session.cores() > 0)
session.stop()
"""

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def resident(lake: Lake, log: Path) -> Iterator[subprocess.Popen[str]]:
    settings = {"DRIVER_MEMORY": "1g", "POLL_SECONDS": "1", "GATHER_SECONDS": "0"}
    settings["FROZEN_SECONDS"] = f"{FROZEN_SECONDS}"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, JOB, "--data", str(lake.data), "--every", "1s"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={
                **os.environ,
                **{f"TAILRACE_COMPACTION__{name}": value for name, value in settings.items()},
                "TEST_FOLDER": str(lake.data),
            },
        )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=300)


def new(lake: Lake, again: int) -> list[Batch]:
    batches = [batch("f", f"r{i}", NOON + again + i * HOUR, 20_000) for i in range(2)]
    lake.put("a", batches)
    return batches


def takes_in(process: subprocess.Popen[str], rows: int) -> None:
    assert process.stdout is not None
    found = 0
    while found < rows:
        line = process.stdout.readline()
        assert line, "it ended"
        found += orjson.loads(line)["rows_out"]
    assert found == rows


def kill_jvm(lake: Lake, number: signal.Signals = signal.SIGKILL) -> None:
    jvms = {pid: words for pid, words in commands_below(lake.data) if JVM in words}
    [found] = first_of(jvms)
    os.kill(found, number)


def starting(lake: Lake) -> bool:
    return any(JVM in words for _, words in commands_below(lake.data))


@pytest.mark.in_turn(4, "a lost JVM")
def test_another_is_started(lake: Lake, resident: subprocess.Popen[str], log: Path) -> None:
    sent = new(lake, 0)
    takes_in(resident, 40_000)
    kill_jvm(lake)  # idle
    sent += new(lake, 1)
    until(lambda: merging(lake))
    kill_jvm(lake)  # at work
    takes_in(resident, 40_000)
    lake.holds(sent)
    said = log.read_text()
    assert "Spark ended; starting it again" in said
    assert "this pass failed, and the next one tries again: Spark failed: " in said
    assert "Traceback" not in said


@pytest.mark.in_turn(4, "a frozen JVM")
def test_one_that_is_frozen_is_replaced(
    lake: Lake, resident: subprocess.Popen[str], log: Path
) -> None:
    """At its start, idle and at work; at the end it does not hold up the stop."""
    sent = new(lake, 0)
    until(lambda: starting(lake))
    kill_jvm(lake, signal.SIGSTOP)
    takes_in(resident, 40_000)
    kill_jvm(lake, signal.SIGSTOP)  # idle
    sent += new(lake, 1)
    takes_in(resident, 40_000)
    sent += new(lake, 2)
    until(lambda: merging(lake))
    kill_jvm(lake, signal.SIGSTOP)  # at work
    takes_in(resident, 40_000)
    kill_jvm(lake, signal.SIGSTOP)
    resident.terminate()
    resident.communicate(timeout=300)
    assert resident.returncode == 0
    until(lambda: list(commands_below(lake.data)) == [])
    lake.holds(sent)
    said = log.read_text()
    # On a busy machine the merge may be over when its JVM is frozen, and only the stop kills it.
    assert said.count("Spark's JVM has used no processor time for ") >= 3
    assert "Traceback" not in said


@pytest.mark.in_turn(4, "dies before spark")
def test_one_that_dies_before_spark_is_there() -> None:
    root = str(Path(JOB).parents[1])
    said = subprocess.check_output([sys.executable, "-c", STARTS_TWICE], cwd=root, text=True)
    failure, works = said.splitlines()
    assert failure.startswith("Spark does not start: ")
    assert works == "True"
